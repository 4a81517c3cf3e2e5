"""The files of one shard, each checked against its hash: manifest, table, everything small."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.files import hash_file
from retold.dataset.paths import DatasetPath, is_plain_path, path_inside
from retold.dataset.remote_path import RemotePath
from retold.dataset.table import TABLE_SCHEMA, read_table
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import ShardEntry
from retold.schemas.errors import FormatError
from retold.schemas.manifest import FileEntry, Manifest, check_format_version

_RESTORE = "Find all damage with `retold audit`, and restore the file from a copy of the dataset"
_HELD_BYTES = 64_000_000
_IDS = pa.schema([TABLE_SCHEMA.field("episode_id")])

AnyShard = TypeVar("AnyShard", bound="ShardFiles")


class ShardFiles:
    """One shard as files: what a commit names, checked on the way in."""

    def __init__(self, dataset: DatasetPath, entry: ShardEntry) -> None:
        self.dataset = dataset
        self.entry = entry
        self.path = dataset.joinpath("shards", entry.shard_id[:2], entry.shard_id)
        self._fetched: dict[str, bytes] = {}
        self.whole: dict[str, bytes] = {}
        """Every file by its path in the shard, for as long as `fetch_whole` holds them."""
        self.known_manifests: Callable[[], Mapping[str, Manifest]] = dict
        """Manifests that a checkpoint has, by shard id; asked where reading one takes a request."""

    @cached_property
    def manifest(self) -> Manifest:
        """The shard's table of contents, checked against the commit."""
        path_inside(self.dataset, "shards", self.entry.shard_id[:2], self.entry.shard_id)
        if isinstance(self.dataset, RemotePath):
            known = self.known_manifests().get(self.entry.shard_id)
            if known is not None and known.sha256 == self.entry.sha256:
                return known
        path = self.path / "manifest.json"
        content = self._read("manifest.json")
        if sha256_hex(content) != self.entry.sha256:
            raise FormatError(
                f"{path}: it is not what the commit names (its hash differs). {_RESTORE}."
            )
        try:
            fields = json.loads(content)
            check_format_version(str(path), fields["format_version"])
            return Manifest.from_json(fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(f"{path}: this is not a manifest. {_RESTORE}.") from error

    @property
    def place(self) -> str:
        """The shard's folder, seen from the dataset's."""
        return f"shards/{self.entry.shard_id[:2]}/{self.entry.shard_id}"

    @property
    def has_manifest(self) -> bool:
        """Whether the manifest is known without reading its file."""
        return "manifest" in self.__dict__ or self.entry.shard_id in self.known_manifests()

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """The shard's files by path; paths that would leave the shard are refused."""
        for file in self.manifest.files:
            if not is_plain_path(file.path):
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
            table = read_table(content, TABLE_SCHEMA)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(
                f"{self.path / 'episodes.parquet'}: this is not an episode table. {_RESTORE}."
            ) from error
        if table.num_rows != self.entry.episodes:
            raise FormatError(
                f"{self.path / 'episodes.parquet'}: it has {table.num_rows} rows, but the commit "
                f"says {self.entry.episodes} episodes. {_RESTORE}."
            )
        return table

    @property
    def episode_ids(self) -> NDArray[np.bytes_]:
        """`[episodes]`: the ids of the shard's episodes."""
        return episode_ids(self.table)

    def read_checked(self, name: str) -> bytes:
        """A small file's content, checked against the manifest."""
        file = self.files.get(name)
        if file is None:
            raise FormatError(f"{self.path}: the shard has no {name}. {_RESTORE}.")
        content = self._read(name)
        if sha256_hex(content) != file.sha256:
            raise FormatError(f"{self.path / name}: it was changed (its hash differs). {_RESTORE}.")
        return content

    def damaged_files(self, stored: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Files that differ from the manifest, with what is wrong.

        Args:
            stored: the files that are there, with their bytes.
        """
        for name, file in self.files.items():
            path = self.path / name
            if path.is_symlink() or name not in stored:
                yield name, "the file is missing"
                continue
            if name in self.whole:
                digest, size = sha256_hex(self.whole[name]), len(self.whole[name])
            else:
                digest, size = hash_file(path)
            if digest != file.sha256:
                yield name, f"its content differs from the manifest ({size} of {file.bytes} bytes)"

    def _read(self, name: str) -> bytes:
        if name in self.whole:
            return self.whole[name]
        if name in self._fetched:
            return self._fetched.pop(name)
        path = path_inside(self.path, *name.split("/"))
        try:
            return path.read_bytes()
        except OSError as error:
            raise FormatError(
                f"{path}: it cannot be read: {error.strerror}. {_RESTORE}."
            ) from error


def peek_episode_ids(
    shards: Sequence[ShardFiles], new: Sequence[ShardFiles]
) -> tuple[list[NDArray[np.bytes_] | None], list[ShardFiles]]:
    """The ids of each shard's episodes, and the new shards that are not there, for one request each.

    No hash is compared. On disk nothing is done, and all are there.

    Returns:
        Ids; None for a shard whose table is damaged as far as one can see. Then shards of `new`.
    """
    every = [*shards, *new]
    if not every or not isinstance(dataset := every[0].dataset, RemotePath):
        return [None] * len(shards), []
    names = [f"{shard.place}/episodes.parquet" for shard in shards]
    contents: dict[str, bytes] = {}
    with suppress(OSError):  # whoever reads the file says so
        contents = dataset.read_files([*names, *(f"{s.place}/manifest.json" for s in new)])
    found: list[NDArray[np.bytes_] | None] = []
    for shard, name in zip(shards, names, strict=True):
        try:
            table = read_table(contents[name], _IDS)
            found.append(episode_ids(table) if len(table) == shard.entry.episodes else None)
        except (KeyError, pa.ArrowException, OSError, ValueError):
            found.append(None)
    missing = []
    for shard in new:
        content = contents.get(f"{shard.place}/manifest.json")
        if content is None:
            missing.append(shard)
        else:
            shard._fetched["manifest.json"] = content
    return found, missing


def episode_ids(table: pa.Table) -> NDArray[np.bytes_]:
    """`[episodes]`: the ids in rows of an episode table."""
    ids = table["episode_id"].to_pylist()
    return np.array([str(episode_id).encode() for episode_id in ids], "S32")


def fetch_ahead(shards: Sequence[ShardFiles], names: Sequence[str]) -> None:
    """Fetch small files of shards, and their manifests, at once, where they lie on a store.

    What is missing is left for its reader to find. On disk nothing is done: reading in turn takes
    no longer.
    """
    unknown = [s for s in shards if not s.has_manifest and "manifest.json" not in s._fetched]
    _fetch(unknown, ["manifest.json"])
    _fetch(shards, names)


@contextmanager
def fetch_whole(shards: Sequence[ShardFiles], *, share_equal: bool = False) -> Iterator[None]:
    """Hold every file of shards of one dataset in memory, all asked for at once, if on a store.

    For whoever reads all of a shard: it takes a few hundred requests fewer than piece by piece.

    Args:
        shards: the shards.
        share_equal: ask for one of the files that have the same hash, such as many a `zarr.json`;
            not for who looks whether each is sound.
    """
    try:
        if shards and isinstance(dataset := shards[0].dataset, RemotePath):
            fetch_ahead(shards, [])
            with suppress(OSError):  # then it is read piece by piece
                _hold(dataset, shards, share_equal)
        yield
    finally:
        for shard in shards:
            shard.whole.clear()


def hold_in_turn(shards: Sequence[AnyShard]) -> Iterator[AnyShard]:
    """Each shard of one dataset while its files are in memory, some shards at a time, if on a store."""
    batch: list[AnyShard] = []
    held = 0
    for shard in shards:
        if batch and held + shard.entry.bytes > _HELD_BYTES:
            with fetch_whole(batch):
                yield from batch
            batch, held = [], 0
        batch.append(shard)
        held += shard.entry.bytes
    with fetch_whole(batch):
        yield from batch


def _hold(dataset: RemotePath, shards: Sequence[ShardFiles], share_equal: bool) -> None:
    asked: dict[str, str] = {}
    files = []
    for shard in shards:
        with suppress(FormatError):  # whoever reads the manifest says so
            for name, file in shard.files.items():
                path = f"{shard.place}/{name}"
                asked.setdefault(file.sha256 if share_equal else path, path)
                files.append((shard, name, file.sha256 if share_equal else path))
    found = dataset.read_files(list(asked.values()))
    # One that is damaged stands for none but itself: the others are read where they are.
    lost = {key for key, path in asked.items() if path not in found}
    if share_equal:
        lost |= {key for key, path in asked.items() if sha256_hex(found.get(path, b"")) != key}
    for shard, name, key in files:
        if key not in lost:
            shard.whole[name] = found[asked[key]]


def _fetch(shards: Sequence[ShardFiles], names: Sequence[str]) -> None:
    if not shards or not isinstance(dataset := shards[0].dataset, RemotePath):
        return
    files = {f"{shard.place}/{name}": (shard, name) for shard in shards for name in names}
    with suppress(OSError):  # whoever reads the file says so
        for path, content in dataset.read_files(list(files)).items():
            shard, name = files[path]
            shard._fetched[name] = content
