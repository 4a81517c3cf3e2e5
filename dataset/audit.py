"""The structural audit: whether a dataset's bytes are what its log says. It never writes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retold.dataset.reader import DatasetReader
from retold.dataset.shard_reader import ShardReader
from retold.dataset.validation import find_faults
from retold.schemas.errors import RetoldError
from retold.schemas.findings import Finding

_RESTORE = "Restore it from a copy of the dataset"


def audit_structure(path: Path) -> list[Finding]:
    """Everything that is off with a dataset's files, at its head."""
    try:
        with DatasetReader.open(path) as reader:
            return [*_audit_shards(reader), *_audit_orphans(reader)]
    except RetoldError as error:
        return [Finding(where=str(path), what=str(error).rstrip("."), todo=f"{_RESTORE}.")]


def _audit_shards(reader: DatasetReader) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for entry in reader.shards:
        shard = reader.shard_reader(entry.shard_id)
        try:
            damaged = list(shard.damaged_files())
            for name, what in damaged:
                yield Finding(where=str(shard.path / name), what=what, todo=f"{_RESTORE}.")
            if damaged:
                continue
            for episode_id in shard.table["episode_id"].to_pylist():
                if episode_id in seen:
                    yield Finding(
                        where=f"{shard.path}: episode {episode_id}",
                        what=f"it is live twice, also in shard {seen[episode_id]}",
                        todo="Evict one of the two shards.",
                    )
                seen[episode_id] = entry.shard_id
            yield from _audit_episodes(reader, shard)
        except RetoldError as error:
            yield Finding(where=str(shard.path), what=str(error).rstrip("."), todo=f"{_RESTORE}.")


def _audit_episodes(reader: DatasetReader, shard: ShardReader) -> Iterator[Finding]:
    next_row, next_event = 0, 0
    for row in reader.shard_rows(shard.entry.shard_id):
        record = reader.record(row)
        where = f"{shard.path}: episode {record.episode_id} (row {row})"
        faults: list[str] = []
        try:
            episode = reader.read_episode(row)
            faults += find_faults(episode, shard.schema)
            if not record.is_variant:
                number = row - reader.shard_rows(shard.entry.shard_id).start
                if shard.offsets[number] != next_row:
                    faults.append(f"it starts at row {shard.offsets[number]}, not {next_row}")
                if shard.event_ranges[number, 0] != next_event:
                    faults.append(f"its events start at {shard.event_ranges[number, 0]}")
                next_row += record.length + 1
                next_event += len(episode.event_step)
                faults += _final_row_faults(shard, next_row - 1)
        except RetoldError as error:
            faults.append(str(error).rstrip("."))
        for fault in faults:
            yield Finding(where=where, what=fault, todo=f"{_RESTORE}, or collect it again.")


def _final_row_faults(shard: ShardReader, row: int) -> Iterator[str]:
    for leaf in shard.schema.leaves:
        if leaf.path.split("/")[0] == "observation" or leaf.is_ragged:
            continue
        if leaf.is_optional:
            is_zero = not any(map(np.any, shard.read_info(leaf.path, row, row + 1)))
        else:
            is_zero = not np.any(shard.read_rows(leaf.path, row, row + 1))
        if not is_zero:
            yield f"{leaf.path!r} is not zero in the row after the last transition"


def _audit_orphans(reader: DatasetReader) -> Iterator[Finding]:
    live = {entry.shard_id for entry in reader.shards}
    for folder in sorted((reader.path / "shards").glob("??/*")):
        if folder.name not in live:
            yield Finding(
                where=str(folder),
                what="no live commit names this shard; it is not part of the dataset",
                todo="Nothing reads it; it may be deleted once no writer is running.",
                severity="warning",
            )
