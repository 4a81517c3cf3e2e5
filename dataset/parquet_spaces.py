"""The spaces that the types of Parquet columns let one believe in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.parquet_columns import decode_rows
from retold.schemas.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    Space,
    TextSpace,
)


def infer_space(files: Sequence[Path], name: str, *, is_steps: bool) -> Space:
    """The narrowest space of a column: whole numbers of an action from 0 up are Discrete."""
    tables = [pq.read_table(file, columns=[name]) for file in files]
    column = pa.concat_tables(tables)[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if not is_steps:  # one list an episode
        column = column.flatten()
    return _infer(column, is_action=name == "action")


def _infer(column: Any, *, is_action: bool) -> Space:
    if pa.types.is_struct(column.type):
        return DictSpace(
            tuple(
                (field.name, _infer(column.field(number), is_action=is_action))
                for number, field in enumerate(column.type)
            )
        )
    rows, _ = decode_rows(column)
    shape, dtype = rows.shape[1:], rows.dtype
    if dtype == object:
        return TextSpace(max((len(text) for text in rows), default=0))
    if dtype.kind == "b":
        return MultiBinarySpace(shape)
    if dtype.kind == "f":
        return BoxSpace(shape, dtype.name, float("-inf"), float("inf"))
    if is_action and shape == () and rows.min(initial=0) >= 0:
        return DiscreteSpace(int(rows.max(initial=0)) + 1, 0, dtype.name)
    limits = np.iinfo(dtype)
    return BoxSpace(shape, dtype.name, int(limits.min), int(limits.max))
