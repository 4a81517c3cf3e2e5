"""Learning, through the real stages: cells of a task, an encoder and a seed, one curve each.

A cell collects some episodes with its newest policy, trains some updates on everything so far, and
repeats. Every few rounds an evaluation on episodes of their own gives a point of the curve, and decides
when to stop: at the third in a row that reaches the bar. The score is taken once, after that, on 200
episodes that decided nothing. `--whole` never stops early. Points are appended to
`benchmarks/learn/CELL.jsonl`; a cell that was killed goes on from there, and one that has its score is
not run again until its definition changes.

    python benchmarks/learn.py list
    python benchmarks/learn.py run tmaze-50-transformer-0
    python benchmarks/learn.py run --quick --json tmaze-20-transformer-0
    python benchmarks/learn.py report
"""

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from learn_cells import Cell, all_cells
from provenance import cpu_seconds, describe_commit, describe_machine

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.evaluate.command import EvaluateConfig, EvaluateResult, evaluate
from retold.policy.registry import PolicyRegistry
from retold.relabel.command import RelabelConfig, relabel
from retold.tasks.registry import complete_arguments, find_task
from retold.train.command import TrainConfig, train

CURVES = Path(__file__).parent / "learn"
_WORK = Path("runs/learn")
_SCORED_EPISODES = 200
_STOPPING_SEED = 1_000
"""Added to the seed of a cell: the episodes that decide when to stop are never those scored."""
_IN_A_ROW = 3
_SLOTS = 50
"""Episodes in flight at once."""


class Curve:
    """The lines of a cell's file: what it is, its points, and in the end its score."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.path = folder / f"{cell.name}.jsonl"
        self._task = cell.task
        self._definition = json.loads(json.dumps(cell.definition))
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.lines = [json.loads(line) for line in lines]

    @property
    def is_current(self) -> bool:
        """Whether it was made by the cell as it is defined now.

        Unfinished, it may have been meant to stop elsewhere; solved, to be given other steps.
        """
        if not self.lines:
            return False
        made_by, now = self.lines[0], self._definition
        if self.score is None:
            made_by = {**made_by, **{key: now[key] for key in ("most_steps", "stopping_bar")}}
        elif self.is_solved:
            made_by = {**made_by, "most_steps": now["most_steps"]}
        return _set_keys(made_by) == _set_keys(now)

    @property
    def is_solved(self) -> bool:
        """Whether the last evaluations all reached what learning stops at."""
        last = self.points[-_IN_A_ROW:]
        return len(last) == _IN_A_ROW and all(map(self._stops, last))

    def _stops(self, point: dict[str, Any]) -> bool:
        task = self._task
        bar = task.bar if task.stopping_bar is None else task.stopping_bar
        return bool(point["value"] >= bar and task.has_gained(point.get("attempt_gain")))

    @property
    def points(self) -> list[dict[str, Any]]:
        """One for each evaluation."""
        return [line for line in self.lines[1:] if "score" not in line]

    @property
    def score(self) -> dict[str, Any] | None:
        """What the cell came to, if it is finished."""
        found = [line for line in self.lines[1:] if "score" in line]
        return found[0] if found else None

    def begin(self) -> None:
        """Start anew."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self.lines = []
        self.append(self._definition)

    def go_on(self) -> None:
        """Keep the points, under the definition as it is now."""
        lines = [self._definition, *self.lines[1:]]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.lines = lines

    def append(self, line: dict[str, Any]) -> None:
        """Keep one more line."""
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.lines.append(line)


def _set_keys(definition: dict[str, Any]) -> dict[str, Any]:
    """Without what is None: a definition may gain such a key."""
    return {key: value for key, value in definition.items() if value is not None}


class Learning:
    """A cell under way, in a folder of its own."""

    def __init__(self, cell: Cell, curve: Curve, work: Path, commit: str) -> None:
        self._cell, self._curve, self._commit = cell, curve, commit
        self._raw, self._retold, self._run = work / "raw", work / "retold", work / "run"
        self._cpu, self._wall = cpu_seconds(), time.monotonic()
        if not (curve.is_current and work.exists()):
            shutil.rmtree(work, ignore_errors=True)
            curve.begin()
        else:
            curve.go_on()
        last = curve.points[-1] if curve.points else {}
        self.round = int(last.get("round", 0))
        self._spent = (last.get("cpu_minutes", 0.0), last.get("wall_minutes", 0.0))
        PolicyRegistry.create(self._run)

    @property
    def steps(self) -> int:
        """Environment steps collected."""
        if not (self._raw / "dataset.json").exists():
            return 0
        with DatasetReader.open(self._raw) as reader:
            return int(reader.lengths.sum())

    def play_round(self) -> None:
        """Collect, retell and train once."""
        task, seed = self._cell.task, self._cell.seed
        collect(
            CollectConfig(
                task=task.task,
                task_args=task.task_args,
                dataset=self._raw,
                policy=str(self._run),
                episodes=task.episodes,
                first=self.round * task.episodes,
                environments=min(task.episodes, _SLOTS),
                seed=seed,
                epsilon=task.epsilon,
                workers=0,
            )
        )
        data, weight = (self._raw,), ()
        if task.is_retold:
            relabel(RelabelConfig(source=self._raw, target=self._retold, seed=seed, workers=0))
            data, weight = (self._raw, self._retold), (1.0, 1.0)
        self.round += 1
        horizon = find_task(task.task).horizon(_arguments(self._cell))
        settings = {"context_length": horizon, "attention_window": horizon + 1, **task.train}
        train(
            TrainConfig(
                run=self._run,
                data=data,
                weight=weight,
                updates=self.round * task.updates,
                resume=(self._run / "config.json").exists(),
                seed=seed,
                encoder=self._cell.encoder,
                **settings,
            )
        )

    def evaluate(self, *, is_last: bool = False) -> dict[str, Any]:
        """A point of the curve, or the score; it is kept."""
        task, seed = self._cell.task, self._cell.seed
        played = evaluate(
            EvaluateConfig(
                policy=self._run,
                episodes=_SCORED_EPISODES if is_last else task.stopping_episodes,
                environments=_SLOTS,
                action=task.action,
                seed=seed if is_last else _STOPPING_SEED + seed,
            )
        )
        value = getattr(played, task.measure)
        gain = _attempt_gain(played)
        line = {
            "score" if is_last else "value": value,
            **({} if gain is None else {"attempt_gain": gain}),
            "is_reached": value >= task.bar and task.has_gained(gain),
            "mean_return": played.mean_return,
            "success": played.success,
            "round": self.round,
            "steps": self.steps,
            "updates": self.round * task.updates,
            "cpu_minutes": self._spent[0] + (cpu_seconds() - self._cpu) / 60,
            "wall_minutes": self._spent[1] + (time.monotonic() - self._wall) / 60,
            "commit": self._commit,
        }
        if is_last:
            line |= {"machine": describe_machine(), "dataset": CommitLog.open(self._raw).dataset_id}
        self._curve.append(line)
        return line


def run_cell(cell: Cell, folder: Path, commit: str, *, is_whole: bool) -> Curve:
    """Learn, or go on learning, until the cell has its score."""
    curve = Curve(cell, folder)
    if curve.is_current and curve.score is not None:
        return curve
    work = _WORK / cell.name
    learning, task = Learning(cell, curve, work, commit), cell.task
    round_steps = 0
    while learning.steps + round_steps <= task.most_steps and (is_whole or not curve.is_solved):
        before = learning.steps
        learning.play_round()
        round_steps = max(round_steps, learning.steps - before)
        if learning.round % task.rounds_between_evaluations == 0:
            point = learning.evaluate()
            print(
                f"{cell.name}: {point['steps']} steps, {point['updates']} updates, "
                f"{task.measure} {point['value']:.3f}, {point['cpu_minutes']:.2f} CPU-minutes, "
                f"{point['wall_minutes']:.1f} minutes",
                file=sys.stderr,
                flush=True,
            )
    learning.evaluate(is_last=True)
    shutil.rmtree(work)
    return curve


def rows(cell: Cell, curve: Curve) -> Iterator[dict[str, Any]]:
    """One row a measured value of a finished cell."""
    score = curve.score
    assert score is not None
    task = cell.task
    facts = {
        "command": shlex.join(["python", "benchmarks/learn.py", *sys.argv[1:]]),
        "commit": score["commit"],
        "machine": score["machine"],
        "dataset": score["dataset"],
        "cell": cell.name,
        "seed": cell.seed,
    }
    unit = {"success": "share of episodes", "goals_completed": "goals an episode"}
    for measure, value, of in (
        (task.measure, score["score"], unit.get(task.measure, "reward an episode")),
        ("bar", task.bar, unit.get(task.measure, "reward an episode")),
        ("attempt_gain", score.get("attempt_gain"), "last attempt's return over the first's"),
        ("steps", score["steps"], "environment steps"),
        ("updates", score["updates"], "updates"),
        ("cpu time", score["cpu_minutes"], "CPU-minutes"),
        ("wall time", score["wall_minutes"], "minutes"),
        ("curve", [(p["steps"], p["value"]) for p in curve.points], "(steps, value)"),
    ):
        if value is not None:
            yield {**facts, "measure": measure, "value": value, "unit": of}


def report(cells: Sequence[Cell], folder: Path) -> Iterator[str]:
    """A table of all finished cells."""
    yield "| task | encoder | seed | figure | bar | steps | updates | CPU-minutes | commit |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for cell in sorted(cells, key=lambda cell: (cell.task.name, cell.encoder, cell.seed)):
        score = Curve(cell, folder).score
        if score is None:
            continue
        gain = f", attempts {score['attempt_gain']:.2f}×" if "attempt_gain" in score else ""
        yield (
            f"| {cell.task.name} | {cell.encoder} | {cell.seed} | {score['score']:.3g}{gain} | "
            f"{cell.task.bar:.3g}{'' if score['is_reached'] else ', not reached'} | "
            f"{score['steps']:,} | {score['updates']:,} | {score['cpu_minutes']:.2f} | "
            f"{score['commit']} |"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("list", "run", "report"))
    parser.add_argument("cells", nargs="*", help="names, or beginnings of names (default: all)")
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument(
        "--quick", action="store_true", help="a few rounds, within 60 s; kept apart"
    )
    parser.add_argument("--whole", action="store_true", help="spend all steps: never stop early")
    given = parser.parse_intermixed_args(arguments)
    commit = describe_commit()
    cells = _chosen(given.cells or ([next(all_cells()).name] if given.quick else []))
    folder = _WORK / "quick" if given.quick else CURVES
    if given.what == "report" and not given.json:
        print("\n".join(report(cells, folder)))
        return
    for cell in cells:
        if given.what == "list":
            print(f"{cell.name:36} {_standing(Curve(cell, folder))}")
            continue
        if given.quick:
            cell = _quick(cell)
        curve = Curve(cell, folder)
        if given.what == "run":
            curve = run_cell(cell, folder, commit, is_whole=given.whole)
        if curve.score is not None and given.json:
            for row in rows(cell, curve):
                print(json.dumps(row), flush=True)
        elif given.what == "run":
            print(f"{cell.name:36} {_standing(curve)}", flush=True)


def _chosen(names: Sequence[str]) -> list[Cell]:
    known = list(all_cells())
    for name in names:
        if not any(cell.name.startswith(name) for cell in known):
            sys.exit(f"There is no cell {name!r}. See them with `benchmarks/learn.py list`.")
    return [c for c in known if not names or any(c.name.startswith(name) for name in names)]


def _quick(cell: Cell) -> Cell:
    """Four rounds of few episodes, and so one point."""
    horizon = find_task(cell.task.task).horizon(_arguments(cell))
    steps = 4 * 8 * horizon
    return replace(cell, task=replace(cell.task, most_steps=steps, episodes=8, updates=5))


def _arguments(cell: Cell) -> dict[str, Any]:
    return complete_arguments(cell.task.task, cell.task.task_args)


def _attempt_gain(played: EvaluateResult) -> float | None:
    """The return of the last attempt that all episodes finished, over the first's."""
    whole = [row for row in played.attempts if row["episodes"] == played.episodes]
    return whole[-1]["mean_return"] / max(whole[0]["mean_return"], 1e-9) if whole else None


def _standing(curve: Curve) -> str:
    if not curve.lines:
        return "not begun"
    mark = "" if curve.is_current else ", under another definition"
    if curve.score is not None:
        reached = "" if curve.score["is_reached"] else ", bar not reached"
        return f"{curve.score['score']:.3f} after {curve.score['steps']} steps{reached}{mark}"
    return f"{len(curve.points)} points{mark}"


if __name__ == "__main__":
    main()
