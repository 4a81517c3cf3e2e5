"""`retold collect`: record episodes of a task into a dataset."""

import itertools
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.writer import DatasetWriter
from retold.schemas.canonical import encode_json
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import DatasetError, UsageError
from retold.schemas.exploration import (
    NO_EXPLORATION,
    ExplorationSchedule,
    bilevel_epsilon,
    constant_epsilon,
)
from retold.schemas.identity import world_seed
from retold.schemas.stop_signals import note_stop_signals
from retold.tasks.registry import exploration_schedule, find_task, task_schema, task_versions

if TYPE_CHECKING:
    from retold.collect.play import Outcome, PlaySetup
    from retold.collect.recorder import Recorder
    from retold.policy.rollout import EpisodeAssignment

_FEW = 8
"""Episodes a core that are not worth starting processes."""
_WAIT_SECONDS = 0.5
"""Between looks at a dataset that is full."""


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """What `retold collect` is asked."""

    task: str
    """Task to play, as `retold tasks` lists them."""
    dataset: DatasetPath
    """Dataset to append to; made if there is none."""
    policy: str = "random"
    """`random`, a policy snapshot, or a run whose newest policy acts (randomly while it has none)."""
    episodes: int = 100
    """Episodes of the seed in all; those that are committed already are not played again."""
    first: int = 0
    """Number of the first episode of the seed."""
    environments: int = 8
    """Episodes in flight at once. The episodes do not depend on it."""
    seed: int = 0
    """Seed of the run: names its worlds and its random actions."""
    task_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the task, as a JSON object."""
    target_return: float | None = None
    """Return that a policy of objective dt is asked for; none means what it keeps from its data."""
    epsilon: float | None = None
    """Chance of a random action, in [0, 1]; where actions are amounts, the spread of Gaussian noise on
    them, in units of half their range. None means what the task declares for policies, or 0."""
    flush_seconds: float = 60.0
    """Seconds after which gathered episodes are written and committed."""
    workers: int | None = None
    """Processes that play; 0 plays in this one, where an environment that hangs within code that is
    not Python's ends the command; none chooses: one a core for tasks whose steps are slow, 0 for the others."""
    timeout_seconds: float = 300.0
    """Longest step or reset of an environment before it is ended and replaced, and its episode
    dropped."""
    most_drops: int = 10
    """Episodes in a row that may be dropped because their environment failed."""
    exploration: Literal["task", "bilevel"] = "task"
    """What a learned policy explores by: what the task declares (or --epsilon), or bilevel: epsilon
    that falls over episodes and within each, at a scale that every episode draws."""
    anneal_episodes: int = 1000
    """Episodes of the seed over which bilevel exploration falls."""
    follow: bool = False
    """Go on until stopped, --episodes or not."""
    most_steps: int | None = None
    """With --follow: transitions that the dataset may hold."""
    when_full: Literal["wait", "evict"] = "wait"
    """With --most-steps: wait until someone evicts episodes, or evict the oldest."""
    scheduler: str | None = None
    """Address of a running Dask scheduler, whose workers collect; they must see the dataset."""
    collectors: int = 2
    """With --scheduler: Dask tasks that collect at once, each a part of the episodes."""

    def __post_init__(self) -> None:
        minimums = {"episodes": 1, "first": 0, "environments": 1, "seed": 0, "most_drops": 0}
        minimums |= {"workers": 0, "anneal_episodes": 0, "most_steps": 1, "collectors": 1}
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}, but must be at least {minimum}.")
        if self.epsilon is not None and not 0 <= self.epsilon <= 1:
            raise UsageError(f"--epsilon is {self.epsilon}, but a chance lies between 0 and 1.")
        if self.epsilon is not None and self.exploration != "task":
            raise UsageError(
                "--epsilon and --exploration bilevel are two ways to explore. Give one."
            )
        if self.target_return is not None and self.policy == "random":
            raise UsageError("--target-return is asked of a policy. Give --policy.")
        if self.timeout_seconds <= 0:
            raise UsageError(f"--timeout-seconds is {self.timeout_seconds}, but must be above 0.")
        if self.follow and self.scheduler is not None:
            raise UsageError("--follow goes on for ever, and --scheduler plays parts. Give one.")
        if self.most_steps is not None and not self.follow:
            raise UsageError("--most-steps bounds a collector that goes on. Give --follow as well.")


@dataclass(frozen=True, kw_only=True)
class CollectResult:
    """What was recorded."""

    dataset: str
    episodes: int
    """Episodes recorded now."""
    skipped: int
    """Episodes of the range that were committed before."""
    dropped: int
    """Episodes whose environment failed; a later run tries them again."""
    steps: int
    mean_return: float | None
    success: float | None
    snapshot: int | None
    """Number of the newest commit."""


def collect(config: CollectConfig) -> CollectResult:
    """Play the missing episodes of the range and append them.

    Raises:
        UsageError: the task or its arguments are wrong.
        DatasetError: the dataset holds other data under this seed, or cannot be written.
        EnvironmentFailure: environments failed at every episode, or at too many in a row; episodes
            finished before are committed.
    """
    from retold.collect.play import PlaySetup
    from retold.collect.recorder import Recorder, find_committed
    from retold.policy.registry import resolve_policy

    schema = task_schema(config.task, config.task_args)
    policy = resolve_policy(config.policy)
    exploration = _choose_exploration(config, schema)
    identity = {
        "run_seed": config.seed,
        "task": schema.tasks[0].identity.decode().strip(),
        "policy": policy.identity,
        "exploration": exploration.to_json(),
    }
    if config.target_return is not None:
        identity["target_return"] = config.target_return
    _check_policy(config, policy.newest(), schema)  # before anything is made
    log = CommitLog.create(config.dataset)
    _check_schema(log, schema)
    committed = find_committed(log, identity)  # refuses other settings before anything is played
    wanted = range(config.first, config.first + config.episodes)
    missing = [index for index in wanted if index not in committed]
    if config.scheduler is not None:
        from retold.collect.cluster import collect_on_cluster

        return collect_on_cluster(config, missing, log)
    setup = PlaySetup(
        task=config.task,
        task_args=config.task_args,
        schema=schema,
        policy=config.policy,
        run_seed=config.seed,
        exploration=exploration,
        target_return=config.target_return,
    )
    recorder = Recorder(
        DatasetWriter(log, schema, flush_seconds=config.flush_seconds),
        identity,
        exploration=encode_json(exploration.to_json()).decode().strip(),
        versions=task_versions(config.task),
        most_drops=config.most_drops,
    )
    try:
        with note_stop_signals() as stopped:
            if config.follow:
                _follow(config, setup, recorder, committed, stopped)
            elif missing:
                outcomes = _play(config, setup, missing, len(missing), stopped)
                recorder.record(outcomes, len(missing), stopped)
    finally:
        # Whatever ended the rollout, what is finished is not lost.
        recorder.flush()
    recorder.refuse_all_dropped()
    return make_result(
        config,
        log,
        skipped=0 if config.follow else len(wanted) - len(missing),
        dropped=recorder.dropped,
        steps=recorder.steps,
        returns=recorder.returns,
        verdicts=recorder.verdicts,
    )


def make_result(
    config: CollectConfig,
    log: CommitLog,
    *,
    skipped: int,
    dropped: int,
    steps: int,
    returns: Sequence[float],
    verdicts: Sequence[bool],
) -> CollectResult:
    """The sums of what was recorded."""
    head = log.head()
    return CollectResult(
        dataset=str(config.dataset),
        episodes=len(returns),
        skipped=skipped,
        dropped=dropped,
        steps=steps,
        mean_return=float(np.mean(returns)) if returns else None,
        success=float(np.mean(verdicts)) if verdicts else None,
        snapshot=None if head is None else head.number,
    )


def _play(
    config: CollectConfig,
    setup: "PlaySetup",
    indices: Iterable[int],
    count: int | None,
    stopped: Callable[[], int],
) -> "Iterator[Outcome]":
    """Play episodes where the configuration says; `count` is how many, None if they never end."""
    from retold.policy.rollout import EpisodeAssignment

    assignments = (EpisodeAssignment(i, world_seed(config.seed, i)) for i in indices)
    environments = min(config.environments, config.environments if count is None else count)
    workers = min(environments, _choose_workers(config, count))
    if workers == 0:
        return _play_here(config, setup, environments, assignments)
    return _play_in_workers(config, setup, environments, assignments, workers, stopped)


def _play_in_workers(
    config: CollectConfig,
    setup: "PlaySetup",
    environments: int,
    assignments: "Iterator[EpisodeAssignment]",
    workers: int,
    stopped: Callable[[], int],
) -> "Iterator[Outcome]":
    from retold.collect.workers import WorkerPool

    with WorkerPool(
        setup, environments, workers=workers, timeout_seconds=config.timeout_seconds
    ) as pool:
        yield from pool.play(assignments, stopped)


def _play_here(
    config: CollectConfig,
    setup: "PlaySetup",
    environments: int,
    assignments: "Iterator[EpisodeAssignment]",
) -> "Iterator[Outcome]":
    from retold.collect.call_limit import limit_calls
    from retold.collect.play import play_here

    with limit_calls(config.task, config.timeout_seconds) as limit:
        yield from play_here(setup, environments, assignments, limit)


def _choose_workers(config: CollectConfig, count: int | None) -> int:
    if config.workers is not None:
        return config.workers
    cores = os.cpu_count() or 1
    is_little = count is not None and count < _FEW * cores
    return 0 if is_little or find_task(config.task).is_fast else cores


def _follow(
    config: CollectConfig,
    setup: "PlaySetup",
    recorder: "Recorder",
    committed: Container[int],
    stopped: Callable[[], int],
) -> None:
    """Play on and on; while the dataset is full, either the oldest leave or nothing is played."""
    indices = (i for i in itertools.count(config.first) if i not in committed)

    def until_full() -> Iterator[int]:
        while limit is None or recorder.total_steps() < limit:
            yield next(indices)

    limit = config.most_steps if config.when_full == "wait" else None
    if config.most_steps is not None and config.when_full == "evict":
        recorder.evict_beyond(config.most_steps)
    while not stopped():
        recorder.record(_play(config, setup, until_full(), None, stopped), None, stopped)
        recorder.flush()
        while not stopped() and limit is not None and recorder.total_steps() >= limit:
            time.sleep(_WAIT_SECONDS)


def _choose_exploration(config: CollectConfig, schema: DatasetSchema) -> ExplorationSchedule:
    if config.epsilon is not None:
        return constant_epsilon(config.epsilon)
    if config.policy == "random":
        return NO_EXPLORATION
    if config.exploration == "bilevel":
        return bilevel_epsilon(schema.tasks[0].horizon, config.anneal_episodes)
    return exploration_schedule(config.task, config.task_args) or NO_EXPLORATION


def _check_schema(log: CommitLog, schema: DatasetSchema) -> None:
    from retold.dataset.reader import DatasetReader

    if log.head() is None:
        return
    with DatasetReader.open(log.path) as reader:
        if not reader.shards:
            return
        stored = reader.schema
    if stored.sha256 != schema.sha256:
        old, new = stored.tasks[0], schema.tasks[0]
        raise DatasetError(
            f"{log.path}: the dataset holds {old.name} {dict(old.kwargs)}, not {new.name} "
            f"{dict(new.kwargs)}. Collect into another dataset; training mixes several."
        )


def _check_policy(config: CollectConfig, snapshot: Path | None, schema: DatasetSchema) -> None:
    from retold.policy.acting import check_target_return
    from retold.policy.snapshot import read_description

    if snapshot is None:
        return
    description = read_description(snapshot)
    if config.target_return is not None:
        objective = description.architecture.get("objective", "actor-critic")
        check_target_return(objective, config.target_return)
    known = description.schema
    if not known.covers(schema):
        raise UsageError(
            f"{snapshot}: the policy was made for {known.tasks[0].name} "
            f"{dict(known.tasks[0].kwargs)}, whose spaces or goals differ from "
            f"those of "
            f"{schema.tasks[0].name} {dict(schema.tasks[0].kwargs)}. Give a policy of this task."
        )
