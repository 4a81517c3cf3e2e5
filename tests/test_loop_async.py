"""The asynchronous loop: stages side by side, a bound between them, killed and gone on with."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retold.cli.__main__ import main
from retold.dataset.reader import DatasetReader

RETOLD = Path(sys.executable).with_name("retold")
EPISODES, UPDATES, ITERATIONS = 6, 4, 3
LOOP = f"""
[task]
name = "maze"
args = {{ size = 7, limit = 20 }}
[collect]
episodes = {EPISODES}
[relabel]
workers = 0
[train]
updates = {UPDATES}
model_width = 16
layers = 1
heads = 2
batch_size = 4
context_length = 20
checkpoint_every = 2
publish_every = 2
[loop]
iterations = {ITERATIONS}
ahead = 1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "loop.toml"
    path.write_text(LOOP)
    return path


def start(config: Path, run: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [RETOLD, "loop", config, "--run", run, "--resume"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_once_there(process: "subprocess.Popen[bytes]", path: Path) -> None:
    """Kill the loop's own process alone, once a file is there: its stages must end by themselves."""
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()


def check_whole(run: Path) -> None:
    """Every episode once, all rows of the table, no update twice, and an episode's lag bounded."""
    for name in ("raw", "retold"):
        assert main(["audit", str(run / name)]) == 0
    with DatasetReader.open(run / "raw") as reader:
        records = [reader.record(row) for row in range(len(reader))]
    assert sorted(r.index or 0 for r in records) == list(range(EPISODES * ITERATIONS))
    for record in records:
        iteration = (record.index or 0) // EPISODES
        played_by = record.policy_update or 0
        assert (iteration - 1) * UPDATES <= played_by or iteration <= 1
    rows = [json.loads(line) for line in (run / "iterations.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows] == [UPDATES * (i + 1) for i in range(ITERATIONS)]
    steps = [
        json.loads(line)["update"] for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(1, UPDATES * ITERATIONS + 1))


def test_an_asynchronous_loop_killed_twice_comes_to_its_end(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill_once_there(start(config, run), run / "raw" / "commits" / "00000000.json")
    kill_once_there(start(config, run), run / "policies" / f"{UPDATES:08d}")
    assert start(config, run).wait() == 0
    check_whole(run)


@pytest.mark.long
def test_an_asynchronous_loop_survives_ten_random_kills(config: Path, tmp_path: Path) -> None:
    rng, kills, turn = random.Random(0), 0, 0
    started = time.monotonic()
    assert start(config, tmp_path / "timed").wait() == 0
    seconds = time.monotonic() - started
    while kills < 10:
        run = tmp_path / f"run{turn}"
        for _ in range(2):
            process = start(config, run)
            try:
                process.wait(rng.uniform(0.1, seconds))
            except subprocess.TimeoutExpired:
                is_group = rng.random() < 0.5
                (os.killpg if is_group else os.kill)(process.pid, signal.SIGKILL)
                kills += process.wait() == -signal.SIGKILL
        assert start(config, run).wait() == 0
        check_whole(run)
        turn += 1


def test_a_loop_that_runs_ahead_is_another_loop(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["loop", str(config), "--run", str(run), "--iterations", "1"]
    assert main([*command, "--ahead", "0"]) == 0
    assert main([*command, "--resume"]) == 1
    assert main([*command, "--ahead", "-1"]) == 2
