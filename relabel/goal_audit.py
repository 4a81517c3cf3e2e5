"""The reward audit of goal-conditioned variants: rewards recomputed from what the source achieved."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from retold.dataset.reader import DatasetReader
from retold.dataset.shard_reader import ShardReader
from retold.dataset.table import record_from_row
from retold.relabel.goal_retelling import judge_goal
from retold.relabel.goal_reward import GoalReward, distance_of, make_goal_reward
from retold.relabel.goal_shard import read_goals
from retold.schemas.episode import EpisodeRecord


def audit_goal_variants(
    reader: DatasetReader, shard: ShardReader, rows: NDArray[np.int64]
) -> Iterator[tuple[int, str]]:
    """Rows of a shard and what is wrong with each.

    Args:
        reader: the dataset.
        shard: one of its shards of variants.
        rows: `[variants]`: rows of the shard with a `goal_row`.

    Raises:
        RelabelError: the reward function cannot be had here, or is not one to be trusted.
    """
    rewards: dict[int, GoalReward] = {}
    for row in rows.tolist():
        record = record_from_row(shard.table.slice(row, 1).to_pylist()[0])
        if record.task not in rewards:
            task = shard.schema.tasks[record.task]
            if task.goal_reward is None:
                yield row, "it has a goal of its own, but its schema names no goal_reward"
                continue
            rewards[record.task] = make_goal_reward(task.goal_reward, task, is_ours=False)
        assert record.source_dataset_id is not None and record.source_episode_id is not None
        source = reader.source_reader(record.source_dataset_id)
        source_row = source.find_id(record.source_episode_id)
        if source_row is None:
            yield row, f"it refers to episode {record.source_episode_id}, which is not live"
            continue
        holder, number = source.shard_of(source_row)
        yield from (
            (row, fault)
            for fault in _faults(record, shard, row, holder, number, rewards[record.task])
        )


def _faults(
    record: EpisodeRecord,
    shard: ShardReader,
    row: int,
    holder: ShardReader,
    number: int,
    reward: GoalReward,
) -> Iterator[str]:
    ((source, achieved, desired),) = read_goals(holder, np.array([number]))
    assert record.goal_row is not None
    if not 1 <= record.goal_row <= source.length:
        yield f"its goal is that of row {record.goal_row}, but its source has {source.length}"
        return
    goal_reward = shard.schema.tasks[record.task].goal_reward
    reach = distance_of(goal_reward or "") if record.success is not None else None
    rewards, is_reached = judge_goal(achieved, record.goal_row, reward, reach)
    first = int(shard.offsets[row])
    stored = shard.read_rows("reward", first, first + record.length)
    if stored.tobytes() != rewards.tobytes():
        yield "its stored reward is not what its goal earns"
    ended = source.environment_terminated and len(rewards) == source.length
    expected = replace(
        record,
        length=len(rewards),
        episode_return=float(rewards.sum(dtype=np.float64)),
        terminated=ended or is_reached,
        truncated=not (ended or is_reached),
        environment_terminated=ended,
        success=is_reached if record.success is not None else None,
    )
    for name, value in vars(expected).items():
        if getattr(record, name) != value:
            yield f"its row says {name} is {getattr(record, name)}, its goal says {value}"
    if (desired == achieved[record.goal_row]).all():
        yield "its goal is the original's"
