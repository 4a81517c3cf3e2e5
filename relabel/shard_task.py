"""The tasks of the graph: count the goals of one source shard, or retell it into one shard."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.expression import parse_condition
from retold.dataset.paths import DatasetPath
from retold.dataset.schema_file import read_schema
from retold.dataset.shard_reader import ShardReader
from retold.dataset.shard_writer import write_variant_shard
from retold.dataset.table import TABLE_SCHEMA
from retold.relabel.draws import episode_keys
from retold.relabel.options import GoalStatistics, RelabelOptions
from retold.relabel.retelling import retell_batch
from retold.relabel.source_shard import EpisodeBatch, read_batches
from retold.relabel.statistics import GoalCounts, count_goals
from retold.relabel.strategies import STRATEGIES, find_strategy
from retold.relabel.variant_table import make_variant_table
from retold.schemas.commit import ShardEntry
from retold.schemas.errors import RelabelError

_PLACEMENT = ("offset", "event_offset", "event_count")
FILTER_COLUMNS = (*(name for name in TABLE_SCHEMA.names if name not in _PLACEMENT), "events")
"""What a condition may name: columns of the episode table, and the number of goal events."""


@dataclass(frozen=True)
class SourceShard:
    """A raw shard to be retold."""

    dataset: DatasetPath
    dataset_id: str
    entry: ShardEntry
    condition: str | None = None
    """Which episodes are retold, over `FILTER_COLUMNS`; all if None."""
    retold_before: frozenset[int] = frozenset()
    """Rows that have variants of this generation already, from before the source was compacted."""

    def open(self) -> ShardReader:
        """Read it."""
        return ShardReader(self.dataset, self.entry, read_schema(self.dataset, self.entry.schema))


@dataclass(frozen=True)
class ShardResult:
    """What came of one source shard."""

    source_shard: str
    entry: ShardEntry | None
    """None if no variant was new."""
    episodes: int
    """Episodes retold: those that the filter let through."""
    filtered: int
    """Episodes that the filter kept out."""
    dropped: int
    """Variants given up because they equalled the original or one another."""


def retell_shard(
    source: SourceShard,
    target: DatasetPath,
    options: RelabelOptions,
    statistics: GoalStatistics | None = None,
) -> ShardResult:
    """Retell the raw episodes of a shard, in order; the shard's bytes follow from the arguments.

    Whoever runs this, and however often, writes the same shard.

    Args:
        source: the shard.
        target: dataset that the variants go to.
        options: how to retell.
        statistics: of the whole source, for the strategies that ask for it.
    """
    shard = source.open()
    rows = choose_rows(shard, source)
    strategy = find_strategy(options.strategy)
    tables, retold = [], 0
    for batch, ids in _batches(shard, rows, statistics):
        task = shard.schema.tasks[batch.task]
        try:
            variants = retell_batch(
                batch.history,
                episode_keys(options.seed, f"relabel {options.label}", ids),
                strategy,
                variants=options.variants,
                length_weights=options.weights(task.max_instruction_length),
                goal_limit=options.goal_limit,
                most_goals=task.max_instruction_length,
            )
        except Exception as error:
            if options.strategy in STRATEGIES:
                raise
            raise RelabelError(
                f"--strategy {options.strategy}: {type(error).__name__}: "
                f"{str(error).rstrip('.')}. Nothing of this shard was committed; "
                f"mend the function."
            ) from error
        retold += len(ids)
        tables.append(
            make_variant_table(variants, shard.table.take(batch.rows), source.dataset_id, options)
        )
    made = pa.concat_tables(tables) if tables else TABLE_SCHEMA.empty_table()
    entry = write_variant_shard(target, made, shard.schema) if len(made) else None
    return ShardResult(
        source_shard=source.entry.shard_id,
        entry=entry,
        episodes=retold,
        filtered=source.entry.episodes - len(source.retold_before) - len(rows),
        dropped=retold * options.variants - len(made),
    )


def count_shard(source: SourceShard, with_order: bool) -> GoalCounts | None:
    """The goal counts of a shard; None if no episode is chosen."""
    shard = source.open()
    rows = choose_rows(shard, replace(source, retold_before=frozenset()))
    parts = [
        count_goals(batch.history, with_order=with_order)
        for batch, _ in _batches(shard, rows, None)
    ]
    return GoalCounts.sum(parts) if parts else None


def choose_rows(shard: ShardReader, source: SourceShard) -> NDArray[np.int64]:
    """`[chosen]`, rising: rows of a shard that are to be retold."""
    rows = np.arange(len(shard.table))
    if source.condition is not None:
        meets = parse_condition(source.condition, FILTER_COLUMNS)
        values = shard.table.append_column("events", shard.table["event_count"]).to_pylist()
        rows = np.array([row for row in rows if meets(values[row])], int)
    return rows[~np.isin(rows, list(source.retold_before))]


def _batches(
    shard: ShardReader, rows: NDArray[np.int64], statistics: GoalStatistics | None
) -> Iterator[tuple[EpisodeBatch, list[str]]]:
    """Batches with what was counted before, and the ids of their episodes."""
    for batch in read_batches(shard, rows):
        ids: list[str] = shard.table["episode_id"].take(batch.rows).to_pylist()
        if statistics is not None:
            history = replace(
                batch.history,
                goal_weight=statistics.goal_weight,
                prerequisites=statistics.prerequisites,
            )
            batch = replace(batch, history=history)
        yield batch, ids
