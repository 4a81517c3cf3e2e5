"""What retelling is worth: MazeRunner, 9 x 9 with 2 goals, with and without relabelling.

Both arms learn from the same 200,000 environment steps of a random policy, as long as each other; one
of them also reads the variants that `retold relabel` makes of these episodes. Both are tried under the
same three settings, and the plain arm's best is what the other's best is held against. Ten times along
the way the policy plays 200 evaluation mazes that no training can draw; a cell's score is the mean of
its last three points. With `--loop` the steps are not given but collected by the newest policy, a tenth
before each point. A cell that is finished is kept in `--cells` and not run again.

    python benchmarks/learn_maze.py
    python benchmarks/learn_maze.py --loop
    python benchmarks/learn_maze.py --quick --json
"""

import argparse
import json
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from provenance import cpu_seconds, describe_commit, describe_machine

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.registry import PolicyRegistry
from retold.relabel.command import RelabelConfig, relabel
from retold.train.command import TrainConfig, train

TASK_ARGUMENTS: dict[str, Any] = {"size": 9, "goals": [2, 2], "limit": 60}
ARMS = ("plain", "retold")
SETTINGS: dict[str, dict[str, Any]] = {
    "slow": {"learning_rate": 3e-4},
    "default": {"learning_rate": 5e-4},
    "fast": {"learning_rate": 1e-3},
}
POINTS = 10
_SCORED_POINTS = 3
_ROUND = 100
"""Episodes collected at once."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much one cell may do."""

    steps: int = 200_000
    """Environment steps."""
    updates: int = 150
    """Trained before each point of the curve."""
    evaluation_episodes: int = 200
    is_loop: bool = False
    """Whether the newest policy collects, instead of a random one before all training."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: an arm under one setting and seed."""

    arm: str
    setting: str
    seed: int

    @property
    def name(self) -> str:
        """Also the name of its files."""
        return f"{self.arm}-{self.setting}-{self.seed}"


def run_cell(cell: Cell, sizes: Sizes, folder: Path, commit: str) -> dict[str, Any]:
    """Learn once from nothing; what is found is kept in `<folder>/<cell>.json`."""
    kept = folder / f"{cell.name}.json"
    identity = {**asdict(cell), **asdict(sizes), "task": TASK_ARGUMENTS, **SETTINGS[cell.setting]}
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        if found["identity"] == identity:
            return found
    cpu, wall = cpu_seconds(), time.monotonic()
    work = folder / cell.name
    shutil.rmtree(work, ignore_errors=True)
    raw, retold, run = work / "raw", work / "retold", work / "run"
    if not sizes.is_loop:
        raw = random_episodes(cell.seed, sizes.steps, folder)
    PolicyRegistry.create(run)
    steps = 0 if sizes.is_loop else sizes.steps
    curve: list[dict[str, float]] = []
    for point in range(1, POINTS + 1):
        if sizes.is_loop:
            steps = collect_steps(raw, sizes.steps * point // POINTS, cell.seed, str(run))
        if cell.arm == "retold":
            relabel(RelabelConfig(source=raw, target=retold, variants=8, seed=cell.seed, workers=0))
        train(_train_config(cell, sizes, raw, retold, run, point))
        played = evaluate(
            EvaluateConfig(
                policy=run,
                episodes=sizes.evaluation_episodes,
                environments=50,
                action="sample",
                seed=cell.seed,
            )
        )
        goals = played.goals_completed
        curve.append({"updates": point * sizes.updates, "steps": steps, "goals": goals})
        print(f"{cell.name}: {point * sizes.updates} updates, {goals:.2f} goals", file=sys.stderr)
    outcome: dict[str, Any] = {
        "identity": identity,
        "commit": commit,
        "dataset": CommitLog.open(raw).dataset_id,
        "curve": curve,
        "cpu_minutes": (cpu_seconds() - cpu) / 60,
        "wall_minutes": (time.monotonic() - wall) / 60,
    }
    aside = kept.with_suffix(".part")
    aside.write_text(json.dumps(outcome))
    aside.replace(kept)
    shutil.rmtree(work)
    return outcome


def random_episodes(seed: int, steps: int, folder: Path) -> Path:
    """The dataset of a seed that every cell of it reads, collected once."""
    path = folder / f"random-{seed}"
    collect_steps(path, steps, seed, "random")
    return path


def collect_steps(path: Path, steps: int, seed: int, policy: str) -> int:
    """Collect whole rounds until a dataset holds that many steps; returns how many it holds."""
    held = rounds = 0
    if (path / "dataset.json").exists():
        with DatasetReader.open(path) as reader:
            held, rounds = int(reader.lengths.sum()), len(reader) // _ROUND
    while held < steps:
        held += collect(
            CollectConfig(
                task="maze",
                task_args=TASK_ARGUMENTS,
                dataset=path,
                policy=policy,
                episodes=_ROUND,
                first=rounds * _ROUND,
                environments=50,
                seed=seed,
                epsilon=None if policy == "random" else 0.1,
            )
        ).steps
        rounds += 1
    return held


def _train_config(
    cell: Cell, sizes: Sizes, raw: Path, retold: Path, run: Path, point: int
) -> TrainConfig:
    is_retold = cell.arm == "retold"
    return TrainConfig(
        run=run,
        data=(raw, retold) if is_retold else (raw,),
        weight=(1.0, 3.0) if is_retold else (),
        updates=point * sizes.updates,
        checkpoint_every=sizes.updates,
        publish_every=sizes.updates,
        resume=point > 1,
        seed=cell.seed,
        context_length=TASK_ARGUMENTS["limit"],
        attention_window=TASK_ARGUMENTS["limit"] + 1,
        **SETTINGS[cell.setting],
    )


def score(found: dict[str, Any]) -> float:
    """Goals completed an episode, of two, over the last points of a cell's curve."""
    return statistics.mean(point["goals"] for point in found["curve"][-_SCORED_POINTS:])


def best_setting(found: Sequence[dict[str, Any]], arm: str) -> tuple[str, list[float]]:
    """The setting with the highest median score over seeds, and the scores by seed."""
    scores: dict[str, list[float]] = {}
    for cell in found:
        if cell["identity"]["arm"] == arm:
            scores.setdefault(cell["identity"]["setting"], []).append(score(cell))
    name = max(scores, key=lambda setting: statistics.median(scores[setting]))
    return name, scores[name]


def rows(found: Sequence[dict[str, Any]], random_goals: float) -> Iterator[dict[str, Any]]:
    """One row a measured value; the comparison of the arms' best settings comes last."""
    facts = {
        "command": shlex.join(["python", "benchmarks/learn_maze.py", *sys.argv[1:]]),
        "machine": describe_machine(),
    }
    yield {**facts, "measure": "random policy", "value": random_goals, "unit": "goals an episode"}
    for cell in found:
        about = {
            **facts,
            **{name: cell["identity"][name] for name in ("arm", "setting", "seed")},
            **{name: cell[name] for name in ("commit", "dataset")},
        }
        for measure, value, unit in (
            ("score", score(cell), f"goals an episode, mean of the last {_SCORED_POINTS} points"),
            ("curve", [(p["updates"], p["goals"]) for p in cell["curve"]], "(updates, goals)"),
            ("steps", cell["curve"][-1]["steps"], "environment steps"),
            ("cpu time", cell["cpu_minutes"], "CPU-minutes"),
        ):
            yield {**about, "measure": measure, "value": value, "unit": unit}
    medians = {}
    for arm in ARMS:
        setting, scores = best_setting(found, arm)
        medians[arm] = statistics.median(scores)
        yield {
            **facts,
            "arm": arm,
            "setting": setting,
            "measure": "median of the best setting",
            "value": medians[arm],
            "seeds": scores,
            "unit": "goals an episode",
        }
    yield {
        **facts,
        "measure": "retold over plain",
        "value": medians["retold"] / medians["plain"],
        "unit": "ratio of medians",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="one short cell an arm, within 60 s")
    parser.add_argument("--loop", action="store_true", help="the newest policy collects")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2 (quick: 0)")
    parser.add_argument("--settings", nargs="+", choices=tuple(SETTINGS), help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="cells at once (default: 2)")
    parser.add_argument("--cells", type=Path, help="folder of finished cells (default: runs/…)")
    given = parser.parse_args(arguments)
    name = "learn-maze" + ("-loop" if given.loop else "") + ("-quick" if given.quick else "")
    folder = given.cells or Path("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    small = {"steps": 6_000, "updates": 8, "evaluation_episodes": 50} if given.quick else {}
    sizes = Sizes(is_loop=given.loop, **small)
    settings = given.settings or (["default"] if given.quick else list(SETTINGS))
    cells = [
        Cell(arm=arm, setting=setting, seed=seed)
        for seed in given.seeds or ([0] if given.quick else [0, 1, 2])
        for setting in settings
        for arm in ARMS
    ]
    commit = describe_commit()
    if not given.loop:
        for seed in sorted({cell.seed for cell in cells}):
            random_episodes(seed, sizes.steps, folder)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(run_cell, cell, sizes, folder, commit) for cell in cells]
        found = [future.result() for future in pending]
    random_goals = evaluate(
        EvaluateConfig(policy=Path("random"), task="maze", task_args=TASK_ARGUMENTS, episodes=600)
    ).goals_completed
    for row in rows(found, random_goals):
        print(json.dumps(row) if given.json else _line(row), flush=True)


def _line(row: dict[str, Any]) -> str:
    about = " ".join(str(row[name]) for name in ("arm", "setting", "seed") if name in row)
    value = row["value"]
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    seeds = f" (seeds: {', '.join(f'{s:.2f}' for s in row['seeds'])})" if "seeds" in row else ""
    return f"{about:20} {row['measure']:28} {text} {row['unit']}{seeds}"


if __name__ == "__main__":
    main()
