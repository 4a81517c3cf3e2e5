"""Killed anywhere, a command leaves what the audits pass and what the next command continues."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from retold.cli.__main__ import main
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.schemas.faults import KILL_POINTS

RETOLD = Path(sys.executable).with_name("retold")
WRITING = tuple(p for p in KILL_POINTS if p.split("-")[0] in ("shard", "rename", "commit"))
LEARNING = tuple(p for p in KILL_POINTS if p.split("-")[0] in ("checkpoint", "publish"))
MAZE = ["--task-args", '{"size": 7, "limit": 20}']
SMALL = ["--model-width", "16", "--layers", "1", "--heads", "2", "--batch-size", "4"]
LOOP = """
[task]
name = "maze"
args = { size = 7, limit = 20 }
[collect]
episodes = 6
[relabel]
workers = 0
[train]
updates = 4
model_width = 16
layers = 1
heads = 2
batch_size = 4
context_length = 20
checkpoint_every = 2
publish_every = 2
[loop]
iterations = 2
"""


class Command:
    """One command on a folder of its own."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.raw, self.told, self.run = root / "raw", root / "told", root / "run"
        root.mkdir()
        if name in ("relabel", "train"):
            assert main(["collect", "maze", str(self.raw), "--episodes", "6", *MAZE]) == 0
        if name == "loop":
            (root / "loop.toml").write_text(LOOP)
            self.raw, self.told = self.run / "raw", self.run / "retold"
        self.arguments = {
            "collect": ["collect", "maze", str(self.raw), "--episodes", "6", *MAZE],
            "relabel": ["relabel", str(self.raw), str(self.told), "--workers", "0"],
            "train": [
                *("train", str(self.run), "--data", str(self.raw), "--updates", "4", "--resume"),
                *("--checkpoint-every", "2", "--publish-every", "2", *SMALL),
            ],
            "loop": ["loop", str(root / "loop.toml"), "--run", str(self.run), "--resume"],
        }[name]

    def kill_at(self, point: str, *, seconds: float | None = None) -> bool:
        """Run until the point or the time; whether it was killed there."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if seconds is None:
            environment["RETOLD_KILL_AT"] = point
        process = subprocess.Popen(
            [RETOLD, *self.arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if seconds is not None:
            time.sleep(seconds)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL

    def check(self) -> None:
        """Every dataset that exists passes the audit."""
        for path in (self.raw, self.told):
            if (path / "dataset.json").exists() and CommitLog.open(path).head() is not None:
                assert main(["audit", str(path)]) == 0

    def finish(self) -> list[bytes]:
        """Run to the end; what is there then."""
        assert main(self.arguments) == 0
        self.check()
        return self.content()

    def content(self) -> list[bytes]:
        """All that must not depend on kills; ids of datasets are random, so they are left out."""
        found: list[bytes] = []
        for path in (self.raw, self.told):
            if not (path / "dataset.json").exists():
                continue
            with DatasetReader.open(path) as reader:
                episodes = [reader.read_episode(row) for row in range(len(reader))]
            found += sorted(
                repr((e.record.index, e.record.seed, e.record.instruction)).encode()
                + e.reward.tobytes()
                + np.asarray(e.action["action"]).tobytes()
                for e in episodes
                if self.name == "collect" or not e.record.is_variant
            )
        if (self.run / "LATEST").exists():
            found.append((self.run / "LATEST").read_bytes())
            found.append((self.run / "metrics.jsonl").read_bytes().count(b"\n").to_bytes(4, "big"))
        return found


POINTS = {"collect": WRITING, "relabel": WRITING, "train": LEARNING, "loop": KILL_POINTS}


@pytest.mark.parametrize(
    ("name", "point"),
    [
        *((name, point) for name in ("collect", "relabel", "train") for point in POINTS[name]),
        *(("loop", f"{point}:2") for point in ("commit-inside", "checkpoint-after")),
    ],
)
def test_a_killed_command_continues(name: str, point: str, tmp_path: Path) -> None:
    command = Command(name, tmp_path / "killed")
    assert command.kill_at(point), f"{name} never reached {point}"
    command.check()
    assert command.finish() == Command(name, tmp_path / "whole").finish()


@pytest.mark.long
@pytest.mark.parametrize("name", list(POINTS))
def test_twenty_kills_and_more_leave_nothing_half_done(name: str, tmp_path: Path) -> None:
    expected = Command(name, tmp_path / "whole").finish()
    hits: Counter[str] = Counter()
    for turn in range(2):
        for point in POINTS[name]:
            command = Command(name, tmp_path / f"{point}-{turn}")
            hits[point] += command.kill_at(point)
            command.check()
            assert command.finish() == expected, point
    assert min(hits[point] for point in POINTS[name]) >= 2, hits
    rng = random.Random(0)
    for turn in range(max(6, 20 - 2 * len(POINTS[name]))):
        command = Command(name, tmp_path / f"random-{turn}")
        for _ in range(3):
            command.kill_at("", seconds=rng.uniform(0.5, 8.0))
            command.check()
        assert command.finish() == expected, turn
