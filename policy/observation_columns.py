"""The observations of an episode in flight, a growing array for each leaf, each row checked."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.schemas.episode import Leaves
from retold.schemas.spaces import (
    DictSpace,
    DiscreteSpace,
    Space,
    TextSpace,
    TupleSpace,
    quote_key,
)

_FIRST_ROWS = 64
"""Rows that an array is made with; it doubles when they are full."""


_ARRAYS = (np.ndarray, np.generic)


class WrongValue(Exception):
    """The environment gave what no transition may hold; the message goes on after "it gave"."""


class ArrayColumn:
    """Rows of one leaf, in an array that is kept from episode to episode."""

    def __init__(self, path: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.path = path
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._is_integer = self._dtype.kind in "iu"
        self._rows = np.empty((_FIRST_ROWS, *shape), self._dtype)
        self._count = 0

    def clear(self) -> None:
        """Forget every row."""
        self._count = 0

    def append(self, value: Any) -> None:
        """Copy a row.

        Raises:
            WrongValue: its shape or dtype is not the declared one; nothing is converted in silence.
        """
        is_right = (
            value.dtype == self._dtype and value.shape == self._shape
            if isinstance(value, _ARRAYS)
            else type(value) is int and self._is_integer and not self._shape
        )
        if not is_right:
            value = self._check(value)
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count] = value
        self._count += 1

    def extend(self, values: NDArray[Any]) -> None:
        """Copy `[rows, ...]` of the declared shape and dtype."""
        assert values.dtype == self._dtype and values.shape[1:] == self._shape, values.shape
        end = self._count + len(values)
        while end > len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count : end] = values
        self._count = end

    def cut(self, count: int) -> None:
        """Forget all rows but the first `count`."""
        self._count = min(self._count, count)

    @property
    def last(self) -> Any:
        """The row that was appended last; a view."""
        return self._rows[self._count - 1]

    def stacked(self) -> NDArray[Any]:
        """`[rows, ...]`: a copy of all rows."""
        return self._rows[: self._count].copy()

    def _check(self, value: Any) -> NDArray[Any]:
        given = np.asarray(value)
        if given.shape != self._shape:
            raise WrongValue(f"{self.path!r} of shape {given.shape} instead of {self._shape}")
        # A plain int, and a dtype that holds no more than the declared one, lose nothing.
        is_number = isinstance(value, int) and self._is_integer
        if not is_number and not np.can_cast(given.dtype, self._dtype, "safe"):
            raise WrongValue(f"{self.path!r} of dtype {given.dtype} instead of {self._dtype}")
        return given.astype(self._dtype)


class TextColumn:
    """Texts of one leaf."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._rows: list[str] = []

    def clear(self) -> None:
        """Forget every row."""
        self._rows = []

    def append(self, value: Any) -> None:
        """Keep a text.

        Raises:
            WrongValue: it is none.
        """
        if not isinstance(value, str):
            raise WrongValue(f"{self.path!r} as a {type(value).__name__} instead of text")
        self._rows.append(value)

    @property
    def last(self) -> Any:
        """The text that was appended last."""
        return self._rows[-1]

    def stacked(self) -> NDArray[Any]:
        """`[rows]`, objects."""
        return np.array(self._rows, object)


class ObservationColumns:
    """The observations of one episode after another."""

    def __init__(self, space: Space) -> None:
        self._places = tuple(_find_places(space, "observation", ()))
        self._columns = tuple(column for column, _ in self._places)
        self.append: Callable[[Any], None] = self._append_leaves
        """Keeps a copy of an observation's leaves; a `WrongValue` says which is wrong, and how."""
        if len(self._places) == 1 and not self._places[0][1]:
            self.append = self._columns[0].append

    def clear(self) -> None:
        """A new episode begins."""
        for column in self._columns:
            column.clear()

    def _append_leaves(self, observation: Any) -> None:
        for column, keys in self._places:
            value = observation
            for key in keys:
                value = value[key]
            column.append(value)

    def last(self) -> Leaves:
        """The newest observation; its arrays are views."""
        return {column.path: column.last for column in self._columns}

    def stacked(self) -> Leaves:
        """`[rows, ...]` of each leaf: all observations since the last `clear`."""
        return {column.path: column.stacked() for column in self._columns}


_Place = tuple[ArrayColumn | TextColumn, tuple[Any, ...]]
"""A leaf's column, and the keys that lead to its value."""


def _find_places(space: Space, path: str, keys: tuple[Any, ...]) -> list[_Place]:
    match space:
        case DictSpace():
            items: list[tuple[Any, str, Space]] = [
                (key, quote_key(key), item) for key, item in space.spaces
            ]
        case TupleSpace():
            items = [(index, str(index), item) for index, item in enumerate(space.spaces)]
        case TextSpace():
            return [(TextColumn(path), keys)]
        case _:
            shape = () if isinstance(space, DiscreteSpace) else tuple(space.shape)
            return [(ArrayColumn(path, space.dtype, shape), keys)]
    return [
        place
        for key, name, item in items
        for place in _find_places(item, f"{path}/{name}", (*keys, key))
    ]
