"""`retold loop`: collect, relabel, train, publish, evaluate, and collect with the new policy.

An iteration calls the functions of the single commands. Each of them does only what is not done
yet, so an iteration that was interrupted is simply done again; finished iterations are the lines
of `RUN/iterations.jsonl`.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retold.cli.loop_async import run_side_by_side
from retold.cli.loop_config import LoopConfig
from retold.cli.loop_plan import LoopPlan, read_plan
from retold.cli.loop_stages import STAGES, count_variants, run_stage
from retold.cli.printing import format_table
from retold.dataset.reader import DatasetReader
from retold.evaluate.command import evaluate
from retold.policy.registry import PolicyRegistry
from retold.schemas.canonical import encode_json
from retold.schemas.errors import RunError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One finished iteration: a line of `iterations.jsonl`. Counts are totals so far."""

    iteration: int
    episodes: int
    steps: int
    variants: int
    updates: int
    evaluation_return: float | None
    evaluation_success: float | None
    bytes_per_variant: float | None


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """Every finished iteration of a run."""

    run: str
    iterations: tuple[Iteration, ...]
    best: int | None
    """Updates behind the policy that was evaluated best, which `RUN/BEST` names."""

    def describe(self) -> str:
        """The table of iterations, and the best of them."""
        header = list(Iteration.__dataclass_fields__)
        table = format_table(
            header, ([asdict(row)[name] for name in header] for row in self.iterations)
        )
        best = "" if self.best is None else f"\n\nbest  {self.best:,} updates, {self.run}/BEST"
        return table + best


_PART = ".part"
"""Ends the name of a file that is being written: what a kill leaves behind means nothing."""


def run_loop(config: LoopConfig) -> LoopResult:
    """Runs the iterations that are missing.

    Raises:
        RunError: the run exists and `--resume` is not given, or it is another loop's.
    """
    plan = read_plan(config)
    _open_run(plan, resume=config.resume)
    finished = read_iterations(plan.run)
    for number in _trained_iterations(plan, len(finished)):
        row = _finish_iteration(plan, number)
        if row is best_iteration((*finished, row)):
            PolicyRegistry.open(plan.run).mark_best(row.updates)
        _append(plan.run / "iterations.jsonl", encode_json(asdict(row)))
        finished = (*finished, row)
        logger.info(
            "Iteration %d is finished, %d to go: %d episodes, %d variants, %d updates.",
            number,
            plan.iterations - number - 1,
            row.episodes,
            row.variants,
            row.updates,
        )
    best = best_iteration(finished)
    return LoopResult(
        run=str(plan.run), iterations=finished, best=None if best is None else best.updates
    )


def best_iteration(rows: Sequence[Iteration]) -> Iteration | None:
    """The first of those with the highest mean return; None where none was evaluated."""
    scored = [row for row in rows if row.evaluation_return is not None]
    return max(scored, key=lambda row: row.evaluation_return or 0.0, default=None)


def read_iterations(run: Path) -> tuple[Iteration, ...]:
    """The finished iterations of a run. A last line that was cut short is none."""
    path = run / "iterations.jsonl"
    if not path.exists():
        return ()
    lines = path.read_bytes().splitlines(keepends=True)
    return tuple(Iteration(**json.loads(line)) for line in lines if line.endswith(b"\n"))


def _trained_iterations(plan: LoopPlan, first: int) -> Iterator[int]:
    """Numbers of the missing iterations, each once it is trained."""
    if plan.ahead:
        yield from run_side_by_side(plan, first)
        return
    for number in range(first, plan.iterations):
        for stage in STAGES:
            logger.info("Iteration %d: %s begins.", number, stage)
            run_stage(stage, plan, number)
        yield number


def _finish_iteration(plan: LoopPlan, number: int) -> Iteration:
    """Evaluate what was trained, and count."""
    score = None if plan.evaluate is None else evaluate(plan.evaluate_config(number))
    variants, variant_bytes = count_variants(plan)
    with DatasetReader.open(plan.raw) as reader:
        episodes, steps = len(reader), int(reader.lengths.sum())
    return Iteration(
        iteration=number,
        episodes=episodes,
        steps=steps,
        variants=variants,
        updates=plan.updates_after(number),
        evaluation_return=None if score is None else score.mean_return,
        evaluation_success=None if score is None else score.success,
        bytes_per_variant=variant_bytes / variants if variants else None,
    )


def _open_run(plan: LoopPlan, *, resume: bool) -> None:
    path = plan.run / "loop.json"
    wanted = encode_json(plan.to_json())
    if path.exists():
        if not resume:
            raise RunError(
                f"{plan.run}: the run exists already. Give --resume to go on with it, or another "
                f"--run to start afresh."
            )
        _compare(path, json.loads(path.read_bytes()), json.loads(wanted))
    elif plan.run.exists() and any(not _is_part(entry) for entry in plan.run.iterdir()):
        raise RunError(
            f"{plan.run}: the folder holds files but no loop.json, so it is not a loop's run. "
            f"Give another --run."
        )
    else:
        plan.run.mkdir(parents=True, exist_ok=True)
        _write(path, wanted)
    PolicyRegistry.create(plan.run)
    lines = read_iterations(plan.run)
    _write(plan.run / "iterations.jsonl", b"".join(encode_json(asdict(row)) for row in lines))


def _is_part(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_PART)


def _compare(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in sorted({*stored, *wanted}):
        if stored.get(name) != wanted.get(name):
            raise RunError(
                f"{path}: the run has {name} = {json.dumps(stored.get(name))}, but "
                f"{json.dumps(wanted.get(name))} is asked for. Restore the value, or give "
                f"another --run."
            )


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, content: bytes) -> None:
    """Replaces a file as a whole: a reader sees the old one or the new one."""
    part = path.with_name(f".{path.name}{_PART}")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
