"""Writing stored episodes again: other shards, the same episodes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_files import fetch_whole
from retold.dataset.shard_writer import (
    write_goal_variant_shard,
    write_raw_shard,
    write_variant_shard,
)
from retold.dataset.table import make_table
from retold.dataset.zarr_codec import Profile
from retold.schemas.commit import ShardEntry
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode, EpisodeRecord

_SHARD_BYTES = 64_000_000
_SHARD_ROWS = 50_000
_VARIANTS = 100_000

ChangeRecord = Callable[[EpisodeRecord], EpisodeRecord]


def rewrite_rows(
    reader: DatasetReader,
    rows: Sequence[int],
    target: DatasetPath,
    *,
    profile: Profile = "fast",
    change: ChangeRecord = lambda record: record,
    materialize: bool = False,
) -> list[ShardEntry]:
    """Write episodes into new shards of a dataset, in order; nothing is committed.

    Args:
        reader: where the episodes are.
        rows: their rows.
        target: the dataset to write into.
        profile: codec profile of the arrays.
        change: applied to every record.
        materialize: write variants with arrays of their own, as their sources have them.
    """
    entries = []
    mostly = _find_mostly_wanted(reader, rows)
    for schema, is_raw, group in _group_rows(reader, rows, materialize):
        if is_raw:
            shards = dict.fromkeys(reader.shard_of(row)[0] for row in group)
            whole = [shard for shard in shards if shard.entry.shard_id in mostly]
            with fetch_whole(whole, share_equal=True):
                episodes = [_read_episode(reader, row, change) for row in group]
            entries.append(write_raw_shard(target, episodes, schema, profile=profile))
        else:
            records = [change(reader.record(row)) for row in group]
            entries.append(_write_variants(reader, group, records, schema, target))
    return entries


def _find_mostly_wanted(reader: DatasetReader, rows: Sequence[int]) -> set[str]:
    """Shards half of whose steps are wanted, or more: of the others a store sends pieces."""
    steps: dict[str, int] = {}
    for row in rows:
        shard, _ = reader.shard_of(row)
        steps[shard.entry.shard_id] = steps.get(shard.entry.shard_id, 0) + int(reader.lengths[row])
    return {
        shard_id
        for shard_id, wanted in steps.items()
        if 2 * wanted >= reader.shard_reader(shard_id).entry.steps
    }


def _read_episode(reader: DatasetReader, row: int, change: ChangeRecord) -> Episode:
    """An episode with arrays of its own."""
    episode = reader.read_episode(row)
    record = change(episode.record)
    if record.is_variant:
        record = replace(record, source_dataset_id=None, goal_row=None)
    return replace(episode, record=record)


def _write_variants(
    reader: DatasetReader,
    rows: Sequence[int],
    records: Sequence[EpisodeRecord],
    schema: DatasetSchema,
    target: DatasetPath,
) -> ShardEntry:
    if any(record.goal_row is None for record in records):
        return write_variant_shard(target, make_table(records, {}), schema)
    rewards = [
        reader.read_goal_reward(row, 0, record.length)
        for row, record in zip(rows, records, strict=True)
    ]
    return write_goal_variant_shard(target, records, rewards, schema)


def shard_share(schema: DatasetSchema, *, is_raw: bool, episodes: int, steps: int) -> float:
    """How much of a shard episodes fill: 64 MB uncompressed, 50,000 rows or 100,000 variants."""
    rows = steps + episodes
    row_bytes = sum(leaf.row_bytes for leaf in schema.leaves)
    return (
        max(rows * row_bytes / _SHARD_BYTES, rows / _SHARD_ROWS)
        if is_raw
        else (episodes / _VARIANTS)
    )


def stored_profile(reader: DatasetReader, shard_id: str) -> Profile:
    """The codec profile that a shard was written with."""
    return "small" if reader.shard_reader(shard_id).manifest.profile == "small" else "fast"


def _group_rows(
    reader: DatasetReader, rows: Sequence[int], materialize: bool
) -> Iterator[tuple[DatasetSchema, bool, list[int]]]:
    """Runs of rows that fit into one shard: one schema, one kind, not too large."""
    group: list[int] = []
    current: tuple[DatasetSchema, bool] | None = None
    filled = 0.0
    for row in rows:
        shard, _ = reader.shard_of(row)
        is_raw = materialize or shard.entry.kind == "raw"
        schema = reader.array_schema(row) if is_raw else shard.schema
        steps = int(reader.lengths[row])
        share = shard_share(schema, is_raw=is_raw, episodes=1, steps=steps)
        if (
            group
            and current is not None
            and (current != (schema, is_raw) or filled + share > 1 + 1e-9)
        ):
            yield *current, group
            group, filled = [], 0.0
        current = (schema, is_raw)
        group.append(row)
        filled += share
    if group and current is not None:
        yield *current, group
