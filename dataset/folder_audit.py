"""What the structural audit asks of everything beside live shards: leftovers, pins, derived files."""

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from retold.dataset.checkpoint import (
    list_checkpoints,
    manifests_of_checkpoint_fit,
    read_checkpoint,
    rows_of_checkpoint_fit,
)
from retold.dataset.commit_files import commit_path, read_latest
from retold.dataset.files import list_names
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, find_link, path_inside
from retold.dataset.pins import read_pin
from retold.dataset.shard_files import ShardFiles, fetch_ahead
from retold.dataset.shard_place import list_shards
from retold.schemas.commit import ShardEntry
from retold.schemas.errors import RetoldError
from retold.schemas.findings import Finding

_FOLDERS = ("commits", "schemas", "shards", "tmp", "pins", "checkpoints")
_OLD_LATEST = re.compile(rb"[0-9]{1,9}\n")


def audit_folders(log: CommitLog) -> Iterator[Finding]:
    """Files that do not belong, that are missing, or that lead elsewhere."""
    for name in _FOLDERS:
        folder = log.path / name
        link = folder if folder.is_symlink() else find_link(folder) if folder.is_dir() else None
        if link is not None:
            yield Finding(
                where=str(link),
                what="this is a link to elsewhere, which no file of a dataset may be",
                todo="Replace it by what it leads to, if you made it.",
            )
            return
    yield from _audit_commits(log)
    yield from _audit_orphans(log)
    yield from _audit_latest(log)
    yield from _audit_pins(log)
    yield from _audit_checkpoints(log)


def _audit_commits(log: CommitLog) -> Iterator[Finding]:
    count = len(list(log.commits()))
    for name in list_names(log.path / "commits"):
        match = re.fullmatch(r"([0-9]{8})\.json", name)
        if match and int(match[1]) >= count:
            yield Finding(
                where=str(commit_path(log.path, count)),
                what=f"this commit is missing, but {name} is there, which came later",
                todo="Restore it from a copy of the dataset, or use `retold repair`.",
            )
            return
        if not match:
            yield _leftover(log.path / "commits" / name)


def _audit_orphans(log: CommitLog) -> Iterator[Finding]:
    """Shards that no commit ever named; those that one removed belong to older snapshots."""
    named = {entry.shard_id for commit in log.commits() for entry in commit.added}
    for place in list_shards(log.path):
        if place.partition("/")[2] not in named:
            yield Finding(
                where=str(log.path / f"shards/{place}"),
                what="no commit names this shard; it is not part of the dataset",
                todo="A killed writer left it, or one is at work; `retold gc` deletes it in time.",
                severity="warning",
            )
    for name in list_names(log.path / "tmp"):
        yield _leftover(log.path / "tmp" / name)


def _audit_latest(log: CommitLog) -> Iterator[Finding]:
    path = path_inside(log.path, "LATEST")
    if log.head() is None or read_latest(log.path, log.dataset_id) is not None:
        return
    content = path.read_bytes() if path.is_file() else b""
    if not _OLD_LATEST.fullmatch(content):
        yield Finding(
            where=str(path),
            what="this hint is missing or damaged; nothing is lost by it",
            todo="The next commit writes it.",
            severity="warning",
        )


def _audit_pins(log: CommitLog) -> Iterator[Finding]:
    for name in list_names(log.path / "pins"):
        path = log.path / "pins" / name
        if not name.endswith(".json"):
            continue
        try:
            read_pin(path)
        except RetoldError as error:
            yield Finding(
                where=str(path), what=str(error).rstrip("."), todo="`retold gc` waits until then."
            )


class _ShardTables:
    """Episode tables of shards that are there, for one checkpoint after the other.

    Checkpoints that follow each other share most of their shards, so each is read once.
    """

    def __init__(self, dataset: DatasetPath) -> None:
        self._dataset = dataset
        self._present = {place.partition("/")[2] for place in list_shards(dataset)}
        self._tables: dict[str, pa.Table | None] = {}

    def of(self, shards: Sequence[ShardEntry]) -> dict[str, pa.Table]:
        """Tables by shard id; without those that are gone, or damaged, which is their own finding."""
        present = [entry for entry in shards if entry.shard_id in self._present]
        files = [ShardFiles(self._dataset, e) for e in present if e.shard_id not in self._tables]
        fetch_ahead(files, ["episodes.parquet"])
        read = {shard.entry.shard_id: _table_of(shard) for shard in files}
        known = self._tables | read
        self._tables = {entry.shard_id: known[entry.shard_id] for entry in present}
        return {shard_id: table for shard_id, table in self._tables.items() if table is not None}


def _table_of(shard: ShardFiles) -> pa.Table | None:
    try:
        return shard.table
    except RetoldError:
        return None


def _audit_checkpoints(log: CommitLog) -> Iterator[Finding]:
    tables = _ShardTables(log.path)
    for number in list_checkpoints(log.path):
        path = log.path / "checkpoints" / f"{number:08d}"
        fault = _checkpoint_fault(log, number, tables)
        if fault is not None:
            yield Finding(
                where=f"{path}.json and {path}.parquet and {path}.files.parquet",
                what=f"{fault}; nothing is lost by it",
                todo="Delete all three; the dataset does without.",
                severity="warning",
            )


def _checkpoint_fault(log: CommitLog, number: int, tables: _ShardTables) -> str | None:
    try:
        checkpoint = read_checkpoint(log.path, number)
        if checkpoint.snapshot != log.snapshot(number):
            return "this checkpoint is of another commit"
        if checkpoint.shards != log.live_shards(number):
            return "this checkpoint has other shards than its commit"
        if checkpoint.ages not in (None, log.ages(number)):
            return "this checkpoint has other ages of shards than its commits"
        if not rows_of_checkpoint_fit(checkpoint, tables.of(checkpoint.shards)):
            return "its rows differ"
        if not manifests_of_checkpoint_fit(checkpoint):
            return "its table of files is missing, damaged or another one"
        return None
    except FileNotFoundError:
        return "a part of this checkpoint is missing"
    except RetoldError as error:
        return str(error).rstrip(".")


def _leftover(path: DatasetPath) -> Finding:
    return Finding(
        where=str(path),
        what="this is no part of the dataset",
        todo="A killed writer left it, or one is at work; `retold gc` deletes it in time.",
        severity="warning",
    )
