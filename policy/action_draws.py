"""Actions drawn from what an actor says, out of an episode's own random numbers."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.policy.actions import ActionCodec

_BLOCK = 64
"""Random actions that are drawn at once."""


def random_action(codec: ActionCodec, rng: np.random.Generator) -> Any:
    """An action of which every other is as likely."""
    if codec.kind == "choice":
        return codec.decode(rng.integers(codec.counts[0]))
    if codec.counts:
        return codec.decode(rng.integers(codec.counts))
    return codec.decode(rng.uniform(-1, 1, codec.size))


def random_blocks(codec: ActionCodec, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    """Endless `[block, ...]` of random actions, the same as from `random_action` one by one."""
    low, high = np.asarray(codec.low), np.asarray(codec.high)
    while True:
        if codec.kind == "choice":
            options = rng.integers(codec.counts[0], size=_BLOCK)
        elif codec.counts:
            options = rng.integers(codec.counts, size=(_BLOCK, len(codec.counts)))
        if codec.counts:
            values = options + np.asarray(codec.start)
        else:
            numbers = rng.uniform(-1, 1, (_BLOCK, codec.size))
            values = np.clip(low + (numbers + 1) / 2 * (high - low), low, high)
        yield values.reshape(_BLOCK, *codec.shape).astype(codec.dtype)


def draw_action(
    codec: ActionCodec,
    numbers: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    is_greedy: bool,
    noise: NDArray[np.float64] | None = None,
) -> Any:
    """An action of a distribution.

    Args:
        codec: of the action.
        numbers: `[outputs]`: probabilities of all options side by side, or means and spreads of
            amounts before the tanh.
        rng: the episode's.
        is_greedy: take the likeliest options, or the amounts of the means.
        noise: `[amounts]`, added to amounts in [-1, 1] before they are cut to their bounds.
    """
    if not codec.counts:
        mean, spread = np.split(numbers, 2)
        drawn = mean if is_greedy else mean + spread * rng.standard_normal(len(mean))
        amounts = np.tanh(drawn)
        return codec.decode(amounts if noise is None else amounts + noise)
    if codec.kind == "choice":
        return codec.decode(_choose(numbers, rng, is_greedy))
    parts = np.split(numbers, np.cumsum(codec.counts)[:-1])
    return codec.decode(np.array([_choose(part, rng, is_greedy) for part in parts]))


def _choose(chances: NDArray[np.float64], rng: np.random.Generator, is_greedy: bool) -> int:
    if is_greedy:
        return int(chances.argmax())
    # Few numbers are found sooner in a list.
    ends = np.add.accumulate(chances).tolist()
    return bisect_right(ends, rng.random() * ends[-1])
