"""Places on an object store, with the part of `pathlib`'s interface that datasets use.

fsspec does the talking. Listings are never cached: another process may have written since. Whatever a
store's client raises comes out as an `OSError` with a text, as from a disk.
"""

import errno
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from retold.dataset.hub_names import HUB_PROTOCOL
from retold.schemas.errors import RetoldError, UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.+)", re.DOTALL)
_CREATES_EXCLUSIVELY = ("s3", "s3a", "memory")
"""Protocols whose `mode="create"` has exactly one winner; others are only read. On a local folder
fsspec's has not, and neither have protocols that look before they write."""

T = TypeVar("T")


def is_url(text: str) -> bool:
    """Whether a text names a place on a store rather than on this machine."""
    return _URL.fullmatch(text) is not None


@dataclass(frozen=True)
class StoredFile:
    """What a listing says of a file."""

    bytes: int
    modified: float
    """When it was written, by the store's clock, in seconds since 1970."""


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder on an fsspec file system. Folders are there once a file in them is."""

    url: str
    """E.g. `s3://bucket/folder/dataset`."""

    def __post_init__(self) -> None:
        match = _URL.fullmatch(self.url)
        if match is None or "\0" in self.url:
            raise UsageError(f"{self.url!r} is no URL. Write e.g. s3://bucket/folder/dataset.")
        parts = match[2].split("/")
        if {".", ".."} & set(parts):
            raise UsageError(f"{self.url}: '.' and '..' mean nothing in a URL. Write it in full.")
        object.__setattr__(self, "url", f"{match[1]}://{'/'.join(part for part in parts if part)}")

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url}/{name}")

    def joinpath(self, *names: str) -> "RemotePath":
        """The place below this one."""
        return RemotePath("/".join((self.url, *names)))

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        """The folder that this is in."""
        return RemotePath(self.url.rpartition("/")[0])

    @property
    def protocol(self) -> str:
        """What stands before `://`."""
        return self.url.partition("://")[0]

    @property
    def is_repository(self) -> bool:
        """Whether this is a repository on the Hub, or a revision of one, rather than a place in it."""
        return self.protocol == HUB_PROTOCOL and self._key == self._bucket

    def with_name(self, name: str) -> "RemotePath":
        """The place beside this one."""
        return self.parent / name

    def relative_to(self, folder: "RemotePath") -> PurePosixPath:
        """The way from a folder to this place below it."""
        return PurePosixPath(self._key).relative_to(folder._key)

    def location_from(self, folder: "RemotePath") -> str | None:
        """The way from another place of the same store, with `..` where it goes up; None if none."""
        if (self.protocol, self._bucket) != (folder.protocol, folder._bucket):
            return None
        return posixpath.relpath(f"/{self._key}", f"/{folder._key}")

    def follow(self, location: str) -> "RemotePath":
        """Where a way from here leads, within the same store.

        Raises:
            UsageError: it leads out of the store.
        """
        path = posixpath.normpath(f"{self._key}/{location}")
        if not f"{path}/".startswith(f"{self._bucket}/"):
            raise UsageError(f"{self.url}: {location!r} leads out of {self._bucket}.")
        return RemotePath(f"{self.protocol}://{path}")

    def resolve(self) -> "RemotePath":
        """Itself: a URL is absolute."""
        return self

    def is_symlink(self) -> bool:
        """Never: stores have no links."""
        return False

    def exists(self) -> bool:
        """Whether there is such a file, or a file below."""
        return bool(self._call(lambda: self.filesystem.exists(self._key)))

    def is_dir(self) -> bool:
        """Whether there is a file below."""
        return bool(self.list_names())

    def is_file(self) -> bool:
        """Whether there is such a file."""
        return bool(self._call(lambda: self.filesystem.isfile(self._key)))

    def iterdir(self) -> Iterator["RemotePath"]:
        """What lies directly in the folder."""
        return (self / name for name in self.list_names())

    def list_names(self) -> list[str]:
        """Sorted names of what lies directly in the folder; none if there is no folder."""
        try:
            found = self._call(lambda: self.filesystem.ls(self._key, detail=False, refresh=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {posixpath.basename(str(path).rstrip("/")) for path in found if path != self._key}
        return sorted(names - {""})

    def list_files(self) -> dict[str, int]:
        """Every file below the folder, by its path in it, with its bytes."""
        find = self.filesystem.find
        found = self._call(lambda: find(self._key, detail=True))
        start = len(self._key) + 1
        return {str(path)[start:]: int(entry["size"]) for path, entry in found.items()}

    def list_details(self, below: str = "") -> dict[str, "StoredFile"]:
        """Size and age of a file, or of every file below a folder, by path in this folder.

        Args:
            below: the file or folder; everything if empty.

        Raises:
            OSError: the store does not say when files were written.
        """
        place = self / below if below else self
        found = self._call(lambda: place.filesystem.find(place._key, detail=True))
        start = len(self._key) + 1
        return {str(path)[start:]: _stored_file(entry) for path, entry in found.items()}

    def read_bytes(self) -> bytes:
        """The whole content."""
        # With a start, s3fs asks once; without, it asks for the size first.
        try:
            return bytes(self._call(lambda: self.filesystem.cat_file(self._key, start=0)))
        except OSError as error:
            if error.errno != errno.EINVAL:  # an empty file has no byte to start at
                raise
            return bytes(self._call(lambda: self.filesystem.cat_file(self._key)))

    def read_files(self, names: Sequence[str]) -> dict[str, bytes]:
        """Contents of files below the folder, asked for at once; those that are missing left out."""
        keys = [f"{self._key}/{name}" for name in names]
        starts, ends = [0] * len(keys), [None] * len(keys)
        found = self._call(lambda: self.filesystem.cat_ranges(keys, starts, ends))
        for content in found:
            if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
                self._call(_raiser(content))
        return {
            name: bytes(content)
            for name, content in zip(names, found, strict=True)
            if not isinstance(content, BaseException)
        }

    def create(self, content: bytes) -> bool:
        """Write a file unless there is one; whether it is ours.

        If its reply was lost, and it was sent again, ours looks like somebody else's: whoever has to
        know looks inside. Where the store does not say why it refused, what is there is compared.

        Raises:
            OSError: it could not be written, or this store cannot promise that only one wins.
        """
        self._check_creates_exclusively()
        try:
            self._call(lambda: self.filesystem.pipe_file(self._key, content, mode="create"))
            return True
        except FileExistsError:
            return False
        except OSError:
            try:
                return self.read_bytes() == content
            except FileNotFoundError:
                pass
            raise

    def write_files(self, contents: Mapping[str, bytes]) -> None:
        """Write files below the folder, several at once; each is whole or absent."""
        keys = {f"{self._key}/{name}": content for name, content in contents.items()}
        self._call(lambda: self.filesystem.pipe(keys))

    def write_bytes(self, content: bytes) -> None:
        """Write or replace the file."""
        self._call(lambda: self.filesystem.pipe_file(self._key, content))

    def unlink(self) -> None:
        """Delete the file. One that is not there is no matter: stores do not tell."""
        try:
            self._call(lambda: self.filesystem.rm_file(self._key))
        except FileNotFoundError:
            pass

    @property
    def filesystem(self) -> Any:
        """The store's fsspec file system; fsspec keeps one for each process and thread."""
        return _open_filesystem(self.protocol)

    @property
    def _key(self) -> str:
        """The name that fsspec has for this place."""
        key = self.url.partition("://")[2]
        return f"/{key}" if self.protocol == "memory" else key

    @property
    def _bucket(self) -> str:
        """What no way may lead out of: the first part, on the Hub the repository."""
        return "/".join(self._key.split("/")[: 2 if self.protocol == HUB_PROTOCOL else 1])

    def _check_creates_exclusively(self) -> None:
        """Refuse a store where two processes could both believe that they made a file."""
        if self.protocol not in _CREATES_EXCLUSIVELY:
            raise OSError(
                errno.EROFS,
                f"datasets at {self.protocol}:// are only read; s3:// can be written"
                if self.protocol != HUB_PROTOCOL
                else "datasets on the Hub are only read here; change one with `retold push`",
            )
        _probe(f"{self.protocol}://{self._bucket}", self)

    def _call(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except RetoldError:
            raise
        except OSError as error:
            text = error.strerror or str(error) or type(error).__name__
            raise type(error)(error.errno or errno.EIO, text) from error
        except Exception as error:  # clients have exceptions of their own, of many kinds
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


def _raiser(error: BaseException) -> Callable[[], None]:
    def ask() -> None:
        raise error

    return ask


def _stored_file(entry: Mapping[str, Any]) -> StoredFile:
    for name in ("LastModified", "created"):  # of s3fs, and of fsspec's file system in memory
        if isinstance(entry.get(name), datetime):
            return StoredFile(int(entry["size"]), entry[name].timestamp())
    raise OSError(errno.ENOTSUP, "this store does not say when its files were written")


def _open_filesystem(protocol: str) -> Any:
    if protocol == HUB_PROTOCOL:
        from retold.dataset.hub_filesystem import hub_filesystem

        return hub_filesystem()
    import fsspec

    try:
        return fsspec.filesystem(protocol, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"{protocol}:// cannot be opened: {error}. For s3:// install `retold[s3]`."
        ) from error


def read_ranges(ranges: Sequence[tuple[RemotePath, int, int]]) -> list[bytes]:
    """Bytes `start..end-1` of each `(file, start, end)`, asked for at once, store by store."""
    contents = [b""] * len(ranges)
    by_store: dict[str, list[int]] = {}
    for number, (path, start, end) in enumerate(ranges):
        if end > start:
            by_store.setdefault(path.protocol, []).append(number)
    for numbers in by_store.values():
        found = _read_ranges_of_store([ranges[number] for number in numbers])
        for number, content in zip(numbers, found, strict=True):
            contents[number] = content
    return contents


def _read_ranges_of_store(ranges: Sequence[tuple[RemotePath, int, int]]) -> list[bytes]:
    keys = [path._key for path, _, _ in ranges]
    starts, ends = [start for _, start, _ in ranges], [end for _, _, end in ranges]
    store = ranges[0][0]
    read = store.filesystem.cat_ranges
    return [bytes(part) for part in store._call(lambda: read(keys, starts, ends, on_error="raise"))]


_PROBED: set[str] = set()
"""Stores that were asked by this process, and create no file twice."""


def _probe(store: str, place: RemotePath) -> None:
    """See once that a file is not created twice: some stores ignore the condition.

    Raises:
        OSError: it is.
    """
    if store in _PROBED:
        return
    path = place.with_name(f".probe-{uuid.uuid4().hex}")
    content = b"Whether a file can be created twice.\n"
    fs = path.filesystem
    try:
        path._call(lambda: fs.pipe_file(path._key, content, mode="create"))
        try:
            path._call(lambda: fs.pipe_file(path._key, b"", mode="create"))
        except OSError:
            if path.read_bytes() == content:
                _PROBED.add(store)
                return
        raise OSError(
            errno.EROFS,
            "this store creates a file twice (it ignores If-None-Match), so its datasets are "
            "only read",
        )
    finally:
        path.unlink()
