"""What lies in a dataset's folders, how young it is, and how it is deleted: on disk, and on a store."""

import contextlib
import math
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from retold.dataset.paths import DatasetPath, path_inside, refuse_links
from retold.dataset.remote_path import RemotePath

_PARTS_IN = ("tmp", "commits", "schemas", "checkpoints", "pins")
"""Folders in which killed writers leave files without their final name."""


@dataclass(frozen=True, kw_only=True)
class StoredItem:
    """A file, or the folder of a shard or of one being built."""

    path: str
    """Inside the dataset."""
    youngest: float
    """When the newest part of it was changed, by the store's clock, in seconds since 1970.

    What goes while we look is somebody's at work, and so as young as can be.
    """
    bytes: int

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return PurePosixPath(self.path).name


def gc_files(dataset: DatasetPath) -> "LocalFiles | StoreFiles":
    """The files of a dataset as `gc` sees them; on a store, as they are now."""
    return LocalFiles(dataset) if isinstance(dataset, Path) else StoreFiles(dataset)


class LocalFiles:
    """The files of a dataset on disk; links are refused."""

    def __init__(self, dataset: Path) -> None:
        self._dataset = dataset

    def shards(self) -> Iterator[StoredItem]:
        """The folders of shards."""
        shards = path_inside(self._dataset, "shards")
        for prefix in sorted(shards.iterdir()) if shards.is_dir() else ():
            refuse_links(path_inside(shards, prefix.name))
            yield from map(self._item, sorted(prefix.iterdir()) if prefix.is_dir() else ())

    def leftovers(self) -> Iterator[StoredItem]:
        """What killed writers leave: shards being built, and files without their final name."""
        for name in _PARTS_IN:
            folder = path_inside(self._dataset, name)
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if _is_part(name, path.name) and not path.is_symlink():
                    yield self._item(path)
        for pattern in (".dataset.json.*", ".LATEST.*"):
            yield from map(self._item, sorted(self._dataset.glob(pattern)))

    def files_in(self, name: str) -> Iterator[StoredItem]:
        """Files directly in a folder of the dataset, by name."""
        folder = path_inside(self._dataset, name)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not path.name.startswith("."):
                yield self._item(path)

    def now(self, *, is_dry: bool) -> float:
        """Now, by the clock that stamps the dataset's files; a dry run writes nothing to ask it."""
        if is_dry:
            return time.time()
        probe = self._dataset / f".LATEST.{uuid.uuid4().hex}"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()

    def delete(self, path: str, grace_seconds: float) -> bool:
        """Delete something, unless somebody made it young meanwhile; whether it went.

        It is moved aside first: a writer that finds its shard there makes it young before it
        commits, so one that is young by now is moved back, and one that was moved is not found by
        the writer.
        """
        place = self._dataset / path
        aside = path_inside(self._dataset, "tmp", f"gc-{uuid.uuid4().hex}")
        try:
            aside.parent.mkdir(exist_ok=True)
            os.rename(place, aside)
        except FileNotFoundError:
            return False
        if _youngest(aside) > self.now(is_dry=False) - grace_seconds:
            with contextlib.suppress(OSError):  # taken: an equal shard was written meanwhile
                os.rename(aside, place)
                return False
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
        return True

    def _item(self, path: Path) -> StoredItem:
        size = 0
        with contextlib.suppress(FileNotFoundError):  # it went by itself
            files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
            size = sum(file.lstat().st_size for file in files)
        return StoredItem(
            path=path.relative_to(self._dataset).as_posix(), youngest=_youngest(path), bytes=size
        )


class StoreFiles:
    """The files of a dataset on a store, listed once."""

    def __init__(self, dataset: RemotePath) -> None:
        self._dataset = dataset
        self._listed = dataset.list_details()

    def shards(self) -> Iterator[StoredItem]:
        """The folders of shards."""
        folders = {"/".join(name.split("/")[:3]) for name in self._listed if _is_in_shard(name)}
        yield from map(self._item, sorted(folders))

    def leftovers(self) -> Iterator[StoredItem]:
        """Files without their final name, and those with which a store was tried."""
        for name in sorted(self._listed):
            folder, _, file = name.rpartition("/")
            if _is_part(folder, file) and folder in ("", *_PARTS_IN):
                yield self._item(name)

    def files_in(self, name: str) -> Iterator[StoredItem]:
        """Files directly in a folder of the dataset, by name."""
        for path in sorted(self._listed):
            folder, _, file = path.rpartition("/")
            if folder == name and not file.startswith("."):
                yield self._item(path)

    def now(self, *, is_dry: bool) -> float:
        """Now, by the clock that stamps the store's files; a dry run writes nothing to ask it."""
        if is_dry:
            return time.time()
        probe = self._dataset / f".LATEST.{uuid.uuid4().hex}"
        probe.write_bytes(b"")
        try:
            return probe.parent.list_details(probe.name)[probe.name].modified
        finally:
            probe.unlink()

    def delete(self, path: str, grace_seconds: float) -> bool:
        """Delete something, unless somebody made it young meanwhile; whether it went.

        Nothing can be moved aside on a store. A shard's manifest goes first: without it no writer
        takes the shard for whole, and what is sent anew meanwhile is young and stays.
        """
        latest = self.now(is_dry=False) - grace_seconds
        found = self._dataset.list_details(path)
        if not found or max(entry.modified for entry in found.values()) > latest:
            return False
        for name in sorted(found, key=lambda name: not name.endswith("/manifest.json")):
            (self._dataset / name).unlink()
        return True

    def _item(self, path: str) -> StoredItem:
        inside = [
            entry
            for name, entry in self._listed.items()
            if name == path or name.startswith(f"{path}/")
        ]
        return StoredItem(
            path=path,
            youngest=max(entry.modified for entry in inside),
            bytes=sum(entry.bytes for entry in inside),
        )


def _is_in_shard(name: str) -> bool:
    return name.startswith("shards/") and name.count("/") > 2


def _is_part(folder: str, name: str) -> bool:
    """Whether a file was left without its final name."""
    if folder == "pins" and not name.endswith(".json"):
        return True
    return name.startswith(".") or folder == "tmp"


def _youngest(path: Path) -> float:
    try:
        times = [path.lstat().st_mtime]
        if path.is_dir():
            for root, folders, names in os.walk(path):
                inside = (os.path.join(root, name) for name in (*folders, *names))
                times += [os.lstat(name).st_mtime for name in inside]
    except FileNotFoundError:
        return math.inf
    return max(times)
