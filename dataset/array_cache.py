"""Decoded arrays kept as `.npy` files beside a dataset, mapped instead of decoded: `retold cache`."""

import hashlib
import io
import json
import logging
import math
import mmap
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from retold.schemas.canonical import encode_json
from retold.schemas.errors import DatasetError

logger = logging.getLogger(__name__)

_VERSION = 1
_MARK = "cache.json"


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """What stands beside a decoded array: whose it is, and what its file must be."""

    shard_id: str
    """The shard, whose id is a hash of its content: an entry never goes out of date."""
    array: str
    """The array's path in it."""
    sha256: str
    """Of the `.npy` file, header included."""
    bytes: int
    """Of the `.npy` file."""


class MappedArray:
    """One decoded array, mapped; it reads like an `ArrayReader`."""

    chunk_bytes = 0
    """There is nothing to decode, hence nothing to share out to threads."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = rows
        self.shape: tuple[int, ...] = rows.shape
        self.dtype: np.dtype[Any] = rows.dtype

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows `start..stop-1`, `[stop - start, ...]`, copied, into `out` if given."""
        if out is None:
            return self._rows[start:stop].copy()
        out[:] = self._rows[start:stop]
        return out

    def fill(self, start: int, wanted: int, rows: NDArray[Any]) -> None:
        """Copy rows `start..start+wanted-1` into `rows`."""
        rows[:] = self._rows[start : start + wanted]

    def read_all(self) -> NDArray[Any]:
        """The whole array, copied."""
        return self._rows.copy()


class ArrayCache:
    """A folder of decoded arrays. It is never trusted: what is not as recorded is not used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[tuple[str, str], MappedArray | None] = {}

    @classmethod
    def open(cls, folder: Path) -> "ArrayCache":
        """A cache that is there.

        Raises:
            DatasetError: the folder is none, or of another version.
        """
        try:
            version = json.loads((folder / _MARK).read_bytes())["cache_version"]
        except (OSError, ValueError, KeyError, TypeError):
            raise DatasetError(
                f"{folder}: this is no cache of decoded arrays. Make one with "
                f"`retold cache DATASET {folder}`."
            ) from None
        if version != _VERSION:
            raise DatasetError(
                f"{folder}: this is a cache of version {version}, but this retold makes version "
                f"{_VERSION}. Delete the folder and run `retold cache` again."
            )
        return cls(folder)

    @classmethod
    def create(cls, folder: Path) -> "ArrayCache":
        """A cache that is there, or a new one in a new or empty folder."""
        if (folder / _MARK).exists() or (folder.exists() and any(folder.iterdir())):
            return cls.open(folder)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{_MARK}.{os.getpid()}"
        temporary.write_bytes(encode_json({"cache_version": _VERSION}))
        os.replace(temporary, folder / _MARK)
        return cls(folder)

    def place(self, shard_id: str, array: str) -> Path:
        """The `.npy` file of an array; its `.json` stands beside it."""
        return self.folder / shard_id[:2] / shard_id / f"{quote(array, safe='')}.npy"

    def find(self, shard_id: str, array: str) -> MappedArray | None:
        """An array as it was decoded, or None; a damaged one is told of and left alone.

        The whole file is hashed when it is first asked for: nothing wrong is ever mapped.
        """
        key = (shard_id, array)
        if key not in self._found:
            try:
                self._found[key] = map_entry(self.place(shard_id, array), shard_id, array)
            except DatasetError as error:
                logger.warning("%s", error)
                self._found[key] = None
        return self._found[key]


def map_entry(place: Path, shard_id: str, array: str) -> MappedArray | None:
    """An array of a cache, or None if it is not there.

    Raises:
        DatasetError: it is not as recorded, or the record is damaged.
    """
    try:
        record = place.with_suffix(".json").read_bytes()
        with place.open("rb") as stream:
            return _map_checked(stream, CacheEntry(**_entry_fields(record)), shard_id, array)
    except FileNotFoundError:
        return None  # never written, or evicted just now
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{place}: this cached array is damaged ({error}); the dataset's own is read instead. "
            f"Run `retold cache` again to replace it."
        ) from error


def encode_entry(entry: CacheEntry) -> bytes:
    """The record of an array, as JSON."""
    return encode_json({"cache_version": _VERSION, **asdict(entry)})


def header_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """The header of the `.npy` file of an array."""
    return {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }


def _entry_fields(record: bytes) -> dict[str, Any]:
    fields = json.loads(record)
    if fields.pop("cache_version") != _VERSION:
        raise ValueError("its record is of another version")
    return dict(fields)


def _map_checked(
    stream: io.BufferedReader, entry: CacheEntry, shard_id: str, array: str
) -> MappedArray:
    """Map a file that is what its record says; the file that was hashed is the one that is mapped."""
    if (entry.shard_id, entry.array) != (shard_id, array):
        raise ValueError("its record is another array's")
    size = os.fstat(stream.fileno()).st_size
    if size != entry.bytes:
        raise ValueError(f"it has {size} of {entry.bytes} bytes")
    if hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
        raise ValueError("its hash differs")
    stream.seek(0)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("its header is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    rows = np.frombuffer(content, dtype, math.prod(shape), stream.tell()).reshape(shape)
    return MappedArray(rows)
