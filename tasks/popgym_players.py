"""Scripted players of POPGym's environments, who see what a policy sees and remember it."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from retold.tasks.definition import Player

_DECKS = (1, 2, 3)
_DELAYS = (4, 32, 64)
_RANKS = 13


def _repeat_first(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    seen: list[int] = []

    def play(observation: Any) -> int:
        seen.append(int(observation))
        return seen[0]

    return play


def _repeat_previous(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    seen: list[int] = []

    def play(observation: Any) -> int:
        seen.append(int(observation))
        return seen[-_DELAYS[level]] if len(seen) >= _DELAYS[level] else 0

    return play


def _autoencode(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    """The last card is shown together with the sign to play back, from the last to the first."""
    seen: list[int] = []
    played = 0

    def play(observation: Any) -> int:
        nonlocal played
        if len(seen) < 52 * _DECKS[level]:
            seen.append(int(observation[1]))
        if len(seen) < 52 * _DECKS[level]:
            return 0
        played += 1
        return seen[-played]

    return play


def _count_recall(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    counts: dict[int, int] = {}

    def play(observation: Any) -> int:
        value, query = (int(item) for item in observation)
        counts[value] = counts.get(value, 0) + 1
        return counts.get(query, 0)

    return play


def _higher_lower(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    """0 says that the next card is higher."""
    left = np.full(_RANKS, 4 * _DECKS[level])

    def play(observation: Any) -> int:
        left[int(observation)] -= 1
        return int(left[: int(observation)].sum() > left[int(observation) + 1 :].sum())

    return play


def _bandit(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    """UCB1 with a small bonus; an observation says whether the arm before it paid."""
    arms = int(environment.action_space.n)  # type: ignore[attr-defined]
    counts, paid = np.zeros(arms), np.zeros(arms)
    last: int | None = None

    def play(observation: Any) -> int:
        nonlocal last
        if last is not None:
            counts[last] += 1
            paid[last] += int(observation)
        if not counts.all():
            last = int(np.argmin(counts))
        else:
            bonus = np.sqrt(0.05 * np.log(counts.sum()) / counts)
            last = int(np.argmax(paid / counts + bonus))
        return last

    return play


def _sweep(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    size = int(environment.action_space.nvec[0])  # type: ignore[attr-defined]
    step = 0

    def play(observation: Any) -> Any:
        nonlocal step
        cell = np.array(divmod(step % size**2, size), np.int64)
        step += 1
        return cell

    return play


def _balance(environment: gymnasium.Env[Any, Any], level: int) -> Player:
    """A proportional-derivative controller on positions and their differences."""
    last: Any = None

    def play(observation: Any) -> int:
        nonlocal last
        moved = np.zeros(2) if last is None else (observation - last) / 0.02
        last = np.array(observation)
        push = 0.3 * observation[0] + 0.6 * moved[0] + 10 * observation[1] + 2 * moved[1]
        return int(push > 0)

    return play


PLAYERS: dict[str, Callable[[gymnasium.Env[Any, Any], int], Player]] = {
    "Autoencode": _autoencode,
    "Battleship": _sweep,
    "CountRecall": _count_recall,
    "HigherLower": _higher_lower,
    "MultiarmedBandit": _bandit,
    "PositionOnlyCartPole": _balance,
    "RepeatFirst": _repeat_first,
    "RepeatPrevious": _repeat_previous,
}
"""By family; each is made for one episode of a level, 0 to 2."""
