"""How fast episodes are collected, against bare stepping of the same episodes in as many processes.

Bare stepping plays the episodes that were just collected: the same environments, seeds and actions, so
the same resets; nothing is chosen and nothing kept. Both times include the start of the processes.
`apart` leaves the bare run's time in resets out of both.

    python benchmarks/collect.py --json
    python benchmarks/collect.py --quick
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collect_bare import step_bare
from provenance import describe_commit, describe_machine

from retold.collect.command import CollectConfig, collect
from retold.dataset.reader import DatasetReader
from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.policy.snapshot import encode_snapshot
from retold.schemas.errors import UsageError
from retold.tasks.registry import task_schema

_ENVIRONMENTS = 8
_MODES = ("random", "policy")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One task, and how many of its episodes are played."""

    name: str
    task: str
    task_args: dict[str, Any]
    episodes: int
    quick_episodes: int
    workers: int


CASES = (
    Case(name="T-Maze", task="tmaze", task_args={}, episodes=4000, quick_episodes=800, workers=0),
    Case(
        name="Crafter symbols",
        task="crafter",
        task_args={"observation": "symbols"},
        episodes=96,
        quick_episodes=6,
        workers=2,
    ),
    Case(
        name="Crafter pixels",
        task="crafter",
        task_args={"observation": "pixels"},
        episodes=64,
        quick_episodes=4,
        workers=2,
    ),
    Case(
        name="HalfCheetah",
        task="cheetah-velocity",
        task_args={},
        episodes=160,
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


def measure_case(
    case: Case, quick: bool, repeats: int, modes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Rows of one task: bare, and of the modes that are asked for."""
    episodes = case.quick_episodes if quick else case.episodes
    workers = 0 if quick else case.workers
    found: dict[str, list[tuple[Timing, Timing]]] = {f"{mode} to disk": [] for mode in modes}
    dataset = ""
    with tempfile.TemporaryDirectory() as folder:
        snapshot = write_policy(Path(folder) / "policy", case)
        for number in range(repeats):
            for mode, timings in found.items():
                policy = "random" if mode.startswith("random") else snapshot
                if policy is None:
                    continue
                path = Path(folder) / f"{mode}-{number}"
                config = CollectConfig(
                    task=case.task,
                    task_args=case.task_args,
                    dataset=path,
                    episodes=episodes,
                    environments=_ENVIRONMENTS,
                    workers=workers,
                    policy=str(policy),
                )
                seconds = _time(lambda config=config: collect(config))
                timings.append(_compare(case, path, seconds, workers))
                with DatasetReader.open(path) as reader:
                    dataset = reader.dataset_id
    yield from _rows(case, found, workers, dataset)


def write_policy(path: Path, case: Case) -> Path | None:
    """An untrained policy of 3 layers of 128 features; None if no policy acts in the task."""
    try:
        schema = task_schema(case.task, case.task_args)
        policy = Policy(schema, ArchitectureConfig(model_width=128, layers=3), (0.99,), 0.99)
    except UsageError:
        return None
    path.mkdir()
    for name, content in encode_snapshot(policy, update=0).items():
        (path / name).write_bytes(content)
    return path


def _compare(case: Case, path: Path, seconds: float, workers: int) -> tuple[Timing, Timing]:
    """The collection's timing, and that of bare stepping of its episodes."""
    with DatasetReader.open(path) as reader:
        stored = [reader.read_episode(row) for row in range(len(reader))]
    # An array an episode: to pickle an object a step would slow bare stepping down.
    scripts = [(e.record.seed or 0, e.action["action"]) for e in stored]
    steps = sum(episode.length for episode in stored)
    started = time.perf_counter()
    resets = step_bare(case.task, case.task_args, scripts, _ENVIRONMENTS, workers)
    bare = time.perf_counter() - started
    return (
        Timing(steps=steps, seconds=seconds, reset_seconds=resets),
        Timing(steps=steps, seconds=bare, reset_seconds=resets),
    )


def _rows(
    case: Case, found: dict[str, list[tuple[Timing, Timing]]], workers: int, dataset: str
) -> Iterator[dict[str, Any]]:
    bare = [timing for timings in found.values() for _, timing in timings]
    yield _row(case, "bare", bare, None, workers, dataset)
    for mode, timings in found.items():
        if timings:
            ours = [timing for timing, _ in timings]
            yield _row(case, mode, ours, [bare for _, bare in timings], workers, dataset)


def _row(
    case: Case,
    mode: str,
    timings: Sequence[Timing],
    bare: Sequence[Timing] | None,
    workers: int,
    dataset: str,
) -> dict[str, Any]:
    def ratio(rate: Callable[[Timing], float]) -> float | None:
        if bare is None:
            return None
        pairs = zip(timings, bare, strict=True)
        return statistics.median(rate(ours) / rate(theirs) for ours, theirs in pairs)

    return {
        "command": shlex.join(["python", "benchmarks/collect.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "dataset": dataset,
        "seed": 0,
        "task": case.name,
        "mode": mode,
        "environments": _ENVIRONMENTS,
        "workers": workers,
        "value": statistics.median(timing.rate for timing in timings),
        "apart": statistics.median(timing.rate_apart for timing in timings),
        "unit": "steps/s",
        "of_bare": ratio(lambda timing: timing.rate),
        "of_bare_apart": ratio(lambda timing: timing.rate_apart),
    }


def _time(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a task and mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="small and in this process, in 60 s")
    parser.add_argument("--repeats", type=int, default=3, help="readings that medians are taken of")
    parser.add_argument("--task", action="append", help="name of a row's task; all by default")
    parser.add_argument("--mode", action="append", choices=_MODES, help="who acts; both by default")
    given = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where workers find bare stepping
    for case in CASES:
        if given.task and case.name not in given.task:
            continue
        repeats = 1 if given.quick else given.repeats
        for row in measure_case(case, given.quick, repeats, given.mode or _MODES):
            print(json.dumps(row) if given.json else _describe(row), flush=True)


def _describe(row: dict[str, Any]) -> str:
    text = f"{row['task']:16} {row['mode']:15} {row['value']:9,.0f} steps/s, {row['apart']:9,.0f} apart"
    if row["of_bare"] is None:
        return text
    return f"{text}; {row['of_bare']:.2f} of bare, {row['of_bare_apart']:.2f} apart"


if __name__ == "__main__":
    main()
