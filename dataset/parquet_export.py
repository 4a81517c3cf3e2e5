"""Writing a dataset as Parquet files that SQL engines and `datasets.load_dataset` read.

One row is a step, the final observation being one more row whose action, reward and flags are null;
or one row is an episode, whose columns are lists of the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.foreign_files import new_path, writing
from retold.dataset.parquet_columns import encode_rows, nest_columns
from retold.dataset.reader import DatasetReader
from retold.dataset.table import TABLE_SCHEMA
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode, EpisodeRecord

Rows = Literal["steps", "episodes"]

SCHEMA_KEY = b"retold_schema"
"""Where a file's metadata hold the dataset's schema, as in `schemas/`."""
FLAGS = ("terminated", "truncated", "environment_terminated", "reset")
RECORD_FIELDS = tuple(field.name for field in fields(EpisodeRecord))

_GROUP_BYTES = 32_000_000
_FILE_GROUPS = 16


def export_parquet(reader: DatasetReader, target: Path, rows: Rows) -> None:
    """Write a folder of files `train-00000.parquet` and so on; it appears whole.

    Raises:
        DatasetError: the target exists, or a file cannot be written.
    """
    metadata = {SCHEMA_KEY: reader.schema.encoded}
    with new_path(target) as folder, writing(target, "Parquet"):
        folder.mkdir()
        writer: pq.ParquetWriter | None = None
        for number, episodes in enumerate(_batches(reader)):
            table = _make_table(episodes, reader.schema, rows).replace_schema_metadata(metadata)
            if writer is None or number % _FILE_GROUPS == 0:
                if writer is not None:
                    writer.close()
                path = folder / f"train-{number // _FILE_GROUPS:05d}.parquet"
                writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=table.num_rows)
        if writer is not None:
            writer.close()


def _batches(reader: DatasetReader) -> Iterator[list[tuple[int, Episode]]]:
    """Episodes with their numbers, so many that a row group is worth it."""
    row_bytes = sum(leaf.row_bytes for leaf in reader.schema.leaves)
    batch: list[tuple[int, Episode]] = []
    size = 0
    for row in range(len(reader)):
        episode = reader.read_episode(row)
        batch.append((row, episode))
        size += (episode.length + 1) * row_bytes
        if size >= _GROUP_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _make_table(
    numbered: Sequence[tuple[int, Episode]], schema: DatasetSchema, rows: Rows
) -> pa.Table:
    episodes = [episode for _, episode in numbered]
    counts = np.array([episode.length + 1 for episode in episodes])
    per_step = _step_columns(episodes, schema)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    columns: dict[str, Any] = {"episode": pa.array([number for number, _ in numbered])}
    for name in RECORD_FIELDS:
        values = [getattr(episode.record, name) for episode in episodes]
        columns[name] = pa.array(values, TABLE_SCHEMA.field(name).type)
    if rows == "episodes":
        for name in ("terminated", "truncated", "environment_terminated"):
            per_step.pop(name)  # they stand in the record: true at the last transition alone
        columns |= {
            name: pa.ListArray.from_arrays(offsets, column) for name, column in per_step.items()
        }
        return pa.table(columns)
    repeat = pa.array(np.repeat(np.arange(len(episodes)), counts))
    steps = np.concatenate([np.arange(count) for count in counts])
    repeated = {name: column.take(repeat) for name, column in columns.items()}
    first = {name: repeated.pop(name) for name in ("episode_id", "episode")}
    return pa.table({**first, "step": steps, **repeated, **per_step})


def _step_columns(episodes: Sequence[Episode], schema: DatasetSchema) -> dict[str, Any]:
    """One Arrow array for each top-level field, `length + 1` rows an episode."""
    is_transition = np.concatenate(
        [np.arange(episode.length + 1) < episode.length for episode in episodes]
    )
    leaves = {
        leaf.path: encode_rows(np.concatenate([e.observation[leaf.path] for e in episodes]))
        for leaf in schema.observation_leaves
    }
    for leaf in schema.action_leaves:
        rows = np.concatenate([_with_final_row(e.action[leaf.path]) for e in episodes])
        leaves[leaf.path] = encode_rows(rows, is_transition)
    columns = {name: nest_columns(leaves, name) for name in ("observation", "action")}
    for name in ("reward", *FLAGS):
        rows = np.concatenate([_with_final_row(getattr(e, name)) for e in episodes])
        columns[name] = encode_rows(rows, is_transition)
    if any(task.vocabulary is not None for task in schema.tasks):
        columns["events"] = _encode_events(episodes)
    optional: dict[str, Any] = {}
    for leaf in schema.info_leaves:
        kind = object if leaf.is_ragged else leaf.dtype
        parts, masks = [], []
        for episode in episodes:
            empty = np.full((episode.length, *leaf.shape), "" if leaf.is_ragged else 0, kind)
            absent = np.zeros(episode.length, np.bool_)
            parts.append(_with_final_row(episode.info.get(leaf.path, empty)))
            masks.append(np.append(episode.info_present.get(leaf.path, absent), False))
        optional[leaf.path] = encode_rows(np.concatenate(parts), np.concatenate(masks))
    for name in dict.fromkeys(path.split("/")[0] for path in optional):
        columns[name] = nest_columns(optional, name)
    return columns


def _encode_events(episodes: Sequence[Episode]) -> Any:
    """Goal ids of each transition as a list."""
    counts = [np.bincount(e.event_step, minlength=e.length + 1) for e in episodes]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int32)
    goals = np.concatenate([episode.event_goal for episode in episodes])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(goals))


def _with_final_row(rows: Any) -> Any:
    final = np.full((1, *rows.shape[1:]), "" if rows.dtype == object else 0, rows.dtype)
    return np.concatenate([rows, final])
