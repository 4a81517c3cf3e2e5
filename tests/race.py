"""Many processes on one dataset, some of them killed; and whether its log tells what they did.

The dataset's location is a parameter, so that another kind of storage can be put to the same test.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from retold.dataset.audit import audit_structure
from retold.dataset.compact import CompactConfig, compact
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_files import ShardFiles, fetch_ahead
from retold.dataset.shard_writer import write_raw_shard
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import ConflictError
from retold.schemas.spaces import DiscreteSpace

TINY = DatasetSchema(
    tasks=(
        TaskDescription(name="tiny", kwargs={}, code_version="1", limit_is="truncation", horizon=9),
    ),
    observation_space=DiscreteSpace(9),
    action_space=DiscreteSpace(2),
)
"""As few files a shard as there can be: each of them is synced."""


def make_tiny_episode(number: int) -> Episode:
    """Some steps, all truncated at their end."""
    length = 2 + number % 3
    none = np.zeros(length, np.bool_)
    last = none.copy()
    last[-1] = True
    return Episode(
        record=EpisodeRecord(
            episode_id=f"{number:032x}",
            task=0,
            length=length,
            episode_return=float(length),
            terminated=False,
            truncated=True,
            environment_terminated=False,
        ),
        observation={"observation": np.full(length + 1, number % 9, np.int64)},
        action={"action": np.full(length, number % 2, np.int64)},
        reward=np.ones(length, np.float32),
        terminated=none,
        truncated=last,
        environment_terminated=none,
        reset=none,
        event_step=np.zeros(0, np.uint32),
        event_goal=np.zeros(0, np.uint32),
    )


@dataclass(frozen=True)
class Race:
    """Who runs, and for how long."""

    location: DatasetPath
    """The dataset, which exists."""
    acknowledged: Path
    """Folder in which appenders note what was acknowledged to them."""
    appenders: int = 16
    shards: int = 50
    compactors: int = 2
    evictors: int = 1
    keep_episodes: int = 300
    kills: int = 12
    seed: int = 0


@dataclass
class Outcome:
    """What a race came to."""

    commits: int = 0
    kills: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    evicted: int = 0
    live: int = 0
    seconds: float = 0.0


def run_race(race: Race) -> Outcome:
    """Run all processes, killing some at random; a killed one is started again and goes on."""
    context = multiprocessing.get_context("fork")
    rng = random.Random(race.seed)
    started = time.monotonic()

    def start(work: Callable[..., None], *arguments: object) -> BaseProcess:
        process = context.Process(target=work, args=(race, *arguments))
        process.start()
        return process

    jobs = [(append_shards, number) for number in range(race.appenders)]
    running = {job: start(*job) for job in jobs}
    others = [(compact_on, 0)] * race.compactors + [(evict_on, 0)] * race.evictors
    background = {number: start(*job) for number, job in enumerate(others)}
    kills = 0
    while running:
        time.sleep(0.02)
        if kills < race.kills and rng.random() < 0.2:
            victims = [*running.values(), *background.values()]
            os.kill(rng.choice(victims).pid or 0, signal.SIGKILL)
            kills += 1
        for job, process in list(running.items()):
            if not process.is_alive():
                process.join()
                if process.exitcode == 0:
                    del running[job]
                else:
                    assert process.exitcode == -signal.SIGKILL, process.exitcode
                    running[job] = start(*job)
        for number, process in list(background.items()):
            if not process.is_alive():
                process.join()
                assert process.exitcode == -signal.SIGKILL, process.exitcode
                background[number] = start(*others[number])
    (race.acknowledged / "stop").touch()
    for process in background.values():
        process.join()
        assert process.exitcode == 0, process.exitcode
    outcome = check_race(race)
    outcome.kills = kills
    outcome.seconds = time.monotonic() - started
    return outcome


def append_shards(race: Race, worker: int) -> None:
    """Append one-episode shards that this worker has not committed yet."""
    log = CommitLog.open(race.location)
    done = {c.details["shard"] for c in log.commits() if c.details.get("worker") == worker}
    with (race.acknowledged / f"{worker}.txt").open("a") as notes:
        for number in range(race.shards):
            if number in done:
                continue
            episode = make_tiny_episode(worker * race.shards + number)
            entry = write_raw_shard(race.location, [episode], TINY)
            log.append(
                operation="collect", added=[entry], details={"worker": worker, "shard": number}
            )
            notes.write(f"{number}\n")
            notes.flush()


def compact_on(race: Race, _: int) -> None:
    """Compact until the others are done, and once more."""
    while not (race.acknowledged / "stop").exists():
        with contextlib.suppress(ConflictError):
            compact(CompactConfig(dataset=race.location))
        time.sleep(0.05)


def evict_on(race: Race, _: int) -> None:
    """Evict until the others are done."""
    while not (race.acknowledged / "stop").exists():
        with contextlib.suppress(ConflictError):
            evict(EvictConfig(dataset=race.location, episodes=race.keep_episodes))
        time.sleep(0.1)


def check_race(race: Race) -> Outcome:
    """Replay the log by hand: nothing lost, nothing twice, nothing back, no gap."""
    log = CommitLog.open(race.location, from_checkpoint=False)
    outcome = Outcome()
    ids: dict[str, set[str]] = {}
    live: dict[str, set[str]] = {}
    appended: Counter[tuple[int, int]] = Counter()
    collected: set[str] = set()
    evicted: set[str] = set()
    shards = [ShardFiles(race.location, e) for commit in log.commits() for e in commit.added]
    fetch_ahead(shards, ["episodes.parquet"])
    files = {shard.entry.shard_id: shard for shard in shards}
    for number, commit in enumerate(log.commits()):
        assert commit.number == number
        outcome.operations[commit.operation] += 1
        for entry in commit.added:
            found = files[entry.shard_id].episode_ids.astype(str).tolist()
            ids[entry.shard_id] = set(found)
            assert len(ids[entry.shard_id]) == len(found) == entry.episodes
        added = set().union(*(ids[entry.shard_id] for entry in commit.added))
        removed = set().union(*(live.pop(shard_id) for shard_id in commit.removed))
        assert not added & evicted, "an evicted episode came back"
        if commit.operation == "collect":
            appended[commit.details["worker"], commit.details["shard"]] += 1
            assert not removed and not added & collected
            collected |= added
        elif commit.operation == "compact":
            assert added == removed, "compaction changed what is live"
        else:
            assert commit.operation == "evict" and added < removed
            evicted |= removed - added
        live |= {entry.shard_id: ids[entry.shard_id] for entry in commit.added}
        assert sum(map(len, live.values())) == len(set().union(*live.values()))
    expected = {(w, n) for w in range(race.appenders) for n in range(race.shards)}
    assert appended == dict.fromkeys(expected, 1)
    for worker in range(race.appenders):
        notes = (race.acknowledged / f"{worker}.txt").read_text().split()
        assert {(worker, int(note)) for note in notes} <= expected
        assert len(notes) == len(set(notes))
    assert set().union(*live.values()) == collected - evicted
    with DatasetReader.open(race.location) as reader:
        found = reader.table["episode_id"].to_pylist()
        assert sorted(found) == sorted(collected - evicted)
        reader.read_episode(len(reader) - 1)
    assert all(f.severity == "warning" for f in audit_structure(race.location))
    outcome.commits = len(list(log.commits()))
    outcome.evicted, outcome.live = len(evicted), len(found)
    return outcome
