"""How fast episodes are collected, against bare stepping of the same episodes in as many processes.

Bare stepping plays the episodes that were just collected: the same environments, seeds and actions, so
the same resets; nothing is chosen and nothing kept. Both clocks start when every process has made its
environments, and ours stops when the last commit is on disk. Readings of all rows take turns, and a
ratio is one of medians. `apart` leaves the bare run's time in resets out of both.

    python benchmarks/collect.py --json
    python benchmarks/collect.py --quick
"""

import argparse
import contextlib
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collect_bare import step_bare
from provenance import describe_commit, describe_machine

from retold.collect.play import Outcome, PlaySetup, play_here
from retold.collect.recorder import Recorder
from retold.collect.workers import WorkerPool
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.writer import DatasetWriter
from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.policy.rollout import EpisodeAssignment
from retold.policy.snapshot import encode_snapshot
from retold.schemas.exploration import NO_EXPLORATION
from retold.schemas.identity import world_seed
from retold.tasks.registry import task_schema, task_versions

_ENVIRONMENTS = 8
_MODES = ("random", "policy")
_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One task, and how many of its episodes a reading takes."""

    name: str
    task: str
    task_args: dict[str, Any]
    episodes: int
    policy_episodes: int
    quick_episodes: int
    workers: int


CASES = (
    Case(
        name="T-Maze",
        task="tmaze",
        task_args={},
        episodes=4000,
        policy_episodes=400,
        quick_episodes=200,
        workers=0,
    ),
    Case(
        name="Crafter symbols",
        task="crafter",
        task_args={"observation": "symbols"},
        episodes=48,
        policy_episodes=48,
        quick_episodes=8,
        workers=2,
    ),
    Case(
        name="Crafter pixels",
        task="crafter",
        task_args={"observation": "pixels"},
        episodes=48,
        policy_episodes=48,
        quick_episodes=8,
        workers=2,
    ),
    Case(
        name="HalfCheetah",
        task="cheetah-velocity",
        task_args={},
        episodes=192,
        policy_episodes=16,
        quick_episodes=4,
        workers=2,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Steps, and seconds with the resets in them."""

    steps: int
    seconds: float
    reset_seconds: float
    """As the bare run of the same episodes took."""

    @property
    def rate(self) -> float:
        """Steps a second, resets included."""
        return self.steps / self.seconds

    @property
    def rate_apart(self) -> float:
        """Steps a second, resets left out."""
        return self.steps / max(self.seconds - self.reset_seconds, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Row:
    """All readings of one task and mode, each with bare stepping right after it."""

    case: Case
    mode: str
    workers: int
    episodes: int
    ours: list[Timing] = field(default_factory=list)
    bare: list[Timing] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)

    def read(self, folder: Path) -> None:
        """Collect, then step the same episodes bare."""
        policy = self._policy(folder)
        path = folder / f"{self.case.name}-{self.mode}-{len(list(folder.iterdir()))}"
        seconds = self._collect(str(policy), path)
        with DatasetReader.open(path) as reader:
            self.datasets.append(reader.dataset_id)
            stored = [reader.read_episode(row) for row in range(len(reader))]
        # An array an episode: to pickle an object a step would slow bare stepping down.
        scripts = [(e.record.seed or 0, e.action["action"]) for e in stored]
        steps = sum(episode.length for episode in stored)
        bare = step_bare(self.case.task, self.case.task_args, scripts, _ENVIRONMENTS, self.workers)
        resets = bare.reset_seconds
        self.ours.append(Timing(steps=steps, seconds=seconds, reset_seconds=resets))
        self.bare.append(Timing(steps=steps, seconds=bare.seconds, reset_seconds=resets))

    def _policy(self, folder: Path) -> Path | str:
        if self.mode == "random":
            return "random"
        path = folder / f"policy-{self.case.name}"
        return path if path.exists() else write_policy(path, self.case)

    def _collect(self, policy: str, path: Path) -> float:
        """Seconds from all environments made to all episodes committed."""
        schema = task_schema(self.case.task, self.case.task_args)
        setup = PlaySetup(
            task=self.case.task,
            task_args=self.case.task_args,
            schema=schema,
            policy=policy,
            run_seed=0,
            exploration=NO_EXPLORATION,
        )
        identity = {"run_seed": 0, "task": self.case.task, "policy": policy, "exploration": {}}
        recorder = Recorder(
            DatasetWriter(CommitLog.create(path), schema),
            identity,
            exploration="{}",
            versions=task_versions(self.case.task),
            most_drops=0,
        )
        with _playing(setup, self.workers, self.episodes) as outcomes:
            started = time.perf_counter()
            recorder.record(outcomes(), self.episodes, lambda: 0)
            recorder.flush()
            return time.perf_counter() - started


@contextlib.contextmanager
def _playing(
    setup: PlaySetup, workers: int, episodes: int
) -> Iterator[Callable[[], Iterator[Outcome]]]:
    """Something that plays once it is called, its environments made."""
    numbers = [EpisodeAssignment(i, world_seed(setup.run_seed, i)) for i in range(episodes)]
    if workers == 0:
        yield lambda: play_here(setup, _ENVIRONMENTS, iter(numbers))
        return
    with WorkerPool(
        setup, _ENVIRONMENTS, workers=workers, timeout_seconds=_TIMEOUT_SECONDS
    ) as pool:
        pool.wait_until_ready()
        yield lambda: pool.play(iter(numbers), lambda: 0)


def write_policy(path: Path, case: Case) -> Path:
    """An untrained policy of 3 layers of 128 features."""
    schema = task_schema(case.task, case.task_args)
    policy = Policy(schema, ArchitectureConfig(model_width=128, layers=3), (0.99,), 0.99)
    path.mkdir()
    for name, content in encode_snapshot(policy, update=0).items():
        (path / name).write_bytes(content)
    return path


def take_readings(rows: Sequence[Row], repeats: int) -> None:
    """Read all rows in turns; a first reading of each is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats + 1):
            for row in rows:
                row.read(Path(folder))
                ratio = row.ours[-1].rate / row.bare[-1].rate
                print(
                    f"{row.case.name}, {row.mode}, reading {number} of {repeats}: "
                    f"{ratio:.2f} of bare",
                    file=sys.stderr,
                )
                if number == 0:
                    del row.ours[:], row.bare[:], row.datasets[:]


def describe_rows(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """A row of figures for each mode and for the bare stepping beside it."""
    for row in rows:
        for mode, timings in (("bare", row.bare), ("to disk", row.ours)):
            value, apart = _medians(timings)
            bare, bare_apart = _medians(row.bare)
            yield {
                "command": shlex.join(["python", "benchmarks/collect.py", *sys.argv[1:]]),
                "commit": describe_commit(),
                "machine": describe_machine(),
                "dataset": row.datasets[-1],
                "seed": 0,
                "task": row.case.name,
                "mode": f"{row.mode}, {mode}",
                "environments": _ENVIRONMENTS,
                "workers": row.workers,
                "episodes": row.episodes,
                "readings": len(timings),
                "value": value,
                "apart": apart,
                "unit": "steps/s",
                "of_bare": value / bare,
                "of_bare_apart": apart / bare_apart,
            }


def describe_symbols(figures: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How much faster symbols are than pixels."""
    found = {(row["task"], row["mode"]): row for row in figures}
    for (task, mode), symbols in found.items():
        pixels = found.get(("Crafter pixels", mode))
        if task == "Crafter symbols" and pixels is not None:
            ratio, apart = (symbols[name] / pixels[name] for name in ("value", "apart"))
            yield f"Crafter symbols to pixels, {mode}: {ratio:.2f}, {apart:.2f} apart"


def _medians(timings: Sequence[Timing]) -> tuple[float, float]:
    """Steps a second with resets and apart."""
    return (
        statistics.median(timing.rate for timing in timings),
        statistics.median(timing.rate_apart for timing in timings),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a task and mode, and one of the bare stepping beside it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="small and in this process, in 60 s")
    parser.add_argument("--repeats", type=int, default=5, help="readings that medians are taken of")
    parser.add_argument("--task", action="append", help="name of a row's task; all by default")
    parser.add_argument("--mode", action="append", choices=_MODES, help="who acts; both by default")
    given = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where workers find bare stepping
    rows = [
        _make_row(case, mode, given.quick)
        for case in CASES
        if not given.task or case.name in given.task
        for mode in given.mode or _MODES
    ]
    take_readings(rows, 1 if given.quick else given.repeats)
    figures = list(describe_rows(rows))
    for row in figures:
        print(json.dumps(row) if given.json else _describe(row))
    print(*describe_symbols(figures), sep="\n", file=sys.stderr if given.json else sys.stdout)


def _make_row(case: Case, mode: str, is_quick: bool) -> Row:
    episodes = case.episodes if mode == "random" else case.policy_episodes
    return Row(
        case=case,
        mode=mode,
        workers=0 if is_quick else case.workers,
        episodes=case.quick_episodes if is_quick else episodes,
    )


def _describe(row: dict[str, Any]) -> str:
    return (
        f"{row['task']:16} {row['mode']:16} {row['value']:9,.0f} steps/s, {row['apart']:9,.0f} apart; "
        f"{row['of_bare']:.2f} of bare, {row['of_bare_apart']:.2f} apart"
    )


if __name__ == "__main__":
    main()
