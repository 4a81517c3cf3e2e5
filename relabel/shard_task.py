"""One task of the graph: retell one source shard into one shard of the target."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retold.dataset.reader import DatasetReader
from retold.dataset.shard_writer import write_variant_shard
from retold.relabel.onsets import find_onsets
from retold.relabel.strategies import Strategy, retell_instruction
from retold.schemas.commit import ShardEntry
from retold.schemas.episode import EpisodeRecord
from retold.schemas.identity import make_variant_id, random_stream
from retold.schemas.instruction import retell

_MOST_DRAWS = 9
"""A variant that is not new is drawn again up to 8 times."""


@dataclass(frozen=True)
class ShardResult:
    """What came of one source shard."""

    source_shard: str
    entry: ShardEntry | None
    """None if no variant was new."""
    episodes: int
    dropped: int
    """Variants given up because they equalled the original or one another."""


def retell_shard(
    source: Path,
    snapshot: int,
    shard_id: str,
    target: Path,
    strategy: Strategy,
    variants: int,
    seed: int,
) -> ShardResult:
    """Retell every raw episode of a shard, in its order; the shard's bytes follow from the arguments.

    Whoever runs this, and however often, writes the same shard.
    """
    with DatasetReader.open(source, snapshot=snapshot) as reader:
        schema = reader.shard_reader(shard_id).schema
        records: list[EpisodeRecord] = []
        rows = reader.shard_rows(shard_id)
        for row in rows:
            records += retell_episode(reader, row, strategy, variants, seed)
        entry = write_variant_shard(target, records, schema) if records else None
    return ShardResult(shard_id, entry, len(rows), len(rows) * variants - len(records))


def retell_episode(
    reader: DatasetReader, row: int, strategy: Strategy, variants: int, seed: int
) -> list[EpisodeRecord]:
    """The new variants of one episode. They depend on its id, the strategy and the seed alone."""
    source = reader.record(row)
    shard, _ = reader.shard_of(row)
    vocabulary = shard.schema.tasks[source.task].vocabulary
    assert vocabulary is not None
    step, goal = reader.read_events(row)
    onset = find_onsets(step, goal, source.initial_goals, vocabulary)
    onset_step, onset_goal = step[onset], goal[onset]
    rng = random_stream(seed, f"relabel {strategy}", source.episode_id)
    known = {source.instruction}
    records = []
    for number in range(variants):
        for _ in range(_MOST_DRAWS):
            told = retell_instruction(
                strategy, source.instruction, source.completed, onset_step, onset_goal, rng
            )
            if told not in known:
                break
        else:
            continue
        known.add(told)
        outcome = retell(
            told,
            step,
            goal,
            source_length=source.length,
            environment_terminated=source.environment_terminated,
        )
        is_whole = outcome.length == source.length
        records.append(
            EpisodeRecord(
                episode_id=make_variant_id(source.episode_id, strategy, seed, number),
                task=source.task,
                length=outcome.length,
                episode_return=float(outcome.reward.sum(dtype=np.float64)),
                terminated=bool(outcome.terminated[-1]),
                truncated=bool(outcome.truncated[-1]),
                environment_terminated=source.environment_terminated and is_whole,
                success=len(outcome.completed) == len(told),
                instruction=told,
                completed=tuple(outcome.completed.tolist()),
                initial_goals=source.initial_goals,
                source_dataset_id=reader.dataset_id,
                source_episode_id=source.episode_id,
                strategy=strategy,
                relabel_seed=seed,
                variant=number,
            )
        )
    return records
