"""Spaces as plain records, and how a value of any space becomes named array leaves on disk.

A leaf's path is the field's name followed by the keys that lead to it: `observation` for a Box,
`observation/position` for a Dict entry, `observation/0` for a Tuple entry. Characters of a key that
no file name can hold are percent-encoded.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.schemas.errors import FormatError


@dataclass(frozen=True)
class BoxSpace:
    """Arrays of one shape and dtype; the bounds are numbers or nested lists of the shape."""

    shape: tuple[int, ...]
    dtype: str
    low: Any
    high: Any


@dataclass(frozen=True)
class DiscreteSpace:
    """Integers `start..start+n-1`."""

    n: int
    start: int = 0
    dtype: str = "int64"


@dataclass(frozen=True)
class MultiDiscreteSpace:
    """Arrays of integers, entry `i` in `start[i]..start[i]+nvec[i]-1`."""

    nvec: tuple[Any, ...]
    """Nested tuples where it has several axes."""
    dtype: str = "int64"
    start: tuple[Any, ...] | None = None
    """Of the shape of `nvec`; None: all 0."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return np.shape(self.nvec)


@dataclass(frozen=True)
class MultiBinarySpace:
    """Arrays of 0 and 1."""

    shape: tuple[int, ...]
    dtype: str = "int8"


@dataclass(frozen=True)
class TextSpace:
    """Strings, stored as ragged UTF-8 bytes."""

    max_length: int
    min_length: int | None = None
    """None: not declared."""
    charset: str | None = None
    """The characters that may occur, in order; None: not declared."""


@dataclass(frozen=True)
class DictSpace:
    """Named spaces, in order."""

    spaces: tuple[tuple[str, "Space"], ...]


@dataclass(frozen=True)
class TupleSpace:
    """Numbered spaces."""

    spaces: tuple["Space", ...]


Space = (
    BoxSpace
    | DiscreteSpace
    | MultiDiscreteSpace
    | MultiBinarySpace
    | TextSpace
    | DictSpace
    | TupleSpace
)


@dataclass(frozen=True)
class Leaf:
    """One array of a field."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    """Shape of one row."""
    is_ragged: bool = False
    """True for text: rows are byte strings of any length."""
    space: Space | None = None
    """The leaf's own space, never a Dict or Tuple; None for fields that are not spaces."""
    is_optional: bool = False
    """True for declared infos: rows may be absent, and a mask says which are there."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, uncompressed (1 for a ragged leaf)."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


def space_leaves(space: Space, path: str) -> tuple[Leaf, ...]:
    """The leaves of a space, in the order of its entries."""
    match space:
        case BoxSpace():
            return (Leaf(path, space.dtype, space.shape, space=space),)
        case DiscreteSpace():
            return (Leaf(path, space.dtype, (), space=space),)
        case MultiDiscreteSpace():
            return (Leaf(path, space.dtype, space.shape, space=space),)
        case MultiBinarySpace():
            return (Leaf(path, space.dtype, space.shape, space=space),)
        case TextSpace():
            return (Leaf(path, "uint8", (), is_ragged=True, space=space),)
        case DictSpace():
            return tuple(
                leaf
                for key, item in space.spaces
                for leaf in space_leaves(item, f"{path}/{quote_key(key)}")
            )
        case TupleSpace():
            return tuple(
                leaf
                for index, item in enumerate(space.spaces)
                for leaf in space_leaves(item, f"{path}/{index}")
            )


def quote_key(key: str) -> str:
    """A key as one part of a leaf's path; almost every key is left as it is."""
    if key in _RESERVED:
        return _RESERVED[key]
    return re.sub(r"[%/\\\x00-\x1f]", lambda match: f"%{ord(match[0]):02X}", key)


def unquote_key(part: str) -> str:
    """The inverse of `quote_key`."""
    if part == "%":
        return ""
    return re.sub(r"%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), part)


_RESERVED = {"": "%", ".": "%2E", "..": "%2E%2E", "zarr.json": "zarr%2Ejson"}
"""Keys that would name the folder itself, the one above it, or a file of Zarr's."""


def flatten_value(space: Space, value: Any, path: str) -> dict[str, Any]:
    """One value of a space (or a batch of rows of it) as leaves by path.

    Array leaves become fresh arrays of the leaf's dtype; text stays `str`.
    """
    match space:
        case DictSpace():
            return {
                name: leaf
                for key, item in space.spaces
                for name, leaf in flatten_value(
                    item, value[key], f"{path}/{quote_key(key)}"
                ).items()
            }
        case TupleSpace():
            return {
                name: leaf
                for index, item in enumerate(space.spaces)
                for name, leaf in flatten_value(item, value[index], f"{path}/{index}").items()
            }
        case TextSpace():
            return {path: value}
        case _:
            return {path: np.array(value, dtype=space.dtype)}


def unflatten_value(space: Space, leaves: Mapping[str, Any], path: str) -> Any:
    """The inverse of `flatten_value`."""
    match space:
        case DictSpace():
            return {
                key: unflatten_value(item, leaves, f"{path}/{quote_key(key)}")
                for key, item in space.spaces
            }
        case TupleSpace():
            return tuple(
                unflatten_value(item, leaves, f"{path}/{index}")
                for index, item in enumerate(space.spaces)
            )
        case _:
            return leaves[path]


def find_invalid(leaf: Leaf, rows: NDArray[Any]) -> str | None:
    """Why some row of a leaf lies outside its space, or None.

    Args:
        leaf: names the space.
        rows: `[rows, ...]`, of the leaf's dtype.
    """
    match leaf.space:
        case DiscreteSpace(n=n, start=start):
            low, high = np.asarray(start), np.asarray(start + n - 1)
        case MultiDiscreteSpace(nvec=nvec, start=start):
            low = np.asarray(0 if start is None else start)
            high = low + np.asarray(nvec) - 1
        case MultiBinarySpace():
            low, high = np.asarray(0), np.asarray(1)
        case BoxSpace():
            low = np.asarray(leaf.space.low, np.float64)
            high = np.asarray(leaf.space.high, np.float64)
        case _:
            return None
    if not rows.size:
        return None
    axis = None if low.ndim == high.ndim == 0 else 0
    # NaN is no such least number; one pass for each end beats comparing every number.
    if (rows.min(axis) >= low).all() and (rows.max(axis) <= high).all():
        return None
    if rows.dtype.kind == "f" and np.isnan(rows).any():
        return f"{leaf.path!r} is NaN at row {int(np.argwhere(np.isnan(rows))[0][0])}"
    outside = (rows < low) | (rows > high)
    first = tuple(np.argwhere(outside)[0])
    return f"{leaf.path!r} is {rows[first]} at row {int(first[0])}, outside its space"


def space_to_json(space: Space) -> dict[str, Any]:
    """The space as plain JSON values."""
    match space:
        case BoxSpace():
            return {
                "type": "box",
                "shape": list(space.shape),
                "dtype": space.dtype,
                "low": space.low,
                "high": space.high,
            }
        case DiscreteSpace():
            return {"type": "discrete", "n": space.n, "start": space.start, "dtype": space.dtype}
        case MultiDiscreteSpace():
            optional = {} if space.start is None else {"start": space.start}
            return {
                "type": "multi_discrete",
                "nvec": space.nvec,
                "dtype": space.dtype,
                **optional,
            }
        case MultiBinarySpace():
            return {"type": "multi_binary", "shape": list(space.shape), "dtype": space.dtype}
        case TextSpace():
            declared = {"min_length": space.min_length, "charset": space.charset}
            return {
                "type": "text",
                "max_length": space.max_length,
                **{name: value for name, value in declared.items() if value is not None},
            }
        case DictSpace():
            return {
                "type": "dict",
                "spaces": [[key, space_to_json(item)] for key, item in space.spaces],
            }
        case TupleSpace():
            return {"type": "tuple", "spaces": [space_to_json(item) for item in space.spaces]}


def space_from_json(content: Mapping[str, Any]) -> Space:
    """The inverse of `space_to_json`.

    Raises:
        FormatError: the type of space is unknown.
    """
    match content["type"]:
        case "box":
            return BoxSpace(
                tuple(content["shape"]),
                content["dtype"],
                _bound_from_json(content["low"]),
                _bound_from_json(content["high"]),
            )
        case "discrete":
            return DiscreteSpace(content["n"], content["start"], content["dtype"])
        case "multi_discrete":
            start = content.get("start")
            return MultiDiscreteSpace(
                _nest(content["nvec"]), content["dtype"], None if start is None else _nest(start)
            )
        case "multi_binary":
            return MultiBinarySpace(tuple(content["shape"]), content["dtype"])
        case "text":
            return TextSpace(
                content["max_length"], content.get("min_length"), content.get("charset")
            )
        case "dict":
            return DictSpace(tuple((key, space_from_json(item)) for key, item in content["spaces"]))
        case "tuple":
            return TupleSpace(tuple(space_from_json(item) for item in content["spaces"]))
        case other:
            raise FormatError(
                f"A space has type {other!r}, but this retold knows box, discrete, multi_discrete, "
                f"multi_binary, text, dict and tuple. Upgrade with `pip install -U retold`."
            )


def _bound_from_json(bound: Any) -> Any:
    if isinstance(bound, list):
        return tuple(_bound_from_json(item) for item in bound)
    return float(bound) if isinstance(bound, str) else bound


def _nest(value: Any) -> Any:
    return tuple(map(_nest, value)) if isinstance(value, list | tuple) else value
