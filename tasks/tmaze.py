"""T-Maze: a cue near the start says which way to turn at the end of a corridor.

After Ni et al. (2023), in the form that AMAGO evaluates (arXiv 2310.09971). Passive: the agent starts
where the cue is shown. Active: the cue is one cell to the left of the start, and worth the way.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.schemas.exploration import ExplorationPhase, ExplorationSchedule
from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.facts_wrapper import transition_facts

RIGHT, UP, LEFT, DOWN = range(4)
_DETOUR = 2
"""Steps to the cue and back in the active form."""


class TMaze(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Pure memory, no goals.

    The observation is `[2]`: (0, cue) on the first visit to the cue's cell, (0, 0) elsewhere in the
    corridor, (1, y) at its end. Without slack the episode has just the steps that are needed, every
    move but right costs `1 / corridor` before the last step (the active form's first step may also
    go left for nothing), and the last step earns 1 at the arm that the cue named. With slack there
    are `slack` more steps and no penalty, and the first arm entered ends the episode.
    """

    def __init__(self, corridor: int, slack: int, is_active: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._corridor = corridor
        self._slack = slack
        self._cue_x = -1 if is_active else 0
        self._limit = _limit(corridor, slack, is_active)
        self._x = self._y = self._step = 0
        self._cue = 1
        self._cue_was_seen = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The start of the corridor."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.choice((-1, 1)))
        self._x = self._y = self._step = 0
        self._cue_was_seen = False
        return self._observe(), {"instruction": (), "initial_goals": ()}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move right, up, left or down; up and down only count at the corridor's end."""
        action = int(action)
        is_free = action == RIGHT or (self._cue_x < 0 and self._step == 0 and action == LEFT)
        self._move(action)
        self._step += 1
        is_last = self._step == self._limit or bool(self._slack and self._y)
        success = self._x == self._corridor and self._y == self._cue
        if is_last:
            reward = float(success)
        else:
            reward = 0.0 if self._slack or is_free else -1.0 / self._corridor
        facts = transition_facts(is_last, success=success if is_last else None)
        return self._observe(), reward, is_last, False, facts

    def draw_text(self) -> str:
        """The corridor from above: `A` the agent, `?` the cue's cell, `*` the arm to take."""
        width = self._corridor - self._cue_x + 1
        rows = [["#"] * width for _ in range(3)]
        rows[1] = ["."] * width
        for y, row in ((1, 0), (-1, 2)):
            rows[row][-1] = "*" if self._cue == y else "."
        rows[1][0] = "?"
        rows[1 - self._y][self._x - self._cue_x] = "A"
        return "\n".join("".join(row) for row in rows)

    def _move(self, action: int) -> None:
        if action in (UP, DOWN):
            if self._x == self._corridor and self._y == 0:
                self._y = 1 if action == UP else -1
        elif self._y == 0:
            move = 1 if action == RIGHT else -1
            self._x = min(self._corridor, max(self._cue_x, self._x + move))

    def _observe(self) -> NDArray[np.float32]:
        if self._x == self._corridor:
            return np.array([1.0, self._y], np.float32)
        is_shown = self._x == self._cue_x and not self._cue_was_seen
        # The passive form shows its cue at step 0 alone.
        self._cue_was_seen |= is_shown
        return np.array([0.0, self._cue if is_shown else 0.0], np.float32)

    def _play(self, observation: NDArray[np.float32]) -> int:
        if self._x == self._corridor:
            return UP if self._cue > 0 else DOWN
        return LEFT if self._cue_x < 0 and not self._cue_was_seen else RIGHT


def tmaze_exploration(corridor: int, slack: int) -> ExplorationSchedule:
    """Few random moves in the corridor, where one is enough to spoil the episode, many at its end.

    The peer's example does the same. It starts with 1.5 expected random moves along the corridor.
    """
    phases = [ExplorationPhase(0, min(1.0, 1.5 / corridor), 0.3 / corridor)]
    if not slack:
        phases.append(ExplorationPhase(corridor, 1.0, 0.1))
    return ExplorationSchedule(tuple(phases), anneal_episodes=800)


def _limit(corridor: int, slack: int, is_active: bool) -> int:
    return corridor + 1 + slack + (_DETOUR if is_active else 0)


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    maze = environment.unwrapped
    assert isinstance(maze, TMaze)
    return maze._play


def _passive_returns(arguments: Arguments) -> ReferenceReturns:
    if arguments["slack"]:
        return ReferenceReturns(best=1.0, player="optimal")
    # Three of four moves cost; the arm is found by luck too rarely to count.
    return ReferenceReturns(random=-0.75, best=1.0, player="optimal")


def _active_returns(arguments: Arguments) -> ReferenceReturns:
    if arguments["slack"]:
        return ReferenceReturns(best=1.0, player="optimal")
    corridor = arguments["corridor"]
    costs = 0.5 + 0.75 * (corridor + 1)
    return ReferenceReturns(random=-costs / corridor, best=1.0, player="optimal")


_ARGUMENTS = {
    "corridor": Argument(20, minimum=1, help="Cells from the start to the junction."),
    "slack": Argument(0, help="Steps beyond those needed; if any, moves cost nothing."),
}

TMAZE = Task(
    name="tmaze",
    sentence="Remember the cue shown at the start until the junction at the corridor's end.",
    arguments=_ARGUMENTS,
    limit_is="termination",
    horizon=lambda arguments: _limit(arguments["corridor"], arguments["slack"], False),
    make=lambda arguments: TMaze(**arguments),
    returns=_passive_returns,
    exploration=lambda arguments: tmaze_exploration(**arguments),
    player=_make_player,
    is_fast=True,
    gives_facts=True,
)

TMAZE_ACTIVE = Task(
    name="tmaze-active",
    sentence="Step back to see the cue, then remember it until the junction.",
    arguments=_ARGUMENTS,
    limit_is="termination",
    horizon=lambda arguments: _limit(arguments["corridor"], arguments["slack"], True),
    make=lambda arguments: TMaze(**arguments, is_active=True),
    returns=_active_returns,
    player=_make_player,
    is_fast=True,
    gives_facts=True,
)
