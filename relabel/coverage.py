"""What relabelling adds: goals achieved and commanded, reward density and returns, before and after."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retold.dataset.paths import DatasetPath
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
    achieved: int
    """Episodes in which it began to hold, commanded or not."""
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
    variants_per_episode: float | None


def measure_coverage(path: DatasetPath) -> Coverage:
    """The coverage of a dataset: its own episodes, or its variants next to their sources.

    Raises:
        DatasetError: its task has no goals.
    """
    with DatasetReader.open(path) as reader:
        vocabulary = reader.schema.tasks[0].vocabulary
        if vocabulary is None:
            raise DatasetError(
                f"{path}: task {reader.schema.tasks[0].name} has no goals to cover. See what the "
                f"dataset holds with `retold info {path}`."
            )
        collected, retold = split_tables(reader)
        counts = [
            count_goals(batch.history, with_order=False)
            for source in _sources(reader)
            for entry in source.shards
            if entry.kind == "raw"
            for batch in read_batches(
                source.shard_reader(entry.shard_id), np.arange(entry.episodes)
            )
        ]
        return Coverage(
            dataset=str(path),
            tellings=describe_tellings(collected, retold),
            goals=_cover_goals(vocabulary, counts, collected, retold),
            returns=_histogram(*(_counted(t, "completed") for t in (collected, retold))),
            instruction_lengths=_histogram(
                *(_counted(t, "instruction") for t in (collected, retold))
            ),
            variants_per_episode=len(retold) / len(collected) if len(collected) else None,
        )


def split_tables(reader: DatasetReader) -> tuple[pa.Table, pa.Table]:
    """Table rows of collected episodes, those of sources included, and of variants."""
    is_variant = pc.is_valid(reader.table["source_episode_id"])
    own = reader.table.filter(pc.invert(is_variant))
    others = [
        source.table.filter(pc.is_null(source.table["source_episode_id"]))
        for source in _sources(reader)
        if source is not reader
    ]
    return pa.concat_tables([own, *others]), reader.table.filter(is_variant)


def describe_tellings(collected: pa.Table, retold: pa.Table) -> tuple[Telling, ...]:
    """A line for each kind of episode that there is."""
    return tuple(
        _describe_telling(told, table)
        for told, table in (("collected", collected), ("retold", retold))
        if len(table)
    )


def _sources(reader: DatasetReader) -> list[DatasetReader]:
    """The dataset itself and every dataset that its variants refer to."""
    ids = pc.unique(reader.table["source_dataset_id"]).drop_null().to_pylist()
    found = [reader.source_reader(dataset_id) for dataset_id in sorted(ids)]
    return [reader, *(source for source in found if source is not reader)]


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
    vocabulary: GoalVocabulary, counts: Sequence[GoalCounts], collected: pa.Table, retold: pa.Table
) -> tuple[GoalCoverage, ...]:
    size = vocabulary.size
    achieved = GoalCounts.sum(counts).episodes if counts else np.zeros(size, np.int64)
    asked, met = _count_commands(collected, size)
    retold_asked, retold_met = _count_commands(retold, size)
    order = np.lexsort((-asked, -achieved))
    return tuple(
        GoalCoverage(
            goal=vocabulary.describe(goal),
            achieved=int(achieved[goal]),
            collected=int(asked[goal]),
            collected_met=int(met[goal]),
            retold=int(retold_asked[goal]),
            retold_met=int(retold_met[goal]),
        )
        for goal in order.tolist()
        if achieved[goal] + asked[goal] + retold_asked[goal]
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
