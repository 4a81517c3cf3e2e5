"""The spaces that the types of Parquet columns let one believe in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

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
    values = LeafRange()
    values.add(decode_rows(column)[0])
    return values.space(is_action=is_action)


class LeafRange:
    """What the rows of a leaf have in common, batch after batch."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] | None = None
        self._low = self._high = self._longest = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Look at `[rows, ...]`, of which each has one shape."""
        if self.dtype is None:
            self.shape, self.dtype = rows.shape[1:], rows.dtype
        self.dtype = np.promote_types(self.dtype, rows.dtype)
        if rows.dtype == object:
            self._longest = max([self._longest, *map(len, rows)])
        elif rows.dtype.kind in "iu" and rows.size:
            self._low = min(self._low, int(rows.min()))
            self._high = max(self._high, int(rows.max()))

    def is_open(self, *, is_action: bool) -> bool:
        """Whether more rows could change the space."""
        assert self.dtype is not None
        is_choice = self.dtype.kind in "iu" and is_action and self.shape == ()
        return is_choice or self.dtype == object

    def space(self, *, is_action: bool) -> Space:
        """The narrowest space."""
        shape, dtype = self.shape, self.dtype
        assert dtype is not None
        if dtype == object:
            return TextSpace(self._longest)
        if dtype.kind == "b":
            return MultiBinarySpace(shape)
        if dtype.kind not in "iu":
            return BoxSpace(shape, dtype.name, float("-inf"), float("inf"))
        if is_action and shape == () and self._low >= 0:
            return DiscreteSpace(self._high + 1, 0, dtype.name)
        limits = np.iinfo(dtype)
        return BoxSpace(shape, dtype.name, int(limits.min), int(limits.max))
