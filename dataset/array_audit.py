"""What the structural audit asks of a shard's arrays: shapes, types, offsets, the rows of zeros."""

from collections.abc import Iterator

import numpy as np

from retold.dataset.reader import DatasetReader
from retold.dataset.shard_reader import ShardReader
from retold.dataset.sources import explain_dangling
from retold.schemas.episode import EpisodeRecord


def find_array_faults(shard: ShardReader) -> Iterator[str]:
    """Arrays whose shape or type is not what schema and manifest say."""
    rows = shard.manifest.rows
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for leaf in shard.schema.leaves:
        path = f"{leaf.path}/data" if leaf.is_optional else leaf.path
        if leaf.is_optional:
            expected[f"{leaf.path}/present"] = ("bool", (rows,))
        if leaf.is_ragged:
            expected[f"{path}/offsets"] = ("uint64", (rows + 1,))
            offsets = shard.array(f"{path}/offsets").read_all().astype(np.int64)
            if offsets[0] != 0 or (np.diff(offsets) < 0).any():
                yield f"{leaf.path!r}: its offsets do not rise from 0"
            expected[f"{path}/data"] = ("uint8", (int(offsets[-1]),))
        else:
            expected[path] = (leaf.dtype, (rows, *leaf.shape))
    if any(task.vocabulary is not None for task in shard.schema.tasks):
        events = int(np.sum(shard.table["event_count"].to_numpy()))
        expected |= dict.fromkeys(("events/t", "events/goal"), ("uint32", (events,)))
    for path, (dtype, shape) in expected.items():
        array = shard.array(path)
        if array.dtype != np.dtype(dtype) or array.shape != shape:
            yield (
                f"{path!r} is {array.dtype}{list(array.shape)}, but {dtype}{list(shape)} belongs "
                f"here"
            )


def find_final_row_faults(shard: ShardReader, row: int) -> Iterator[str]:
    """Fields of transitions that are not zero in the row after an episode's last transition."""
    for leaf in shard.schema.leaves:
        if leaf.path.split("/")[0] == "observation" or leaf.is_ragged:
            continue
        if leaf.is_optional:
            is_zero = not any(map(np.any, shard.read_info(leaf.path, row, row + 1)))
        else:
            is_zero = not np.any(shard.read_rows(leaf.path, row, row + 1))
        if not is_zero:
            yield f"{leaf.path!r} is not zero in the row after the last transition"


def find_reward_faults(shard: ShardReader) -> Iterator[str]:
    """What is wrong with the stored rewards of variants that have goals of their own."""
    rows = shard.manifest.rows
    array = shard.array("reward")
    if array.dtype != np.dtype("float32") or array.shape != (rows,):
        yield f"'reward' is {array.dtype}{list(array.shape)}, but float32[{rows}] belongs here"
        return
    reward = shard.read_rows("reward", 0, rows)
    ends = shard.offsets + shard.table["length"].to_numpy().astype(np.int64)
    if reward[ends[ends < rows]].any():
        yield "'reward' is not zero in a row after a last transition"
    if not np.isfinite(reward).all():
        yield f"'reward' is not finite in row {int(np.argmin(np.isfinite(reward)))}"


def reference_faults(reader: DatasetReader, record: EpisodeRecord) -> Iterator[str]:
    """What does not fit between a variant and the episode that it refers to.

    Raises:
        DatasetError: the source dataset is not found.
    """
    assert record.source_dataset_id is not None and record.source_episode_id is not None
    source = reader.source_reader(record.source_dataset_id)
    row = source.columns.row_of(record.source_episode_id)
    if row < 0:
        yield explain_dangling(
            reader.path,
            record.episode_id,
            record.source_episode_id,
            source.path,
            source.dataset_id,
        ).rstrip(".")
        return
    length = int(source.lengths[row])
    if not 1 <= record.length <= length:
        yield f"it has {record.length} transitions, its source {length}"
    if record.goal_row is not None and not 1 <= record.goal_row <= length:
        yield f"it wants the goal of row {record.goal_row}, but its source has {length} after the first"
