"""Checkpoints of the log: the live shards and episode rows of one commit, so that opening is fast.

They are derived: `checkpoints/<number>.json` names the commit by its hash and the table beside it by
its own, and whatever does not fit is ignored.
"""

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.commit_files import read_commit, read_latest
from retold.dataset.files import list_names, make_folder, replace_atomically
from retold.dataset.paths import DatasetPath, path_inside
from retold.dataset.shard_files import ShardFiles
from retold.dataset.table import TABLE_SCHEMA
from retold.schemas.canonical import is_sealed, require_hex, seal_json, sha256_hex
from retold.schemas.commit import Commit, ShardEntry, Snapshot
from retold.schemas.errors import FormatError, RetoldError
from retold.schemas.manifest import FORMAT_VERSION, check_format_version

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
    table_sha256: str

    @cached_property
    def table(self) -> pa.Table:
        """The rows of all live episodes, in the order of the shards.

        Raises:
            FormatError: the table was changed.
        """
        path = path_inside(self.folder, f"{self.snapshot.number:08d}.parquet")
        try:
            content = path.read_bytes()
            if sha256_hex(content) != self.table_sha256:
                raise ValueError("its hash differs")
            table = pq.read_table(pa.BufferReader(content), schema=TABLE_SCHEMA)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise FormatError(
                f"{path}: this checkpoint is damaged ({error}). Delete it; the dataset does without."
            ) from error
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
        if snapshot.number != number:
            raise ValueError(f"it is of commit {snapshot.number}")
        return Checkpoint(
            folder=path.parent,
            snapshot=snapshot,
            shards=tuple(ShardEntry.from_json(entry) for entry in content["shards"]),
            table_sha256=require_hex(content["table_sha256"], 64),
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path}: this checkpoint is damaged ({error}). Delete it; the dataset does without."
        ) from error


def write_checkpoint(
    dataset: DatasetPath,
    snapshot: Snapshot,
    shards: Sequence[ShardEntry],
    previous: Checkpoint | None = None,
) -> None:
    """Write the checkpoint of a commit; rows that the previous one has are not read again.

    Raises:
        FormatError: a shard's table is damaged; no checkpoint is written.
    """
    known: dict[str, Any] = {}
    if previous is not None:
        try:
            known = previous.shard_tables
        except FormatError as error:
            logger.warning("%s", error)
    tables = [
        known[entry.shard_id] if entry.shard_id in known else ShardFiles(dataset, entry).table
        for entry in shards
    ]
    buffer = pa.BufferOutputStream()
    table = pa.concat_tables(tables) if tables else TABLE_SCHEMA.empty_table()
    pq.write_table(table, buffer, compression="zstd", write_statistics=False, store_schema=False)
    rows = buffer.getvalue().to_pybytes()
    content = {
        "format_version": FORMAT_VERSION,
        "snapshot": snapshot.to_json(),
        "shards": [entry.to_json() for entry in shards],
        "table_sha256": sha256_hex(rows),
    }
    folder = path_inside(dataset, "checkpoints")
    make_folder(folder)
    replace_atomically(path_inside(folder, f"{snapshot.number:08d}.parquet"), rows)
    replace_atomically(path_inside(folder, f"{snapshot.number:08d}.json"), seal_json(content))


def shards_of_checkpoint_fit(checkpoint: Checkpoint, dataset: DatasetPath) -> bool:
    """Whether the rows of a checkpoint are those of the shards that are still there."""
    for entry in checkpoint.shards:
        files = ShardFiles(dataset, entry)
        if not files.path.is_dir():
            continue
        try:
            table = files.table
        except RetoldError:  # the shard's own finding
            continue
        if not table.equals(checkpoint.shard_tables[entry.shard_id]):
            return False
    return True


def list_checkpoints(dataset: DatasetPath) -> list[int]:
    """Numbers of the commits that have a checkpoint, or a part of one."""
    names = list_names(path_inside(dataset, "checkpoints"))
    found = {
        int(m[1]) for name in names if (m := re.fullmatch(r"([0-9]{8})\.(json|parquet)", name))
    }
    return sorted(found)
