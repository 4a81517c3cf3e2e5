"""MazeRunner: reach cells of a new maze in the order that the instruction names them.

After AMAGO (arXiv 2310.09971, appendix C): a random maze with a cleared strip near its lower edge,
where the agent starts between two walls.
"""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.schemas.vocabulary import GoalFamily, GoalVocabulary
from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.instruction_wrapper import InstructionWrapper
from retold.tasks.world import World

MOVES = ((0, -1), (-1, 0), (0, 1), (1, 0), (0, 0))
"""West, north, east, south, stay, as (row, column)."""

_COMPLEXITY = _DENSITY = 0.75


def maze_vocabulary(size: int) -> GoalVocabulary:
    """Every cell is a goal: a state that holds while the agent stands on it."""
    numbers = tuple(str(i) for i in range(size))
    return GoalVocabulary((GoalFamily("state", (("cell",), numbers, numbers)),))


class Maze(World):
    """One maze an episode; walls and, if asked, the meaning of actions are hidden.

    The observation is `[7]` in [0, 1]: row and column, free cells to the west, north, east and
    south (all divided by the size), and the share of the step limit that has passed.
    """

    def __init__(
        self, size: int, goals: tuple[int, int], limit: int, shuffle_actions: bool
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (7,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self.vocabulary = maze_vocabulary(size)
        self.world_seed = 0
        self._size = size
        self._goals = goals
        self._limit = limit
        self._shuffle_actions = shuffle_actions
        self._walls = np.ones((size, size), np.bool_)
        self._moves: tuple[tuple[int, int], ...] = MOVES
        self._cell = (size - 2, size // 2)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The start cell of the maze of `seed`."""
        super().reset(seed=seed)
        self.world_seed = seed if seed is not None else int(self.np_random.integers(2**30))
        rng = np.random.default_rng(self.world_seed)
        self._walls = make_maze(self._size, rng)
        order = rng.permutation(len(MOVES)) if self._shuffle_actions else range(len(MOVES))
        self._moves = tuple(MOVES[i] for i in order)
        self._cell = (self._size - 2, self._size // 2)
        self._step = 0
        return self._observe(), {"initial_goals": (self._goal(self._cell),)}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move one cell; walls stop the agent."""
        row, column = self._moves[int(action)]
        target = (self._cell[0] + row, self._cell[1] + column)
        if not self._walls[target]:
            self._cell = target
        self._step += 1
        is_cut = self._step >= self._limit
        return self._observe(), 0.0, False, is_cut, {"events": (self._goal(self._cell),)}

    def draw_instruction(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Distinct cells that can be reached, the start not among them."""
        cells = sorted(reachable_cells(self._walls, self._cell) - {self._cell})
        count = min(len(cells), int(rng.integers(self._goals[0], self._goals[1] + 1)))
        return tuple(self._goal(cells[i]) for i in rng.permutation(len(cells))[:count])

    def draw_text(self) -> str:
        """The maze from above: `#` walls, `A` the agent."""
        rows = [["#" if wall else "." for wall in row] for row in self._walls]
        rows[self._cell[0]][self._cell[1]] = "A"
        return "\n".join("".join(row) for row in rows)

    def walk_to(self, goal: int) -> int | None:
        """The action of a shortest way to a goal; None on it."""
        target = divmod(goal, self._size)
        way = shortest_way(self._walls, self._cell, target)
        return self._moves.index(way) if way is not None else None

    def _goal(self, cell: tuple[int, int]) -> int:
        return cell[0] * self._size + cell[1]

    def _observe(self) -> NDArray[np.float32]:
        row, column = self._cell
        free = [self._free_cells(*move) for move in MOVES[:4]]
        values = np.array([row, column, *free, 0.0], np.float32) / np.float32(self._size)
        values[-1] = self._step / self._limit
        return values

    def _free_cells(self, row: int, column: int) -> int:
        count, cell = 0, (self._cell[0] + row, self._cell[1] + column)
        while not self._walls[cell]:
            count, cell = count + 1, (cell[0] + row, cell[1] + column)
        return count


def make_maze(size: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """`[size, size]`: True at walls. The start cell is (size - 2, size // 2).

    Islands grow on the even grid, each for a number of steps that the complexity sets; the density
    sets how many there are.
    """
    walls = np.zeros((size, size), np.bool_)
    walls[[0, -1], :] = walls[:, [0, -1]] = True
    half = size // 2
    growth = int(_COMPLEXITY * 5 * 2 * size)
    for _ in range(int(_DENSITY * half * half)):
        row, column = 2 * rng.integers(0, half + 1, 2)
        walls[row, column] = True
        for _ in range(growth):
            steps = [(row + i, column + j) for i, j in ((0, -2), (0, 2), (-2, 0), (2, 0))]
            steps = [(i, j) for i, j in steps if 0 <= i < size and 0 <= j < size]
            next_row, next_column = steps[rng.integers(len(steps))]
            if not walls[next_row, next_column]:
                walls[next_row, next_column] = True
                walls[(row + next_row) // 2, (column + next_column) // 2] = True
                row, column = next_row, next_column
    strip = max(1, size - 5)
    walls[strip : size - 1, 1:-1] = False
    walls[strip + 1 : size - 1, half - 1] = walls[strip + 1 : size - 1, half + 1] = True
    return walls


def reachable_cells(walls: NDArray[np.bool_], start: tuple[int, int]) -> set[tuple[int, int]]:
    """Free cells connected to `start`, itself included."""
    found, frontier = {start}, [start]
    while frontier:
        row, column = frontier.pop()
        for i, j in MOVES[:4]:
            cell = (row + i, column + j)
            if not walls[cell] and cell not in found:
                found.add(cell)
                frontier.append(cell)
    return found


def shortest_way(
    walls: NDArray[np.bool_], start: tuple[int, int], target: tuple[int, int]
) -> tuple[int, int] | None:
    """The first move of a shortest way; None on the target, or if there is no way."""
    came: dict[tuple[int, int], tuple[int, int]] = {start: start}
    queue = deque([start])
    while queue and target not in came:
        row, column = queue.popleft()
        for i, j in MOVES[:4]:
            cell = (row + i, column + j)
            if not walls[cell] and cell not in came:
                came[cell] = (row, column)
                queue.append(cell)
    if target == start or target not in came:
        return None
    cell = target
    while came[cell] != start:
        cell = came[cell]
    return (cell[0] - start[0], cell[1] - start[1])


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    wrapper, world = environment, environment.unwrapped
    assert isinstance(wrapper, InstructionWrapper) and isinstance(world, Maze)

    def play(observation: Any) -> int:
        action = world.walk_to(wrapper.next_goal)
        assert action is not None
        return action

    return play


def _returns(arguments: Arguments) -> ReferenceReturns:
    least, most = arguments["goals"]
    return ReferenceReturns(
        random=0.56 if arguments == _DEFAULTS else None,
        best=(least + most) / 2 if arguments == _DEFAULTS else None,
        player="knows the maze, takes shortest ways",
    )


_ARGUMENTS = {
    "size": Argument(11, minimum=5, is_odd=True, help="Rows and columns."),
    "goals": Argument([1, 3], minimum=1, is_range=True, help="Goals of an instruction."),
    "limit": Argument(250, minimum=1, help="Steps after which an episode is cut."),
    "shuffle_actions": Argument(False, help="Whether each maze has another order of actions."),
}
_DEFAULTS = {name: argument.default for name, argument in _ARGUMENTS.items()}

MAZE = Task(
    name="maze",
    sentence="Reach cells of a new maze in the order that the instruction names them.",
    arguments=_ARGUMENTS,
    limit_is="truncation",
    horizon=lambda arguments: int(arguments["limit"]),
    make=lambda arguments: Maze(**{**arguments, "goals": tuple(arguments["goals"])}),
    vocabulary=lambda arguments: maze_vocabulary(arguments["size"]),
    most_goals=lambda arguments: int(arguments["goals"][1]),
    returns=_returns,
    player=_make_player,
    is_fast=True,
)
