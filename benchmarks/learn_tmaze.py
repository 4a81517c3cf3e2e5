"""Learning to remember: the passive T-Maze, through the real stages, with and without its schedule.

Each run collects some episodes with the newest policy, trains some updates on everything so far, and
repeats. Every few rounds a greedy evaluation on episodes of their own decides when to stop: at the
third in a row with success of at least 0.95. The score is taken once, after that, on 200 episodes
that decided nothing. A maze has one of two cues, so a greedy policy plays two different episodes:
a success near 0, 0.5 or 1 is all there can be. `--whole` never stops early, and so shows whether
what was learned lasts.

    python benchmarks/learn_tmaze.py
    python benchmarks/learn_tmaze.py --quick --json
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import cpu_seconds, describe_commit, describe_machine

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.registry import PolicyRegistry
from retold.train.command import TrainConfig, train

_SCORED_EPISODES = 200
_STOPPING_EPISODES = 48
_STOPPING_SEED = 1_000
"""Added to the seed of a run: the episodes that decide when to stop are never those scored."""
_ENOUGH = 0.95


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much one run may do."""

    corridor: int
    most_steps: int
    episodes: int = 24
    """Collected in a round."""
    updates: int = 25
    """Trained in a round."""
    rounds_between_evaluations: int = 4
    is_whole: bool = False
    """Whether to go on when the stopping rule is met, until the steps run out."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run came to."""

    exploration: str
    seed: int
    dataset: str
    success: float
    mean_return: float
    steps: int
    updates: int
    cpu_minutes: float
    wall_minutes: float
    solved_steps: int | None
    """Environment steps at which the stopping rule was first met."""
    later_success: float | None
    """Least success in the evaluations after that, with `--whole`."""


def learn(sizes: Sizes, exploration: str, epsilon: float | None, seed: int) -> Outcome:
    """Learn once from nothing, in a folder of its own."""
    cpu, wall = cpu_seconds(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="learn-tmaze-") as folder:
        raw, run = Path(folder) / "raw", Path(folder) / "run"
        PolicyRegistry.create(run)
        rounds = steps = good = 0
        solved_steps: int | None = None
        later: list[float] = []
        while steps + sizes.episodes * (sizes.corridor + 1) <= sizes.most_steps and (
            sizes.is_whole or solved_steps is None
        ):
            collected = collect(
                CollectConfig(
                    task="tmaze",
                    task_args={"corridor": sizes.corridor},
                    dataset=raw,
                    policy=str(run),
                    episodes=sizes.episodes,
                    first=rounds * sizes.episodes,
                    environments=sizes.episodes,
                    seed=seed,
                    epsilon=epsilon,
                )
            )
            steps += collected.steps
            rounds += 1
            updates = rounds * sizes.updates
            train(
                TrainConfig(
                    run=run,
                    data=(raw,),
                    updates=updates,
                    resume=rounds > 1,
                    seed=seed,
                    context_length=sizes.corridor + 1,
                )
            )
            if rounds % sizes.rounds_between_evaluations == 0:
                success = _success(run, _STOPPING_EPISODES, _STOPPING_SEED + seed)
                if solved_steps is not None:
                    later.append(success)
                good = good + 1 if success >= _ENOUGH else 0
                if good == 3 and solved_steps is None:
                    solved_steps = steps
                print(
                    f"{exploration}, seed {seed}: {steps} steps, {updates} updates, "
                    f"success {success:.2f}, {(cpu_seconds() - cpu) / 60:.2f} CPU-minutes",
                    file=sys.stderr,
                )
        score = evaluate(EvaluateConfig(policy=run, episodes=_SCORED_EPISODES, seed=seed))
        assert score.success is not None
        return Outcome(
            exploration=exploration,
            seed=seed,
            dataset=CommitLog.open(raw).dataset_id,
            success=score.success,
            mean_return=score.mean_return,
            steps=steps,
            updates=rounds * sizes.updates,
            cpu_minutes=(cpu_seconds() - cpu) / 60,
            wall_minutes=(time.monotonic() - wall) / 60,
            solved_steps=solved_steps,
            later_success=min(later, default=None),
        )


def rows(outcome: Outcome, commit: str) -> Iterator[dict[str, Any]]:
    """One row a measured value.

    Args:
        outcome: what was measured.
        commit: what was checked out when the code was loaded; it may have moved on since.
    """
    facts = {
        "command": shlex.join(["python", "benchmarks/learn_tmaze.py", *sys.argv[1:]]),
        "commit": commit,
        "machine": describe_machine(),
        "dataset": outcome.dataset,
        "seed": outcome.seed,
        "exploration": outcome.exploration,
    }
    for measure, value, unit in (
        ("success", outcome.success, f"share of {_SCORED_EPISODES} greedy episodes"),
        ("mean return", outcome.mean_return, "reward an episode"),
        ("steps", outcome.steps, "environment steps"),
        ("updates", outcome.updates, "updates"),
        ("cpu time", outcome.cpu_minutes, "CPU-minutes"),
        ("wall time", outcome.wall_minutes, "minutes"),
        ("steps until solved", outcome.solved_steps, "environment steps"),
        (
            "least success after that",
            outcome.later_success,
            f"share of {_STOPPING_EPISODES} greedy episodes",
        ),
    ):
        if value is None:
            continue
        yield {**facts, "measure": measure, "value": value, "unit": unit}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short corridor and few steps, within 60 s; it may not be solved",
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2 (quick: 0)")
    parser.add_argument("--corridor", type=int, help="default: 20 (quick: 3)")
    parser.add_argument(
        "--exploration",
        choices=("task", "plain", "both"),
        default="both",
        help="the task's schedule, plain epsilon-greedy of 0.1, or one after the other (default)",
    )
    parser.add_argument("--whole", action="store_true", help="spend all steps: never stop early")
    commit = describe_commit()
    given = parser.parse_args(arguments)
    corridor = given.corridor or (3 if given.quick else 20)
    sizes = Sizes(
        corridor=corridor, most_steps=1_600 if given.quick else 40_000, is_whole=given.whole
    )
    for exploration, epsilon in (("task", None), ("plain", 0.1)):
        if given.exploration not in (exploration, "both"):
            continue
        for seed in given.seeds or ([0] if given.quick else [0, 1, 2]):
            outcome = learn(sizes, exploration, epsilon, seed)
            if given.json:
                for row in rows(outcome, commit):
                    print(json.dumps(row), flush=True)
            else:
                print(
                    f"{exploration:6} seed {seed}: success {outcome.success:.3f}, "
                    f"{outcome.steps} steps, {outcome.updates} updates, "
                    f"{outcome.cpu_minutes:.2f} CPU-minutes",
                    flush=True,
                )


def _success(run: Path, episodes: int, seed: int) -> float:
    success = evaluate(EvaluateConfig(policy=run, episodes=episodes, seed=seed)).success
    assert success is not None
    return success


if __name__ == "__main__":
    main()
