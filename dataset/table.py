"""The episode table of a shard as Parquet: one row an episode, equal bytes for equal content."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retold.schemas.episode import EpisodeRecord

_STEPS = pa.list_(pa.uint32())
TABLE_SCHEMA = pa.schema(
    [
        ("episode_id", pa.string()),
        ("task", pa.uint16()),
        ("length", pa.uint32()),
        ("episode_return", pa.float64()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("environment_terminated", pa.bool_()),
        ("success", pa.bool_()),
        ("instruction", _STEPS),
        ("completed", _STEPS),
        ("initial_goals", _STEPS),
        ("run_seed", pa.int64()),
        ("index", pa.int64()),
        ("seed", pa.int64()),
        ("policy", pa.string()),
        ("policy_update", pa.int64()),
        ("exploration", pa.string()),
        ("metadata", pa.string()),
        ("source_dataset_id", pa.string()),
        ("source_episode_id", pa.string()),
        ("strategy", pa.string()),
        ("relabel_seed", pa.int64()),
        ("variant", pa.uint32()),
        ("offset", pa.uint64()),
        ("event_offset", pa.uint64()),
        ("event_count", pa.uint32()),
        ("goal_row", pa.uint32()),
    ]
)
"""`offset` is the episode's first row in every time array; it and the two after it are null for
variants, but for those with rewards of their own (`goal_row`). Tables written before a column was
added lack it: then it is null in every row."""

ADDED_COLUMNS = frozenset({"goal_row"})
"""Columns that a table may lack, since format 1 got them later."""

_RECORD_FIELDS = tuple(field.name for field in fields(EpisodeRecord))
_NEVER_REPEATED = frozenset({"episode_id", "offset", "event_offset"})


def make_table(
    records: Sequence[EpisodeRecord], placement: Mapping[str, Sequence[int]]
) -> pa.Table:
    """The rows of some episodes.

    Args:
        records: one an episode, in the shard's order.
        placement: `offset`, `event_offset` and `event_count` of each episode; empty for variants.
    """
    columns = {name: [getattr(record, name) for record in records] for name in _RECORD_FIELDS}
    for name in ("offset", "event_offset", "event_count"):
        columns[name] = list(placement.get(name, [None] * len(records)))
    return pa.table(columns, schema=TABLE_SCHEMA)


def write_table(path: Path, table: pa.Table) -> None:
    """Write the table of one shard, with the columns of `TABLE_SCHEMA`."""
    # Dictionaries pay where values repeat; ids never do. Statistics would only add bytes.
    pq.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=[
            f"{name}.list.element" if pa.types.is_list(kind) else name
            for name, kind in zip(TABLE_SCHEMA.names, TABLE_SCHEMA.types, strict=True)
            if name not in _NEVER_REPEATED and not pa.types.is_boolean(kind)
        ],
        write_statistics=False,
        store_schema=False,
        version="2.6",
    )


def read_table(content: bytes, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, from a Parquet file's bytes; null where one came to it later.

    Raises:
        pa.ArrowException: this is no Parquet file, or it is damaged.
        ValueError: it lacks a column, or has another type there.
    """
    # No threads of Arrow's: one that still holds Python's bytes as the process ends aborts it.
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    stored = frozenset(file.schema_arrow.names)
    names = [name for name in schema.names if name in stored]
    table = _fill_columns(file.read(names, use_threads=False), schema)
    return table if table.schema == schema else table.cast(schema)


def _fill_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with null in the columns that were added to the format after it was written."""
    for place, field in enumerate(schema):
        if field.name in ADDED_COLUMNS and field.name not in table.schema.names:
            table = table.add_column(place, field, pa.nulls(len(table), field.type))
    return table


def record_from_row(row: Mapping[str, Any]) -> EpisodeRecord:
    """The record of one row, given as Python values by column."""
    values = {name: row[name] for name in _RECORD_FIELDS}
    for name in ("instruction", "completed", "initial_goals"):
        values[name] = tuple(values[name] or ())
    return EpisodeRecord(**values)
