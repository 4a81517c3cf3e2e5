"""The commit log: which shards belong to a dataset, as numbered files that are never changed.

Any number of processes append at once without a lock: a finished temporary file is linked to the next
free number, and whoever loses reads what has happened and tries again.
"""

import logging
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.checkpoint import (
    CHECKPOINT_EVERY,
    Checkpoint,
    find_checkpoint,
    write_checkpoint,
)
from retold.dataset.commit_files import (
    check_reaches_latest,
    commit_path,
    publish_commit,
    read_commit,
    read_commits_ahead,
    read_latest,
)
from retold.dataset.dataset_file import create_dataset, read_dataset_id
from retold.dataset.files import touch_file
from retold.dataset.paths import DatasetPath, split_snapshot
from retold.dataset.shard_files import ShardFiles
from retold.schemas.commit import Commit, ShardEntry, Snapshot, SourceEntry
from retold.schemas.errors import ConflictError, DatasetError, FormatError, RetoldError, UsageError

logger = logging.getLogger(__name__)

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
        self._episode_ids: dict[str, NDArray[np.bytes_]] = {}

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

    def commits(self, through: int | None = None) -> Iterator[Commit]:
        """Commits 0 to `through` (to the head if None), in order."""
        self._read_on()
        self._read_beginning()
        yield from self._commits[: None if through is None else through + 1]

    def live_shards(self, through: int | None = None) -> tuple[ShardEntry, ...]:
        """Shards that belong to a snapshot, in the order they were added."""
        self._read_on()
        if through is None or through == self._count - 1:
            return tuple(self._live.values())
        live: dict[str, ShardEntry] = {}
        for commit in self.commits(through):
            apply_commit(live, commit, self.path)
        return tuple(live.values())

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
        commit = Commit(
            dataset_id=self.dataset_id,
            number=0,
            commit_id=uuid.uuid4().hex,
            base=base,
            parent_sha256=None,
            operation=operation,
            # A shard that comes out as it was stays.
            removed=tuple(r for r in removed if r not in {entry.shard_id for entry in added}),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(["retold", *sys.argv[1:]]),
            code_version=metadata.version("retold"),
            sources=sources or {},
            details=details or {},
        )
        head = self.head()
        looked_at = self._count
        removed = commit.removed
        known: set[str] = set()
        while True:
            if ours := self._find_commit(commit.commit_id, looked_at):
                return self.snapshot(ours.number)
            if check is not None:
                check(self._commits_since(base))
            new = [entry for entry in added if entry.shard_id not in self._live]
            self._refuse_gone(removed)
            self._refuse_dropped(new, looked_at)
            self._touch(new)
            self._refuse_doubles(new, removed, known)
            self._touch(new)
            commit = replace(
                commit,
                number=self._count,
                parent_sha256=None if head is None else head.sha256,
                added=tuple(new),
            )
            if publish_commit(self.path, commit):
                self._keep_checkpoint(commit)
                return Snapshot(self.dataset_id, commit.number, commit.sha256)
            head = self.head()

    def _numbers_ahead(self) -> range:
        """Commits that are known to be there and are not read; on disk it does not matter."""
        if isinstance(self.path, Path):
            return range(0)
        latest = read_latest(self.path, self.dataset_id)
        return range(self._count, 0 if latest is None else latest + 1)

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
        """Refuse episodes that are live already; shards in `known` were compared before."""
        if not new:
            return
        ids = np.concatenate([self._ids_of(entry) for entry in new])
        others = [e for e in self._live.values() if e.shard_id not in known.union(removed)]
        live = np.concatenate([np.zeros(0, "S32"), *map(self._ids_or_warning, others)])
        unique, counts = np.unique(ids, return_counts=True)
        doubles = [*np.intersect1d(unique, live), *unique[counts > 1]]
        if doubles:
            raise DatasetError(
                f"{self.path}: episode {doubles[0].decode()} is in the dataset already "
                f"({len(doubles)} of {len(ids)} are). Nothing was committed; leave them out."
            )
        known.update(entry.shard_id for entry in others)

    def _ids_of(self, entry: ShardEntry) -> NDArray[np.bytes_]:
        if entry.shard_id not in self._episode_ids:
            self._episode_ids[entry.shard_id] = ShardFiles(self.path, entry).episode_ids
        return self._episode_ids[entry.shard_id]

    def _ids_or_warning(self, entry: ShardEntry) -> NDArray[np.bytes_]:
        """Damage elsewhere must not cost what is appended now; readers refuse it anyway."""
        try:
            return self._ids_of(entry)
        except RetoldError as error:
            logger.warning("%s", error)
            return np.zeros(0, "S32")

    def _touch(self, entries: Sequence[ShardEntry]) -> None:
        """Make shards young, so that no `gc` takes them for some that were left."""
        for entry in entries:
            path = ShardFiles(self.path, entry).path / "manifest.json"
            try:
                touch_file(path)
            except FileNotFoundError as error:
                raise ConflictError(
                    f"{path}: the shard was removed before it was committed. Run again."
                ) from error

    def _keep_checkpoint(self, commit: Commit) -> None:
        if (commit.number + 1) % CHECKPOINT_EVERY == 0 and self._from_checkpoint:
            self._read_on()
            shards = self.live_shards(commit.number)
            try:
                write_checkpoint(self.path, self.snapshot(commit.number), shards, self.checkpoint)
            except (RetoldError, OSError) as error:  # derived: everything works without it
                logger.warning("%s: no checkpoint was written: %s", self.path, error)

    def _read_on(self) -> None:
        """Read commits until the first missing number; each must name the one before by hash."""
        if not self._commits and self._from_checkpoint:
            self._start_at_checkpoint()
        ahead = read_commits_ahead(self.path, self._numbers_ahead())
        while True:
            parent = self._hashes[-1] if self._hashes else None
            encoded = ahead.get(self._count)
            found = read_commit(self.path, self._count, self.dataset_id, parent, encoded)
            if found is not None:
                apply_commit(self._live, found[0], self.path)
                self._commits.append(found[0])
                self._hashes.append(found[1])
            elif check_reaches_latest(self.path, self.dataset_id, self._count):
                return

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


def apply_commit(live: dict[str, ShardEntry], commit: Commit, dataset: DatasetPath) -> None:
    """Take a commit's shards out of and into the live ones.

    Raises:
        FormatError: it removes a shard that is not live, or adds one that is.
    """
    path = commit_path(dataset, commit.number)
    for shard_id in commit.removed:
        if live.pop(shard_id, None) is None:
            raise FormatError(
                f"{path}: it removes shard {shard_id}, which is not live. Restore the log from a "
                f"copy of the dataset."
            )
    for entry in commit.added:
        if entry.shard_id in live:
            raise FormatError(
                f"{path}: it adds shard {entry.shard_id}, which is already live. Restore the log "
                f"from a copy of the dataset."
            )
        live[entry.shard_id] = entry
