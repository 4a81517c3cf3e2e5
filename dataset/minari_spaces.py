"""Spaces in Minari's JSON form, from which Minari makes Gymnasium's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from retold.schemas.errors import FormatError
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


def space_from_minari(content: Mapping[str, Any]) -> Space:
    """The stored form of a space in Minari's JSON.

    Raises:
        FormatError: the type of space is unknown.
    """
    match content["type"]:
        case "Box":
            bounds = [_bound(content[name]) for name in ("low", "high")]
            return BoxSpace(tuple(content["shape"]), content["dtype"], *bounds)
        case "Discrete":
            return DiscreteSpace(content["n"], content["start"], content["dtype"])
        case "MultiDiscrete":
            start = np.asarray(content["start"])
            return MultiDiscreteSpace(
                _nest(content["nvec"]),
                content["dtype"],
                _nest(start.tolist()) if start.any() else None,
            )
        case "MultiBinary":
            n = content["n"]
            return MultiBinarySpace(tuple(n) if isinstance(n, list | tuple) else (n,))
        case "Text":
            return TextSpace(content["max_length"], content["min_length"], content["charset"])
        case "Dict":
            entries = content["subspaces"].items()
            return DictSpace(tuple((key, space_from_minari(item)) for key, item in entries))
        case "Tuple":
            return TupleSpace(tuple(space_from_minari(item) for item in content["subspaces"]))
        case other:
            raise FormatError(
                f"A space has type {other!r}, which the format does not hold. Use Box, Discrete, "
                f"MultiDiscrete, MultiBinary, Text, Dict or Tuple."
            )


def space_to_minari(space: Space) -> dict[str, Any]:
    """The inverse of `space_from_minari`."""
    match space:
        case BoxSpace():
            low, high = (
                np.broadcast_to(np.asarray(bound, space.dtype), space.shape).tolist()
                for bound in (space.low, space.high)
            )
            shape = list(space.shape)
            return {"type": "Box", "dtype": space.dtype, "shape": shape, "low": low, "high": high}
        case DiscreteSpace():
            return {"type": "Discrete", "dtype": "int64", "start": space.start, "n": space.n}
        case MultiDiscreteSpace():
            start = np.zeros(space.shape, np.int64) if space.start is None else space.start
            return {
                "type": "MultiDiscrete",
                "dtype": space.dtype,
                "nvec": np.asarray(space.nvec).tolist(),
                "start": np.asarray(start).tolist(),
            }
        case MultiBinarySpace(shape=shape):
            return {"type": "MultiBinary", "n": shape[0] if len(shape) == 1 else list(shape)}
        case TextSpace():
            declared = {"min_length": space.min_length, "charset": space.charset}
            return {
                "type": "Text",
                "max_length": space.max_length,
                "min_length": declared["min_length"] or 0,
                "charset": _PRINTABLE if space.charset is None else space.charset,
            }
        case DictSpace():
            entries = {key: space_to_minari(item) for key, item in space.spaces}
            return {"type": "Dict", "subspaces": entries}
        case TupleSpace():
            return {"type": "Tuple", "subspaces": [space_to_minari(item) for item in space.spaces]}


_PRINTABLE = "".join(map(chr, range(32, 127)))


def _bound(bound: Any) -> Any:
    """One number where all entries agree, nested tuples otherwise."""
    flat = np.asarray(bound).ravel()
    if len(flat) and (flat == flat[0]).all():
        return flat[0].item()
    return _nest(bound)


def _nest(value: Any) -> Any:
    return tuple(map(_nest, value)) if isinstance(value, list | tuple) else value
