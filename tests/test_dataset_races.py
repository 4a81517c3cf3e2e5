"""Processes that append, compact, evict and collect garbage at once, and are killed."""

import multiprocessing
import time
from pathlib import Path

import pytest
from race import TINY, Race, make_tiny_episode, run_race

from retold.dataset.gc import GcConfig, collect_garbage
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_writer import write_raw_shard
from retold.schemas.errors import DatasetError


def prepare(folder: Path, **sizes: int) -> Race:
    CommitLog.create(folder / "d")
    (folder / "acknowledged").mkdir()
    return Race(location=folder / "d", acknowledged=folder / "acknowledged", **sizes)


def test_racing_processes_lose_nothing_and_bring_nothing_back(tmp_path: Path) -> None:
    outcome = run_race(prepare(tmp_path, appenders=8, shards=12, keep_episodes=50, kills=5))
    assert outcome.commits >= 96 and outcome.kills > 0
    assert outcome.operations["compact"] > 0 and outcome.operations["evict"] > 0


@pytest.mark.long
@pytest.mark.parametrize("turn", range(20))
def test_sixteen_processes_and_fifty_shards_each(
    tmp_path: Path, turn: int, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_race(prepare(tmp_path, seed=turn))
    assert outcome.operations["collect"] == 800 and outcome.kills > 0
    with capsys.disabled():
        print(f"\nrace {turn}: {outcome}")


def write_old_shards(path: Path, worker: int) -> None:
    """Write shards, let them lie for a moment longer than `gc` waits, and commit them."""
    log = CommitLog.open(path)
    for number in range(12):
        for is_first in (True, *[False] * 9):
            try:
                entry = write_raw_shard(path, [make_tiny_episode(100 * worker + number)], TINY)
                time.sleep(2.5 if number == worker and is_first else 0.0)
                log.append(operation="collect", added=[entry])
                break
            except DatasetError:  # gc was first, which we were told: write it again
                continue


def test_gc_and_writers_race_and_no_commit_names_a_missing_shard(tmp_path: Path) -> None:
    path = tmp_path / "d"
    CommitLog.create(path)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_old_shards, args=(path, n)) for n in range(3)]
    for writer in writers:
        writer.start()
    dropped = 0
    while any(writer.is_alive() for writer in writers):
        # Shards that wait for their commit for long go; committed ones never.
        dropped += len(collect_garbage(GcConfig(dataset=path, keep=0, grace=2 / 3600)).dropped)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert dropped > 0
    with DatasetReader.open(path) as reader:
        assert len(reader) == 36
        for row in range(36):
            reader.read_episode(row)
