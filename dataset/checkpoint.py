"""Checkpoints of the log: the live shards and episode rows of one commit, so that opening is fast.

They are derived: `checkpoints/<number>.json` names the commit by its hash and the tables beside it by
theirs, and whatever does not fit is ignored.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.ages import Ages
from retold.dataset.commit_files import read_commit, read_latest
from retold.dataset.file_table import FILES_SCHEMA, pack_manifests, unpack_manifests
from retold.dataset.files import list_names, make_folder, replace_atomically
from retold.dataset.paths import DatasetPath, path_inside
from retold.dataset.shard_files import ShardFiles, fetch_ahead
from retold.dataset.table import TABLE_SCHEMA, read_table
from retold.schemas.canonical import is_sealed, require_count, require_hex, seal_json, sha256_hex
from retold.schemas.commit import Commit, ShardEntry, Snapshot
from retold.schemas.errors import FormatError, RetoldError
from retold.schemas.manifest import FORMAT_VERSION, Manifest, check_format_version

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 64
"""Commits from one checkpoint to the next."""
_MOST_TRIES = 4


@dataclass(frozen=True)
class Checkpoint:
    """The live shards of a commit, and their episodes' rows."""

    folder: DatasetPath
    snapshot: Snapshot
    shards: tuple[ShardEntry, ...]
    ages: Ages | None
    """Of the shards; the first checkpoints did not say."""
    table_sha256: str
    files_sha256: str | None
    """Of the table of the shards' files; the first checkpoints had none."""

    @cached_property
    def table(self) -> pa.Table:
        """The rows of all live episodes, in the order of the shards.

        Raises:
            FormatError: the table was changed.
        """
        path = path_inside(self.folder, f"{self.snapshot.number:08d}.parquet")
        table = _read_table(path, self.table_sha256, TABLE_SCHEMA)
        if table.num_rows != sum(entry.episodes for entry in self.shards):
            raise FormatError(
                f"{path}: this checkpoint has {table.num_rows} rows, not those of its shards. "
                f"Delete it; the dataset does without."
            )
        return table

    @cached_property
    def shard_tables(self) -> dict[str, pa.Table]:
        """The rows of each shard's episodes, by shard id."""
        tables, first = {}, 0
        for entry in self.shards:
            tables[entry.shard_id] = self.table.slice(first, entry.episodes)
            first += entry.episodes
        return tables

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """The shards' manifests by shard id, as far as the checkpoint has them.

        Whoever uses one compares its hash with the shard's; a damaged table has none.
        """
        if self.files_sha256 is None:
            return {}
        path = path_inside(self.folder, f"{self.snapshot.number:08d}.files.parquet")
        try:
            return unpack_manifests(_read_table(path, self.files_sha256, FILES_SCHEMA))
        except FormatError as error:
            logger.warning("%s", error)
            return {}


def _read_table(path: DatasetPath, sha256: str, schema: pa.Schema) -> pa.Table:
    try:
        content = path.read_bytes()
        if sha256_hex(content) != sha256:
            raise ValueError("its hash differs")
        return read_table(content, schema)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise FormatError(
            f"{path}: this checkpoint is damaged ({error}). Delete it; the dataset does without."
        ) from error


def _write_table(path: DatasetPath, table: pa.Table) -> str:
    """The hash of the file."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", write_statistics=False, store_schema=False)
    content = buffer.getvalue().to_pybytes()
    replace_atomically(path, content)
    return sha256_hex(content)


def find_checkpoint(dataset: DatasetPath, dataset_id: str) -> tuple[Checkpoint, Commit] | None:
    """The newest checkpoint that fits the log, and its commit; None if there is none."""
    latest = read_latest(dataset, dataset_id)
    newest = max(list_checkpoints(dataset), default=-1) if latest is None else latest
    number = (newest + 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY - 1
    for _ in range(_MOST_TRIES):
        if number < 0:
            break
        try:
            checkpoint = read_checkpoint(dataset, number)
            found = read_commit(dataset, number, dataset_id, "")
            if found is not None and found[1] == checkpoint.snapshot.sha256:
                return checkpoint, found[0]
        except FileNotFoundError:
            pass
        except RetoldError as error:
            logger.debug("%s", error)  # the audit tells; the log has all that is needed
        number -= CHECKPOINT_EVERY
    return None


def newer_checkpoint(
    dataset: DatasetPath, known: Checkpoint | None, snapshot: Snapshot
) -> Checkpoint | None:
    """The checkpoint of a snapshot, if somebody has written it; otherwise the known one."""
    if known is not None and known.snapshot.number >= snapshot.number:
        return known
    try:
        found = read_checkpoint(dataset, snapshot.number)
    except (FileNotFoundError, RetoldError) as error:
        logger.debug("%s", error)
        return known
    return found if found.snapshot == snapshot else known


def read_checkpoint(dataset: DatasetPath, number: int) -> Checkpoint:
    """The checkpoint of a commit; whether it fits the log is for the caller to see.

    Raises:
        FileNotFoundError: there is none.
        FormatError: it is damaged.
    """
    path = path_inside(dataset, "checkpoints", f"{number:08d}.json")
    try:
        encoded = path.read_bytes()
        content = json.loads(encoded)
        check_format_version(str(path), content["format_version"])
        if not is_sealed(encoded, require_hex(content["content_sha256"], 64)):
            raise ValueError("its seal is broken")
        snapshot = Snapshot.from_json(content["snapshot"])
        shards = tuple(ShardEntry.from_json(entry) for entry in content["shards"])
        if snapshot.number != number:
            raise ValueError(f"it is of commit {snapshot.number}")
        return Checkpoint(
            folder=path.parent,
            snapshot=snapshot,
            shards=shards,
            ages=_decode_ages(shards, content["ages"]) if "ages" in content else None,
            table_sha256=require_hex(content["table_sha256"], 64),
            files_sha256=require_hex(content["files_sha256"], 64)
            if "files_sha256" in content
            else None,
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path}: this checkpoint is damaged ({error}). Delete it; the dataset does without."
        ) from error


def _decode_ages(shards: Sequence[ShardEntry], content: Any) -> Ages:
    return {
        entry.shard_id: (require_count(number), require_count(place))
        for entry, (number, place) in zip(shards, content, strict=True)
    }


def write_checkpoint(
    dataset: DatasetPath,
    snapshot: Snapshot,
    shards: Sequence[ShardEntry],
    ages: Ages,
    previous: Checkpoint | None = None,
) -> None:
    """Write the checkpoint of a commit; what the previous one has is not read again.

    Raises:
        FormatError: a shard's table is damaged; no checkpoint is written.
    """
    known: dict[str, Any] = {}
    manifests: dict[str, Manifest] = {}
    if previous is not None:
        try:
            known = previous.shard_tables
        except FormatError as error:
            logger.warning("%s", error)
        manifests |= previous.manifests
    files = [ShardFiles(dataset, entry) for entry in shards]
    fetch_ahead([f for f in files if f.entry.shard_id not in known], ["episodes.parquet"])
    tables = []
    for shard in files:
        table = known.get(shard.entry.shard_id)
        tables.append(shard.table if table is None else table)
        if shard.entry.shard_id not in manifests:
            manifests[shard.entry.shard_id] = shard.manifest
    folder = path_inside(dataset, "checkpoints")
    make_folder(folder)
    stem = f"{snapshot.number:08d}"
    table = pa.concat_tables(tables) if tables else TABLE_SCHEMA.empty_table()
    content = {
        "format_version": FORMAT_VERSION,
        "snapshot": snapshot.to_json(),
        "shards": [entry.to_json() for entry in shards],
        "ages": [ages[entry.shard_id] for entry in shards],
        "table_sha256": _write_table(path_inside(folder, f"{stem}.parquet"), table),
        "files_sha256": _write_table(
            path_inside(folder, f"{stem}.files.parquet"),
            pack_manifests({entry.shard_id: manifests[entry.shard_id] for entry in shards}),
        ),
    }
    replace_atomically(path_inside(folder, f"{stem}.json"), seal_json(content))


def rows_of_checkpoint_fit(checkpoint: Checkpoint, tables: Mapping[str, pa.Table]) -> bool:
    """Whether the rows of a checkpoint are those of its shards.

    Args:
        checkpoint: whose rows.
        tables: episode tables by shard id; shards without one are not looked at.
    """
    return all(
        tables[entry.shard_id].equals(checkpoint.shard_tables[entry.shard_id])
        for entry in checkpoint.shards
        if entry.shard_id in tables
    )


def manifests_of_checkpoint_fit(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has no table of files, or the manifests that its shards' hashes name."""
    return checkpoint.files_sha256 is None or all(
        entry.shard_id in checkpoint.manifests
        and checkpoint.manifests[entry.shard_id].sha256 == entry.sha256
        for entry in checkpoint.shards
    )


def list_checkpoints(dataset: DatasetPath) -> list[int]:
    """Numbers of the commits that have a checkpoint, or a part of one."""
    names = list_names(path_inside(dataset, "checkpoints"))
    found = {
        int(m[1])
        for name in names
        if (m := re.fullmatch(r"([0-9]{8})\.(json|parquet|files\.parquet)", name))
    }
    return sorted(found)
