"""The tasks by name: their arguments, descriptions, spaces and environments."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from retold.schemas.dataset_schema import DatasetSchema, LimitKind, TaskDescription
from retold.schemas.errors import TaskError
from retold.schemas.exploration import ExplorationSchedule
from retold.schemas.spaces import Space
from retold.schemas.vocabulary import GoalVocabulary
from retold.tasks.spaces import from_gymnasium


@dataclass(frozen=True)
class Argument:
    """One argument of a task."""

    default: Any
    minimum: int = 0
    choices: tuple[str, ...] = ()
    is_range: bool = False
    """Whether `[least, most]` is taken beside a single number."""
    is_odd: bool = False


TASKS: dict[str, dict[str, Argument]] = {
    "crafter": {
        "observation": Argument("symbols", choices=("symbols", "pixels")),
        "preset": Argument("easy", choices=("easy", "full")),
        "goals": Argument(3, minimum=1),
        "limit": Argument(500, minimum=1),
    },
    "maze": {
        "size": Argument(11, minimum=5, is_odd=True),
        "goals": Argument([1, 3], minimum=1, is_range=True),
        "limit": Argument(250, minimum=1),
        "shuffle_actions": Argument(False),
    },
    "tmaze": {"corridor": Argument(20, minimum=1), "slack": Argument(0)},
}
TASK_NAMES = tuple(TASKS)


def complete_arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A task's arguments, defaults filled in and each one checked.

    Raises:
        TaskError: the task or an argument does not exist, or a value is out of range.
    """
    if name not in TASKS:
        raise TaskError(f"There is no task {name!r}. {_suggest(name, TASK_NAMES)}")
    arguments = TASKS[name]
    for key in given:
        if key not in arguments:
            raise TaskError(f"Task {name} has no argument {key!r}. {_suggest(key, arguments)}")
    return {
        key: _check(name, key, argument, given.get(key, argument.default))
        for key, argument in arguments.items()
    }


def make_task(name: str, given: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """A ready environment; the simulator is imported now."""
    kwargs = complete_arguments(name, given)
    if name == "tmaze":
        from retold.tasks.tmaze import TMaze

        return TMaze(**kwargs)
    from retold.tasks.instruction_wrapper import InstructionWrapper

    if name == "maze":
        from retold.tasks.maze import Maze

        return InstructionWrapper(Maze(**{**kwargs, "goals": tuple(kwargs["goals"])}))
    try:
        from retold.tasks.crafter import Crafter
    except ImportError as error:
        raise TaskError(
            f"Task crafter needs the package {error.name!r}. Install it with "
            f"`pip install 'retold[envs]'`."
        ) from error
    return InstructionWrapper(Crafter(**kwargs))


def describe_task(name: str, given: Mapping[str, Any]) -> TaskDescription:
    """What is stored of a task; no simulator is started."""
    kwargs = complete_arguments(name, given)
    return TaskDescription(
        name=name,
        kwargs=kwargs,
        code_version="1",
        limit_is=_LIMITS[name],
        horizon=kwargs["corridor"] + 1 + kwargs["slack"] if name == "tmaze" else kwargs["limit"],
        vocabulary=_vocabulary(name, kwargs),
        max_instruction_length=_most_goals(name, kwargs),
    )


def task_spaces(name: str, given: Mapping[str, Any]) -> tuple[Space, Space]:
    """Observation and action space as they are stored."""
    environment = make_task(name, given)
    return (
        from_gymnasium(environment.observation_space),
        from_gymnasium(environment.action_space),
    )


def task_schema(name: str, given: Mapping[str, Any]) -> DatasetSchema:
    """The schema of a dataset that holds this task alone."""
    observation_space, action_space = task_spaces(name, given)
    return DatasetSchema(
        tasks=(describe_task(name, given),),
        observation_space=observation_space,
        action_space=action_space,
    )


def exploration_schedule(name: str, given: Mapping[str, Any]) -> ExplorationSchedule | None:
    """The exploration that a task declares for learned policies, or None."""
    if name != "tmaze":
        return None
    from retold.tasks.tmaze import tmaze_exploration

    return tmaze_exploration(**complete_arguments(name, given))


_LIMITS: dict[str, LimitKind] = {
    "crafter": "truncation",
    "maze": "truncation",
    "tmaze": "termination",
}


def _most_goals(name: str, kwargs: Mapping[str, Any]) -> int:
    if name == "tmaze":
        return 0
    return int(kwargs["goals"][1] if name == "maze" else kwargs["goals"])


def _vocabulary(name: str, kwargs: Mapping[str, Any]) -> GoalVocabulary | None:
    if name == "crafter":
        from retold.tasks.crafter_goals import VOCABULARY

        return VOCABULARY
    if name == "maze":
        from retold.tasks.maze import maze_vocabulary

        return maze_vocabulary(kwargs["size"])
    return None


def _check(name: str, key: str, argument: Argument, value: Any) -> Any:
    where = f"Task {name}: argument {key!r} is {value!r}"
    if argument.choices:
        if value not in argument.choices:
            raise TaskError(f"{where}. Choose one of: {', '.join(argument.choices)}.")
        return value
    if isinstance(argument.default, bool):
        if not isinstance(value, bool):
            raise TaskError(f"{where}. Give true or false.")
        return value
    if argument.is_range:
        bounds = [value, value] if isinstance(value, int) else value
        is_pair = isinstance(bounds, list | tuple) and len(bounds) == 2
        if not is_pair or not all(_is_int(b) and b >= argument.minimum for b in bounds):
            raise TaskError(f"{where}. Give a whole number of at least {argument.minimum}, or two.")
        if bounds[0] > bounds[1]:
            raise TaskError(f"{where}. Give the smaller number first.")
        return list(bounds)
    if not _is_int(value) or value < argument.minimum or (argument.is_odd and value % 2 == 0):
        kind = "an odd number" if argument.is_odd else "a whole number"
        raise TaskError(f"{where}. Give {kind} of at least {argument.minimum}.")
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _suggest(name: str, known: Any) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {nearest[0]!r}?" if nearest else f"There are: {', '.join(known)}."
