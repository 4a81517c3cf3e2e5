"""What relabelling adds: goals achieved and commanded, reward density and returns, before and after."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retold.dataset.reader import DatasetReader
from retold.relabel.source_shard import column, ragged_column, read_batches
from retold.relabel.statistics import GoalCounts, count_goals
from retold.schemas.errors import DatasetError
from retold.schemas.vocabulary import GoalVocabulary


@dataclass(frozen=True, kw_only=True)
class Telling:
    """All episodes of one kind: as they were collected, or as they were retold."""

    told: str
    """`collected` or `retold`."""
    episodes: int
    steps: int
    goals_asked: int
    goals_met: int
    success: float | None
    """Share of episodes whose instruction was completed."""
    reward_per_1000_steps: float
    rewarded_episodes: float
    """Share of episodes with any reward."""


@dataclass(frozen=True, kw_only=True)
class GoalCoverage:
    """One goal."""

    goal: str
    achieved: int | None
    """Episodes in which it began to hold, commanded or not; None where that was not looked for."""
    collected: int
    """Collected episodes that command it."""
    collected_met: int
    """Of those, in how many it is completed in its turn."""
    retold: int
    """Variants that command it."""
    retold_met: int


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Episodes by a whole number."""

    value: int
    collected: int
    retold: int


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The curriculum that relabelling built."""

    dataset: str
    tellings: tuple[Telling, ...]
    goals: tuple[GoalCoverage, ...]
    """Those achieved or commanded, the most achieved first."""
    returns: tuple[Histogram, ...]
    """Episodes by return, which is the number of goals completed: the length of the chain."""
    instruction_lengths: tuple[Histogram, ...]
    """Episodes by the number of goals commanded."""
    variants: tuple[int, ...]
    """Collected episodes by how many variants they have: without any, with one, with two …"""
    variants_per_episode: float | None
    """Their mean."""


def measure_coverage(reader: DatasetReader, *, with_sources: bool = True) -> Coverage:
    """The coverage of a dataset: its own episodes, or its variants next to their sources.

    Variants of goal-conditioned episodes are counted; their goals are not, being no words.

    Args:
        reader: of the dataset.
        with_sources: whether to count the episodes that variants refer to in other datasets, and
            the goals achieved. Without, only the dataset's own table is read.

    Raises:
        DatasetError: its task has no goals and no variants, or a source is not found.
    """
    vocabulary = reader.schema.tasks[0].vocabulary
    if vocabulary is None and not any(entry.kind == "variant" for entry in reader.shards):
        raise DatasetError(
            f"{reader.path}: task {reader.schema.tasks[0].name} has no goals to cover. See what the "
            f"dataset holds with `retold info {reader.path}`."
        )
    readers = [reader, *(_sources(reader) if with_sources else ())]
    collected, retold = _split_tables(readers)
    variants = _count_variants(collected, retold)
    goals: tuple[GoalCoverage, ...] = ()
    returns: tuple[Histogram, ...] = ()
    commanded: tuple[Histogram, ...] = ()
    if vocabulary is not None:
        returns = _histogram(*(_counted(table, "completed") for table in (collected, retold)))
        commanded = _histogram(*(_counted(table, "instruction") for table in (collected, retold)))
        achieved = _count_achieved(readers, vocabulary.size) if with_sources else None
        goals = _cover_goals(vocabulary, achieved, collected, retold)
    return Coverage(
        dataset=str(reader.path),
        tellings=_describe_tellings(collected, retold),
        goals=goals,
        returns=returns,
        instruction_lengths=commanded,
        variants=tuple(np.bincount(variants).tolist()),
        variants_per_episode=float(variants.mean()) if len(variants) else None,
    )


def _split_tables(readers: Sequence[DatasetReader]) -> tuple[pa.Table, pa.Table]:
    """Table rows of all collected episodes, and of the first dataset's variants."""
    collected = [r.table.filter(pc.is_null(r.table["source_episode_id"])) for r in readers]
    table = readers[0].table
    return pa.concat_tables(collected), table.filter(pc.is_valid(table["source_episode_id"]))


def _count_achieved(readers: Sequence[DatasetReader], goals: int) -> NDArray[np.int64]:
    """`[goals]`: collected episodes in which each began to hold."""
    counts = [
        count_goals(batch.history, with_order=False)
        for source in readers
        for shard in source.raw_shards
        for batch in read_batches(shard, np.arange(shard.entry.episodes))
    ]
    return GoalCounts.sum(counts).episodes if counts else np.zeros(goals, np.int64)


def _count_variants(collected: pa.Table, retold: pa.Table) -> NDArray[np.int64]:
    """`[episodes]`: variants of each episode, first those of which there are any."""
    counts = pc.value_counts(retold["source_episode_id"])
    known = pc.is_in(collected["episode_id"], value_set=counts.field("values"))
    without = len(collected) - int(pc.sum(known).as_py() or 0)
    retold_counts = counts.field("counts").to_numpy()
    return np.concatenate([retold_counts, np.zeros(without, np.int64)])


def _describe_tellings(collected: pa.Table, retold: pa.Table) -> tuple[Telling, ...]:
    """A line for each kind of episode that there is."""
    return tuple(
        _describe_telling(told, table)
        for told, table in (("collected", collected), ("retold", retold))
        if len(table)
    )


def _sources(reader: DatasetReader) -> list[DatasetReader]:
    """Every other dataset that variants refer to."""
    ids = pc.unique(reader.table["source_dataset_id"]).drop_null().to_pylist()
    found = [reader.source_reader(dataset_id) for dataset_id in sorted(ids)]
    return [source for source in found if source is not reader]


def _describe_telling(told: str, table: pa.Table) -> Telling:
    steps = int(pc.sum(table["length"]).as_py())
    returns = column(table, "episode_return")
    success = pc.mean(table["success"].cast(pa.uint8())).as_py()  # None where none is stored
    return Telling(
        told=told,
        episodes=len(table),
        steps=steps,
        goals_asked=int(_counted(table, "instruction").sum()),
        goals_met=int(_counted(table, "completed").sum()),
        success=success,
        reward_per_1000_steps=float(returns.sum()) / steps * 1000,
        rewarded_episodes=float((returns != 0).mean()),
    )


def _counted(table: pa.Table, name: str) -> NDArray[np.int64]:
    """`[episodes]`: how many items a list column has."""
    return np.diff(ragged_column(table, name)[1])


def _cover_goals(
    vocabulary: GoalVocabulary,
    achieved: NDArray[np.int64] | None,
    collected: pa.Table,
    retold: pa.Table,
) -> tuple[GoalCoverage, ...]:
    size = vocabulary.size
    asked, met = _count_commands(collected, size)
    retold_asked, retold_met = _count_commands(retold, size)
    known = asked + retold_asked if achieved is None else achieved
    order = np.lexsort((-asked, -known))
    return tuple(
        GoalCoverage(
            goal=vocabulary.describe(goal),
            achieved=None if achieved is None else int(achieved[goal]),
            collected=int(asked[goal]),
            collected_met=int(met[goal]),
            retold=int(retold_asked[goal]),
            retold_met=int(retold_met[goal]),
        )
        for goal in order.tolist()
        if known[goal] + asked[goal] + retold_asked[goal]
    )


def _count_commands(table: pa.Table, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`[goals]` each: episodes that command a goal, and those in which it is completed in turn."""
    goals, offset = ragged_column(table, "instruction")
    place = np.arange(len(goals)) - np.repeat(offset[:-1], np.diff(offset))
    is_met = place < np.repeat(_counted(table, "completed"), np.diff(offset))
    return np.bincount(goals, minlength=size), np.bincount(goals[is_met], minlength=size)


def _histogram(collected: NDArray[np.int64], retold: NDArray[np.int64]) -> tuple[Histogram, ...]:
    size = int(max(collected.max(initial=0), retold.max(initial=0))) + 1
    columns = (np.bincount(values, minlength=size).tolist() for values in (collected, retold))
    return tuple(
        Histogram(value=value, collected=before, retold=after)
        for value, (before, after) in enumerate(zip(*columns, strict=True))
    )
