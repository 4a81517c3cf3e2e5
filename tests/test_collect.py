"""Collecting: the same episodes from any number of environments, resumed and never doubled."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retold.collect.command import CollectConfig, collect
from retold.collect.replay import replay_episode
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.schemas.episode import Episode
from retold.schemas.errors import DatasetError, UsageError
from retold.schemas.exploration import bilevel_epsilon, constant_epsilon
from retold.train.command import train
from retold.train.config import TrainConfig


def make_config(path: Path, episodes: int = 9) -> CollectConfig:
    return CollectConfig(
        task="maze",
        task_args={"size": 7, "limit": 25},
        dataset=path,
        episodes=episodes,
        environments=3,
    )


def contents(path: Path) -> list[bytes]:
    with DatasetReader.open(path) as reader:
        episodes = [reader.read_episode(row) for row in range(len(reader))]
    return sorted(
        repr((e.record.index, e.record.seed)).encode()
        + e.observation["observation"].tobytes()
        + e.action["action"].tobytes()
        for e in episodes
    )


def test_episodes_do_not_depend_on_the_number_of_environments(tmp_path: Path) -> None:
    found = []
    for environments in (1, 4, 8):
        path = tmp_path / str(environments)
        collect(replace(make_config(path), environments=environments))
        found.append(contents(path))
    assert found[0] == found[1] == found[2]


def test_a_rerun_plays_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    collect(make_config(path, 4))
    result = collect(make_config(path, 9))
    assert (result.episodes, result.skipped) == (5, 4)
    assert collect(make_config(path, 9)).snapshot == 1
    collect(make_config(tmp_path / "whole", 9))
    assert contents(path) == contents(tmp_path / "whole")


def test_other_settings_under_one_seed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    collect(make_config(path, 2))
    with pytest.raises(DatasetError, match="--seed"):
        collect(replace(make_config(path), epsilon=0.5))
    with pytest.raises(DatasetError, match="another dataset"):
        collect(replace(make_config(path), task_args={"size": 9}))
    with pytest.raises(DatasetError, match="not a dataset"):
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
        collect(make_config(tmp_path / "other"))


def test_two_collectors_of_overlapping_ranges_never_double_an_episode(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    command = [Path(sys.executable).with_name("retold"), "collect", "maze", path]
    processes = [
        subprocess.Popen(
            [*command, "--episodes", "150", "--first", first],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for first in ("0", "50")
    ]
    messages = [process.communicate(timeout=120)[1] for process in processes]
    with DatasetReader.open(path) as reader:
        ids = reader.table["episode_id"].to_pylist()
    assert len(ids) == len(set(ids)) >= 150
    # The second to commit is told so, unless it started late enough to find nothing missing.
    assert sorted(process.returncode for process in processes) in ([0, 0], [0, 1])
    assert all("Traceback" not in message for message in messages)


def test_a_policy_of_other_goals_is_refused(tmp_path: Path) -> None:
    run, raw = tmp_path / "run", tmp_path / "raw"
    collect(make_config(raw, 3))
    train(TrainConfig(run=run, data=(raw,), updates=1, model_width=16, heads=2, batch_size=2))
    for task_args in ({"size": 9}, {"size": 7, "goals": [1, 5]}):
        other = replace(
            make_config(tmp_path / "other"), policy=str(run), task_args=task_args, seed=1
        )
        with pytest.raises(UsageError, match="spaces or goals"):
            collect(other)
        with pytest.raises(UsageError, match="spaces or goals"):
            evaluate(EvaluateConfig(policy=run, task_args=task_args, episodes=1))
        assert not (tmp_path / "other").exists()


def test_stored_episodes_replay_and_a_changed_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    collect(make_config(path, 3))
    with DatasetReader.open(path) as reader:
        task = reader.schema.tasks[0]
        for row in range(3):
            episode = reader.read_episode(row)
            assert replay_episode(episode, task) is None
        changed = {**vars(episode), "reward": episode.reward + np.float32(1)}
    finding = replay_episode(Episode(**changed), task)
    assert finding is not None and "step 0" in finding.what


def test_a_stopped_collector_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    command = [Path(sys.executable).with_name("retold"), "collect", "maze", path]
    process = subprocess.Popen(
        [*command, "--episodes", "100000", "--flush-seconds", "0.2"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not (path / "commits" / "00000000.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 1 and "SIGTERM" in message and "Traceback" not in message
    assert CommitLog.open(path).head() is not None


@pytest.mark.parametrize("task", ["maze", "crafter"])
def test_workers_play_the_same_episodes(tmp_path: Path, task: str) -> None:
    task_args = {"size": 7, "limit": 25} if task == "maze" else {"limit": 20}
    config = replace(make_config(tmp_path / "here", 8), task=task, task_args=task_args, workers=0)
    collect(config)
    collect(replace(config, dataset=tmp_path / "there", workers=2, environments=4))
    found = []
    for path in (tmp_path / "here", tmp_path / "there"):
        with DatasetReader.open(path) as reader:
            episodes = [reader.read_episode(row) for row in range(len(reader))]
        found.append(
            sorted(
                repr((e.record, [leaf.tobytes() for leaf in (*e.observation.values(), e.reward)]))
                .replace(e.record.episode_id, "")
                for e in episodes
            )
        )  # fmt: skip
    assert len(found[0]) == 8 and found[0] == found[1]


def test_workers_act_by_the_newest_policy(tmp_path: Path) -> None:
    run, raw = tmp_path / "run", tmp_path / "raw"
    collect(make_config(raw, 3))
    train(TrainConfig(run=run, data=(raw,), updates=1, model_width=16, heads=2, batch_size=2))
    config = replace(make_config(tmp_path / "more", 6), policy=str(run), workers=2, epsilon=0.1)
    assert collect(config).episodes == 6
    with DatasetReader.open(tmp_path / "more") as reader:
        assert all(reader.record(row).policy_update == 1 for row in range(6))
        assert all(reader.record(row).exploration is not None for row in range(6))


def test_bilevel_exploration_falls_over_training_and_within_an_episode() -> None:
    schedule = bilevel_epsilon(100, anneal_episodes=10)
    assert [schedule.epsilon(0, 0), schedule.epsilon(100, 0)] == [1.0, 0.8]
    assert schedule.epsilon(50, 0) == pytest.approx(0.9)
    assert schedule.epsilon(0, 10) == pytest.approx(0.05)
    assert schedule.epsilon(250, 99) == pytest.approx(0.01)
    assert schedule.epsilon(25, 5) == pytest.approx(0.525 - 0.25 * (0.525 - 0.405))
    assert type(schedule).from_json(schedule.to_json()) == schedule
    assert "is_gradual" not in constant_epsilon(0.1).to_json()


def test_every_episode_draws_its_own_scale_of_exploration(tmp_path: Path) -> None:
    run, raw = tmp_path / "run", tmp_path / "raw"
    collect(make_config(raw, 3))
    train(TrainConfig(run=run, data=(raw,), updates=1, model_width=16, heads=2, batch_size=2))
    found = []
    for environments in (1, 3):
        path = tmp_path / f"more{environments}"
        config = replace(make_config(path, 4), policy=str(run), environments=environments)
        collect(replace(config, exploration="bilevel", anneal_episodes=5))
        found.append(contents(path))
        with DatasetReader.open(path) as reader:
            assert "is_scaled" in str(reader.record(0).exploration)
    assert len(found[0]) == len(found[1]) == 4
    with pytest.raises(UsageError, match="Give one"):
        replace(make_config(raw), exploration="bilevel", epsilon=0.1)


def test_amounts_are_explored_by_gaussian_noise(tmp_path: Path) -> None:
    windy = {"actions": "continuous", "limit": 5}
    plain = CollectConfig(task="wind", task_args=windy, dataset=tmp_path / "raw", episodes=60)
    collect(plain)
    run = tmp_path / "run"
    sizes = {"model_width": 16, "layers": 1, "heads": 2}
    train(TrainConfig(run=run, data=(tmp_path / "raw",), updates=1, **sizes))
    first = []
    for epsilon in (0.0, 0.1):
        path = tmp_path / str(epsilon)
        collect(replace(plain, dataset=path, policy=str(run), epsilon=epsilon))
        with DatasetReader.open(path) as reader:
            episodes = sorted(map(reader.read_episode, range(60)), key=lambda e: e.record.index)
            half_range = np.max(reader.schema.action_space.high)
        first.append(np.array([e.action["action"][0, 0] for e in episodes]) / half_range)
    assert np.abs(first[1]).max() <= 1.0
    is_within = np.abs(first).max(0) < 1.0
    noise = (first[1] - first[0])[is_within]
    assert is_within.sum() > 40
    assert len(np.unique(noise)) == len(noise)
    assert noise.std() == pytest.approx(0.1, rel=0.4)


def start_follower(path: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [Path(sys.executable).with_name("retold"), "collect", "tmaze", path, "--follow"]
    return subprocess.Popen(
        [*command, "--flush-seconds", "0.05", "--json", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_commits(path: Path, count: int, process: "subprocess.Popen[str]") -> None:
    while not (path / "commits" / f"{count - 1:08d}.json").exists():
        assert process.poll() is None
        time.sleep(0.02)


def live_steps(path: Path) -> int:
    return sum(entry.steps for entry in CommitLog.open(path).live_shards())


def test_a_follower_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    process = start_follower(path)
    wait_for_commits(path, 3, process)
    process.send_signal(signal.SIGTERM)
    output, message = process.communicate(timeout=60)
    assert process.returncode == 0, message
    with DatasetReader.open(path) as reader:
        assert len(reader) == json.loads(output)["episodes"] > 0
        assert sorted(reader.table["index"].to_pylist()) == list(range(len(reader)))


def test_a_follower_of_a_full_dataset_waits_until_episodes_leave(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    process = start_follower(path, "--most-steps", "2100", "--environments", "1")
    wait_for_commits(path, 1, process)
    steps, last = live_steps(path), -1
    while steps < 2100 or steps != last:
        time.sleep(0.2)
        steps, last = live_steps(path), steps
    assert steps == 2100  # whole episodes of 21
    evict(EvictConfig(dataset=path, steps=1050))
    while live_steps(path) != 2100:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    with DatasetReader.open(path) as reader:  # the pause has cost no episode
        assert sorted(reader.table["index"].to_pylist()) == list(range(50, 150))


def test_a_follower_may_evict_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    process = start_follower(path, "--most-steps", "420", "--when-full", "evict")
    wait_for_commits(path, 8, process)
    process.send_signal(signal.SIGTERM)
    output, message = process.communicate(timeout=60)
    assert process.returncode == 0, message
    with DatasetReader.open(path) as reader:
        assert 0 < reader.raw_steps <= 420
        newest = max(reader.table["index"].to_pylist())
    assert newest + 1 == json.loads(output)["episodes"]


def test_collectors_on_a_cluster_share_the_episodes(tmp_path: Path) -> None:
    from distributed import LocalCluster

    path = tmp_path / "raw"
    collect(make_config(path, 3))
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        config = replace(make_config(path, 11), scheduler=cluster.scheduler_address, collectors=2)
        result = collect(config)
    assert (result.episodes, result.skipped) == (8, 3)
    collect(make_config(tmp_path / "whole", 11))
    assert contents(path) == contents(tmp_path / "whole")
    with pytest.raises(DatasetError, match="cannot be reached"):
        collect(replace(make_config(path, 20), scheduler="tcp://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("missing", "parts", "expected"),
    [
        ((), 3, []),
        ((0, 1, 2, 3), 2, [(0, 2), (2, 2)]),
        ((2, 3, 9), 2, [(2, 2), (9, 1)]),
        ((5,), 4, [(5, 1)]),
    ],
)
def test_parts_of_a_range_cover_what_is_missing_once(
    missing: tuple[int, ...], parts: int, expected: list[tuple[int, int]]
) -> None:
    from retold.collect.cluster import split_range

    assert split_range(missing, parts) == expected
