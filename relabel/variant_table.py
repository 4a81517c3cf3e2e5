"""Variants as rows of the episode table, made column by column."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.table import TABLE_SCHEMA
from retold.relabel.options import RelabelOptions
from retold.relabel.retelling import Variants
from retold.schemas.identity import make_variant_id


def make_variant_table(
    variants: Variants, sources: pa.Table, source_dataset_id: str, options: RelabelOptions
) -> pa.Table:
    """The rows of a batch of variants.

    Args:
        variants: `variants.episode` are rows of `sources`.
        sources: the episode table's rows of the batch.
        source_dataset_id: where the sources live.
        options: how the variants were made.
    """
    rows, count = variants.episode, len(variants.episode)
    names: list[str] = sources["episode_id"].to_pylist()
    met, is_complete = variants.goals_met, variants.is_complete
    # The world's own end is a variant's only if the variant reaches it.
    ended = sources["environment_terminated"].to_numpy()[rows]
    ended &= variants.length == sources["length"].to_numpy()[rows]
    made: dict[str, Any] = {
        "episode_id": [
            make_variant_id(names[row], options.label, options.seed, number)
            for row, number in zip(rows.tolist(), variants.number.tolist(), strict=True)
        ],
        "task": sources["task"].take(rows),
        "length": variants.length,
        "episode_return": met.astype(np.float64),
        "terminated": is_complete | ended,
        "truncated": ~(is_complete | ended),
        "environment_terminated": ended,
        "success": is_complete,
        "instruction": _lists(variants.instruction),
        "completed": _lists(variants.completed),
        "initial_goals": sources["initial_goals"].take(rows),
        "source_dataset_id": [source_dataset_id] * count,
        "source_episode_id": sources["episode_id"].take(rows),
        "strategy": [options.label] * count,
        "relabel_seed": np.full(count, options.seed),
        "variant": variants.number,
    }
    columns = [
        _column(made[field.name], field.type) if field.name in made else pa.nulls(count, field.type)
        for field in TABLE_SCHEMA
    ]
    return pa.table(columns, schema=TABLE_SCHEMA)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks().cast(kind)
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _lists(table: NDArray[np.int64]) -> pa.Array:
    """`[rows]` lists of what is not negative; a negative number ends its row."""
    is_there = table >= 0
    offset = np.concatenate([np.zeros(1, np.int32), np.cumsum(is_there.sum(1), dtype=np.int32)])
    values = pa.array(table[is_there].astype(np.uint32))
    return pa.ListArray.from_arrays(pa.array(offset, pa.int32()), values)
