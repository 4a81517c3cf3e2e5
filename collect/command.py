"""`retold collect`: record episodes of a task into a dataset."""

import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.writer import DatasetWriter
from retold.schemas.canonical import encode_json
from retold.schemas.commit import Commit
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import ConflictError, DatasetError, RetoldError, UsageError
from retold.schemas.exploration import (
    NO_EXPLORATION,
    ExplorationSchedule,
    constant_epsilon,
)
from retold.schemas.identity import make_episode_id, world_seed
from retold.schemas.stop_signals import note_stop_signals
from retold.tasks.registry import exploration_schedule, make_task, task_schema, task_versions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """What `retold collect` is asked."""

    task: str
    """Task to play: crafter, maze or tmaze."""
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
    epsilon: float | None = None
    """Chance of a random action, in [0, 1]; none means what the task declares for policies, or 0."""
    flush_seconds: float = 60.0
    """Seconds after which gathered episodes are written and committed."""

    def __post_init__(self) -> None:
        for name, minimum in (("episodes", 1), ("first", 0), ("environments", 1), ("seed", 0)):
            if getattr(self, name) < minimum:
                raise UsageError(
                    f"--{name} is {getattr(self, name)}, but must be at least {minimum}."
                )
        if self.epsilon is not None and not 0 <= self.epsilon <= 1:
            raise UsageError(f"--epsilon is {self.epsilon}, but a chance lies between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class CollectResult:
    """What was recorded."""

    dataset: str
    episodes: int
    """Episodes recorded now."""
    skipped: int
    """Episodes of the range that were committed before."""
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
        EnvironmentFailure: an environment failed; episodes finished before are committed.
    """
    from retold.policy.registry import resolve_policy
    from retold.policy.rollout import ActionChoice, EpisodeAssignment, roll_out

    schema = task_schema(config.task, config.task_args)
    policy = resolve_policy(config.policy)
    exploration = _choose_exploration(config)
    identity = {
        "run_seed": config.seed,
        "task": schema.tasks[0].identity.decode().strip(),
        "policy": policy.identity,
        "exploration": exploration.to_json(),
    }
    _check_policy(policy.newest(), schema)  # before anything is made
    log = CommitLog.create(config.dataset)
    _check_schema(log, schema)
    committed = find_committed(log, identity)  # refuses other settings before anything is played
    wanted = range(config.first, config.first + config.episodes)
    missing = [index for index in wanted if index not in committed]
    writer = DatasetWriter(log, schema, flush_seconds=config.flush_seconds)
    recorder = _Recorder(config, writer, identity, encode_json(exploration.to_json()))
    if missing:
        environments = [
            make_task(config.task, config.task_args)
            for _ in range(min(config.environments, len(missing)))
        ]
        finished = roll_out(
            environments,
            schema,
            iter([EpisodeAssignment(i, world_seed(config.seed, i)) for i in missing]),
            ActionChoice(
                run_seed=config.seed, stage="collect", is_greedy=False, exploration=exploration
            ),
            _newest_actor(policy.newest, len(environments)),
        )
        try:
            with note_stop_signals() as stopped:
                recorder.record(finished, len(missing), stopped)
        finally:
            # Whatever ended the rollout, what is finished is not lost.
            recorder.flush()
            for environment in environments:
                environment.close()
    head = log.head()
    returns, verdicts = recorder.returns, recorder.verdicts
    return CollectResult(
        dataset=str(config.dataset),
        episodes=len(returns),
        skipped=len(wanted) - len(missing),
        steps=recorder.steps,
        mean_return=float(np.mean(returns)) if returns else None,
        success=float(np.mean(verdicts)) if verdicts else None,
        snapshot=None if head is None else head.number,
    )


def find_committed(log: CommitLog, identity: Mapping[str, Any]) -> set[int]:
    """Episodes of a run seed that were ever committed; evicted ones are not collected again.

    Raises:
        DatasetError: the seed was used with another task, policy or exploration.
    """
    committed: set[int] = set()
    for commit in log.commits():
        if commit.operation != "collect":
            continue
        known = commit.details["identity"]
        if known["run_seed"] != identity["run_seed"]:
            continue
        for name, value in identity.items():
            if known[name] != value:
                raise DatasetError(
                    f"{log.path}: seed {identity['run_seed']} was collected with {name} "
                    f"{known[name]!r}, but now it is {value!r}. Give another --seed, or another "
                    f"dataset."
                )
        committed.update(commit.details["episodes"])
    return committed


class _Recorder:
    """Turns finished episodes into stored ones."""

    def __init__(
        self,
        config: CollectConfig,
        writer: DatasetWriter,
        identity: Mapping[str, Any],
        exploration: bytes,
    ) -> None:
        self._config = config
        self._writer = writer
        self._identity = identity
        self._exploration = exploration.decode().strip()
        self.steps = 0
        self.returns: list[float] = []
        self.verdicts: list[bool] = []

    def record(self, finished: Iterator[Any], total: int, stopped: Callable[[], int]) -> None:
        """Take episodes until none is left or a signal arrives."""
        from tqdm import tqdm

        for episode in tqdm(finished, total=total, unit="episode", disable=None, leave=False):
            self._add(episode)
            if self._writer.should_flush:
                self.flush()
                logger.info("%d of %d episodes are recorded.", len(self.returns), total)
            if number := stopped():
                self.flush()
                raise RetoldError(
                    f"{self._config.dataset}: stopped by {signal.Signals(number).name} after "
                    f"{len(self.returns)} of {total} episodes, which are committed. Run again to "
                    f"go on."
                )

    def flush(self) -> None:
        """Commit what is gathered, less what another collector of the seed committed meanwhile."""
        log = self._writer.log
        while True:
            base = log.head()
            self._writer.discard(find_committed(log, self._identity))
            episodes = self._writer.episodes
            indices = sorted(episode.record.index or 0 for episode in episodes)
            details = {
                "identity": self._identity,
                "episodes": indices,
                "versions": task_versions(self._config.task),
            }
            try:
                self._writer.flush("collect", details, base=base, check=self._refuse_doubles)
            except ConflictError:
                continue
            break
        self.steps += sum(episode.length for episode in episodes)
        self.returns += [episode.record.episode_return for episode in episodes]
        verdicts = (episode.record.success for episode in episodes)
        self.verdicts += [verdict for verdict in verdicts if verdict is not None]

    def _refuse_doubles(self, since: Sequence[Commit]) -> None:
        for commit in since:
            if commit.operation == "collect":
                raise ConflictError(
                    f"{self._config.dataset}: another process collected into the dataset. Run again."
                )

    def _add(self, finished: Any) -> None:
        index = finished.assignment.index
        is_random = finished.policy_id == "random"
        record = EpisodeRecord(
            episode_id=make_episode_id(self._writer.log.dataset_id, self._config.seed, index),
            task=0,
            length=len(finished.reward),
            episode_return=float(finished.reward.sum(dtype=np.float64)),
            terminated=bool(finished.terminated[-1]),
            truncated=bool(finished.truncated[-1]),
            environment_terminated=bool(finished.environment_terminated[-1]),
            success=finished.success,
            instruction=finished.instruction,
            completed=finished.completed,
            initial_goals=finished.initial_goals,
            run_seed=self._config.seed,
            index=index,
            seed=finished.assignment.seed,
            policy=finished.policy_id,
            policy_update=finished.policy_update,
            exploration=None if is_random else self._exploration,
        )
        self._writer.add(
            Episode(
                record=record,
                observation=finished.observation,
                action=finished.action,
                reward=finished.reward,
                terminated=finished.terminated,
                truncated=finished.truncated,
                environment_terminated=finished.environment_terminated,
                reset=finished.reset,
                event_step=finished.event_step,
                event_goal=finished.event_goal,
            )
        )


def _newest_actor(newest: Callable[[], Path | None], slots: int) -> Callable[[], Any]:
    """Loads a policy when the registry names a new one; asked between episodes."""
    from retold.policy.acting import PolicyActor, RandomActor
    from retold.policy.snapshot import load_snapshot

    current: Any = RandomActor()
    loaded: Path | None = None

    def look() -> Any:
        nonlocal current, loaded
        path = newest()
        if path is not None and path != loaded:
            policy, description = load_snapshot(path)
            current = PolicyActor(policy, slots, description.policy_id, description.update)
            loaded = path
        return current

    return look


def _choose_exploration(config: CollectConfig) -> ExplorationSchedule:
    if config.epsilon is not None:
        return constant_epsilon(config.epsilon)
    if config.policy == "random":
        return NO_EXPLORATION
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


def _check_policy(snapshot: Path | None, schema: DatasetSchema) -> None:
    from retold.policy.snapshot import read_description

    if snapshot is None:
        return
    known = read_description(snapshot).schema
    if not known.covers(schema):
        raise UsageError(
            f"{snapshot}: the policy was made for {known.tasks[0].name} "
            f"{dict(known.tasks[0].kwargs)}, whose spaces or goals differ from "
            f"those of "
            f"{schema.tasks[0].name} {dict(schema.tasks[0].kwargs)}. Give a policy of this task."
        )
