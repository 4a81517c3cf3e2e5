"""XLand-MiniGrid's grid worlds as tasks `xland/GRID`, e.g. `xland/R1-9x9`: find out the hidden rules.

Observations and rewards are the package's own. Goal and rules are an episode's, and hidden; objects lie
elsewhere in every attempt.
"""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.schemas.errors import TaskError
from retold.tasks.definition import Argument, Arguments, Task, TaskFamily
from retold.tasks.facts_wrapper import transition_facts
from retold.tasks.xland_rules import draw_rule_set, most_tiles

_TILES, _COLORS = 13, 12
_ACTIONS = 6
"""Forward, turn right, turn left, pick up, put down, toggle."""
_PREFIX = "XLand-MiniGrid-"
_CELLS_AN_OBJECT = 4
"""A grid with fewer is too full to walk in."""


@dataclass(frozen=True)
class _Simulator:
    """The package's functions, compiled once for all environments of a shape."""

    reset: Callable[..., Any]
    """The start for a goal, rules, tiles and the seed of the layout."""
    step: Callable[..., Any]
    """What an action leads to: state, observation, and reward, whether at the goal, and at an end."""
    render: Callable[..., Any]
    view: int
    """Cells of a side of what is seen."""


class XLand(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Attempts at one rule set. The last step of an attempt leads to the next and sets `reset`."""

    def __init__(self, simulator: _Simulator, rules: list[int], distractors: int, attempts: int):
        self._simulator = simulator
        self._least_rules, self._most_rules = rules
        self._distractors = distractors
        self._attempts = attempts
        self._attempt = 0
        self._rule_set: tuple[NDArray[np.uint8], ...] = ()
        self._state: Any = None
        ids = np.broadcast_to([_TILES, _COLORS], (simulator.view, simulator.view, 2))
        self.observation_space = gymnasium.spaces.MultiDiscrete(ids, dtype=np.uint8)
        self.action_space = gymnasium.spaces.Discrete(_ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """The start of the first attempt at a new rule set."""
        super().reset(seed=seed)
        rules = int(self.np_random.integers(self._least_rules, self._most_rules + 1))
        drawn = draw_rule_set(self.np_random, rules, self._most_rules, self._distractors)
        self._rule_set = (drawn.goal, drawn.rules, drawn.tiles)
        self._attempt = 1
        return self._begin_attempt(), {"instruction": (), "initial_goals": ()}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Act; the reward is the package's, at most 1 and less the later the goal is reached."""
        self._state, seen, outcome = self._simulator.step(self._state, np.uint8(action))
        reward, reached, is_over = np.asarray(outcome).tolist()
        is_last = bool(is_over) and self._attempt == self._attempts
        goes_back = bool(is_over) and not is_last
        if goes_back:
            self._attempt += 1
            seen = self._begin_attempt()
        success = bool(reached) if is_over else None
        facts = transition_facts(is_last, reset=goes_back, success=success)
        return np.asarray(seen), reward, is_last, False, facts

    def draw(self) -> NDArray[np.uint8]:
        """`[height, width, 3]`: the grid from above."""
        frame: NDArray[np.uint8] = self._simulator.render(self._state)
        return frame

    def _begin_attempt(self) -> NDArray[np.uint8]:
        seed = np.uint32(self.np_random.integers(2**32))
        self._state, seen = self._simulator.reset(*self._rule_set, seed)
        return np.asarray(seen)


@cache
def _simulator(grid: str, limit: int) -> _Simulator:
    jax = importlib.import_module("jax")
    xminigrid = importlib.import_module("xminigrid")
    types = importlib.import_module("xminigrid.types")
    world, parameters = xminigrid.make(_PREFIX + grid, max_steps=limit)

    def reset(goal: Any, rules: Any, tiles: Any, seed: Any) -> Any:
        rule_set = types.RuleSet(goal=goal, rules=rules, init_tiles=tiles)
        start = world.reset(parameters.replace(ruleset=rule_set), jax.random.key(seed))
        return start, start.observation

    def step(state: Any, action: Any) -> Any:
        after = world.step(parameters, state, action)
        # One array to fetch instead of three.
        outcome = jax.numpy.stack([after.reward, after.discount == 0, after.last()])
        return after, after.observation, outcome

    return _Simulator(
        reset=jax.jit(reset),
        step=jax.jit(step),
        render=lambda state: np.asarray(world.render(parameters, state)),
        view=int(parameters.view_size),
    )


def member_grids() -> tuple[str, ...]:
    """Every grid that the package has: rooms and cells; none without it."""
    try:
        xminigrid = importlib.import_module("xminigrid")
    except ImportError:
        return ()
    names = xminigrid.registered_environments()
    return tuple(name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))


def find_grid(grid: str) -> Task | None:
    """The task of a grid; without the package, of any that could be one."""
    sides = re.fullmatch(r"R\d+-(\d+)x(\d+)", grid)
    known = member_grids()
    if sides is None or (known and grid not in known):
        return None
    cells = int(sides[1]) * int(sides[2])
    return Task(
        name=f"xland/{grid}",
        sentence=f"XLand-MiniGrid's {grid}: find out the hidden goal and rules, in some attempts.",
        arguments={
            "rules": Argument([0, 1], is_range=True, help="Rules that the goal takes."),
            "distractors": Argument(2, help="Objects that the goal does not need."),
            "attempts": Argument(5, minimum=1, help="Attempts at one rule set."),
            "limit": Argument(0, help="Steps of an attempt; 0: the package's, three a cell."),
        },
        limit_is="termination",
        horizon=lambda a: a["attempts"] * (a["limit"] or 3 * cells),
        make=lambda arguments: _make(grid, cells, arguments),
        packages=("xminigrid", "jax"),
        extra="xland",
        is_fast=True,
        gives_facts=True,
    )


def _make(grid: str, cells: int, arguments: Arguments) -> XLand:
    rules = arguments["rules"]
    rules = [rules, rules] if isinstance(rules, int) else list(rules)
    objects = most_tiles(rules[1], arguments["distractors"])
    if objects * _CELLS_AN_OBJECT > cells:
        raise TaskError(
            f"Task xland/{grid}: {rules[1]} rules and {arguments['distractors']} distractors take "
            f"{objects} objects, but {cells} cells have room for {cells // _CELLS_AN_OBJECT}. Ask "
            f"for fewer, or for a larger grid."
        )
    simulator = _simulator(grid, arguments["limit"] or 3 * cells)
    return XLand(simulator, rules, arguments["distractors"], arguments["attempts"])


XLAND = TaskFamily(
    name="xland",
    sentence="XLand-MiniGrid's grid worlds with hidden goals and rules, by their grids.",
    members=member_grids,
    find=find_grid,
)
