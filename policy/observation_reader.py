"""Observations of an environment as leaves, each checked against what its space declares."""

from collections.abc import Callable
from typing import Any

import numpy as np

from retold.schemas.episode import Leaves
from retold.schemas.spaces import (
    DictSpace,
    DiscreteSpace,
    Space,
    TextSpace,
    TupleSpace,
    quote_key,
)


class WrongValue(Exception):
    """The environment gave what no transition may hold; the message goes on after "it gave"."""


class ObservationReader:
    """Copies an observation's leaves; a wrong shape or dtype is named, nothing is converted."""

    def __init__(self, space: Space) -> None:
        self._leaves = tuple(_leaf_readers(space, "observation", ()))

    def read(self, observation: Any) -> Leaves:
        """Fresh arrays by path; text stays `str`.

        Raises:
            WrongValue: says which leaf is wrong, and how.
        """
        return {path: read(_descend(observation, keys)) for path, keys, read in self._leaves}


_Reader = tuple[str, tuple[Any, ...], Callable[[Any], Any]]


def _descend(value: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def _leaf_readers(space: Space, path: str, keys: tuple[Any, ...]) -> list[_Reader]:
    match space:
        case DictSpace():
            items: list[tuple[Any, str, Space]] = [
                (key, quote_key(key), item) for key, item in space.spaces
            ]
        case TupleSpace():
            items = [(index, str(index), item) for index, item in enumerate(space.spaces)]
        case _:
            return [(path, keys, _leaf_reader(space, path))]
    return [
        reader
        for key, name, item in items
        for reader in _leaf_readers(item, f"{path}/{name}", (*keys, key))
    ]


def _leaf_reader(space: Space, path: str) -> Callable[[Any], Any]:
    if isinstance(space, TextSpace):

        def read_text(value: Any) -> str:
            if not isinstance(value, str):
                raise WrongValue(f"{path!r} as a {type(value).__name__} instead of text")
            return value

        return read_text
    assert not isinstance(space, DictSpace | TupleSpace)
    dtype = np.dtype(space.dtype)
    shape = () if isinstance(space, DiscreteSpace) else tuple(space.shape)

    def read_array(value: Any) -> Any:
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return value.copy()
        given = np.asarray(value)
        if given.shape != shape:
            raise WrongValue(f"{path!r} of shape {given.shape} instead of {shape}")
        # A plain int, and a dtype that holds no more than the declared one, lose nothing.
        is_number = isinstance(value, int) and dtype.kind in "iu"
        if not is_number and not np.can_cast(given.dtype, dtype, "safe"):
            raise WrongValue(f"{path!r} of dtype {given.dtype} instead of {dtype}")
        return given.astype(dtype)

    return read_array
