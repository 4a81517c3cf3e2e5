"""Package Delivery: find out which way forks lead and how packages are dropped, and deliver.

After AMAGO (arXiv 2310.09971). A delivery at a position is a goal, so that whatever was delivered
anywhere can be retold.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.schemas.vocabulary import GoalFamily, GoalVocabulary
from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.instruction_wrapper import InstructionWrapper
from retold.tasks.world import World

FORWARD, LEFT, RIGHT, FIRST_DROP, STAY = 0, 1, 2, 3, 7
_DROPS = 4
"""Actions that may be the one that drops a package."""
_DROPS_A_PACKAGE = 3


def delivery_vocabulary(road: int) -> GoalVocabulary:
    """A delivery at each position but the start, which happens at a transition."""
    return GoalVocabulary(
        (GoalFamily("occurrence", (("deliver",), tuple(str(i) for i in range(1, road)))),)
    )


class PackageDelivery(World):
    """A circular road with forks; the right turn at each, and the action that drops, are hidden.

    The observation is `[3]` in [0, 1]: position by the road's length, share of the drops that are
    left, whether this is a fork. A wrong turn, a wrong drop, a drop at the start and one too many
    lead back to the start. The actions are forward, left, right, four drops and stay.
    """

    def __init__(self, road: int, packages: tuple[int, int], limit: int) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(FIRST_DROP + _DROPS + 1)
        self.vocabulary = delivery_vocabulary(road)
        self.world_seed = 0
        self.destinations: tuple[int, ...] = ()
        """Positions to deliver at, sorted."""
        self._road = road
        self._packages = packages
        self._limit = limit
        self._turns: dict[int, int] = {}
        self._drop = FIRST_DROP
        self._drops = self._drops_left = 0
        self._position = self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The start of the road of `seed`."""
        super().reset(seed=seed)
        self.world_seed = seed if seed is not None else int(self.np_random.integers(2**30))
        rng = np.random.default_rng(self.world_seed)
        most = self._road // 5
        forks = 1 + rng.permutation(self._road - 1)[: rng.integers(most // 2, most + 1)]
        self._turns = {int(fork): int(rng.integers(LEFT, RIGHT + 1)) for fork in forks}
        free = [i for i in range(1, self._road) if i not in self._turns]
        count = int(rng.integers(self._packages[0], self._packages[1] + 1))
        chosen = rng.permutation(len(free))[:count]
        self.destinations = tuple(sorted(free[i] for i in chosen))
        self._drop = int(rng.integers(FIRST_DROP, FIRST_DROP + _DROPS))
        self._drops = self._drops_left = _DROPS_A_PACKAGE * len(self.destinations)
        self._position = self._step = 0
        return self._observe(), {"initial_goals": ()}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Drive, turn or drop."""
        events = self._act(int(action))
        self._step += 1
        is_cut = self._step >= self._limit
        return self._observe(), 0.0, False, is_cut, {"events": events}

    def draw_instruction(self, rng: np.random.Generator) -> tuple[int, ...]:
        """The road's destinations, in order."""
        return tuple(position - 1 for position in self.destinations)

    def draw_text(self) -> str:
        """The road: `A` the agent, `L` and `R` forks by their right turn, `*` destinations."""
        road = ["."] * self._road
        for place in self.destinations:
            road[place] = "*"
        for place, turn in self._turns.items():
            road[place] = "L" if turn == LEFT else "R"
        road[self._position] = "A"
        return "".join(road) + f"\ndrop by action {self._drop}, {self._drops_left} drops left"

    def _act(self, action: int) -> tuple[int, ...]:
        turn = self._turns.get(self._position)
        if action == FORWARD and turn is None:
            self._position = (self._position + 1) % self._road
        elif action in (LEFT, RIGHT) and turn is not None:
            self._position = (self._position + 1) % self._road if action == turn else 0
        elif FIRST_DROP <= action < FIRST_DROP + _DROPS and turn is None:
            return self._drop_package(action)
        return ()

    def _drop_package(self, action: int) -> tuple[int, ...]:
        if action == self._drop and self._drops_left and self._position:
            self._drops_left -= 1
            return (self._position - 1,)
        self._position = 0
        return ()

    def _observe(self) -> NDArray[np.float32]:
        left = self._drops_left / self._drops
        is_fork = float(self._position in self._turns)
        return np.array([self._position / self._road, left, is_fork], np.float32)

    def play_towards(self, goal: int) -> int:
        """The action of one who knows the road."""
        turn = self._turns.get(self._position)
        if turn is not None:
            return turn
        return self._drop if self._position == goal + 1 else FORWARD


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    wrapper, world = environment, environment.unwrapped
    assert isinstance(wrapper, InstructionWrapper) and isinstance(world, PackageDelivery)
    return lambda observation: world.play_towards(wrapper.next_goal)


def _returns(arguments: Arguments) -> ReferenceReturns:
    least, most = arguments["packages"]
    is_known = (arguments["road"], least, most, arguments["limit"]) == (30, 2, 4, 180)
    return ReferenceReturns(
        random=0.20 if is_known else None,
        best=(least + most) / 2,
        player="knows the road",
    )


PACKAGE_DELIVERY = Task(
    name="package-delivery",
    sentence="Deliver packages along a road whose turns and drop are hidden.",
    arguments={
        "road": Argument(30, minimum=10, help="Positions of the circular road."),
        "packages": Argument([2, 4], minimum=1, is_range=True, help="Packages to deliver."),
        "limit": Argument(180, minimum=1, help="Steps after which an episode is cut."),
    },
    limit_is="truncation",
    horizon=lambda arguments: int(arguments["limit"]),
    make=lambda arguments: PackageDelivery(
        **{**arguments, "packages": tuple(arguments["packages"])}
    ),
    vocabulary=lambda arguments: delivery_vocabulary(arguments["road"]),
    most_goals=lambda arguments: int(arguments["packages"][1]),
    returns=_returns,
    player=_make_player,
    is_fast=True,
)
