"""The reward audit: every stored reward, flag and length, recomputed from goal events."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retold.dataset.reader import DatasetReader
from retold.schemas.episode import EpisodeRecord
from retold.schemas.errors import RetoldError
from retold.schemas.findings import Finding
from retold.schemas.instruction import REWARD_VERSION, Outcome, retell


def audit_rewards(path: Path) -> list[Finding]:
    """Everything in which a dataset's rewards differ from the instruction reward function."""
    with DatasetReader.open(path) as reader:
        return list(_audit(reader))


def _audit(reader: DatasetReader) -> Iterator[Finding]:
    for entry in reader.shards:
        for row in reader.shard_rows(entry.shard_id):
            record = reader.record(row)
            where = (
                f"{reader.path}: shard {entry.shard_id}: episode {record.episode_id} (row {row})"
            )
            version = reader.shard_reader(entry.shard_id).schema.tasks[record.task].reward_version
            if version != REWARD_VERSION:
                yield Finding(
                    where=where,
                    what=f"its reward version is {version}; this retold knows {REWARD_VERSION}, so "
                    f"the rewards are unverifiable",
                    todo="Upgrade with `pip install -U retold`.",
                    severity="warning",
                )
                continue
            try:
                faults = list(_faults(reader, row, record))
            except RetoldError as error:
                faults = [str(error).rstrip(".")]
            for fault in faults:
                yield Finding(where=where, what=fault, todo="Retell or collect it again.")


def _faults(reader: DatasetReader, row: int, record: EpisodeRecord) -> Iterator[str]:
    if not record.is_variant:
        episode = reader.read_episode(row)
        total = float(episode.reward.sum(dtype=np.float64))
        if total != record.episode_return:
            yield f"its row says return {record.episode_return}, its rewards sum to {total}"
        if not record.instruction:
            return
        outcome = retell(
            record.instruction,
            episode.event_step,
            episode.event_goal,
            source_length=episode.length,
            environment_terminated=bool(episode.environment_terminated[-1]),
        )
        for name in ("reward", "terminated", "truncated"):
            if not np.array_equal(getattr(outcome, name), getattr(episode, name)):
                yield f"its stored {name} is not what its goal events earn"
    else:
        assert record.source_dataset_id is not None and record.source_episode_id is not None
        source = reader.source_reader(record.source_dataset_id)
        source_row = source.find(record.source_episode_id)
        original = source.record(source_row)
        outcome = retell(
            record.instruction,
            *source.read_events(source_row),
            source_length=original.length,
            environment_terminated=original.environment_terminated,
        )
        is_whole = outcome.length == original.length
        if record.environment_terminated != (original.environment_terminated and is_whole):
            yield "its row is wrong about whether the world ended"
        if record.instruction == original.instruction:
            yield "its instruction is the original's"
        if record.episode_return != float(outcome.reward.sum(dtype=np.float64)):
            yield f"its row says return {record.episode_return}, its events earn another"
    yield from _row_faults(record, outcome)


def _row_faults(record: EpisodeRecord, outcome: Outcome) -> Iterator[str]:
    expected = {
        "length": outcome.length,
        "completed": tuple(outcome.completed.tolist()),
        "terminated": bool(outcome.terminated[-1]),
        "truncated": bool(outcome.truncated[-1]),
        "success": len(outcome.completed) == len(record.instruction),
    }
    for name, value in expected.items():
        if getattr(record, name) != value:
            yield f"its row says {name} is {getattr(record, name)}, its goal events say {value}"
