"""What transitions earn and whether the episode ends: as stored, or under a variant's instruction."""

import numpy as np
from numpy.typing import NDArray

from retold.dataset.shard_reader import ShardReader
from retold.schemas.episode import EpisodeRecord
from retold.schemas.instruction import Outcome, derive_outcome

Signals = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.uint32]]
"""Reward, terminated and truncated, `[transitions]` each, and progress, `[transitions + 1]`."""


def record_outcome(record: EpisodeRecord) -> Outcome:
    """Reward, flags and progress of a whole episode, as they follow from its table row."""
    return derive_outcome(
        np.asarray(record.completed, np.uint32),
        length=record.length,
        is_complete=0 < len(record.instruction) == len(record.completed),
        environment_terminated=record.environment_terminated,
    )


def stored_signals(
    shard: ShardReader, record: EpisodeRecord, start: int, stop: int, first: int
) -> Signals:
    """Those of transitions `start..stop-1`, which lie in the shard from row `first` on."""
    rows = [
        shard.read_rows(name, first, first + stop - start)
        for name in ("reward", "terminated", "truncated")
    ]
    steps = np.arange(start, stop + 1)
    progress = np.searchsorted(np.asarray(record.completed, np.int64), steps)
    return rows[0], rows[1], rows[2], progress.astype(np.uint32)


def variant_signals(record: EpisodeRecord, start: int, stop: int) -> Signals:
    """Those of a variant, which follow from its instruction."""
    outcome = record_outcome(record)
    return (
        outcome.reward[start:stop],
        outcome.terminated[start:stop],
        outcome.truncated[start:stop],
        outcome.progress[start : stop + 1],
    )


def goal_signals(
    record: EpisodeRecord, reward: NDArray[np.float32], start: int, stop: int
) -> Signals:
    """Those of a variant that has a goal of its own, whose rewards `[stop - start]` are stored."""
    ends = np.arange(start, stop) == record.length - 1
    return (
        reward,
        ends & record.terminated,
        ends & record.truncated,
        np.zeros(stop - start + 1, np.uint32),
    )
