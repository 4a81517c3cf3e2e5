"""An episode in memory, and its row in the episode table.

An episode of T transitions has T + 1 observations, the true last one included. `reward[t]`,
`terminated[t]`, `truncated[t]`, `reset[t]` and the goal events of transition `t` follow from
`action[t]`, taken on seeing `observation[t]`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Leaves = dict[str, NDArray[Any]]
"""Arrays by leaf path, e.g. `observation/position`. Text leaves are object arrays of `str`."""


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One row of the episode table: all there is to know of an episode without its arrays."""

    episode_id: str
    """32 hex digits, for life."""
    task: int
    """Index into the schema's tasks."""
    length: int
    """T, the number of transitions, at least 1."""
    episode_return: float
    """Sum of the raw rewards."""
    terminated: bool
    """`terminated[T-1]`"""
    truncated: bool
    """`truncated[T-1]`"""
    environment_terminated: bool
    """Whether the world itself ended at transition T-1, whatever the instruction."""
    success: bool | None = None
    """Instruction completed, or the task's own verdict; None where the task has none."""
    instruction: tuple[int, ...] = ()
    """Goal ids, in order; empty for tasks without goals."""
    completed: tuple[int, ...] = ()
    """The transition at which each goal of the instruction was met."""
    initial_goals: tuple[int, ...] = ()
    """State goals that were already true of `observation[0]`; they earn nothing."""

    run_seed: int | None = None
    """Seed of the collecting run."""
    index: int | None = None
    """Number of the episode under its run seed."""
    seed: int | None = None
    """What the environment was reset with."""
    policy: str | None = None
    """`random`, or the id of the policy snapshot that acted."""
    policy_update: int | None = None
    """Trainer updates behind that snapshot."""
    exploration: str | None = None
    """The exploration schedule as canonical JSON, without its final newline."""
    metadata: str | None = None
    """Anything else about the episode, as canonical JSON without its final newline."""

    source_dataset_id: str | None = None
    """Set for variants: where the observations, actions and events are."""
    source_episode_id: str | None = None
    strategy: str | None = None
    relabel_seed: int | None = None
    variant: int | None = None
    """Number of the variant under its episode, strategy and seed."""
    goal_row: int | None = None
    """Set for variants of goal-conditioned data: the row of the source's `achieved_goal` that stands
    as `desired_goal` in every row."""

    @property
    def is_variant(self) -> bool:
        """Whether the arrays belong to another episode.

        A variant written out keeps `source_episode_id`, its lineage, but has arrays of its own.
        """
        return self.source_dataset_id is not None


@dataclass(frozen=True, kw_only=True)
class Episode:
    """An episode with its arrays; for a variant, those of its source cut to its own length."""

    record: EpisodeRecord
    observation: Leaves
    """`[time + 1, ...]` each."""
    action: Leaves
    """`[time, ...]` each."""
    reward: NDArray[np.float32]
    """`[time]`, raw."""
    terminated: NDArray[np.bool_]
    """`[time]`: bootstrapping stops here."""
    truncated: NDArray[np.bool_]
    """`[time]`: the episode was cut here, its future was not."""
    environment_terminated: NDArray[np.bool_]
    """`[time]`: the world ended, whatever the instruction."""
    reset: NDArray[np.bool_]
    """`[time]`: an attempt inside the episode ended (a soft reset)."""
    event_step: NDArray[np.uint32]
    """`[events]`, sorted: the transition of each goal event."""
    event_goal: NDArray[np.uint32]
    """`[events]`: its goal; sorted within a transition, no pair twice."""
    info: Leaves = field(default_factory=dict)
    """`[time, ...]` each, by path (`info/…`); zero where absent."""
    info_present: Leaves = field(default_factory=dict)
    """`[time]`, bool, by the same paths: where a value is there."""

    @property
    def length(self) -> int:
        """Number of transitions."""
        return len(self.reward)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Transitions `start..start+length-1` of an episode, with the row after and the row before."""

    record: EpisodeRecord
    dataset: int
    """Which dataset of a mixture the window comes from."""
    start: int
    """Number of the first transition in its episode."""
    observation: Leaves
    """`[length + 1, ...]` each."""
    action: Leaves
    """`[length, ...]` each."""
    reward: NDArray[np.float32]
    """`[length]`"""
    terminated: NDArray[np.bool_]
    """`[length]`"""
    truncated: NDArray[np.bool_]
    """`[length]`"""
    reset: NDArray[np.bool_]
    """`[length]`"""
    progress: NDArray[np.uint32]
    """`[length + 1]`: goals completed since the episode's start, before `observation[t]`."""
    previous_action: Leaves | None
    """The action before the window (one row, no time axis); None when `start` is 0."""
    previous_reward: float
    """The reward before the window; 0 when `start` is 0."""
    previous_reset: bool
    """The soft-reset flag before the window; False when `start` is 0."""

    @property
    def length(self) -> int:
        """Number of transitions."""
        return len(self.reward)
