"""`retold relabel`: retell the episodes of a dataset under instructions they happened to follow."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from retold.dataset.log import CommitLog
from retold.dataset.paths import split_snapshot
from retold.dataset.pins import pin
from retold.dataset.progress import show_progress
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import source_locations
from retold.relabel.config import RelabelConfig
from retold.relabel.generation import (
    Generation,
    find_retold,
    find_retold_episodes,
    find_retold_rows,
    refuse_repeats,
)
from retold.relabel.goal_shard import retell_goal_shard
from retold.relabel.graph import TaskRunner
from retold.relabel.options import GoalStatistics
from retold.relabel.shard_task import (
    ShardResult,
    SourceShard,
    count_shard,
    retell_shard,
)
from retold.relabel.source_check import check_source, is_retold_by_goal
from retold.relabel.statistics import GoalCounts
from retold.schemas.commit import SourceEntry
from retold.schemas.errors import DatasetError

__all__ = ["RelabelConfig", "RelabelResult", "relabel"]

_COUNTING = frozenset({"rare", "chain"})
"""Strategies that read counts over the whole dataset."""


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
        check_source(reader, config)
        is_conditioned = is_retold_by_goal(reader.schema)
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
        if known and todo:
            retold = find_retold_episodes(log, generation)
            todo = [
                replace(shard, retold_before=find_retold_rows(reader, shard.entry.shard_id, retold))
                for shard in todo
            ]
    results: list[ShardResult] = []
    if todo:
        with (
            pin(reader.path, generation.pin_id(log), f"relabel into {log.dataset_id}", snapshot),
            TaskRunner(min(config.workers, len(todo)), config.scheduler) as runner,
        ):
            statistics = _count(runner, shards, config) if config.strategy in _COUNTING else None
            work = retell_goal_shard if is_conditioned else retell_shard
            for part in _retell(runner, work, todo, config, statistics):
                base = log.append(
                    operation="relabel",
                    base=base,
                    added=[result.entry for result in part if result.entry is not None],
                    sources={
                        snapshot.dataset_id: SourceEntry(
                            snapshot,
                            source_locations(split_snapshot(config.source)[0], config.target),
                        )
                    },
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
    work: Callable[..., ShardResult],
    todo: Sequence[SourceShard],
    config: RelabelConfig,
    statistics: GoalStatistics | None,
) -> Iterator[list[ShardResult]]:
    """The results of the second pass in order, as many together as make one commit."""
    calls = [(shard, config.target.resolve(), config.options, statistics) for shard in todo]
    names = [shard.entry.shard_id for shard in todo]
    results = show_progress(runner.map(work, calls, names), len(todo), "shards retold")
    while part := list(islice(results, config.commit_every or len(todo))):
        yield part


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
