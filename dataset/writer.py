"""Appending episodes to a dataset: gathered in memory, flushed as whole shards, committed."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from retold.dataset.log import CommitLog
from retold.dataset.shard_writer import write_raw_shard
from retold.dataset.zarr_codec import Profile
from retold.schemas.commit import Commit, Snapshot
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode


class DatasetWriter:
    """Gathers episodes and says when a shard is worth writing; never one file an episode."""

    def __init__(
        self,
        log: CommitLog,
        schema: DatasetSchema,
        *,
        profile: Profile = "fast",
        flush_bytes: float = 64e6,
        flush_rows: int = 50_000,
        flush_seconds: float = 60.0,
    ) -> None:
        self.log = log
        self.schema = schema
        self._profile: Profile = profile
        self._flush_bytes = flush_bytes
        self._flush_rows = flush_rows
        self._flush_seconds = flush_seconds
        self._row_bytes = sum(leaf.row_bytes for leaf in schema.leaves)
        self._episodes: list[Episode] = []
        self._rows = 0
        self._oldest = 0.0

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Episodes that are not on disk yet."""
        return tuple(self._episodes)

    def add(self, episode: Episode) -> None:
        """Keep an episode for the next flush."""
        if not self._episodes:
            self._oldest = time.monotonic()
        self._episodes.append(episode)
        self._rows += episode.length + 1

    @property
    def should_flush(self) -> bool:
        """Whether what is gathered is large or old enough to be written."""
        return bool(self._episodes) and (
            self._rows >= self._flush_rows
            or self._rows * self._row_bytes >= self._flush_bytes
            or time.monotonic() - self._oldest >= self._flush_seconds
        )

    def discard(self, indices: Collection[int]) -> None:
        """Forget gathered episodes with these numbers."""
        self._episodes = [e for e in self._episodes if e.record.index not in indices]
        self._rows = sum(episode.length + 1 for episode in self._episodes)

    def flush(
        self,
        operation: str,
        details: Mapping[str, Any],
        *,
        base: Snapshot | None = None,
        check: Callable[[Sequence[Commit]], None] | None = None,
    ) -> Snapshot | None:
        """Write one shard and commit it; None if there was nothing to write.

        Episodes are sorted by run seed and index, so that a shard does not depend on which
        environment finished first. What is gathered stays gathered if the commit fails.

        Args:
            operation: what the commit says was done.
            details: what it remembers.
            base: the snapshot that was looked at to decide what to write.
            check: may refuse commits that were made since, see `CommitLog.append`.
        """
        if not self._episodes:
            return None
        ordered = sorted(
            self._episodes, key=lambda e: (e.record.run_seed or 0, e.record.index or 0)
        )
        entry = write_raw_shard(self.log.path, ordered, self.schema, profile=self._profile)
        snapshot = self.log.append(
            operation=operation, added=(entry,), base=base, details=details, check=check
        )
        self._episodes.clear()
        self._rows = 0
        return snapshot
