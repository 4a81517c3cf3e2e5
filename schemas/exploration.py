"""Exploration schedules: how often a collected action is replaced by a random one."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ExplorationPhase:
    """Epsilon from one step of an episode on, until the next phase begins."""

    from_step: int
    """First step of the episode that the phase covers."""
    start: float
    """Epsilon in the first episode of the run seed, in [0, 1]."""
    end: float
    """Epsilon once `anneal_episodes` episodes have been collected."""


@dataclass(frozen=True)
class ExplorationSchedule:
    """Epsilon-greedy exploration that depends on the step and on the episode's index alone.

    A function of the index, not of a clock: the same episodes come out of any number of
    environments, and a resumed collector continues where it was.
    """

    phases: tuple[ExplorationPhase, ...]
    """Sorted by `from_step`, the first from 0."""
    anneal_episodes: int
    """Episodes over which epsilon moves linearly from `start` to `end`; 0 means `end` at once."""

    def epsilon(self, step: int, episode_index: int) -> float:
        """Probability of a uniformly random action at a step of an episode."""
        phase = next(p for p in reversed(self.phases) if p.from_step <= step)
        share = min(1.0, episode_index / self.anneal_episodes) if self.anneal_episodes else 1.0
        return phase.start + share * (phase.end - phase.start)

    def to_json(self) -> dict[str, Any]:
        """The schedule as plain JSON values."""
        return {
            "phases": [[p.from_step, p.start, p.end] for p in self.phases],
            "anneal_episodes": self.anneal_episodes,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ExplorationSchedule":
        """The inverse of `to_json`."""
        return cls(
            tuple(ExplorationPhase(*phase) for phase in content["phases"]),
            content["anneal_episodes"],
        )


NO_EXPLORATION = ExplorationSchedule((ExplorationPhase(0, 0.0, 0.0),), 0)


def constant_epsilon(epsilon: float) -> ExplorationSchedule:
    """Plain epsilon-greedy, the same at every step of every episode."""
    return ExplorationSchedule((ExplorationPhase(0, epsilon, epsilon),), 0)
