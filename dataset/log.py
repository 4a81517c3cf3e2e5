"""The commit log: which shards belong to a dataset, as numbered files that are never changed.

Any number of processes append at once without a lock: a finished temporary file is linked to the next
free number, and whoever loses reads what has happened and tries again.
"""

import json
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from retold.dataset.files import (
    link_exclusively,
    replace_atomically,
    write_durably,
)
from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.commit import Commit, ShardEntry, Snapshot, SourceEntry
from retold.schemas.errors import ConflictError, DatasetError, FormatError
from retold.schemas.faults import reach
from retold.schemas.manifest import FORMAT_VERSION


class CommitLog:
    """The log of one dataset directory. Commits read once are kept: they never change."""

    def __init__(self, path: Path, dataset_id: str) -> None:
        self.path = path
        self.dataset_id = dataset_id
        self._commits: list[Commit] = []
        self._hashes: list[str] = []

    @classmethod
    def create(cls, path: Path) -> "CommitLog":
        """Open a dataset, making it first if the path does not exist or is an empty folder."""
        if path.exists() and not _may_become_dataset(path):
            raise DatasetError(
                f"{path}: this exists and is not a dataset (it has no dataset.json). "
                f"Give a path that does not exist yet."
            )
        try:
            (path / "commits").mkdir(parents=True, exist_ok=True)
            if not (path / "dataset.json").exists():
                content = {"format_version": FORMAT_VERSION, "dataset_id": uuid.uuid4().hex}
                temporary = path / f".dataset.json.{uuid.uuid4().hex}"
                write_durably(temporary, encode_json(content))
                link_exclusively(temporary, path / "dataset.json")
        except OSError as error:
            raise DatasetError(
                f"{path}: the dataset cannot be created: {error.strerror}. "
                f"Choose a folder that you may write to."
            ) from error
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "CommitLog":
        """Open an existing dataset."""
        file = path / "dataset.json"
        try:
            content = json.loads(file.read_bytes())
            version, dataset_id = content["format_version"], content["dataset_id"]
        except FileNotFoundError as error:
            raise DatasetError(
                f"{path}: there is no dataset here (dataset.json is missing). "
                f"Make one with `retold collect TASK {path}`."
            ) from error
        except OSError as error:
            raise DatasetError(
                f"{file}: it cannot be read: {error.strerror}. Check the path and its permissions."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"{file}: this is not a dataset description. Restore it from a copy of the dataset."
            ) from error
        if version != FORMAT_VERSION:
            raise FormatError(
                f"{file}: format_version is {version}, but this retold reads {FORMAT_VERSION}. "
                f"Upgrade with `pip install -U retold`."
            )
        return cls(path, dataset_id)

    def head(self) -> Snapshot | None:
        """The newest snapshot, or None before the first commit."""
        self._read_on()
        return self.snapshot(len(self._commits) - 1) if self._commits else None

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot that commit `number` made."""
        self.read(number)
        return Snapshot(self.dataset_id, number, self._hashes[number])

    def read(self, number: int) -> Commit:
        """Commit `number`."""
        if number >= len(self._commits):
            self._read_on()
        if not 0 <= number < len(self._commits):
            raise DatasetError(
                f"{self.path}: there is no commit {number}; the newest is "
                f"{len(self._commits) - 1}. List them with `retold info {self.path}`."
            )
        return self._commits[number]

    def commits(self, through: int | None = None) -> Iterator[Commit]:
        """Commits 0 to `through` (to the head if None), in order."""
        self._read_on()
        yield from self._commits[: None if through is None else through + 1]

    def live_shards(self, through: int | None = None) -> tuple[ShardEntry, ...]:
        """Shards that belong to a snapshot, in the order they were added."""
        live: dict[str, ShardEntry] = {}
        for commit in self.commits(through):
            for shard_id in commit.removed:
                if shard_id not in live:
                    raise FormatError(
                        f"{self._commit_path(commit.number)}: it removes shard {shard_id}, which "
                        f"is not live. Restore the log from a copy of the dataset."
                    )
                del live[shard_id]
            for entry in commit.added:
                if entry.shard_id in live:
                    raise FormatError(
                        f"{self._commit_path(commit.number)}: it adds shard {entry.shard_id}, "
                        f"which is already live. Restore the log from a copy of the dataset."
                    )
                live[entry.shard_id] = entry
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
        check: Callable[[Sequence[Commit]], None] | None = None,
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
        """
        commit = Commit(
            number=0,
            commit_id=uuid.uuid4().hex,
            base=base,
            parent_sha256=None,
            operation=operation,
            removed=tuple(removed),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(["retold", *sys.argv[1:]]),
            code_version=metadata.version("retold"),
            sources=sources or {},
            details=details or {},
        )
        while True:
            head = self.head()
            number = 0 if head is None else head.number + 1
            since = self._commits[0 if base is None else base.number + 1 :]
            if ours := next((c for c in since if c.commit_id == commit.commit_id), None):
                return self.snapshot(ours.number)
            if check is not None:
                check(since)
            live = {entry.shard_id for entry in self.live_shards()}
            if gone := [shard_id for shard_id in removed if shard_id not in live]:
                raise ConflictError(
                    f"{self.path}: shard {gone[0]} was removed by another process. Run again."
                )
            commit = replace(
                commit,
                number=number,
                parent_sha256=None if head is None else head.sha256,
                added=tuple(entry for entry in added if entry.shard_id not in live),
            )
            if self._publish(commit):
                return Snapshot(self.dataset_id, number, commit.sha256)

    def _publish(self, commit: Commit) -> bool:
        path = self._commit_path(commit.number)
        temporary = path.with_name(f".{path.name}.{commit.commit_id}")
        reach("commit-before")
        try:
            write_durably(temporary, commit.encoded)
            reach("commit-inside")
            is_ours = link_exclusively(temporary, path)
        except OSError as error:
            raise DatasetError(
                f"{path}: the commit cannot be written: {error.strerror}. Nothing was changed; "
                f"free space or choose a folder with hard links, then run again."
            ) from error
        reach("commit-after")
        if is_ours:
            # A hint only: readers look for the next number from here on.
            replace_atomically(self.path / "LATEST", f"{commit.number}\n".encode())
        return is_ours

    def _read_on(self) -> None:
        """Read commits until the first missing number; each must name the one before by hash."""
        while (path := self._commit_path(len(self._commits))).exists():
            try:
                content = path.read_bytes()
                commit = Commit.from_json(json.loads(content))
            except OSError as error:
                raise DatasetError(
                    f"{path}: it cannot be read: {error.strerror}. Check its permissions."
                ) from error
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FormatError(
                    f"{path}: this commit is damaged. Restore it from a copy of the dataset."
                ) from error
            parent = self._hashes[-1] if self._hashes else None
            if commit.number != len(self._commits) or commit.parent_sha256 != parent:
                raise FormatError(
                    f"{path}: it does not follow from the commit before it (its parent's hash "
                    f"differs). Restore both from a copy of the dataset."
                )
            self._commits.append(commit)
            self._hashes.append(sha256_hex(content))

    def _commit_path(self, number: int) -> Path:
        return self.path / "commits" / f"{number:08d}.json"


def _may_become_dataset(path: Path) -> bool:
    """Whether a path is a dataset, or holds nothing but what an interrupted creation left."""
    if (path / "dataset.json").exists():
        return True
    return path.is_dir() and all(
        entry.name == "commits" or entry.name.startswith(".dataset.json.")
        for entry in path.iterdir()
    )
