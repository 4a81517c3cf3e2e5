"""`retold relabel`: retell the episodes of a dataset under instructions they happened to follow."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from retold.dataset.expression import parse_condition
from retold.dataset.log import CommitLog
from retold.dataset.pins import pin
from retold.dataset.reader import DatasetReader
from retold.relabel.generation import (
    Generation,
    find_retold,
    find_retold_rows,
    refuse_repeats,
)
from retold.relabel.graph import TaskRunner
from retold.relabel.options import GoalStatistics, RelabelOptions
from retold.relabel.progress import show_progress
from retold.relabel.shard_task import (
    FILTER_COLUMNS,
    ShardResult,
    SourceShard,
    count_shard,
    retell_shard,
)
from retold.relabel.statistics import MOST_CHAINED_GOALS, GoalCounts
from retold.relabel.strategies import find_strategy
from retold.schemas.commit import SourceEntry
from retold.schemas.errors import DatasetError, UsageError

_COUNTING = frozenset({"rare", "chain"})
"""Strategies that read counts over the whole dataset."""


@dataclass(frozen=True, kw_only=True)
class RelabelConfig:
    """What `retold relabel` is asked."""

    source: Path
    """Dataset whose episodes are retold. It is never changed."""
    target: Path
    """Dataset of variants to append to; made if there is none."""
    strategy: str = "some"
    """How goals are chosen: some, all, all-or-nothing, rare, rare-in-episode, chain, final, future,
    episode, or a function of your own as module:function."""
    variants: int = 4
    """Variants of each episode; those equal to the original or to one another are dropped."""
    seed: int = 0
    """Seed of the draws. Another seed or strategy makes a new generation beside the old one."""
    length_weights: tuple[float, ...] = field(default=())
    """Chance of instructions of 1, 2, ... goals, in any scale; none keeps each episode's own
    length."""
    goal_limit: int | None = None
    """Most variants of an episode in which one goal stands that its original lacks."""
    filter: str | None = None
    """Only retell episodes that meet this condition on their table rows, e.g. 'episode_return == 0
    and events >= 3'."""
    commit_every: int | None = None
    """Source shards of one commit; none makes one commit of the whole run."""
    workers: int = 2
    """Dask worker processes on this machine; 0 retells in this process, without Dask."""
    scheduler: str | None = None
    """Address of a running Dask scheduler, used instead of local workers."""

    def __post_init__(self) -> None:
        for name, minimum in (
            *(("variants", 1), ("seed", 0), ("workers", 0)),
            *(("goal_limit", 1), ("commit_every", 1)),
        ):
            value = getattr(self, name)
            if value is not None and value < minimum:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}, but must be at least {minimum}.")
        if self.length_weights and (
            min(self.length_weights) < 0 or not 0 < sum(self.length_weights) < float("inf")
        ):
            raise UsageError(
                f"--length-weights is {self.length_weights}. Give numbers of at least 0, not all "
                f"of them 0."
            )
        if self.source.resolve() == self.target.resolve():
            raise UsageError(
                f"{self.target}: source and target are the same dataset. Give another target."
            )
        find_strategy(self.strategy)
        if self.filter is not None:
            parse_condition(self.filter, FILTER_COLUMNS)

    @property
    def options(self) -> RelabelOptions:
        """What decides what a variant says."""
        return RelabelOptions(
            strategy=self.strategy,
            variants=self.variants,
            seed=self.seed,
            length_weights=self.length_weights,
            goal_limit=self.goal_limit,
        )


@dataclass(frozen=True, kw_only=True)
class RelabelResult:
    """What was retold."""

    target: str
    shards: int
    """Source shards retold now."""
    skipped: int
    """Source shards that had been retold the same way before."""
    episodes: int
    """Episodes retold."""
    filtered: int
    """Episodes that the filter kept out."""
    variants: int
    dropped: int
    """Variants that equalled the original or one another."""
    bytes_per_variant: float | None
    snapshot: int | None
    """Number of the target's newest commit."""


def relabel(config: RelabelConfig) -> RelabelResult:
    """Retell the source shards that have not been retold this way.

    Raises:
        DatasetError: the source has no episodes with goals, the target holds variants that these
            would double, or a worker failed. What was committed before stays.
    """
    with DatasetReader.open(config.source) as reader:
        _check_goals(reader, config)
        snapshot = reader.snapshot
        log = CommitLog.create(config.target)
        generation = Generation(
            source=snapshot.dataset_id, options=config.options, condition=config.filter
        )
        base = log.head()
        commits = list(log.commits())
        generation.refuse_doubles(log, commits)
        known = find_retold(commits, generation)
        shards = [
            SourceShard(reader.path.resolve(), reader.dataset_id, entry, config.filter)
            for entry in reader.shards
            if entry.kind == "raw"
        ]
        todo = [shard for shard in shards if shard.entry.shard_id not in known]
        if known:
            todo = [_without_retold(shard, reader, log, generation) for shard in todo]
    results: list[ShardResult] = []
    if todo:
        with (
            pin(reader.path, generation.pin_id(log), f"relabel into {log.dataset_id}", snapshot),
            TaskRunner(min(config.workers, len(todo)), config.scheduler) as runner,
        ):
            statistics = _count(runner, shards, config) if config.strategy in _COUNTING else None
            for part in _retell(runner, todo, config, statistics):
                base = log.append(
                    operation="relabel",
                    base=base,
                    added=[result.entry for result in part if result.entry is not None],
                    sources={snapshot.dataset_id: SourceEntry(snapshot, _locations(config))},
                    details=_details(generation, part),
                    check=partial(refuse_repeats, log, generation, part),
                )
                results += part
    return _summarize(config, log, results, skipped=len(shards) - len(todo))


def _count(
    runner: TaskRunner, shards: Sequence[SourceShard], config: RelabelConfig
) -> GoalStatistics:
    """The first pass: over all shards of the snapshot, also those that were retold before."""
    names = [shard.entry.shard_id for shard in shards]
    with_order = config.strategy == "chain"
    found = runner.map(count_shard, [(shard, with_order) for shard in shards], names)
    counts = [part for part in show_progress(found, len(shards), "shards counted") if part]
    if not counts:
        raise DatasetError(
            f"{config.source}: no episode is left to count goals in. Loosen --filter."
        )
    return GoalCounts.sum(counts).statistics()


def _retell(
    runner: TaskRunner,
    todo: Sequence[SourceShard],
    config: RelabelConfig,
    statistics: GoalStatistics | None,
) -> Iterator[list[ShardResult]]:
    """The results of the second pass in order, as many together as make one commit."""
    calls = [(shard, config.target.resolve(), config.options, statistics) for shard in todo]
    names = [shard.entry.shard_id for shard in todo]
    results = show_progress(runner.map(retell_shard, calls, names), len(todo), "shards retold")
    while part := list(islice(results, config.commit_every or len(todo))):
        yield part


def _check_goals(reader: DatasetReader, config: RelabelConfig) -> None:
    sizes = [task.vocabulary.size for task in reader.schema.tasks if task.vocabulary]
    if len(sizes) < len(reader.schema.tasks):
        raise DatasetError(
            f"{reader.path}: task {reader.schema.tasks[0].name} has no goals, so there is nothing "
            f"to retell. Train on the dataset as it is."
        )
    if all(entry.kind != "raw" for entry in reader.shards):
        raise DatasetError(
            f"{reader.path}: the dataset holds variants only. Retell the dataset that they were "
            f"made from."
        )
    if config.strategy == "chain" and max(sizes) > MOST_CHAINED_GOALS:
        raise DatasetError(
            f"{reader.path}: --strategy chain counts what comes before what, for up to "
            f"{MOST_CHAINED_GOALS} goals, but the task has {max(sizes)}. Choose --strategy rare."
        )


def _without_retold(
    shard: SourceShard, reader: DatasetReader, log: CommitLog, generation: Generation
) -> SourceShard:
    rows = find_retold_rows(reader, shard.entry.shard_id, log, generation)
    return replace(shard, retold_before=rows)


def _details(generation: Generation, part: Sequence[ShardResult]) -> dict[str, Any]:
    return {
        "generation": generation.to_json(),
        "source_shards": [result.source_shard for result in part],
        "retold_as": {
            result.source_shard: result.entry.shard_id
            for result in part
            if result.entry is not None
        },
        "episodes": sum(result.episodes for result in part),
        "dropped": sum(result.dropped for result in part),
    }


def _summarize(
    config: RelabelConfig, log: CommitLog, results: Sequence[ShardResult], skipped: int
) -> RelabelResult:
    entries = [result.entry for result in results if result.entry is not None]
    variants = sum(entry.episodes for entry in entries)
    head = log.head()
    return RelabelResult(
        target=str(config.target),
        shards=len(results),
        skipped=skipped,
        episodes=sum(result.episodes for result in results),
        filtered=sum(result.filtered for result in results),
        variants=variants,
        dropped=sum(result.dropped for result in results),
        bytes_per_variant=sum(e.bytes for e in entries) / variants if variants else None,
        snapshot=None if head is None else head.number,
    )


def _locations(config: RelabelConfig) -> tuple[str, ...]:
    """Relative first, so that two datasets moved together still find each other."""
    source = config.source.resolve()
    return os.path.relpath(source, config.target.resolve()), str(source)
