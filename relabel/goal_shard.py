"""One task of the graph for goal-conditioned data: retell one source shard into one shard."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.paths import DatasetPath
from retold.dataset.shard_reader import ShardReader
from retold.dataset.shard_writer import write_goal_variant_shard
from retold.dataset.table import record_from_row
from retold.relabel.draws import episode_keys
from retold.relabel.goal_retelling import GoalVariants, retell_goals
from retold.relabel.goal_reward import GoalReward, distance_of, make_goal_reward
from retold.relabel.options import RelabelOptions
from retold.relabel.shard_task import ShardResult, SourceShard, choose_rows
from retold.schemas.dataset_schema import ACHIEVED_GOAL, DESIRED_GOAL, DatasetSchema
from retold.schemas.episode import EpisodeRecord
from retold.schemas.identity import make_variant_id


def reach_of(options: RelabelOptions) -> float | None:
    """The distance at which reaching the goal ends a variant, or None."""
    assert options.goal_reward is not None
    return distance_of(options.goal_reward) if options.goal_terminates else None


def retell_goal_shard(
    source: SourceShard, target: DatasetPath, options: RelabelOptions, statistics: None = None
) -> ShardResult:
    """Retell the raw episodes of a goal-conditioned shard, in order; bytes follow from the arguments."""
    assert options.goal_reward is not None and statistics is None
    shard = source.open()
    rows = choose_rows(shard, source)
    schema = goal_schema(shard.schema, options.goal_reward)
    rewards: dict[int, GoalReward] = {}
    records: list[EpisodeRecord] = []
    columns: list[NDArray[np.float32]] = []
    for record, achieved, desired in read_goals(shard, rows):
        if record.task not in rewards:
            task = schema.tasks[record.task]
            rewards[record.task] = make_goal_reward(options.goal_reward, task)
        (key,) = episode_keys(options.seed, f"relabel {options.label}", [record.episode_id])
        variants = retell_goals(
            achieved,
            desired,
            key,
            options.strategy,
            rewards[record.task],
            variants=options.variants,
            reach=reach_of(options),
        )
        records += _make_records(variants, record, source.dataset_id, options)
        columns += variants.rewards
    return ShardResult(
        source_shard=source.entry.shard_id,
        entry=write_goal_variant_shard(target, records, columns, schema) if records else None,
        episodes=len(rows),
        filtered=source.entry.episodes - len(source.retold_before) - len(rows),
        dropped=len(rows) * options.variants - len(records),
    )


def goal_schema(schema: DatasetSchema, goal_reward: str) -> DatasetSchema:
    """The schema of the variants: the source's, with what recomputed the rewards."""
    return replace(
        schema, tasks=tuple(replace(task, goal_reward=goal_reward) for task in schema.tasks)
    )


def read_goals(
    shard: ShardReader, rows: NDArray[np.int64]
) -> Iterator[tuple[EpisodeRecord, NDArray[Any], NDArray[Any]]]:
    """Episodes of a shard with their achieved and desired goals, `[time + 1, ...]` each."""
    table = shard.table
    for row in rows.tolist():
        record = record_from_row(table.slice(row, 1).to_pylist()[0])
        first = int(shard.offsets[row])
        achieved, desired = (
            shard.read_rows(path, first, first + record.length + 1)
            for path in (ACHIEVED_GOAL, DESIRED_GOAL)
        )
        yield record, achieved, desired


def _make_records(
    variants: GoalVariants, source: EpisodeRecord, dataset_id: str, options: RelabelOptions
) -> Iterator[EpisodeRecord]:
    for place, number in enumerate(variants.number.tolist()):
        length, is_reached = int(variants.length[place]), bool(variants.is_reached[place])
        ended = source.environment_terminated and length == source.length
        yield EpisodeRecord(
            episode_id=make_variant_id(source.episode_id, options.label, options.seed, number),
            task=source.task,
            length=length,
            episode_return=float(variants.rewards[place].sum(dtype=np.float64)),
            terminated=ended or is_reached,
            truncated=not (ended or is_reached),
            environment_terminated=ended,
            success=is_reached if options.goal_terminates else None,
            source_dataset_id=dataset_id,
            source_episode_id=source.episode_id,
            strategy=options.label,
            relabel_seed=options.seed,
            variant=number,
            goal_row=int(variants.goal_row[place]),
        )
