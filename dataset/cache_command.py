"""`retold cache`: keep decoded arrays of a snapshot as plain files under a budget of bytes."""

import hashlib
import logging
import os
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retold.dataset.array_cache import ArrayCache, CacheEntry, encode_entry, header_of, map_entry
from retold.dataset.cache_plan import CacheCandidate, rank_candidates
from retold.dataset.files import replace_atomically
from retold.dataset.progress import show_progress
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import SourceFlag
from retold.schemas.errors import DatasetError, UsageError

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 16_000_000
"""Decoded at a time, so that a shard of any size takes little memory."""
_FILE_BYTES = 1_000
"""More than an array's header and its record take."""
_ABANDONED_SECONDS = 24 * 3600.0
"""Age from which a temporary file belongs to a process that was killed."""


@dataclass(frozen=True, kw_only=True)
class CacheConfig(SourceFlag):
    """What `retold cache` is asked."""

    dataset: Path
    """Dataset, or snapshot (`DATASET@12`), to decode; what its variants refer to, too."""
    folder: Path
    """Folder of decoded arrays, made if it is not there; several datasets may share it."""
    bytes: int = 10_000_000_000
    """Most bytes that the folder takes; arrays that do not fit go on being read from the shards."""

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise UsageError(f"--bytes is {self.bytes}, but must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class CachedLeaf:
    """One leaf of the snapshot, over all of its shards."""

    leaf: str
    shards: int
    """Shards whose array is in the cache."""
    of_shards: int
    bytes: int
    """Decoded, in the cache."""
    of_bytes: int


@dataclass(frozen=True, kw_only=True)
class CacheResult:
    """What the folder holds now."""

    cache: str
    dataset: str
    snapshot: int
    bytes: int
    """Of all files of the folder, other datasets' included."""
    budget_bytes: int
    written: int
    """Arrays that were decoded now."""
    kept: int
    """Arrays that were there already, whole."""
    replaced: int
    """Arrays among the written that were there, damaged."""
    evicted: int
    """Arrays that went to make room."""
    leaves: tuple[CachedLeaf, ...]


def cache_dataset(config: CacheConfig) -> CacheResult:
    """Bring a cache to hold the arrays of a snapshot that save the most.

    Raises:
        UsageError: the folder lies in a dataset.
        DatasetError: the folder holds something else, or a shard is damaged.
    """
    _refuse_datasets(config.folder)
    with DatasetReader.open(config.dataset, sources=config.moved(config.dataset)) as reader:
        candidates = rank_candidates(reader)
        cache = ArrayCache.create(config.folder)
        chosen = _choose(candidates, config.bytes)
        evicted = _make_room(cache, chosen, config.bytes)
        written = replaced = 0
        for candidate in show_progress(chosen, len(chosen), "arrays"):
            place = cache.place(*candidate.key)
            is_there = place.exists()
            if not _is_whole(place, candidate):
                _write_array(place, candidate)
                written, replaced = written + 1, replaced + is_there
        evicted += _make_room(cache, chosen, config.bytes)
        return CacheResult(
            cache=str(config.folder),
            dataset=str(config.dataset),
            snapshot=reader.snapshot.number,
            bytes=sum(_list_entries(cache).values()),
            budget_bytes=config.bytes,
            written=written,
            kept=len(chosen) - written,
            replaced=replaced,
            evicted=evicted,
            leaves=_count_leaves(candidates, chosen),
        )


def _refuse_datasets(folder: Path) -> None:
    """Nothing is ever written into a dataset; whoever audits it would find a stranger's files."""
    resolved = folder.resolve()
    for parent in (resolved, *resolved.parents):
        if (parent / "dataset.json").exists():
            raise UsageError(
                f"{folder}: it lies in the dataset {parent}, and a cache is no part of one. Name a "
                f"folder outside it, such as {parent.with_name(parent.name + '-cache')}."
            )


def _choose(candidates: Iterable[CacheCandidate], budget_bytes: int) -> list[CacheCandidate]:
    """The first that fit into the budget together."""
    chosen = []
    for candidate in candidates:
        size = candidate.bytes + _FILE_BYTES
        if size <= budget_bytes:
            budget_bytes -= size
            chosen.append(candidate)
    return chosen


def _make_room(cache: ArrayCache, chosen: list[CacheCandidate], budget_bytes: int) -> int:
    """Evict what was not chosen, the longest unused first, until the chosen fit; how many went."""
    wanted = {cache.place(*candidate.key) for candidate in chosen}
    needed = sum(candidate.bytes + _FILE_BYTES for candidate in chosen)
    others = {place: size for place, size in _list_entries(cache).items() if place not in wanted}
    needed += sum(others.values())
    evicted = 0
    for place in sorted(others, key=_last_use):
        if needed <= budget_bytes:
            break
        place.with_suffix(".json").unlink(missing_ok=True)  # first: nothing half is ever found
        place.unlink(missing_ok=True)
        needed -= others[place]
        evicted += 1
    return evicted


def _list_entries(cache: ArrayCache) -> dict[Path, int]:
    """The `.npy` files of a cache, records without one included, and the bytes they take."""
    found: dict[Path, int] = {}
    for path in cache.folder.glob("??/*/*"):
        try:
            facts = path.stat()
        except FileNotFoundError:  # another process evicted or renamed it
            continue
        if path.name.startswith("."):
            if time.time() - facts.st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
            continue
        place = path.with_suffix(".npy")
        found[place] = found.get(place, 0) + facts.st_size
    return found


def _last_use(place: Path) -> float:
    """When `retold cache` last wanted an array."""
    try:
        return place.with_suffix(".json").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_whole(place: Path, candidate: CacheCandidate) -> bool:
    """Whether an array is there as recorded; then it counts as used now."""
    try:
        mapped = map_entry(place, *candidate.key)
        if mapped is None or mapped.shape != candidate.stored.shape:
            return False
        os.utime(place.with_suffix(".json"))
    except (DatasetError, FileNotFoundError):
        return False
    return mapped.dtype == candidate.stored.dtype


def _write_array(place: Path, candidate: CacheCandidate) -> None:
    """Decode an array and give it its name once it is whole.

    It is not synced: a power cut leaves a file that is not as recorded, which is then replaced.
    """
    stored = candidate.stored
    row_bytes = max(1, candidate.bytes // max(1, stored.shape[0]))
    block = max(1, _BLOCK_BYTES // row_bytes)
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("w+b") as file:
            np.lib.format.write_array_header_1_0(file, header_of(stored.shape, stored.dtype))
            for start in range(0, stored.shape[0], block):
                rows = stored.read(start, min(start + block, stored.shape[0]))
                file.write(np.ascontiguousarray(rows).data)
            size = file.tell()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        shard_id, array = candidate.key
        entry = CacheEntry(shard_id=shard_id, array=array, bytes=size, sha256=digest)
        os.replace(temporary, place)
        replace_atomically(place.with_suffix(".json"), encode_entry(entry))
    finally:
        temporary.unlink(missing_ok=True)


def _count_leaves(
    candidates: list[CacheCandidate], chosen: list[CacheCandidate]
) -> tuple[CachedLeaf, ...]:
    kept = {candidate.key for candidate in chosen}
    leaves = dict.fromkeys(candidate.array for candidate in candidates)
    counted = []
    for leaf in leaves:
        all_of_it = [candidate for candidate in candidates if candidate.array == leaf]
        mine = [candidate for candidate in all_of_it if candidate.key in kept]
        counted.append(
            CachedLeaf(
                leaf=leaf,
                shards=len(mine),
                of_shards=len(all_of_it),
                bytes=sum(candidate.bytes for candidate in mine),
                of_bytes=sum(candidate.bytes for candidate in all_of_it),
            )
        )
    return tuple(counted)
