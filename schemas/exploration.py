"""Exploration schedules: how often a collected action is random, or how much noise is on it."""

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

    Where actions are amounts, epsilon is the spread of Gaussian noise, in units of half their range.

    A function of the index, not of a clock: the same episodes come out of any number of
    environments, and a resumed collector continues where it was.
    """

    phases: tuple[ExplorationPhase, ...]
    """Sorted by `from_step`, the first from 0."""
    anneal_episodes: int
    """Episodes over which epsilon moves linearly from `start` to `end`; 0 means `end` at once."""
    is_gradual: bool = False
    """Whether epsilon moves linearly from each phase's first step to the next one's."""
    is_scaled: bool = False
    """Whether each episode multiplies epsilon by a number of its own, uniform in [0, 1)."""

    def epsilon(self, step: int, episode_index: int) -> float:
        """Chance of a random action, or spread of the noise, at a step of an episode, unscaled."""
        number = sum(phase.from_step <= step for phase in self.phases) - 1
        phase = self.phases[number]
        now = self._annealed(phase, episode_index)
        if not self.is_gradual or number + 1 == len(self.phases):
            return now
        following = self.phases[number + 1]
        part = (step - phase.from_step) / (following.from_step - phase.from_step)
        return now + part * (self._annealed(following, episode_index) - now)

    def _annealed(self, phase: ExplorationPhase, episode_index: int) -> float:
        share = min(1.0, episode_index / self.anneal_episodes) if self.anneal_episodes else 1.0
        return phase.start + share * (phase.end - phase.start)

    def to_json(self) -> dict[str, Any]:
        """The schedule as plain JSON values."""
        marks = {"is_gradual": self.is_gradual, "is_scaled": self.is_scaled}
        return {
            "phases": [[p.from_step, p.start, p.end] for p in self.phases],
            "anneal_episodes": self.anneal_episodes,
            **{name: mark for name, mark in marks.items() if mark},
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ExplorationSchedule":
        """The inverse of `to_json`."""
        return cls(
            tuple(ExplorationPhase(*phase) for phase in content["phases"]),
            content["anneal_episodes"],
            is_gradual=content.get("is_gradual", False),
            is_scaled=content.get("is_scaled", False),
        )


NO_EXPLORATION = ExplorationSchedule((ExplorationPhase(0, 0.0, 0.0),), 0)


def constant_epsilon(epsilon: float) -> ExplorationSchedule:
    """Plain epsilon-greedy, the same at every step of every episode."""
    return ExplorationSchedule((ExplorationPhase(0, epsilon, epsilon),), 0)


def bilevel_epsilon(horizon: int, anneal_episodes: int) -> ExplorationSchedule:
    """Epsilon that falls over training and within each episode, at a scale that each draws anew.

    AMAGO's figures (arXiv 2310.09971, the authors' code at release): from 1 to 0.05 at an episode's
    start, from 0.8 to 0.01 at its end. So a trial's late attempts explore less than its first.
    """
    phases = (ExplorationPhase(0, 1.0, 0.05), ExplorationPhase(max(1, horizon), 0.8, 0.01))
    return ExplorationSchedule(phases, anneal_episodes, is_gradual=True, is_scaled=True)
