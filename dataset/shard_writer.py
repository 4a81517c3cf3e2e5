"""Writing shards: whole and durable before they have a name, which is the hash of their content."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retold.dataset.files import create_exclusively, make_folder, write_durably
from retold.dataset.paths import DatasetPath, path_inside
from retold.dataset.shard_place import build_aside, list_files, place_shard
from retold.dataset.table import make_table, write_table
from retold.dataset.validation import check_episodes
from retold.dataset.zarr_codec import Profile
from retold.dataset.zarr_writer import write_array, write_group
from retold.schemas.commit import ShardEntry
from retold.schemas.dataset_schema import TRANSITION_LEAVES, DatasetSchema
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import DatasetError
from retold.schemas.faults import reach
from retold.schemas.manifest import Manifest
from retold.schemas.spaces import Leaf


def write_raw_shard(
    dataset: DatasetPath,
    episodes: Sequence[Episode],
    schema: DatasetSchema,
    *,
    profile: Profile = "fast",
) -> ShardEntry:
    """Write episodes with their arrays as one shard; it belongs to nothing until committed.

    Raises:
        DatasetError: an episode breaks the format's rules, or the disk refuses.
    """
    check_episodes(dataset, episodes, schema)

    def fill(folder: Path) -> None:
        arrays = folder / "arrays"
        write_group(arrays)
        for leaf in schema.leaves:
            _write_leaf(arrays, leaf, episodes, profile)
        if any(task.vocabulary is not None for task in schema.tasks):
            write_group(arrays / "events")
            step = np.concatenate([episode.event_step for episode in episodes])
            goal = np.concatenate([episode.event_goal for episode in episodes])
            write_array(arrays / "events" / "t", step, profile)
            write_array(arrays / "events" / "goal", goal, profile)

    rows = [episode.length + 1 for episode in episodes]
    counts = [len(episode.event_step) for episode in episodes]
    placement = {"offset": _starts(rows), "event_offset": _starts(counts), "event_count": counts}
    table = make_table([episode.record for episode in episodes], placement)
    return _write_shard(dataset, table, schema, fill, profile, "raw")


def write_variant_shard(
    dataset: DatasetPath,
    table: pa.Table,
    schema: DatasetSchema,
    *,
    reward: NDArray[np.float32] | None = None,
) -> ShardEntry:
    """Write variants as one shard: table rows, whose arrays are those of their sources.

    Args:
        dataset: where to.
        table: rows of the episode table.
        schema: of the source.
        reward: `[rows]`, for variants whose rewards do not follow from goal events: as many as
            the length + 1 of each, at their `offset`, the last one of each zero.
    """

    def fill(folder: Path) -> None:
        if reward is not None:
            write_group(folder / "arrays")
            write_array(folder / "arrays" / "reward", reward, "fast")

    return _write_shard(dataset, table, schema, fill, "fast", "variant")


def write_goal_variant_shard(
    dataset: DatasetPath,
    records: Sequence[EpisodeRecord],
    rewards: Sequence[NDArray[np.float32]],
    schema: DatasetSchema,
) -> ShardEntry:
    """Write variants that have goals of their own: their rows, and the rewards `[length]` of each.

    Rewards are stored because they follow from observations, which no table row holds.
    """
    offsets = _starts([record.length + 1 for record in records])
    end = np.zeros(1, np.float32)
    column = np.concatenate([part for one in rewards for part in (one, end)])
    return write_variant_shard(
        dataset, make_table(records, {"offset": offsets}), schema, reward=column
    )


def _write_shard(
    dataset: DatasetPath,
    table: pa.Table,
    schema: DatasetSchema,
    fill: Callable[[Path], None],
    profile: Profile,
    kind: str,
) -> ShardEntry:
    """Build aside, sync, and put at `shards/<2 hex>/<id>`; an equal target is success."""
    steps = int(pc.sum(table["length"]).as_py())
    reach("shard-before")
    try:
        keep_schema(dataset, schema)
        with build_aside(dataset) as folder:
            fill(folder)
            reach("shard-inside")
            write_table(folder / "episodes.parquet", table)
            manifest = Manifest(
                files=list_files(folder),
                episodes=len(table),
                rows=0 if table["offset"].null_count else steps + len(table),
                profile=profile,
            )
            write_durably(folder / "manifest.json", manifest.encoded)
            place_shard(folder, dataset, manifest.shard_id)
    except OSError as error:
        raise DatasetError(
            f"{dataset}: a shard cannot be written: {error.strerror}. Nothing was committed; free "
            f"space or check permissions, then run again."
        ) from error
    return ShardEntry(
        shard_id=manifest.shard_id,
        sha256=manifest.sha256,
        schema=schema.sha256,
        kind=kind,
        episodes=len(table),
        steps=steps,
        bytes=sum(file.bytes for file in manifest.files) + len(manifest.encoded),
    )


def _write_leaf(arrays: Path, leaf: Leaf, episodes: Sequence[Episode], profile: Profile) -> None:
    """Concatenate one leaf over time; per-transition leaves get a zero row after each episode."""
    for depth in range(1, leaf.path.count("/") + 1):
        write_group(arrays.joinpath(*leaf.path.split("/")[:depth]))
    if leaf.is_optional:
        _write_optional(arrays, leaf, episodes, profile)
        return
    _write_rows(arrays / leaf.path, leaf, _leaf_rows(episodes, leaf), profile)


def _write_rows(folder: Path, leaf: Leaf, rows: NDArray[Any], profile: Profile) -> None:
    """All rows of a leaf: one array, or offsets and bytes where it is ragged."""
    if not leaf.is_ragged:
        write_array(folder, rows, profile)
        return
    texts = [str(text).encode() for text in rows]
    lengths = np.array([len(text) for text in texts], np.uint64)
    offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)])
    write_group(folder)
    write_array(folder / "offsets", offsets, profile)
    write_array(folder / "data", np.frombuffer(b"".join(texts), np.uint8), profile)


def _write_optional(
    arrays: Path, leaf: Leaf, episodes: Sequence[Episode], profile: Profile
) -> None:
    """Values and the mask of those that are there; an episode without the leaf has none."""
    values, present = [], []
    for episode in episodes:
        dtype = object if leaf.is_ragged else leaf.dtype
        rows = np.full((episode.length + 1, *leaf.shape), "" if leaf.is_ragged else 0, dtype)
        mask = np.zeros(episode.length + 1, np.bool_)
        if leaf.path in episode.info:
            mask[:-1] = episode.info_present[leaf.path]
            rows[mask] = episode.info[leaf.path][mask[:-1]]
        values.append(rows)
        present.append(mask)
    write_group(arrays / leaf.path)
    _write_rows(arrays / leaf.path / "data", leaf, np.concatenate(values), profile)
    write_array(arrays / leaf.path / "present", np.concatenate(present), profile)


def _leaf_rows(episodes: Sequence[Episode], leaf: Leaf) -> NDArray[Any]:
    """`[sum of length + 1, ...]`: one leaf as it stands on disk, in one copy."""
    total = sum(episode.length + 1 for episode in episodes)
    if leaf.is_ragged:
        rows = np.full(total, "", object)
    else:
        rows = np.empty((total, *leaf.shape), leaf.dtype)
    first = 0
    for episode in episodes:
        values = _leaf_values(episode, leaf)
        rows[first : first + len(values)] = values
        if not leaf.is_ragged:
            rows[first + len(values) : first + episode.length + 1] = 0
        first += episode.length + 1
    return rows


def _leaf_values(episode: Episode, leaf: Leaf) -> NDArray[Any]:
    """`[length + 1, ...]` of an observation, `[length, ...]` of what belongs to transitions."""
    if leaf.path in episode.observation:
        return episode.observation[leaf.path]
    if leaf.path in episode.action:
        return episode.action[leaf.path]
    assert leaf in TRANSITION_LEAVES, leaf.path
    values: NDArray[Any] = getattr(episode, leaf.path)
    return values


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts)[:-1].tolist()]


def keep_schema(dataset: DatasetPath, schema: DatasetSchema) -> None:
    """Write a schema into a dataset that does not have it yet."""
    path = path_inside(dataset, "schemas", f"{schema.sha256}.json")
    if not path.exists():
        make_folder(path.parent)
        create_exclusively(path, schema.encoded)
