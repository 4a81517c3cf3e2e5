"""One shard on disk: its table and its arrays, every small file checked against its hash."""

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retold.dataset.table import TABLE_SCHEMA
from retold.dataset.zarr_reader import ArrayReader
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import ShardEntry
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import FormatError
from retold.schemas.manifest import FORMAT_VERSION, FileEntry, Manifest

_RESTORE = "Find all damage with `retold audit`, and restore the file from a copy of the dataset"


class ShardReader:
    """Reads one shard. Arrays are opened on first use; scalar columns stay in memory."""

    def __init__(self, dataset: Path, entry: ShardEntry, schema: DatasetSchema) -> None:
        self.path = dataset / "shards" / entry.shard_id[:2] / entry.shard_id
        self.entry = entry
        self.schema = schema
        self._arrays: dict[str, ArrayReader] = {}
        self._resident: dict[str, NDArray[Any]] = {}
        self._leaves = {leaf.path: leaf for leaf in schema.leaves}

    @cached_property
    def manifest(self) -> Manifest:
        """The shard's table of contents, checked against the commit."""
        path = self.path / "manifest.json"
        content = _read_file(path)
        if sha256_hex(content) != self.entry.sha256:
            raise FormatError(
                f"{path}: it is not what the commit names (its hash differs). {_RESTORE}."
            )
        fields = json.loads(content)
        if fields["format_version"] != FORMAT_VERSION:
            raise FormatError(
                f"{path}: format_version is {fields['format_version']}, but this retold reads "
                f"{FORMAT_VERSION}. Upgrade with `pip install -U retold`."
            )
        return Manifest.from_json(fields)

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """The shard's files by path; paths that would leave the shard are refused."""
        for file in self.manifest.files:
            if not is_inside(self.path, file.path):
                raise FormatError(
                    f"{self.path / 'manifest.json'}: it names {file.path!r}, outside the shard. "
                    f"Do not use this dataset; it was made to read or write elsewhere."
                )
        return {file.path: file for file in self.manifest.files}

    @cached_property
    def table(self) -> pa.Table:
        """The episode table, columns as in `retold.dataset.table.TABLE_SCHEMA`."""
        content = self.read_checked("episodes.parquet")
        try:
            return pq.read_table(pa.BufferReader(content), schema=TABLE_SCHEMA)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(
                f"{self.path / 'episodes.parquet'}: this is not an episode table. {_RESTORE}."
            ) from error

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """`[episodes]`: first row of each episode in every time array."""
        return np.asarray(self.table["offset"].to_numpy(), np.int64)

    @cached_property
    def event_ranges(self) -> NDArray[np.int64]:
        """`[episodes, 2]`: first and one past the last goal event of each episode."""
        start = self.table["event_offset"].to_numpy().astype(np.int64)
        return np.stack([start, start + self.table["event_count"].to_numpy()], axis=1)

    def read_checked(self, name: str) -> bytes:
        """A small file's content, checked against the manifest."""
        file = self.files.get(name)
        if file is None:
            raise FormatError(f"{self.path}: the shard has no {name}. {_RESTORE}.")
        content = _read_file(self.path / name)
        if sha256_hex(content) != file.sha256:
            raise FormatError(f"{self.path / name}: it was changed (its hash differs). {_RESTORE}.")
        return content

    def read_rows(self, path: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of one leaf, `[stop - start, ...]`; text comes as an object array of `str`."""
        leaf = self._leaves[path]
        if leaf.is_ragged:
            return self._read_text(path, start, stop)
        if 0 in leaf.shape:  # codecs do not decode nothing
            return np.zeros((stop - start, *leaf.shape), leaf.dtype)
        if not leaf.shape:
            return self._resident_column(path)[start:stop].copy()
        return self.array(path).read(start, stop)

    def read_info(self, path: str, start: int, stop: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values `[stop - start, ...]` of a declared info, and the mask of those that are there."""
        present = self._resident_column(f"{path}/present")[start:stop].copy()
        leaf = self._leaves[path]
        if leaf.is_ragged:
            return self._read_text(f"{path}/data", start, stop), present
        if 0 in leaf.shape:
            return np.zeros((stop - start, *leaf.shape), leaf.dtype), present
        return self.array(f"{path}/data").read(start, stop), present

    def read_events(self, start: int, stop: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Steps and goals of events `start..stop-1` of the shard, `[events]` each."""
        if stop == start:
            return np.zeros(0, np.uint32), np.zeros(0, np.uint32)
        step, goal = self._resident_column("events/t"), self._resident_column("events/goal")
        return step[start:stop].copy(), goal[start:stop].copy()

    def array(self, path: str) -> ArrayReader:
        """The array of one leaf."""
        if path not in self._arrays:
            self.read_checked(f"arrays/{path}/zarr.json")
            self._arrays[path] = ArrayReader(self.path / "arrays" / path)
        return self._arrays[path]

    def damaged_files(self) -> Iterator[tuple[str, str]]:
        """Files that differ from the manifest, with what is wrong."""
        for name, file in self.files.items():
            path = self.path / name
            if path.is_symlink() or not path.is_file():
                yield name, "the file is missing"
                continue
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != file.sha256:
                size = path.stat().st_size
                yield name, f"its content differs from the manifest ({size} of {file.bytes} bytes)"

    def _resident_column(self, path: str) -> NDArray[Any]:
        if path not in self._resident:
            self._resident[path] = self.array(path).read_all()
        return self._resident[path]

    def _read_text(self, path: str, start: int, stop: int) -> NDArray[Any]:
        offsets = self._resident_column(f"{path}/offsets")[start : stop + 1].astype(np.int64)
        first = int(offsets[0])
        content = self.array(f"{path}/data").read(first, int(offsets[-1])).tobytes()
        texts = np.empty(stop - start, object)
        for row in range(stop - start):
            texts[row] = content[offsets[row] - first : offsets[row + 1] - first].decode()
        return texts


def is_inside(folder: Path, name: str) -> bool:
    """Whether a relative name stays inside a folder, links followed."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\0" in name or "\\" in name:
        return False
    return (folder / name).resolve().is_relative_to(folder.resolve())


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: it cannot be read: {error.strerror}. {_RESTORE}.") from error
