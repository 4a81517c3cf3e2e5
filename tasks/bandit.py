"""A Bernoulli bandit: which arm pays most is hidden, and the same for a whole episode."""

from typing import Any

import gymnasium
import numpy as np

from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.facts_wrapper import transition_facts


class Bandit(gymnasium.Env[np.int64, np.int64]):
    """Each arm pays 1 with a chance of its own, drawn uniformly; there is nothing to see."""

    def __init__(self, arms: int, pulls: int) -> None:
        self.observation_space = gymnasium.spaces.Discrete(1)
        self.action_space = gymnasium.spaces.Discrete(arms)
        self._pulls = pulls
        self._chances = np.zeros(arms)
        self._step = 0
        self.counts = np.zeros(arms, np.int64)
        """`[arms]`: pulls of each arm."""
        self.payoffs = np.zeros(arms)
        """`[arms]`: what each arm has paid."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """New arms."""
        super().reset(seed=seed)
        self._chances = self.np_random.random(len(self._chances))
        self.counts[:], self.payoffs[:] = 0, 0.0
        self._step = 0
        return np.int64(0), {"instruction": (), "initial_goals": ()}

    def step(self, action: np.int64 | int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Pull an arm."""
        reward = float(self.np_random.random() < self._chances[action])
        self.counts[action] += 1
        self.payoffs[action] += reward
        self._step += 1
        is_last = self._step == self._pulls
        return np.int64(0), reward, is_last, False, transition_facts(is_last)

    def draw_text(self) -> str:
        """A line for each arm: its chance, and what was paid of its pulls."""
        return "\n".join(
            f"arm {arm}  chance {chance:.2f}  paid {paid:.0f} of {count}"
            for arm, (chance, paid, count) in enumerate(
                zip(self._chances, self.payoffs, self.counts, strict=True)
            )
        )


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    """UCB1 with a small bonus: the mean payoff plus `sqrt(0.05 log t / pulls)`."""
    bandit = environment.unwrapped
    assert isinstance(bandit, Bandit)

    def play(observation: Any) -> int:
        counts = bandit.counts
        if not counts.all():
            return int(np.argmin(counts))
        bonus = np.sqrt(0.05 * np.log(counts.sum()) / counts)
        return int(np.argmax(bandit.payoffs / counts + bonus))

    return play


def _returns(arguments: Arguments) -> ReferenceReturns:
    arms, pulls = arguments["arms"], arguments["pulls"]
    known = {(5, 50): 37.2, (10, 100): 81.4}
    return ReferenceReturns(
        random=pulls / 2,
        best=known.get((arms, pulls), pulls * arms / (arms + 1)),
        player="UCB1" if (arms, pulls) in known else "knows the best arm",
    )


BANDIT = Task(
    name="bandit",
    sentence="Find the arm that pays most, and pull it.",
    arguments={
        "arms": Argument(5, minimum=2, help="Number of arms."),
        "pulls": Argument(50, minimum=1, help="Steps of an episode."),
    },
    limit_is="termination",
    horizon=lambda arguments: int(arguments["pulls"]),
    make=lambda arguments: Bandit(**arguments),
    returns=_returns,
    player=_make_player,
    is_fast=True,
    gives_facts=True,
)
