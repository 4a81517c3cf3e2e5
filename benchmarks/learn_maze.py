"""What retelling is worth: MazeRunner through the real stages, with and without relabelling.

Each cell collects episodes with its newest policy, retells them (or not), trains some updates on
everything so far, and repeats until its environment steps are spent. Both arms share everything but
the retold dataset, and both are tried under the same three settings: the plain arm's best setting is
what the other arm is held against. Ten times along the way the policy plays evaluation mazes, which
no training run can draw. A cell that is finished is kept in `--cells` and not run again.

    python benchmarks/learn_maze.py
    python benchmarks/learn_maze.py --quick --json
"""

import json
import resource
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.registry import PolicyRegistry
from retold.relabel.command import RelabelConfig, relabel
from retold.train.command import TrainConfig, train

TASK_ARGUMENTS = {"size": 9, "goals": [2, 2], "limit": 42}
ARMS = ("plain", "retold")
SETTINGS: dict[str, dict[str, Any]] = {
    "slow": {"learning_rate": 3e-4},
    "default": {"learning_rate": 5e-4},
    "fast": {"learning_rate": 1e-3},
}
POINTS = 10


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much one cell may do."""

    steps: int = 200_000
    """Environment steps."""
    episodes: int = 64
    """Collected in a round."""
    updates: int = 40
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
            relabel(RelabelConfig(source=raw, target=retold, variants=4, seed=cell.seed, workers=0))
        rounds += 1
        train(_train_config(cell, sizes, raw, retold, run, rounds))
        if steps >= (len(curve) + 1) * sizes.steps / POINTS:
            score = evaluate(
                EvaluateConfig(
                    policy=run, episodes=sizes.evaluation_episodes, action="sample", seed=cell.seed
                )
            )
            curve.append({"steps": steps, "goals": score.goals_completed})
            print(f"{cell.name}: {steps} steps, {score.goals_completed:.2f} goals", file=sys.stderr)
    found = {
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
    aside.write_text(json.dumps(found))
    aside.replace(kept)
    shutil.rmtree(work)
    return found


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
        context_length=int(TASK_ARGUMENTS["limit"]),  # type: ignore[call-overload]
        attention_window=int(TASK_ARGUMENTS["limit"]) + 1,  # type: ignore[call-overload]
        **SETTINGS[cell.setting],
    )


def _cpu_seconds() -> float:
    """CPU time of this process and of every child that has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
