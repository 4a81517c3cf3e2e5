"""`retold tasks`: which tasks there are, and what one asks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from retold.cli.printing import format_fields, format_table
from retold.schemas.errors import TaskError, UsageError
from retold.tasks.definition import Task, TaskFamily
from retold.tasks.registry import (
    TRIAL,
    complete_arguments,
    describe_task,
    find_declaration,
    find_task,
    make_task,
    task_names,
    task_spaces,
)

if TYPE_CHECKING:
    from retold.schemas.spaces import Space


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """What `retold tasks` is asked."""

    action: Literal["list", "show"] = "list"
    """`list` all tasks, or `show` one."""
    name: str | None = None
    """Task to show, or family to list: for example popgym, or trial/maze."""
    task_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the shown task, as a JSON object."""
    seed: int = 0
    """Seed of the world that is drawn."""
    png: Path | None = None
    """File to draw the first frame into, as a PNG."""

    def __post_init__(self) -> None:
        if self.action == "show" and self.name is None:
            raise UsageError("NAME is missing. Name the task to show; retold tasks lists them.")
        if self.png is not None and self.action != "show":
            raise UsageError("--png draws one task. Write retold tasks show NAME --png FILE.")


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task of the list; None for what is unknown, `note` says why."""

    task: str
    observation: str | None = None
    action: str | None = None
    horizon: int | None = None
    ends_by: str | None = None
    """Whether the limit terminates or truncates."""
    goals: int | None = None
    """Of the vocabulary; 0 without goals."""
    random: float | None = None
    """Mean return of random actions, with default arguments."""
    best: float | None = None
    """Mean return of the reference player."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskList:
    """All tasks."""

    tasks: tuple[TaskRow, ...]

    def describe(self) -> str:
        """A table, every row shown."""
        rows = [_shown(row) for row in self.tasks]
        return format_table(list(rows[0]), [list(row.values()) for row in rows], len(rows))


@dataclass(frozen=True, kw_only=True)
class TaskPage:
    """One task."""

    facts: TaskRow
    sentence: str
    best_player: str
    longest_instruction: int
    example_goals: tuple[str, ...]
    arguments: tuple[Mapping[str, Any], ...]
    """Name, value, default and what it says."""
    instruction: tuple[str, ...]
    """Of the world that is drawn."""
    frame: str | None
    """The first frame as text."""
    png: str | None

    def describe(self) -> str:
        """A page."""
        facts = {"task": self.facts.task, "asks": self.sentence}
        facts |= {name: value for name, value in asdict(self.facts).items() if name != "note"}
        if self.facts.goals:
            facts["goals"] = f"{self.facts.goals:,}, e.g. {'; '.join(self.example_goals)}"
            facts["longest_instruction"] = str(self.longest_instruction)
        if self.best_player:
            facts["best_player"] = self.best_player
        if self.instruction:
            facts["instruction"] = "; ".join(self.instruction)
        if self.png:
            facts["png"] = self.png
        page = [format_fields(facts)]
        if self.arguments:
            names = list(self.arguments[0])
            rows = [list(argument.values()) for argument in self.arguments]
            page.append("arguments\n" + format_table(names, rows))
        if self.frame:
            page.append(self.frame)
        return "\n\n".join(page)


def describe_tasks(config: TasksConfig) -> TaskList | TaskPage:
    """The list of tasks, or one task's page.

    Raises:
        TaskError: there is no such task, or its simulator is not installed.
    """
    if config.action == "show":
        assert config.name is not None
        return _show(config, config.name)
    if config.name is None:
        rows = [_row(name) for name in task_names()]
        return TaskList(tasks=(*rows, TaskRow(task=f"{TRIAL}/TASK", note=_TRIALS)))
    declaration = find_declaration(config.name)
    if isinstance(declaration, Task):
        return TaskList(tasks=(_row(config.name),))
    names = tuple(f"{config.name}/{member}" for member in declaration.members())
    return TaskList(tasks=tuple(_row(name) for name in names))


_TRIALS = "Several attempts at one hidden world of any task."


def _row(name: str) -> TaskRow:
    """What a task is with its default arguments; what cannot be made says why."""
    if "/" not in name:
        declaration = find_declaration(name)
        if isinstance(declaration, TaskFamily):
            return TaskRow(
                task=f"{name}/NAME", note=f"{declaration.sentence} See tasks list {name}."
            )
    try:
        return _facts(name, {})
    except TaskError as error:
        return TaskRow(task=name, note=str(error))


def _facts(name: str, given: Mapping[str, Any]) -> TaskRow:
    task = find_task(name)
    description = describe_task(name, given)
    observation, action = task_spaces(name, given)
    returns = task.returns(description.kwargs)
    vocabulary = description.vocabulary
    return TaskRow(
        task=name,
        observation=describe_space(observation),
        action=describe_space(action),
        horizon=description.horizon,
        ends_by=description.limit_is,
        goals=0 if vocabulary is None else vocabulary.size,
        random=returns.random,
        best=returns.best,
    )


def _show(config: TasksConfig, name: str) -> TaskPage:
    from retold.tasks.drawing import draw_text

    task = find_task(name)
    arguments = complete_arguments(name, config.task_args)
    description = describe_task(name, arguments)
    environment = make_task(name, arguments)
    try:
        observation, facts = environment.reset(seed=config.seed)
        frame = draw_text(environment) or f"observation {observation}"
        if config.png is not None:
            _write_png(config.png, environment)
    finally:
        environment.close()
    goals = () if description.vocabulary is None else description.vocabulary.goals
    return TaskPage(
        facts=_facts(name, arguments),
        sentence=task.sentence,
        best_player=task.returns(arguments).player,
        longest_instruction=description.max_instruction_length,
        example_goals=tuple(" ".join(goals[i]) for i in sorted({0, len(goals) // 2})[: len(goals)]),
        arguments=tuple(
            {
                "argument": key,
                "value": arguments[key],
                "default": argument.default,
                "choices": "|".join(argument.choices) or type(argument.default).__name__,
                "says": argument.help,
            }
            for key, argument in task.arguments.items()
        ),
        instruction=tuple(" ".join(goals[goal]) for goal in facts["instruction"]),
        frame=frame,
        png=None if config.png is None else str(config.png),
    )


def describe_space(space: "Space") -> str:
    """A space in a few words, e.g. `Box[7] float32`."""
    from retold.schemas import spaces

    match space:
        case spaces.BoxSpace():
            return f"Box{list(space.shape)} {space.dtype}"
        case spaces.DiscreteSpace():
            return f"Discrete {space.n}"
        case spaces.MultiDiscreteSpace():
            choices = sorted({int(n) for n in _flat(space.nvec)})
            numbers = f"{choices[0]}" if len(choices) == 1 else f"{choices[0]}-{choices[-1]}"
            return f"MultiDiscrete{list(space.shape)} of {numbers}"
        case spaces.MultiBinarySpace():
            return f"MultiBinary{list(space.shape)}"
        case spaces.TextSpace():
            return f"Text up to {space.max_length}"
        case spaces.DictSpace():
            return "Dict " + ", ".join(key for key, _ in space.spaces)
        case spaces.TupleSpace():
            return f"Tuple ({', '.join(describe_space(item) for item in space.spaces)})"


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, tuple | list):
        return [values]
    return [item for value in values for item in _flat(value)]


def _shown(row: TaskRow) -> dict[str, Any]:
    """The row for people: a note stands where facts are missing."""
    shown = asdict(row)
    note = shown.pop("note")
    return {**shown, "observation": note} if note else shown


def _write_png(path: Path, environment: Any) -> None:
    from retold.tasks.drawing import draw_frame

    frame = draw_frame(environment)
    try:
        from PIL import Image
    except ImportError as error:
        raise TaskError(
            "Drawing needs the package 'pillow'. Install it with `pip install 'retold[video]'`."
        ) from error
    Image.fromarray(frame).save(path, format="PNG")
