"""`retold repair`: what is sound of a damaged dataset, in a new one that continues its log."""

import itertools
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retold.dataset.commit_files import commit_path
from retold.dataset.dataset_file import create_dataset
from retold.dataset.derive import copy_shard, refuse_existing
from retold.dataset.files import create_exclusively, sync_folder, walk_files, write_durably
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.schema_file import read_schema
from retold.dataset.shard_place import list_files
from retold.dataset.shard_reader import ShardReader
from retold.dataset.shard_writer import (
    write_goal_variant_shard,
    write_raw_shard,
    write_variant_shard,
)
from retold.dataset.sound_log import SoundLog, read_sound_log
from retold.dataset.validation import find_faults
from retold.dataset.zarr_codec import PROFILES
from retold.schemas.commit import ShardEntry
from retold.schemas.errors import DatasetError, FormatError, RetoldError
from retold.schemas.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class RepairConfig:
    """What `retold repair` is asked."""

    dataset: DatasetPath
    """Damaged dataset. It is never written to."""
    new: DatasetPath
    """Dataset to make of what is sound; must not exist."""


@dataclass(frozen=True, kw_only=True)
class RepairResult:
    """What was saved, and what was left."""

    dataset: str
    """The new dataset: it has the id and the sound commits of the old one."""
    episodes: int
    """Episodes saved."""
    lost: int
    """Episodes that were live and are left."""
    left: tuple[str, ...]
    """What was left, and why."""

    def describe(self) -> str:
        """A line for each thing that was left, and the sum."""
        lines = [f"left: {what}" for what in self.left]
        return "\n".join(
            [*lines, f"{self.dataset}: {self.episodes:,} episodes saved, {self.lost:,} left"]
        )


def repair(config: RepairConfig) -> RepairResult:
    """Copy what is sound into a new dataset, and name what is not.

    The new dataset continues the log of the old one up to its first damaged commit, so that what
    refers to it still finds it. A last commit says what was left; older snapshots are not copied.

    Raises:
        DatasetError: there is nothing to save, or the new path exists.
    """
    refuse_existing(config.new)
    sound = read_sound_log(config.dataset)
    new = config.new
    part = new.with_name(f".{new.name}.{uuid.uuid4().hex}") if isinstance(new, Path) else new
    try:
        create_dataset(part, sound.dataset_id)
        left = list(sound.left)
        saved = list(_save_shards(config.dataset, sound, part, left))
        log = _copy_log(sound, part)
        before = {entry.shard_id for entry in log.live_shards()}
        ids = {entry.shard_id for entry in saved}
        if ids != before or left:
            log.append(
                operation="repair",
                added=[entry for entry in saved if entry.shard_id not in before],
                removed=sorted(before - ids),
                sources=sound.sources,
                details={"left": left},
            )
        if isinstance(part, Path) and isinstance(new, Path):
            os.rename(part, new)
            sync_folder(part.parent)
    except OSError as error:
        raise DatasetError(
            f"{config.new}: the dataset cannot be written: {error.strerror}. Nothing was made; "
            f"free space or choose another place."
        ) from error
    finally:
        if isinstance(part, Path):
            shutil.rmtree(part, ignore_errors=True)
    episodes = sum(entry.episodes for entry in saved)
    return RepairResult(
        dataset=str(config.new),
        episodes=episodes,
        lost=sum(entry.episodes for entry in sound.shards) - episodes,
        left=tuple(left),
    )


def _copy_log(sound: SoundLog, part: DatasetPath) -> CommitLog:
    """Write the sound commits, the first one last: on a store there is no log until then."""
    for number in reversed(range(len(sound.commits))):
        path = commit_path(part, number)
        if isinstance(path, Path):
            write_durably(path, sound.commits[number])
        else:
            create_exclusively(path, sound.commits[number])
    if isinstance(part, Path):
        sync_folder(part / "commits")
    log = CommitLog.open(part)
    if log.dataset_id != sound.dataset_id:
        raise DatasetError(f"{part}: another dataset was begun here. Give another place.")
    return log


def _save_shards(
    dataset: DatasetPath, sound: SoundLog, part: DatasetPath, left: list[str]
) -> Iterator[ShardEntry]:
    for entry in sound.shards:
        try:
            schema = read_schema(dataset, entry.schema)
            shard = ShardReader(dataset, entry, schema)
            _mend_manifest(shard, left)
            if any(shard.damaged_files(walk_files(shard.path))):
                yield from _save_episodes(sound, shard, part, left)
            else:
                yield copy_shard(shard, part)
        except RetoldError as error:
            left.append(f"shard {entry.shard_id} ({entry.episodes} episodes): {error}")


def _mend_manifest(shard: ShardReader, left: list[str]) -> None:
    """Make a damaged manifest again, where all that it names is sound: its hash tells."""
    try:
        shard.read_checked("episodes.parquet")
    except FormatError:
        if "manifest" in shard.__dict__:
            return  # it is sound; something else is not
        entry = shard.entry
        files = tuple(f for f in list_files(shard.path) if f.path != "manifest.json")
        # Variants have no rows of their own, unless they store rewards: the hash tells which.
        for profile, rows in itertools.product(PROFILES, (entry.steps + entry.episodes, 0)):
            manifest = Manifest(files=files, episodes=entry.episodes, rows=rows, profile=profile)
            if manifest.sha256 == entry.sha256:
                shard.manifest = manifest
                left.append(f"{shard.path / 'manifest.json'}: it was damaged, and made again")
                return
        raise


def _save_episodes(
    sound: SoundLog, shard: ShardReader, part: DatasetPath, left: list[str]
) -> Iterator[ShardEntry]:
    """Write the episodes of a damaged shard that can be read whole into a new shard."""
    for name, what in shard.damaged_files(walk_files(shard.path)):
        left.append(f"{shard.path / name}: {what}")
    log = CommitLog(shard.dataset, sound.dataset_id)
    with DatasetReader(log, sound.snapshot, {}, shards=[shard.entry], piecewise=True) as reader:
        reader.shard_reader(shard.entry.shard_id).manifest = shard.manifest
        if shard.entry.kind == "variant":
            yield from _save_variants(reader, shard, part, left)
            return
        episodes = []
        for row in range(len(reader)):
            episode_id = reader.record(row).episode_id
            try:
                episode = reader.read_episode(row)
                fault = next(find_faults(episode, shard.schema), None)
            except RetoldError as error:
                fault = str(error)
            if fault is None:
                episodes.append(episode)
            else:
                left.append(f"episode {episode_id} of shard {shard.entry.shard_id}: {fault}")
    if episodes:
        profile = PROFILES[shard.manifest.profile == "small"]
        yield write_raw_shard(part, episodes, shard.schema, profile=profile)


def _save_variants(
    reader: DatasetReader, shard: ShardReader, part: DatasetPath, left: list[str]
) -> Iterator[ShardEntry]:
    """Rows of variants are whole or not there; only those with stored rewards can lose these."""
    if reader.table["goal_row"].null_count:
        yield write_variant_shard(part, reader.table, shard.schema)
        return
    records, rewards = [], []
    for row in range(len(reader)):
        record = reader.record(row)
        try:
            rewards.append(reader.read_goal_reward(row, 0, record.length))
            records.append(record)
        except RetoldError as error:
            left.append(f"episode {record.episode_id} of shard {shard.entry.shard_id}: {error}")
    if records:
        yield write_goal_variant_shard(part, records, rewards, shard.schema)
