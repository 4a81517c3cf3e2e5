"""Spaces in words, for people who look at a dataset."""

from collections.abc import Iterable
from typing import Any

from retold.schemas.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TextSpace,
    TupleSpace,
)


def space_rows(space: Space, name: str) -> Iterable[tuple[str, str]]:
    """The parts of a space by their paths, each in words."""
    if isinstance(space, DictSpace):
        for key, part in space.spaces:
            yield from space_rows(part, f"{name}/{key}")
    elif isinstance(space, TupleSpace):
        for number, part in enumerate(space.spaces):
            yield from space_rows(part, f"{name}/{number}")
    else:
        yield name, _spell(space)


def _spell(space: Space) -> str:
    if isinstance(space, BoxSpace):
        is_one = all(size == 1 for size in space.shape)
        amount = "one number" if is_one else f"{_times(space.shape)} numbers"
        return f"{amount}, {space.dtype}{_bounds(space.low, space.high)}"
    if isinstance(space, DiscreteSpace):
        return f"one of {space.n:,}: {space.start} to {space.start + space.n - 1}"
    if isinstance(space, MultiDiscreteSpace):
        return f"{_times(space.shape)} choices, of {list(space.nvec)}"
    if isinstance(space, MultiBinarySpace):
        return f"{_times(space.shape)} times 0 or 1"
    if isinstance(space, TextSpace):
        return f"text of at most {space.max_length:,} characters"
    return str(space)


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _bounds(low: Any, high: Any) -> str:
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ", bounded each for itself"
    if low == float("-inf") and high == float("inf"):
        return ""
    return f", from {low:g} to {high:g}"
