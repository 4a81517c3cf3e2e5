"""What retelling is worth: MazeRunner through the real stages, with and without relabelling.

Each cell collects episodes with its newest policy, retells them (or not), trains some updates on
everything so far, and repeats until its environment steps are spent. Both arms share everything but
the retold dataset, and both are tried under the same three settings: the plain arm's best setting is
what the other arm is held against. Ten times along the way the policy plays 200 evaluation mazes, which
no training run can draw; a cell's score is the mean of its last three points. A cell that is
finished is kept in `--cells` and not run again.

    python benchmarks/learn_maze.py
    python benchmarks/learn_maze.py --quick --json
"""

import argparse
import json
import os
import platform
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
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


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much one cell may do."""

    steps: int = 200_000
    """Environment steps."""
    episodes: int = 64
    """Collected in a round."""
    updates: int = 10
    """Trained in a round."""
    evaluation_episodes: int = 200


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
    cpu, wall = _cpu_seconds(), time.monotonic()
    work = folder / cell.name
    shutil.rmtree(work, ignore_errors=True)
    raw, retold, run = work / "raw", work / "retold", work / "run"
    PolicyRegistry.create(run)
    rounds = steps = 0
    curve: list[dict[str, float]] = []
    while steps < sizes.steps:
        steps += collect(_collect_config(cell, sizes, raw, run, rounds)).steps
        if cell.arm == "retold":
            relabel(RelabelConfig(source=raw, target=retold, variants=8, seed=cell.seed, workers=0))
        rounds += 1
        train(_train_config(cell, sizes, raw, retold, run, rounds))
        if steps >= (len(curve) + 1) * sizes.steps / POINTS:
            played = evaluate(
                EvaluateConfig(
                    policy=run, episodes=sizes.evaluation_episodes, action="sample", seed=cell.seed
                )
            )
            curve.append({"steps": steps, "goals": played.goals_completed})
            print(
                f"{cell.name}: {steps} steps, {played.goals_completed:.2f} goals", file=sys.stderr
            )
    outcome: dict[str, Any] = {
        "identity": identity,
        "commit": commit,
        "dataset": CommitLog.open(raw).dataset_id,
        "curve": curve,
        "steps": steps,
        "updates": rounds * sizes.updates,
        "cpu_minutes": (_cpu_seconds() - cpu) / 60,
        "wall_minutes": (time.monotonic() - wall) / 60,
    }
    aside = kept.with_suffix(".part")
    aside.write_text(json.dumps(outcome))
    aside.replace(kept)
    shutil.rmtree(work)
    return outcome


def _collect_config(cell: Cell, sizes: Sizes, raw: Path, run: Path, rounds: int) -> CollectConfig:
    return CollectConfig(
        task="maze",
        task_args=TASK_ARGUMENTS,
        dataset=raw,
        policy=str(run),
        episodes=sizes.episodes,
        first=rounds * sizes.episodes,
        environments=sizes.episodes,
        seed=cell.seed,
        epsilon=0.1,
    )


def _train_config(
    cell: Cell, sizes: Sizes, raw: Path, retold: Path, run: Path, rounds: int
) -> TrainConfig:
    is_retold = cell.arm == "retold"
    return TrainConfig(
        run=run,
        data=(raw, retold) if is_retold else (raw,),
        weight=(1.0, 3.0) if is_retold else (),
        updates=rounds * sizes.updates,
        checkpoint_every=sizes.updates,
        publish_every=sizes.updates,
        resume=rounds > 1,
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
        "machine": f"{_processor()}, {os.cpu_count()} cores",
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
            ("curve", [(p["steps"], p["goals"]) for p in cell["curve"]], "(steps, goals)"),
            ("updates", cell["updates"], "updates"),
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
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2 (quick: 0)")
    parser.add_argument("--settings", nargs="+", choices=tuple(SETTINGS), help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="cells at once (default: 2)")
    parser.add_argument("--cells", type=Path, help="folder of finished cells (default: runs/…)")
    given = parser.parse_args(arguments)
    name = "learn-maze-quick" if given.quick else "learn-maze"
    folder = given.cells or Path("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    sizes = Sizes(steps=8_000, evaluation_episodes=32) if given.quick else Sizes()
    settings = given.settings or (["default"] if given.quick else list(SETTINGS))
    cells = [
        Cell(arm=arm, setting=setting, seed=seed)
        for seed in given.seeds or ([0] if given.quick else [0, 1, 2])
        for setting in settings
        for arm in ARMS
    ]
    commit = _commit()
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


def _commit() -> str:
    output = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return output.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_seconds() -> float:
    """CPU time of this process and of every child that has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main()
