"""Small datasets that tests change: a few episodes a commit, and variants of them."""

import os
import time
from pathlib import Path

from race import TINY, make_tiny_episode
from test_dataset import SCHEMA, make_episode

from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_writer import write_raw_shard, write_variant_shard
from retold.dataset.table import make_table
from retold.schemas.commit import SourceEntry
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.identity import make_variant_id


def append(path: Path, *numbers: int, length: int = 5) -> None:
    log = CommitLog.create(path)
    episodes = [make_episode(number, length) for number in numbers]
    log.append(operation="collect", added=[write_raw_shard(path, episodes, SCHEMA)])


def append_tiny(path: Path, *numbers: int) -> None:
    """As few files as there can be, where it does not matter what is in them."""
    log = CommitLog.create(path)
    episodes = [make_tiny_episode(number) for number in numbers]
    log.append(operation="collect", added=[write_raw_shard(path, episodes, TINY)])


def ids(path: Path) -> list[int]:
    with DatasetReader.open(path) as reader:
        return [int(episode_id, 16) for episode_id in reader.table["episode_id"].to_pylist()]


def make_variant(source: Episode, dataset_id: str, number: int) -> EpisodeRecord:
    """A variant that asks for the source's first goal event, or for what never happens."""
    has_event = len(source.event_step) > 0
    last = int(source.event_step[0]) if has_event else source.length - 1
    is_whole = last == source.length - 1
    ended = bool(source.record.environment_terminated and is_whole)
    goal = int(source.event_goal[0]) if has_event else 0
    return EpisodeRecord(
        episode_id=make_variant_id(source.record.episode_id, "some", 0, number),
        task=0,
        length=last + 1,
        episode_return=float(has_event),
        terminated=has_event or ended,
        truncated=not (has_event or ended),
        environment_terminated=ended,
        success=has_event,
        instruction=(goal,),
        completed=(last,) if has_event else (),
        source_dataset_id=dataset_id,
        source_episode_id=source.record.episode_id,
        strategy="some",
        relabel_seed=0,
        variant=number,
    )


def retell(raw: Path, target: Path) -> None:
    """One variant of every episode."""
    with DatasetReader.open(raw) as reader:
        records = [
            make_variant(reader.read_episode(row), reader.dataset_id, 0)
            for row in range(len(reader))
        ]
        log = CommitLog.create(target)
        source = SourceEntry(reader.snapshot, (os.path.relpath(raw, target), str(raw)))
        log.append(
            operation="relabel",
            added=[write_variant_shard(target, make_table(records, {}), SCHEMA)],
            sources={reader.dataset_id: source},
        )


def grow_old(path: Path, days: float) -> None:
    """Let all files of a dataset look as if they had been written long ago."""
    then = time.time() - 86400 * days
    for file in path.rglob("*"):
        os.utime(file, (then, then), follow_symlinks=False)
