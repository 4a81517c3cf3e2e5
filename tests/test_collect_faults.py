"""Environments that raise, hang, die or lie: their episodes are dropped, all others are recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retold.dataset.reader import DatasetReader

RETOLD = Path(sys.executable).with_name("retold")
FAULTY = '''
import os
import signal
import time

import gymnasium
import numpy as np

from retold.tasks.definition import Argument, Task


class Faulty(gymnasium.Env):
    """Ten steps; worlds whose seed is a multiple of 3 break at the fifth."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault, every):
        self.fault, self.every = fault, every
        if fault == "make":
            raise RuntimeError("no simulator here")

    def reset(self, *, seed=None, options=None):
        self.step_number, self.is_broken = 0, seed % self.every == 0
        self.value = np.float32(seed % 1000 / 1000)
        if self.is_broken and self.fault == "reset":
            raise RuntimeError("no world today")
        return np.full(3, self.value, np.float32), {}

    def step(self, action):
        self.step_number += 1
        observation, reward = np.full(3, self.value, np.float32), float(action)
        if self.is_broken and self.step_number == 5:
            match self.fault:
                case "raise":
                    raise RuntimeError("the simulator is upset")
                case "hang":
                    time.sleep(3600)
                case "spin":
                    while True:
                        pass
                case "stuck":
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
                    time.sleep(3600)
                case "exit":
                    os._exit(3)
                case "nan":
                    observation[1] = np.nan
                case "bounds":
                    observation[1] = 7.0
                case "shape":
                    observation = observation[:2]
                case "dtype":
                    observation = observation.astype(np.float64)
                case "reward":
                    reward = float("nan")
        return observation, reward, self.step_number == 10, False, {}


FAULTY = Task(
    name="faulty",
    sentence="Break.",
    arguments={
        "fault": Argument("none", help="How."), "every": Argument(3, minimum=1, help="How often."),
    },
    limit_is="termination",
    horizon=lambda arguments: 10,
    make=lambda arguments: Faulty(**arguments),
    is_fast=True,
)
'''.replace(
    'Argument("none", help="How.")', 'Argument("none", choices=FAULTS, help="How.")'
).replace(
    "class Faulty",
    'FAULTS = ("none", "make", "raise", "reset", "hang", "spin", "stuck", "exit", "nan", "bounds", "shape", "dtype", '
    '"reward")\n\n\nclass Faulty',
    1,
)
EPISODES = 16


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "faulty_tasks.py").write_text(FAULTY)
    facts = folder / "faulty_tasks-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-tasks\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[retold.tasks]\nfaulty = faulty_tasks:FAULTY\n")
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def collect(
    environment: dict[str, str], path: Path, fault: str, *flags: str, every: int = 3
) -> "subprocess.CompletedProcess[str]":
    task_args = json.dumps({"fault": fault, "every": every})
    command = [RETOLD, "collect", "faulty", path, "--task-args", task_args, "--json", *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def stored(path: Path) -> dict[int, bytes]:
    """Observations and actions by the episode's number."""
    with DatasetReader.open(path) as reader:
        episodes = [reader.read_episode(row) for row in range(len(reader))]
    found = {}
    for episode in episodes:
        assert episode.record.index is not None and episode.length == 10
        found[episode.record.index] = (
            episode.observation["observation"].tobytes() + episode.action["action"].tobytes()
        )
    return found


@pytest.fixture(scope="module")
def sound(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """All episodes, as an environment without faults plays them."""
    path = tmp_path_factory.mktemp("sound") / "raw"
    assert collect(environment, path, "none", "--episodes", str(EPISODES)).returncode == 0
    return stored(path)


def check(
    environment: dict[str, str], path: Path, result: Any, sound: dict[int, Any], word: str
) -> None:
    assert result.returncode == 0, result.stderr
    counts = json.loads(result.stdout)
    found = stored(path)
    assert counts["dropped"] > 2 and counts["episodes"] > 2
    assert counts["episodes"] + counts["dropped"] == EPISODES
    assert len(found) == counts["episodes"] and found.items() <= sound.items()
    warnings = [line for line in result.stderr.splitlines() if "is dropped" in line]
    assert len(warnings) == counts["dropped"] and all(word in line for line in warnings)
    assert "Traceback" not in result.stderr
    audit = [RETOLD, "audit", path, "--json"]
    done = subprocess.run(audit, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["findings"] == []


def test_an_environment_that_cannot_be_made_is_said_in_one_line(
    environment: dict[str, str], tmp_path: Path
) -> None:
    result = collect(environment, tmp_path / "raw", "make")
    assert result.returncode == 2 and "RuntimeError: no simulator here" in result.stderr
    assert "Traceback" not in result.stderr and not (tmp_path / "raw").exists()


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("raise", "RuntimeError: the simulator is upset"),
        ("reset", "RuntimeError: no world today"),
        ("nan", "NaN at row 5"),
        ("bounds", "outside its space"),
        ("shape", "of shape (2,) instead of (3,)"),
        ("dtype", "of dtype float64 instead of float32"),
        ("reward", "reward nan"),
    ],
)
def test_a_faulty_episode_is_dropped_and_counted(
    environment: dict[str, str], sound: dict[int, Any], tmp_path: Path, fault: str, word: str
) -> None:
    path = tmp_path / "raw"
    result = collect(environment, path, fault, "--episodes", str(EPISODES), "--environments", "3")
    check(environment, path, result, sound, word)


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("hang", "took more than 1.5 seconds"),
        ("exit", "ended its process"),
        ("raise", "the simulator is upset"),
    ],
)
def test_a_worker_that_hangs_or_dies_is_replaced(
    environment: dict[str, str], sound: dict[int, Any], tmp_path: Path, fault: str, word: str
) -> None:
    path = tmp_path / "raw"
    flags = ("--workers", "2", "--environments", "4", "--timeout-seconds", "1.5")
    result = collect(environment, path, fault, "--episodes", str(EPISODES), *flags)
    check(environment, path, result, sound, word)


@pytest.mark.parametrize("fault", ["hang", "spin"])
def test_a_call_that_hangs_in_this_process_is_broken_off(
    environment: dict[str, str], sound: dict[int, Any], tmp_path: Path, fault: str
) -> None:
    path = tmp_path / "raw"
    flags = ("--workers", "0", "--environments", "4", "--timeout-seconds", "0.5")
    result = collect(environment, path, fault, "--episodes", str(EPISODES), *flags)
    check(environment, path, result, sound, "a call took more than 0.5 seconds")


def test_a_call_that_cannot_be_broken_off_ends_the_command(
    environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "raw"
    flags = ("--workers", "0", "--environments", "1", "--timeout-seconds", "0.5")
    flags = (*flags, "--flush-seconds", "0.001")
    result = collect(environment, path, "stuck", "--episodes", str(EPISODES), *flags)
    assert result.returncode == 1 and "cannot be interrupted" in result.stderr
    assert "--workers 1" in result.stderr and "Traceback" not in result.stderr
    done = subprocess.run([RETOLD, "audit", path], env=environment, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_environment_that_always_fails_stops_the_collector(
    environment: dict[str, str], tmp_path: Path, workers: str
) -> None:
    path = tmp_path / "raw"
    flags = ("--episodes", "100", "--most-drops", "4", "--workers", workers)
    result = collect(environment, path, "raise", *flags, every=1)
    assert result.returncode == 1 and "5 episodes in a row" in result.stderr
    assert "Traceback" not in result.stderr
    few = collect(environment, path, "raise", "--episodes", "2", every=1)
    assert few.returncode == 1 and "the simulator is upset" in few.stderr


def test_a_dropped_episode_is_tried_again(environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "raw"
    flags = ("--episodes", str(EPISODES), "--most-drops", "20")
    first = json.loads(collect(environment, path, "nan", *flags).stdout)
    again = collect(environment, path, "nan", *flags)
    assert again.returncode == 1 and "NaN" in again.stderr  # nothing else was left to play
    with DatasetReader.open(path) as reader:
        assert len(reader) == first["episodes"]
