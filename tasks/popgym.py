"""POPGym's environments as tasks `popgym/NAME`, e.g. `popgym/RepeatPreviousEasy`.

Observations and rewards are the package's own. Environments whose observations only make sense with
the previous action need nothing more: a policy always sees it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from retold.schemas.dataset_schema import LimitKind
from retold.tasks.definition import Player, ReferenceReturns, Task, TaskFamily
from retold.tasks.popgym_players import PLAYERS

Three = tuple[float | None, float | None, float | None]
_LEVELS = ("Easy", "Medium", "Hard")


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Facts of an environment's three levels."""

    horizons: tuple[int, int, int]
    """Longest episode, in transitions."""
    random: tuple[float, float, float]
    """Mean return of random actions."""
    best: Three
    player: str
    limit_is: LimitKind = "termination"
    """What the package sets at the last step."""


_PLAYED = (1.0, 1.0, 1.0)
_UNKNOWN = (None, None, None)
_FAMILIES = {
    "Autoencode": _Family(
        horizons=(103, 207, 311),
        random=(-0.497, -0.498, -0.499),
        best=_PLAYED,
        player="remembers everything",
    ),
    "Battleship": _Family(
        horizons=(64, 100, 144),
        random=(-0.445, -0.419, -0.394),
        best=(0.13, 0.15, 0.14),
        player="sweeps the board",
        limit_is="truncation",
    ),
    "Concentration": _Family(
        horizons=(104, 208, 104),
        random=(-0.189, -0.180, -0.833),
        best=_UNKNOWN,
        player="",
        limit_is="truncation",
    ),
    "CountRecall": _Family(
        horizons=(51, 103, 207),
        random=(-0.928, -0.926, -0.882),
        best=_PLAYED,
        player="counts",
    ),
    "HigherLower": _Family(
        horizons=(51, 103, 155),
        random=(0.0, 0.0, 0.0),
        best=(0.53, 0.52, 0.51),
        player="counts cards",
    ),
    "LabyrinthEscape": _Family(
        horizons=(1023, 1023, 1023),
        random=(-0.43, -0.91, -0.96),
        best=_UNKNOWN,
        player="",
        limit_is="truncation",
    ),
    "LabyrinthExplore": _Family(
        horizons=(1023, 1023, 1023),
        random=(-0.36, -0.62, -0.74),
        best=_UNKNOWN,
        player="",
        limit_is="truncation",
    ),
    "MineSweeper": _Family(
        horizons=(14, 30, 54),
        random=(-0.238, -0.404, -0.432),
        best=_UNKNOWN,
        player="",
    ),
    "MultiarmedBandit": _Family(
        horizons=(200, 400, 600),
        random=(0.0, 0.0, 0.0),
        best=(0.69, 0.80, 0.83),
        player="UCB1",
        limit_is="truncation",
    ),
    "NoisyPositionOnlyCartPole": _Family(
        horizons=(200, 200, 200),
        random=(0.112, 0.112, 0.112),
        best=_UNKNOWN,
        player="",
    ),
    "NoisyPositionOnlyPendulum": _Family(
        horizons=(200, 200, 200),
        random=(0.236, 0.240, 0.238),
        best=_UNKNOWN,
        player="",
        limit_is="truncation",
    ),
    "PositionOnlyCartPole": _Family(
        horizons=(200, 400, 600),
        random=(0.111, 0.056, 0.037),
        best=_PLAYED,
        player="balances by differences of positions",
    ),
    "PositionOnlyPendulum": _Family(
        horizons=(200, 150, 100),
        random=(0.247, 0.235, 0.242),
        best=_UNKNOWN,
        player="",
        limit_is="truncation",
    ),
    "RepeatFirst": _Family(
        horizons=(51, 415, 831),
        random=(-0.496, -0.492, -0.496),
        best=_PLAYED,
        player="remembers the first",
    ),
    "RepeatPrevious": _Family(
        horizons=(51, 103, 155),
        random=(-0.503, -0.503, -0.497),
        best=_PLAYED,
        player="remembers the last",
    ),
    "VelocityOnlyCartPole": _Family(
        horizons=(200, 400, 600),
        random=(0.111, 0.056, 0.037),
        best=_UNKNOWN,
        player="",
    ),
}


class _KeepGlobalRandomness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Labyrinths seed and use the global generators; whoever else uses them must not notice."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation; the seed alone decides on the maze."""
        mine, numpys = random.getstate(), np.random.get_state()
        try:
            return self.env.reset(seed=seed, options=options)
        finally:
            random.setstate(mine)
            np.random.set_state(numpys)


def member_names() -> tuple[str, ...]:
    """All 48, e.g. `AutoencodeEasy`."""
    return tuple(family + level for family in _FAMILIES for level in _LEVELS)


def find_member(name: str) -> Task | None:
    """The task of a name such as `AutoencodeEasy`."""
    for level, suffix in enumerate(_LEVELS):
        family = name.removesuffix(suffix)
        if name.endswith(suffix) and family in _FAMILIES:
            return _make_task(name, family, level)
    return None


def _make_task(name: str, family: str, level: int) -> Task:
    facts = _FAMILIES[family]
    horizon = facts.horizons[level]
    returns = ReferenceReturns(
        random=facts.random[level], best=facts.best[level], player=facts.player
    )
    make_player = PLAYERS.get(family)
    return Task(
        name=f"popgym/{name}",
        sentence=f"POPGym's {name}: act well on what was seen before.",
        arguments={},
        limit_is=facts.limit_is,
        horizon=lambda arguments: horizon,
        make=lambda arguments: _make(name),
        returns=lambda arguments: returns,
        player=None if make_player is None else _player_maker(make_player, level),
        packages=("popgym", "mazelib") if family.startswith("Labyrinth") else ("popgym",),
        is_fast=True,
    )


def _player_maker(
    make_player: Callable[[gymnasium.Env[Any, Any], int], Player], level: int
) -> Callable[[gymnasium.Env[Any, Any]], Player]:
    return lambda environment: make_player(environment, level)


def _make(name: str) -> gymnasium.Env[Any, Any]:
    import popgym.envs

    if not name.startswith("Labyrinth"):
        environment: gymnasium.Env[Any, Any] = getattr(popgym.envs, name)()
        return environment
    from popgym.envs import labyrinth_escape, labyrinth_explore

    module = labyrinth_escape if "Escape" in name else labyrinth_explore
    return _KeepGlobalRandomness(getattr(module, name)())


POPGYM = TaskFamily(
    name="popgym",
    sentence="POPGym's 16 families of three levels: memory of many kinds.",
    members=member_names,
    find=find_member,
)
