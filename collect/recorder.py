"""Played episodes on their way into a dataset."""

import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from retold.collect.play import Outcome
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.log import CommitLog
from retold.dataset.writer import DatasetWriter
from retold.policy.rollout import DroppedEpisode, FinishedEpisode
from retold.schemas.commit import Commit
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import (
    ConflictError,
    DatasetError,
    EnvironmentFailure,
    RetoldError,
)
from retold.schemas.identity import make_episode_id

logger = logging.getLogger(__name__)


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
        for name in (*identity, *sorted(known.keys() - identity.keys())):
            before, now = known.get(name), identity.get(name)
            if before != now:
                raise DatasetError(
                    f"{log.path}: seed {identity['run_seed']} was collected with {name} "
                    f"{before!r}, but now it is {now!r}. Give another --seed, or another "
                    f"dataset."
                )
        committed.update(commit.details["episodes"])
    return committed


class Recorder:
    """Turns finished episodes into stored ones, and counts those that were dropped."""

    def __init__(
        self,
        writer: DatasetWriter,
        identity: Mapping[str, Any],
        *,
        exploration: str,
        versions: Mapping[str, str],
        most_drops: int,
    ) -> None:
        """What is recorded with every episode and commit.

        Args:
            writer: of the dataset.
            identity: what all collectors of a run seed agree on.
            exploration: canonical JSON of the schedule.
            versions: of the packages that the task's dynamics come from.
            most_drops: episodes in a row that may be dropped.
        """
        self._writer = writer
        self._identity = identity
        self._exploration = exploration
        self._versions = versions
        self._most_drops = most_drops
        self._drops_in_a_row = 0
        self._most_steps: int | None = None
        self._last_reason = ""
        self.dropped = 0
        self.steps = 0
        self.returns: list[float] = []
        self.verdicts: list[bool] = []

    def record(
        self, outcomes: Iterator[Outcome], total: int | None, stopped: Callable[[], int]
    ) -> None:
        """Take episodes until none is left or a signal arrives.

        Raises:
            RetoldError: a signal has arrived; what was finished is committed.
            EnvironmentFailure: too many episodes in a row were dropped.
        """
        from tqdm import tqdm

        for outcome in tqdm(outcomes, total=total, unit="episode", disable=None, leave=False):
            if isinstance(outcome, DroppedEpisode):
                self._drop(outcome)
            else:
                self._add(outcome)
            if self._writer.should_flush:
                self.flush()
                logger.info("%d of %s episodes are recorded.", len(self.returns), total or "many")
            if stopped():
                break
        if (number := stopped()) and total is not None:
            self.flush()
            if len(self.returns) + self.dropped < total:
                raise RetoldError(
                    f"{self._writer.log.path}: stopped by {signal.Signals(number).name} after "
                    f"{len(self.returns)} of {total} episodes, which are committed. Run again to "
                    f"go on."
                )

    def evict_beyond(self, most_steps: int) -> None:
        """From now on, let the oldest episodes go whenever the dataset holds more transitions."""
        self._most_steps = most_steps

    def total_steps(self) -> int:
        """Transitions of the dataset and of what is gathered for it."""
        stored = sum(entry.steps for entry in self._writer.log.live_shards())
        return stored + sum(episode.length for episode in self._writer.episodes)

    def refuse_all_dropped(self) -> None:
        """Complain if every episode was dropped.

        Raises:
            EnvironmentFailure: the last one's reason.
        """
        if self.dropped and not self.returns:
            raise EnvironmentFailure(self._last_reason)

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
                "versions": self._versions,
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
        if self._most_steps is not None and self.total_steps() > self._most_steps:
            evict(EvictConfig(dataset=log.path, steps=self._most_steps))

    def _refuse_doubles(self, since: Sequence[Commit]) -> None:
        for commit in since:
            if commit.operation == "collect":
                raise ConflictError(
                    f"{self._writer.log.path}: another process collected into the dataset. Run "
                    f"again."
                )

    def _drop(self, episode: DroppedEpisode) -> None:
        self.dropped += 1
        self._last_reason = episode.reason
        self._drops_in_a_row += 1
        logger.warning("Episode %d is dropped. %s", episode.assignment.index, episode.reason)
        if self._drops_in_a_row > self._most_drops:
            raise EnvironmentFailure(
                f"{self._drops_in_a_row} episodes in a row were dropped, the last because of this. "
                f"{episode.reason}"
            )

    def _add(self, finished: FinishedEpisode) -> None:
        self._drops_in_a_row = 0
        index = finished.assignment.index
        run_seed = int(self._identity["run_seed"])
        is_random = finished.policy_id == "random"
        record = EpisodeRecord(
            episode_id=make_episode_id(self._writer.log.dataset_id, run_seed, index),
            task=0,
            length=len(finished.reward),
            episode_return=float(finished.reward.sum(dtype="float64")),
            terminated=bool(finished.terminated[-1]),
            truncated=bool(finished.truncated[-1]),
            environment_terminated=bool(finished.environment_terminated[-1]),
            success=finished.success,
            instruction=finished.instruction,
            completed=finished.completed,
            initial_goals=finished.initial_goals,
            run_seed=run_seed,
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
