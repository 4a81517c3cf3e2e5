"""What each field of a dataset takes on disk."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from retold.dataset.reader import DatasetReader
from retold.dataset.shard_files import fetch_ahead
from retold.schemas.spaces import Leaf

EPISODE_TABLE, GOAL_EVENTS, METADATA = "episode table", "goal events", "metadata"
"""What shards hold besides leaves; it is told beside them, under these names."""


@dataclass(frozen=True, kw_only=True)
class FieldSize:
    """One leaf, or something else that shards hold."""

    field: str
    """The leaf's path, or one of the names above."""
    dtype: str | None
    """None for what is no leaf."""
    shape: tuple[int, ...] | None
    """Of one row."""
    bytes: int
    """On disk, in all live shards."""
    bytes_per_step: float | None
    """Of the stored transitions; None where none is stored."""
    compression: float | None
    """Decoded bytes for one on disk; None where rows have no fixed size."""


def measure_fields(reader: DatasetReader) -> tuple[FieldSize, ...]:
    """The fields of a snapshot's own shards, the largest first. Their bytes add up to all bytes.

    Only manifests are read. Variants have an episode table and no leaves.
    """
    shards = [reader.shard_reader(entry.shard_id) for entry in reader.shards]
    fetch_ahead(shards, [])
    sizes: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    leaves: dict[str, Leaf] = {}
    for shard in shards:
        if shard.entry.kind == "raw":
            own = {leaf.path: leaf for leaf in shard.schema.leaves}
            leaves |= own
            rows.update(dict.fromkeys(own, shard.entry.steps + shard.entry.episodes))
        for file in shard.files.values():
            sizes[_field_of(file.path, leaves)] += file.bytes
        sizes[METADATA] += shard.entry.bytes - sum(file.bytes for file in shard.files.values())
    found = [
        _describe(name, size, leaves.get(name), rows[name], reader.raw_steps)
        for name, size in sizes.items()
        if size
    ]
    return tuple(sorted(found, key=lambda field: (-field.bytes, field.field)))


def _field_of(file: str, leaves: Mapping[str, Leaf]) -> str:
    """What a file of a shard belongs to: the longest leaf path that it lies in."""
    if file == "episodes.parquet":
        return EPISODE_TABLE
    if file.startswith("arrays/events/"):
        return GOAL_EVENTS
    path = file.removeprefix("arrays/")
    while path not in leaves and "/" in path:
        path = path.rpartition("/")[0]
    return path if path in leaves else METADATA


def _describe(name: str, size: int, leaf: Leaf | None, rows: int, steps: int) -> FieldSize:
    has_fixed_rows = leaf is not None and not leaf.is_ragged
    return FieldSize(
        field=name,
        dtype=("text" if leaf.is_ragged else leaf.dtype) if leaf is not None else None,
        shape=leaf.shape if leaf is not None else None,
        bytes=size,
        bytes_per_step=size / steps if steps else None,
        compression=rows * leaf.row_bytes / size if leaf is not None and has_fixed_rows else None,
    )
