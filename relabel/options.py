"""How episodes are retold: everything that decides what a variant says."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class RelabelOptions:
    """The settings of one generation of variants."""

    strategy: str = "some"
    variants: int = 4
    seed: int = 0
    length_weights: tuple[float, ...] = ()
    """Chance of instructions of 1, 2, … goals, in any scale; empty keeps each episode's own length."""
    goal_limit: int | None = None
    """Most variants of an episode in which one goal stands that its original lacks."""
    goal_reward: str | None = None
    """What recomputes rewards of goal-conditioned data (`retold.relabel.goal_reward`)."""
    goal_terminates: bool = False
    """Whether reaching the goal ends a goal-conditioned variant."""

    @property
    def label(self) -> str:
        """Names the generation together with the seed: the strategy, and what else it was asked."""
        parts = [self.strategy]
        if self.length_weights:
            parts.append("lengths=" + ",".join(f"{weight:g}" for weight in self.length_weights))
        if self.goal_limit is not None:
            parts.append(f"goal-limit={self.goal_limit}")
        if self.goal_reward is not None:
            parts.append(f"reward={self.goal_reward}")
        if self.goal_terminates:
            parts.append("goal-terminates")
        return " ".join(parts)

    def weights(self, most_goals: int) -> NDArray[np.float64] | None:
        """`[most_goals]`: chances of lengths, or None for each episode's own."""
        if not self.length_weights:
            return None
        weights = np.zeros(most_goals)
        given = np.asarray(self.length_weights[:most_goals], np.float64)
        weights[: len(given)] = given
        return weights


@dataclass(frozen=True, kw_only=True)
class GoalStatistics:
    """What a first pass over the dataset counts, for the strategies that ask for it."""

    goal_weight: NDArray[np.int64]
    """`[vocabulary]`, 1..4096: the inverse of how often each goal is achieved."""
    prerequisites: NDArray[np.int64]
    """`[vocabulary, most]`: goals that nearly always come before each goal; -1 after the last."""
