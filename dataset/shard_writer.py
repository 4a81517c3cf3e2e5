"""Writing shards: built aside, made durable, named by the hash of their content, moved into place."""

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retold.dataset.files import link_exclusively, sync_folder, write_durably
from retold.dataset.paths import path_inside
from retold.dataset.table import make_table, write_table
from retold.dataset.validation import check_episodes
from retold.dataset.zarr_codec import Profile
from retold.dataset.zarr_writer import write_array, write_group
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import ShardEntry
from retold.schemas.dataset_schema import TRANSITION_LEAVES, DatasetSchema
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import DatasetError
from retold.schemas.faults import reach
from retold.schemas.manifest import FileEntry, Manifest
from retold.schemas.spaces import Leaf


def write_raw_shard(
    dataset: Path,
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
    dataset: Path,
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
    dataset: Path,
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
    dataset: Path,
    table: pa.Table,
    schema: DatasetSchema,
    fill: Callable[[Path], None],
    profile: Profile,
    kind: str,
) -> ShardEntry:
    """Build under `tmp/`, sync, rename to `shards/<2 hex>/<id>`; an equal target is success."""
    folder = path_inside(dataset, "tmp", uuid.uuid4().hex)
    steps = int(pc.sum(table["length"]).as_py())
    reach("shard-before")
    try:
        keep_schema(dataset, schema)
        folder.mkdir(parents=True)
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
        sync_tree(folder)
        reach("shard-after")
        place = path_inside(dataset, "shards", manifest.shard_id[:2], manifest.shard_id)
        move_into_place(folder, place)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
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
    columns = [_leaf_rows(episode, leaf) for episode in episodes]
    _write_rows(arrays / leaf.path, leaf, np.concatenate(columns), profile)


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


def _leaf_rows(episode: Episode, leaf: Leaf) -> NDArray[Any]:
    """`[length + 1, ...]`: the rows of one leaf as they stand on disk."""
    if leaf.path in episode.observation:
        return episode.observation[leaf.path]
    rows = episode.action.get(leaf.path)
    if rows is None:
        assert leaf in TRANSITION_LEAVES, leaf.path
        rows = getattr(episode, leaf.path)
    if leaf.is_ragged:
        return np.array([*rows, ""], object)
    return np.concatenate([rows, np.zeros((1, *rows.shape[1:]), rows.dtype)])


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts)[:-1].tolist()]


def keep_schema(dataset: Path, schema: DatasetSchema) -> None:
    """Write a schema into a dataset that does not have it yet."""
    path = path_inside(dataset, "schemas", f"{schema.sha256}.json")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        write_durably(temporary, schema.encoded)
        link_exclusively(temporary, path)


def list_files(folder: Path) -> tuple[FileEntry, ...]:
    """Every file below a folder, as a manifest names it."""
    entries = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        entries.append(FileEntry(name, len(content), sha256_hex(content)))
    return tuple(sorted(entries, key=lambda entry: entry.path))


def sync_tree(folder: Path) -> None:
    """Make a folder and all that is in it durable."""
    for root, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(root, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        sync_folder(Path(root))


def move_into_place(folder: Path, target: Path) -> None:
    """Give a whole, durable shard its name; an equal one that has it already is success.

    That one may have been left long ago, and `gc` may be about to take it: it is made young, and
    if it went meanwhile, the new one takes the place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    reach("rename-before")
    while True:
        try:
            os.rename(folder, target)
            break
        except OSError:
            if not target.is_dir():
                raise
        try:
            # The name is a hash of the content: what stands there is the same shard.
            os.utime(target / "manifest.json")
            shutil.rmtree(folder)
            break
        except FileNotFoundError:
            continue
    reach("rename-inside")
    sync_folder(target.parent)
    sync_folder(target.parent.parent)
    reach("rename-after")
