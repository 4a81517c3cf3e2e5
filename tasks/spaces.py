"""Gymnasium's spaces as the plain records that are stored."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from retold.schemas.errors import TaskError
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


def from_gymnasium(space: gymnasium.Space[Any]) -> Space:
    """The stored form of a Gymnasium space.

    Raises:
        TaskError: the space is of a kind that the format does not hold.
    """
    match space:
        case spaces.Box():
            dtype = np.dtype(space.dtype).name
            return BoxSpace(tuple(space.shape), dtype, _bound(space.low), _bound(space.high))
        case spaces.Discrete():
            return DiscreteSpace(int(space.n), int(space.start), np.dtype(space.dtype).name)
        case spaces.MultiDiscrete():
            start = _nest(space.start.tolist()) if space.start.any() else None
            return MultiDiscreteSpace(_nest(space.nvec.tolist()), np.dtype(space.dtype).name, start)
        case spaces.MultiBinary():
            return MultiBinarySpace(tuple(space.shape), np.dtype(space.dtype).name)
        case spaces.Text():
            return TextSpace(space.max_length, space.min_length, space.characters)
        case spaces.Dict():
            return DictSpace(tuple((k, from_gymnasium(item)) for k, item in space.spaces.items()))
        case spaces.Tuple():
            return TupleSpace(tuple(from_gymnasium(item) for item in space.spaces))
        case _:
            raise TaskError(
                f"A space is a {type(space).__name__}, which the format does not hold. Use Box, "
                f"Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple."
            )


def _bound(bound: Any) -> Any:
    """One number where all entries agree, nested tuples otherwise."""
    if bound.size and (bound == bound.flat[0]).all():
        return bound.flat[0].item()
    return _nest(bound.tolist())


def _nest(value: Any) -> Any:
    return tuple(map(_nest, value)) if isinstance(value, list) else value
