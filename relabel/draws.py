"""Random numbers for many variants at once, each a pure function of names and numbers.

A generator object for every episode would cost more than retelling it. Here draw `i` of a variant is
a hash of (seed, stage, episode id, variant, attempt, i): the finaliser of SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014) over a key that comes from the named stream of `retold.schemas.identity`.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from retold.schemas.identity import random_stream

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD_VARIANT = np.uint64(0xD1342543DE82EF95)
_ODD_ATTEMPT = np.uint64(0xAF251AF3B0F025B5)


def episode_keys(seed: int, stage: str, episode_ids: Sequence[str]) -> NDArray[np.uint64]:
    """`[episodes]`: the key of each episode under a seed and stage.

    Args:
        seed: of the run.
        stage: what the numbers are for.
        episode_ids: 32 hex digits each.
    """
    first, second = random_stream(seed, stage, "keys").integers(2**64, size=2, dtype=np.uint64)
    words = np.frombuffer(bytes.fromhex("".join(episode_ids)), ">u8").astype(np.uint64)
    words = words.reshape(len(episode_ids), 2)
    return _mix(_mix(words[:, 0] ^ first) + words[:, 1] ^ second)


class Draws:
    """The stream of every plan: numbers drawn one after the other, for all plans together."""

    def __init__(
        self, key: NDArray[np.uint64], variant: NDArray[np.int64], attempt: NDArray[np.int64] | int
    ) -> None:
        """Name the streams.

        Args:
            key: `[plans]`, of the plan's episode.
            variant: `[plans]`, number of the variant under its episode.
            attempt: `[plans]` or one number: how often the plan was drawn before.
        """
        with np.errstate(over="ignore"):
            variants = _mix(key + (variant.astype(np.uint64) + np.uint64(1)) * _ODD_VARIANT)
            self._key = _mix(variants + np.asarray(attempt, np.uint64) * _ODD_ATTEMPT)
        self._drawn = 0

    def __len__(self) -> int:
        return len(self._key)

    def take(self, rows: NDArray[np.int64]) -> "Draws":
        """The streams of some plans, from where they stand."""
        part = copy(self)
        part._key = self._key[rows]
        return part

    def integers(self, bound: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """`[plans]`: uniform over 0..bound-1, and 0 where the bound is below 1.

        Args:
            bound: `[plans]` or one number, below 2**32. No value is likelier than another by more
                than bound / 2**32 of its chance.
        """
        self._drawn += 1
        with np.errstate(over="ignore"):
            word = _mix(self._key + np.uint64(self._drawn) * _GOLDEN) >> np.uint64(32)
        limit = np.maximum(bound, 0).astype(np.uint64) if isinstance(bound, np.ndarray) else bound
        return (
            (word * np.uint64(limit) if isinstance(limit, int) else word * limit) >> np.uint64(32)
        ).astype(np.int64)

    def random(self) -> NDArray[np.float64]:
        """`[plans]`: uniform over [0, 1)."""
        return self.integers(2**32 - 1) / float(2**32 - 1)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
