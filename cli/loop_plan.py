"""What a loop repeats: the sections of its TOML file, and each iteration's configurations."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retold.cli.field_types import describe_value
from retold.cli.flags import read_toml, values_from_toml
from retold.cli.loop_config import LoopConfig
from retold.cli.nearest import suggest_nearest
from retold.collect.command import CollectConfig
from retold.evaluate.command import EvaluateConfig
from retold.relabel.command import RelabelConfig
from retold.schemas.dataset_schema import TaskDescription
from retold.schemas.errors import UsageError
from retold.tasks.registry import describe_task
from retold.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class LoopSection:
    """The file's section `[loop]`."""

    run: Path | None = None
    """Folder of the run."""
    iterations: int = 2
    """Iterations in all."""
    seed: int = 0
    """Seed of every stage."""
    ahead: int = 0
    """Iterations that collecting may run ahead of training; 0 runs one stage after the other."""
    raw_weight: float = 1.0
    """How often training draws from the raw dataset, relative to `retold_weight`."""
    retold_weight: float = 1.0
    """How often training draws from the retold dataset, relative to `raw_weight`."""


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """The file's section `[task]`."""

    name: str
    """A task, as `retold collect` takes it."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """The task's arguments."""


@dataclass(frozen=True, kw_only=True)
class LoopPlan:
    """A loop with everything resolved: the stages' configurations of any iteration follow from it."""

    run: Path
    iterations: int
    seed: int
    ahead: int
    task: TaskDescription
    raw_weight: float
    retold_weight: float
    collect: Mapping[str, Any]
    """Values of the file's section; `episodes` is per iteration."""
    relabel: Mapping[str, Any] | None
    """None for a task without goals: there is nothing to retell."""
    train: Mapping[str, Any]
    """Values of the file's section; `updates` is per iteration."""
    evaluate: Mapping[str, Any] | None
    """None: the file has no such section, and nothing is evaluated."""

    @property
    def raw(self) -> Path:
        """The dataset that is collected into."""
        return self.run / "raw"

    @property
    def retold(self) -> Path:
        """The dataset of variants."""
        return self.run / "retold"

    def collect_config(self, iteration: int) -> CollectConfig:
        """Iteration `i` collects episodes `i * n` to `(i + 1) * n - 1` of the loop's seed."""
        config = CollectConfig(
            task=self.task.name,
            task_args=dict(self.task.kwargs),
            dataset=self.raw,
            policy=str(self.run),
            seed=self.seed,
            **self.collect,
        )
        return dataclasses.replace(config, first=iteration * config.episodes)

    def relabel_config(self) -> RelabelConfig:
        """The new shards alone are retold, so every iteration's is the same."""
        return RelabelConfig(
            source=self.raw, target=self.retold, seed=self.seed, **(self.relabel or {})
        )

    def train_config(self, iteration: int, *, is_mixed: bool, resume: bool) -> TrainConfig:
        """Iteration `i` trains up to `(i + 1) * updates`, on variants too where there are some."""
        config = TrainConfig(
            run=self.run,
            data=(self.raw, self.retold) if is_mixed else (self.raw,),
            weight=(self.raw_weight, self.retold_weight) if is_mixed else (),
            seed=self.seed,
            resume=resume,
            **self.train,
        )
        return dataclasses.replace(config, updates=(iteration + 1) * config.updates)

    def evaluate_config(self, iteration: int | None = None) -> EvaluateConfig:
        """Scores the policy at the end of an iteration, or the newest of the run."""
        policy = self.run
        if iteration is not None:
            policy = policy / "policies" / f"{self.updates_after(iteration):08d}"
        return EvaluateConfig(policy=policy, seed=self.seed, **(self.evaluate or {}))

    def updates_after(self, iteration: int) -> int:
        """Updates of the run in all when an iteration is trained."""
        return self.train_config(iteration, is_mixed=False, resume=True).updates

    def to_json(self) -> dict[str, Any]:
        """All that two invocations of one loop must agree on, as plain JSON values."""
        content = dataclasses.asdict(self)
        del content["run"], content["iterations"]
        if not self.ahead:
            del content["ahead"]  # loops from before there was the choice have none
        content["task"] = {"name": self.task.name, "args": dict(self.task.kwargs)}
        for section in ("collect", "relabel", "train", "evaluate"):
            given = content[section] or {}
            content[section] = {n: value for n, value in given.items() if n not in _FREE}
        return {name: _plain(value) for name, value in content.items()}


def read_plan(config: LoopConfig) -> LoopPlan:
    """The loop that the flags and the file ask for.

    Raises:
        UsageError: a section, key or value is wrong, or the run has no folder.
    """
    path = config.config
    content = read_toml(path)
    _check_sections(path, content)
    task_section = TaskSection(**_section(path, content, "task", TaskSection, {}))
    task = describe_task(task_section.name, task_section.args)
    section = LoopSection(**_section(path, content, "loop", LoopSection, {}))
    given = {
        name: value
        for name in ("run", "iterations", "seed", "ahead")
        if (value := getattr(config, name)) is not None
    }
    section = dataclasses.replace(section, **given)
    if section.run is None:
        raise UsageError(f"{path}: the run has no folder. Give --run, or `run` under [loop].")
    if section.iterations < 1:
        raise UsageError(f"--iterations is {section.iterations}, but a loop has at least 1.")
    if section.ahead < 0:
        raise UsageError(f"--ahead is {section.ahead}, but must be at least 0.")
    plan = LoopPlan(
        run=section.run,
        iterations=section.iterations,
        seed=section.seed,
        ahead=section.ahead,
        task=task,
        raw_weight=section.raw_weight,
        retold_weight=section.retold_weight,
        collect=_section(path, content, "collect", CollectConfig, _COLLECT),
        relabel=_relabel_section(path, content, task),
        train=_section(path, content, "train", TrainConfig, _TRAIN),
        evaluate=_section(path, content, "evaluate", EvaluateConfig, _EVALUATE)
        if "evaluate" in content
        else None,
    )
    _check_stages(plan)
    return plan


_SECTIONS = ("task", "collect", "relabel", "train", "evaluate", "loop")
_BY_TASK = "the section [task]"
_BY_LOOP = "the loop"
_BY_SEED = "`seed` under [loop]"
_COLLECT = {
    "follow": _BY_LOOP,
    "task": _BY_TASK,
    "task_args": _BY_TASK,
    "dataset": _BY_LOOP,
    "policy": _BY_LOOP,
    "first": _BY_LOOP,
    "seed": _BY_SEED,
}
_RELABEL = {"source": _BY_LOOP, "target": _BY_LOOP, "seed": _BY_SEED}
_TRAIN = {
    "run": _BY_LOOP,
    "data": _BY_LOOP,
    "weight": "`raw_weight` and `retold_weight` under [loop]",
    "follow": _BY_LOOP,
    "resume": _BY_LOOP,
    "dry_run": _BY_LOOP,
    "seed": _BY_SEED,
}
_FREE = frozenset(
    ("environments", "flush_seconds", "workers", "scheduler", "collectors", "timeout_seconds")
    + ("publish_every", "checkpoint_every", "keep_checkpoints", "threads")
)
"""Values that change no result, so that a resumed loop may change them."""
_EVALUATE = {"policy": _BY_LOOP, "task": _BY_TASK, "task_args": _BY_TASK, "seed": _BY_SEED}


def _check_sections(path: Path, content: Mapping[str, Any]) -> None:
    for name, value in content.items():
        if name not in _SECTIONS:
            nearest = suggest_nearest(name, _SECTIONS) or f" Sections: {', '.join(_SECTIONS)}."
            raise UsageError(f"{path}: there is no section [{name}].{nearest}")
        if not isinstance(value, dict):
            raise UsageError(f"{path}: {name!r} is {value!r}, but [{name}] is a section.")
    if "name" not in content.get("task", {}):
        raise UsageError(f"{path}: no task is named. Write `name` under [task].")


def _section(
    path: Path, content: Mapping[str, Any], name: str, kind: type, managed: Mapping[str, str]
) -> dict[str, Any]:
    table = content.get(name, {})
    return values_from_toml(kind, table, where=f"{path} [{name}]", managed=managed)


def _relabel_section(
    path: Path, content: Mapping[str, Any], task: TaskDescription
) -> Mapping[str, Any] | None:
    if task.vocabulary is not None:
        return _section(path, content, "relabel", RelabelConfig, _RELABEL)
    if "relabel" in content:
        raise UsageError(
            f"{path}: {task.name} has no goals, so there is nothing to retell. "
            f"Remove the section [relabel]."
        )
    return None


def _check_stages(plan: LoopPlan) -> None:
    """Makes every stage's configuration once, so that a wrong value stops the loop at its start."""
    plan.collect_config(0)
    plan.train_config(0, is_mixed=plan.relabel is not None, resume=False)
    plan.evaluate_config()
    if plan.relabel is not None:
        plan.relabel_config()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | None) else describe_value(value)
