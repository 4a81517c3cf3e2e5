"""Collecting: the same episodes from any number of environments, resumed and never doubled."""

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
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.schemas.episode import Episode
from retold.schemas.errors import DatasetError, UsageError
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
