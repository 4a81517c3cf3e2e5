"""Which arrays of a snapshot are worth keeping decoded: those that save the most for their bytes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retold.dataset.reader import DatasetReader
from retold.dataset.shard_reader import ShardReader, StoredArray
from retold.dataset.window_filler import find_source_rows
from retold.schemas.dataset_schema import DatasetSchema

_ALWAYS_READ = ("reward", "reset")


@dataclass(frozen=True)
class CacheCandidate:
    """An array that windows of a snapshot are read from."""

    shard: ShardReader
    array: str
    stored: StoredArray
    drawn_steps: int
    """Transitions of the snapshot that lie in the shard, once for each episode that shows them."""

    @property
    def key(self) -> tuple[str, str]:
        """The shard's id and the array's path."""
        return self.shard.entry.shard_id, self.array

    @property
    def bytes(self) -> int:
        """Of the decoded array."""
        return int(np.prod(self.stored.shape)) * self.stored.dtype.itemsize


def rank_candidates(reader: DatasetReader) -> list[CacheCandidate]:
    """Arrays of a snapshot and of the sources of its variants, the most useful first.

    A window costs about as much in every array that has to be decoded for it, and is drawn from a
    shard in proportion to the transitions that episodes and variants show of it. So the order is by
    these transitions for a decoded byte; among equals, new shards come before old ones, which are
    evicted earlier.
    """
    shards: dict[str, ShardReader] = {}
    drawn: Counter[str] = Counter()  # a dataset may hold variants of its own episodes
    for shard, steps in _drawn_shards(reader):
        shards[shard.entry.shard_id] = shard
        drawn[shard.entry.shard_id] += steps
    found = [
        CacheCandidate(shard, array, shard.open_array(array, None), drawn[shard_id])
        for shard_id, shard in shards.items()
        for array in _sampled_arrays(shard.schema)
    ]
    found.reverse()
    return sorted(found, key=lambda one: -one.drawn_steps / max(1, one.bytes))


def _drawn_shards(reader: DatasetReader) -> Iterator[tuple[ShardReader, int]]:
    """Shards that windows come from, in order, and how many transitions are shown of each."""
    columns = reader.columns
    yield from _count_steps(reader, np.where(columns.source < 0, columns.length, 0))
    for number, source_id in enumerate(columns.source_ids):
        source = reader.source_reader(source_id)
        mine, rows = find_source_rows(reader, source, number)
        steps = np.zeros(len(source), np.int64)
        np.add.at(steps, rows, columns.length[mine])
        yield from _count_steps(source, steps)


def _count_steps(
    reader: DatasetReader, steps: NDArray[np.int64]
) -> Iterator[tuple[ShardReader, int]]:
    """Raw shards of a dataset of whose episodes transitions are shown.

    Args:
        reader: the dataset that holds the arrays.
        steps: `[episodes]`: transitions shown of each.
    """
    for shard in reader.raw_shards:
        rows = reader.shard_rows(shard.entry.shard_id)
        shown = int(steps[rows.start : rows.stop].sum())
        if shown:
            yield shard, shown


def _sampled_arrays(schema: DatasetSchema) -> list[str]:
    """Arrays that sampling reads, but for text, which is not of one size a row."""
    leaves = (*schema.observation_leaves, *schema.action_leaves)
    kept = [leaf.path for leaf in leaves if not leaf.is_ragged and 0 not in leaf.shape]
    return [*kept, *_ALWAYS_READ]
