"""What the structural audit asks of a shard's arrays: shapes, types, offsets, the rows of zeros."""

from collections.abc import Iterator

import numpy as np

from retold.dataset.shard_reader import ShardReader


def find_array_faults(shard: ShardReader) -> Iterator[str]:
    """Arrays whose shape or type is not what schema and manifest say."""
    rows = shard.manifest.rows
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for leaf in shard.schema.leaves:
        if leaf.is_ragged:
            expected[f"{leaf.path}/offsets"] = ("uint64", (rows + 1,))
            offsets = shard.array(f"{leaf.path}/offsets").read_all().astype(np.int64)
            if offsets[0] != 0 or (np.diff(offsets) < 0).any():
                yield f"{leaf.path!r}: its offsets do not rise from 0"
            expected[f"{leaf.path}/data"] = ("uint8", (int(offsets[-1]),))
        elif leaf.is_optional:
            expected[f"{leaf.path}/data"] = (leaf.dtype, (rows, *leaf.shape))
            expected[f"{leaf.path}/present"] = ("bool", (rows,))
        else:
            expected[leaf.path] = (leaf.dtype, (rows, *leaf.shape))
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
