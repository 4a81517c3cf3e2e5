"""Playing the episodes of a collection, in this process."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from retold.collect.call_limit import CallLimit
from retold.collect.worker_process import Heartbeat
from retold.policy.acting import Actor, PolicyActor, RandomActor
from retold.policy.registry import resolve_policy
from retold.policy.rollout import (
    ActionChoice,
    DroppedEpisode,
    EpisodeAssignment,
    FinishedEpisode,
    roll_out_or_drop,
)
from retold.policy.snapshot import load_snapshot
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.exploration import ExplorationSchedule
from retold.tasks.registry import make_task

Outcome = FinishedEpisode | DroppedEpisode


@dataclass(frozen=True, kw_only=True)
class PlaySetup:
    """All that playing an episode needs besides its assignment; other processes get it too."""

    task: str
    task_args: Mapping[str, Any]
    schema: DatasetSchema
    policy: str
    """As `--policy` takes it."""
    run_seed: int
    exploration: ExplorationSchedule
    target_return: float | None = None
    """Of a `dt` policy; None: what it keeps."""


def play_here(
    setup: PlaySetup,
    environments: int,
    assignments: Iterator[EpisodeAssignment],
    heartbeat: Heartbeat | CallLimit | None = None,
) -> Iterator[Outcome]:
    """Play every assigned episode; one whose environment fails is dropped, and the others go on.

    Args:
        setup: what to play, and how.
        environments: episodes in flight at once.
        assignments: which episodes; asked whenever an environment is free.
        heartbeat: told before and after every call of an environment.
    """

    def make() -> gymnasium.Env[Any, Any]:
        environment = make_task(setup.task, setup.task_args)
        return environment if heartbeat is None else _Watched(environment, heartbeat)

    made = [make() for _ in range(environments)]

    def replace(failed: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        fresh = make()
        made[made.index(failed)] = fresh
        _close(failed)
        return fresh

    choice = ActionChoice(
        run_seed=setup.run_seed, stage="collect", is_greedy=False, exploration=setup.exploration
    )
    try:
        yield from roll_out_or_drop(
            made, setup.schema, assignments, choice, _newest_actor(setup, environments), replace
        )
    finally:
        for environment in made:
            _close(environment)


class _Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells a heartbeat when a call begins and ends, with the seed of the episode."""

    def __init__(
        self, environment: gymnasium.Env[Any, Any], heartbeat: Heartbeat | CallLimit
    ) -> None:
        super().__init__(environment)
        self._heartbeat = heartbeat
        self._seed = 0
        self._step = environment.step

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._seed = seed or 0
        self._heartbeat.begin(self._seed)
        try:
            return self.env.reset(seed=seed, options=options)
        finally:
            self._heartbeat.end()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._heartbeat.begin(self._seed)
        try:
            return self._step(action)
        finally:
            self._heartbeat.end()


def _close(environment: gymnasium.Env[Any, Any]) -> None:
    """Close it; one that has failed may fail at this too, which changes nothing."""
    with contextlib.suppress(Exception):
        environment.close()


def _newest_actor(setup: PlaySetup, slots: int) -> Callable[[], Actor]:
    """Loads a policy when the registry names a new one; asked between episodes."""
    newest = resolve_policy(setup.policy).newest
    current: Actor = RandomActor()
    loaded: Path | None = None

    def look() -> Actor:
        nonlocal current, loaded
        path = newest()
        if path is not None and path != loaded:
            policy, description = load_snapshot(path)
            current = PolicyActor(
                policy,
                slots,
                description.policy_id,
                description.update,
                target_return=setup.target_return,
            )
            loaded = path
        return current

    return look
