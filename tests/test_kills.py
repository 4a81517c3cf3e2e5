"""Killed anywhere, a command leaves what the audits pass and what the next command continues."""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from retold.cli.__main__ import main
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
    """One command on a folder of its own, a copy of `start` where one is given."""

    def __init__(self, name: str, root: Path, start: Path | None = None) -> None:
        self.name = name
        self.run = root / "run"
        data = self.run if name == "loop" else root
        self.raw, self.told = data / "raw", data / "retold"
        if start is not None:
            shutil.copytree(start, root)
        root.mkdir(exist_ok=True)
        (root / "loop.toml").write_text(LOOP)
        self.arguments = {
            "collect": ["collect", "maze", str(self.raw), "--episodes", "6", *MAZE],
            "relabel": ["relabel", str(self.raw), str(self.told), "--workers", "0"],
            "train": [
                *("train", str(self.run), "--data", str(self.raw), "--updates", "4", "--resume"),
                *("--checkpoint-every", "2", "--publish-every", "2", *SMALL),
            ],
            "loop": ["loop", str(root / "loop.toml"), "--run", str(self.run), "--resume"],
        }[name]

    def kill_at(self, point: str) -> bool:
        """Run until the point; whether it was killed there."""
        return self._start(kill_at=point).wait() == -signal.SIGKILL

    def kill_after(self, seconds: float) -> bool:
        """Run for a time; whether that was too short."""
        process = self._start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL

    def check(self) -> None:
        """Every dataset that exists passes the audit."""
        for path in (self.raw, self.told):
            if (path / "dataset.json").exists():
                assert main(["audit", str(path)]) == 0

    def finish(self) -> "Content":
        """Run to the end; what is there then."""
        assert main(self.arguments) == 0
        self.check()
        episodes: list[bytes] = []
        for path in (self.raw, self.told):
            if (path / "dataset.json").exists():
                with DatasetReader.open(path) as reader:
                    stored = [reader.read_episode(row) for row in range(len(reader))]
                episodes += sorted(
                    repr((e.record.episode_id, e.record.seed, e.record.instruction)).encode()
                    + e.reward.tobytes()
                    + np.asarray(e.action["action"]).tobytes()
                    for e in stored
                )
        metrics = self.run / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        losses = [json.loads(line)["loss"] for line in lines]
        rounds = self.run / "iterations.jsonl"
        return Content(
            episodes=episodes,
            losses=losses,
            iterations=len(rounds.read_text().splitlines()) if rounds.exists() else 0,
        )

    def _start(self, kill_at: str | None = None) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if kill_at is not None:
            environment["RETOLD_KILL_AT"] = kill_at
        return subprocess.Popen(
            [RETOLD, *self.arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@dataclass(frozen=True)
class Content:
    """All that must not depend on kills."""

    episodes: list[bytes]
    """Ids, seeds, instructions, rewards and actions, variants included."""
    losses: list[float]
    """Of every update."""
    iterations: int

    def check_equal(self, other: "Content") -> None:
        """Bit for bit, but for the losses: their sums may be taken in another order."""
        assert self.episodes == other.episodes
        assert self.iterations == other.iterations
        np.testing.assert_allclose(self.losses, other.losses, rtol=1e-4)


@dataclass(frozen=True)
class Undisturbed:
    """Where a command starts from, and what it comes to when nobody kills it."""

    start: Path
    content: Content


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    """By command. All copies of a start share its dataset's random id, so they must agree."""

    @functools.cache
    def find(name: str) -> Undisturbed:
        root = tmp_path_factory.mktemp(name)
        start = Command(name, root / "start")
        if name in ("collect", "loop"):
            assert start.kill_at("shard-before")
        else:
            assert main(["collect", "maze", str(start.raw), "--episodes", "6", *MAZE]) == 0
        return Undisturbed(root / "start", Command(name, root / "whole", root / "start").finish())

    return find


POINTS = {"collect": WRITING, "relabel": WRITING, "train": LEARNING, "loop": KILL_POINTS}


@pytest.mark.parametrize(
    ("name", "point"),
    [
        *((name, point) for name in ("collect", "relabel", "train") for point in POINTS[name]),
        *(("loop", f"{point}:2") for point in ("commit-inside", "checkpoint-after")),
        ("loop", "publish-inside"),
    ],
)
def test_a_killed_command_continues(
    name: str, point: str, tmp_path: Path, undisturbed: Callable[[str], Undisturbed]
) -> None:
    command = Command(name, tmp_path / "killed", undisturbed(name).start)
    assert command.kill_at(point), f"{name} never reached {point}"
    command.check()
    command.finish().check_equal(undisturbed(name).content)


@pytest.mark.long
@pytest.mark.parametrize("name", list(POINTS))
def test_twenty_kills_leave_nothing_half_done(
    name: str,
    tmp_path: Path,
    undisturbed: Callable[[str], Undisturbed],
    capsys: pytest.CaptureFixture[str],
) -> None:
    start, expected = undisturbed(name).start, undisturbed(name).content
    hits: Counter[str] = Counter()
    for turn in range(2):
        for point in POINTS[name]:
            command = Command(name, tmp_path / f"{point}-{turn}", start)
            hits[point] += command.kill_at(f"{point}:{turn + 1}" if name == "loop" else point)
            command.check()
            command.finish().check_equal(expected)
    assert min(hits[point] for point in POINTS[name]) >= 2, hits
    rng = random.Random(0)
    turns = max(6, 20 - hits.total())
    whole_seconds = _seconds_of(Command(name, tmp_path / "timed", start))
    while hits["at a random time"] < turns:
        command = Command(name, tmp_path / f"random-{uuid.uuid4().hex}", start)
        hits["at a random time"] += command.kill_after(rng.uniform(0.1, whole_seconds))
        command.check()
        command.finish().check_equal(expected)
    with capsys.disabled():
        print(f"\n{name}: {hits.total()} kills: {dict(hits)}")


def _seconds_of(command: Command) -> float:
    started = time.monotonic()
    assert not command.kill_after(600)
    return time.monotonic() - started
