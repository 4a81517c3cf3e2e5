"""The commit log: which shards belong to a dataset, as numbered files that are never changed.

Any number of processes append at once without a lock: a finished temporary file is linked to the next
free number, and whoever loses reads what has happened and tries again.
"""

import logging
import random
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from retold.dataset.ages import Ages, apply_ages
from retold.dataset.checkpoint import (
    CHECKPOINT_EVERY,
    Checkpoint,
    find_checkpoint,
    newer_checkpoint,
    write_checkpoint,
)
from retold.dataset.commit_files import (
    apply_commit,
    check_reaches_latest,
    commit_path,
    publish_commit,
    read_commit,
    read_commits_ahead,
    read_tail,
    write_latest,
)
from retold.dataset.dataset_file import create_dataset, read_dataset_id
from retold.dataset.episode_ids import EpisodeIds
from retold.dataset.paths import DatasetPath, split_snapshot
from retold.dataset.remote_path import RemotePath
from retold.dataset.shard_place import touch_shards
from retold.schemas.commit import Commit, ShardEntry, Snapshot, SourceEntry
from retold.schemas.errors import ConflictError, DatasetError, FormatError, RetoldError, UsageError

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 5.0
"""Seconds."""

CommitCheck = Callable[[Sequence[Commit]], None]


class CommitLog:
    """The log of one dataset. Commits read once are kept: they never change.

    It is read from the newest checkpoint on, and from commit 0 once somebody asks for what is before.
    """

    def __init__(self, path: DatasetPath, dataset_id: str, *, from_checkpoint: bool = True) -> None:
        self.path = path
        self.dataset_id = dataset_id
        self.checkpoint: Checkpoint | None = None
        self._from_checkpoint = from_checkpoint
        self._first = 0  # number of the first commit in `_commits`
        self._commits: list[Commit] = []
        self._hashes: list[str] = []
        self._live: dict[str, ShardEntry] = {}  # at the newest commit read
        self._episode_ids = EpisodeIds(path)

    @classmethod
    def create(cls, path: DatasetPath) -> "CommitLog":
        """Open a dataset, making it first if the path does not exist or is an empty folder."""
        folder, name = split_snapshot(path)
        if name is not None:
            raise UsageError(
                f"{path}: what follows '@' names a snapshot, which never changes. Give {folder} "
                f"itself, or a name without '@'."
            )
        create_dataset(path)
        return cls.open(path)

    @classmethod
    def open(cls, path: DatasetPath, *, from_checkpoint: bool = True) -> "CommitLog":
        """Open an existing dataset; `@12` after its name is left to who reads snapshots.

        Args:
            path: the dataset's folder.
            from_checkpoint: start at the newest checkpoint; False: believe nothing derived.
        """
        folder, _ = split_snapshot(path)
        return cls(folder, read_dataset_id(folder), from_checkpoint=from_checkpoint)

    def head(self) -> Snapshot | None:
        """The newest snapshot, or None before the first commit."""
        self._read_on()
        return self.snapshot(self._count - 1) if self._commits else None

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot that commit `number` made."""
        self.read(number)
        return Snapshot(self.dataset_id, number, self._hashes[number - self._first])

    def read(self, number: int) -> Commit:
        """Commit `number`."""
        if number >= self._count:
            self._read_on()
        if not 0 <= number < self._count:
            raise DatasetError(
                f"{self.path}: there is no commit {number}; the newest is "
                f"{self._count - 1}. List them with `retold log {self.path}`."
            )
        if number < self._first:
            self._read_beginning()
        return self._commits[number - self._first]

    def commits(self, through: int | None = None, *, after: int = -1) -> Iterator[Commit]:
        """Commits `after` + 1 to `through` (to the head if None), in order."""
        if through is None or through >= self._count:
            self._read_on()
        if after + 1 < self._first:
            self._read_beginning()
        start = after + 1 - self._first
        yield from self._commits[start : None if through is None else through + 1 - self._first]

    def live_shards(self, through: int | None = None) -> tuple[ShardEntry, ...]:
        """Shards that belong to a snapshot, in the order they were added."""
        if through is None or through >= self._count:
            self._read_on()
        if through is None or through == self._count - 1:
            return tuple(self._live.values())
        checkpoint = self._checkpoint_until(through)
        live = {} if checkpoint is None else {e.shard_id: e for e in checkpoint.shards}
        after = -1 if checkpoint is None else checkpoint.snapshot.number
        for commit in self.commits(through, after=after):
            apply_commit(live, commit, self.path)
        return tuple(live.values())

    def shards_by_age(self, through: int) -> list[ShardEntry]:
        """Live shards of commit `through`, those with the oldest episodes first.

        Only neighbours in this order are merged, so that it is the order of the episodes, too.
        """
        ages = self.ages(through)
        return sorted(self.live_shards(through), key=lambda entry: ages[entry.shard_id])

    def ages(self, through: int) -> Ages:
        """The ages of the live shards of commit `through`."""
        checkpoint = self._checkpoint_until(through)
        if checkpoint is None or checkpoint.ages is None:
            after, ages = -1, Ages()
        else:
            after, ages = checkpoint.snapshot.number, dict(checkpoint.ages)
        for commit in self.commits(through, after=after):
            apply_ages(ages, commit)
        return ages

    def append(
        self,
        *,
        operation: str,
        added: Sequence[ShardEntry] = (),
        removed: Sequence[str] = (),
        base: Snapshot | None = None,
        sources: Mapping[str, SourceEntry] | None = None,
        details: Mapping[str, Any] | None = None,
        check: CommitCheck | None = None,
    ) -> Snapshot:
        """Commit one operation; the shards must be durable.

        Args:
            operation: what was done.
            added: new shards; those that are live already are left out.
            removed: shards that leave the dataset.
            base: the snapshot that the operation was planned on; None: it looked at no commit.
            sources: datasets that added variants refer to.
            details: what the operation wants to remember.
            check: called with the commits made since `base` before every attempt.

        Raises:
            ConflictError: a shard to be removed is gone, or `check` refuses.
            DatasetError: an episode to be added is live already; nothing was changed.
        """
        # A shard that comes out as it was stays.
        removed = tuple(r for r in removed if r not in {entry.shard_id for entry in added})
        commit = self._begin_commit(operation, removed, base, sources or {}, details or {})
        started = time.monotonic()
        head = self._read_before_a_try()
        looked_at = self._count
        known: set[str] = set()
        losses = 0
        while True:
            if ours := self._find_commit(commit.commit_id, looked_at):
                if ours.number == self._count - 1:
                    write_latest(self.path, ours)
                self._keep_checkpoint(ours)
                return self.snapshot(ours.number)
            if check is not None:
                check(self._commits_since(base))
            new = [entry for entry in added if entry.shard_id not in self._live]
            self._refuse_gone(removed)
            self._refuse_dropped(new, looked_at)
            self._compare(new, removed, known)
            commit = replace(
                commit,
                number=self._count,
                parent_sha256=None if head is None else head.sha256,
                added=tuple(new),
            )
            if publish_commit(self.path, commit):
                self._take(commit, commit.sha256)
                self._keep_checkpoint(commit)
                return self.snapshot(commit.number)
            losses += 1
            if isinstance(self.path, RemotePath):
                let_others_go_first(losses, time.monotonic() - started)
            started = time.monotonic()
            head = self._read_before_a_try(lost=commit.number)

    def _begin_commit(
        self,
        operation: str,
        removed: tuple[str, ...],
        base: Snapshot | None,
        sources: Mapping[str, SourceEntry],
        details: Mapping[str, Any],
    ) -> Commit:
        """A commit that has no place yet; arguments as of `append`."""
        return Commit(
            dataset_id=self.dataset_id,
            number=0,
            commit_id=uuid.uuid4().hex,
            base=base,
            parent_sha256=None,
            operation=operation,
            removed=removed,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(["retold", *sys.argv[1:]]),
            code_version=metadata.version("retold"),
            sources=sources,
            details=details,
        )

    @property
    def _count(self) -> int:
        return self._first + len(self._commits)

    def _commits_since(self, base: Snapshot | None) -> Sequence[Commit]:
        start = 0 if base is None else base.number + 1
        if start < self._first:
            self._read_beginning()
        return self._commits[start - self._first :]

    def _find_commit(self, commit_id: str, start: int) -> Commit | None:
        commits = self._commits[max(0, start - self._first) :]
        return next((commit for commit in commits if commit.commit_id == commit_id), None)

    def _refuse_gone(self, removed: Sequence[str]) -> None:
        if gone := [shard_id for shard_id in removed if shard_id not in self._live]:
            raise ConflictError(
                f"{self.path}: shard {gone[0]} was removed by another process. Run again."
            )

    def _refuse_dropped(self, new: Sequence[ShardEntry], start: int) -> None:
        """Refuse shards that a `gc` has planned to delete since we began; it will not look again."""
        ids = {entry.shard_id for entry in new}
        for commit in self._commits[max(0, start - self._first) :]:
            if commit.operation == "gc" and ids.intersection(commit.details.get("dropped", ())):
                raise ConflictError(
                    f"{self.path}: a shard was removed before it was committed. Run again."
                )

    def _refuse_doubles(
        self, new: Sequence[ShardEntry], removed: Sequence[str], known: set[str]
    ) -> None:
        """Refuse episodes that are live already; shards in `known` were compared before.

        On a store this sees that the new shards are there.
        """
        if not new:
            return
        others = [e for e in self._live.values() if e.shard_id not in known.union(removed)]
        self._episode_ids.refuse_doubles(new, others, self.checkpoint)
        known.update(entry.shard_id for entry in others)

    def _compare(self, new: Sequence[ShardEntry], removed: Sequence[str], known: set[str]) -> None:
        """See that new shards are there, and will be, and hold no episode that is live already."""
        if isinstance(self.path, RemotePath):
            self._refuse_doubles(new, removed, known)
            return
        ids = [entry.shard_id for entry in new]
        touch_shards(self.path, ids)
        self._refuse_doubles(new, removed, known)
        touch_shards(self.path, ids)

    def _read_before_a_try(self, lost: int = -1) -> Snapshot | None:
        """The head, but for commits that the try to append will find out about.

        Args:
            lost: number of a commit that is somebody else's.
        """
        self._read_on(known=lost, is_certain=isinstance(self.path, Path))
        return self.snapshot(self._count - 1) if self._commits else None

    def _keep_checkpoint(self, commit: Commit) -> None:
        if (commit.number + 1) % CHECKPOINT_EVERY == 0 and self._from_checkpoint:
            before = commit.number - CHECKPOINT_EVERY
            if before >= self._first:
                self.checkpoint = newer_checkpoint(
                    self.path, self.checkpoint, self.snapshot(before)
                )
            shards, ages = self.live_shards(commit.number), self.ages(commit.number)
            snapshot = self.snapshot(commit.number)
            try:
                write_checkpoint(self.path, snapshot, shards, ages, self.checkpoint)
            except (RetoldError, OSError) as error:  # derived: everything works without it
                logger.warning("%s: no checkpoint was written: %s", self.path, error)

    def _checkpoint_until(self, number: int) -> Checkpoint | None:
        """The checkpoint, if it is of commit `number` or an earlier one."""
        known = self.checkpoint
        return known if known is not None and known.snapshot.number <= number else None

    def _read_on(self, *, known: int = -1, is_certain: bool = True) -> None:
        """Read commits until the first missing number; each must name the one before by hash.

        Args:
            known: number of a commit that is there.
            is_certain: go on to a number that is missing: `LATEST` may not say all.
        """
        if not self._commits and self._from_checkpoint:
            self._start_at_checkpoint()
        latest, ahead = None, dict[int, bytes | None]()
        if isinstance(self.path, RemotePath):  # on disk reading in turn is as quick
            end = max(self._count + 1, known)
            latest, ahead = read_tail(self.path, self.dataset_id, self._count, end)
            is_certain = is_certain or latest is None
        while is_certain or self._count in ahead:
            parent = self._hashes[-1] if self._hashes else None
            found = self._read_next(parent, ahead)
            if found is not None:
                self._take(*found)
            elif check_reaches_latest(self.path, self.dataset_id, self._count, latest):
                return

    def _read_next(
        self, parent: str | None, ahead: dict[int, bytes | None]
    ) -> tuple[Commit, str] | None:
        encoded = None
        if self._count in ahead:
            encoded = ahead.pop(self._count)
            if encoded is None:
                return None
        return read_commit(self.path, self._count, self.dataset_id, parent, encoded)

    def _take(self, commit: Commit, sha256: str) -> None:
        """Go on to the next commit."""
        apply_commit(self._live, commit, self.path)
        self._commits.append(commit)
        self._hashes.append(sha256)

    def _start_at_checkpoint(self) -> None:
        found = find_checkpoint(self.path, self.dataset_id)
        if found is not None:
            self.checkpoint, commit = found
            self._first = commit.number
            self._commits = [commit]
            self._hashes = [self.checkpoint.snapshot.sha256]
            self._live = {entry.shard_id: entry for entry in self.checkpoint.shards}

    def _read_beginning(self) -> None:
        """Read what is before the checkpoint, which must lead to the commit read first."""
        if self._first == 0:
            return
        commits: list[Commit] = []
        hashes: list[str] = []
        ahead = read_commits_ahead(self.path, range(self._first))
        for number in range(self._first):
            parent = hashes[-1] if hashes else None
            found = read_commit(self.path, number, self.dataset_id, parent, ahead.get(number))
            if found is None:
                raise FormatError(
                    f"{commit_path(self.path, number)}: this commit is missing. Restore it from a "
                    f"copy of the dataset, or save what is sound with `retold repair DATASET NEW`."
                )
            commits.append(found[0])
            hashes.append(found[1])
        if self._commits[0].parent_sha256 != hashes[-1]:
            raise FormatError(
                f"{commit_path(self.path, self._first)}: it does not follow from the commit before "
                f"it (its parent's hash differs). Restore both from a copy of the dataset."
            )
        self._commits, self._hashes = commits + self._commits, hashes + self._hashes
        self._first = 0


def let_others_go_first(losses: int, seconds: float) -> None:
    """Wait after a lost race for a number: on a store every try costs requests.

    Args:
        losses: how many were lost one after the other.
        seconds: how long the last try took.
    """
    longest = min(_LONGEST_WAIT, seconds * 2**losses)
    time.sleep(random.SystemRandom().uniform(0, longest))
