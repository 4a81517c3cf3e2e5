"""The tasks by name, Retold's own and those of other installed packages.

A package adds tasks by an entry point of the group `retold.tasks`, which names a `Task` or a
`TaskFamily`; it is imported when its task is asked for.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

import gymnasium

from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.errors import RetoldError, TaskError
from retold.schemas.exploration import ExplorationSchedule
from retold.schemas.spaces import Space
from retold.tasks.arguments import complete, suggest
from retold.tasks.definition import Task, TaskFamily
from retold.tasks.facts_wrapper import FactsWrapper
from retold.tasks.instruction_wrapper import InstructionWrapper
from retold.tasks.spaces import from_gymnasium
from retold.tasks.trial import make_trial_task
from retold.tasks.world import World

ENTRY_POINTS = "retold.tasks"
"""The group of entry points by which a package adds tasks."""

TRIAL = "trial"
"""Before a task's name: several attempts at it."""

_OWN = {
    "bandit": "retold.tasks.bandit:BANDIT",
    "cheetah-velocity": "retold.tasks.cheetah:CHEETAH_VELOCITY",
    "cheetah-wind": "retold.tasks.cheetah:CHEETAH_WIND",
    "crafter": "retold.tasks.crafter_task:CRAFTER",
    "dark-room": "retold.tasks.dark_room:DARK_ROOM",
    "frozen-lake": "retold.tasks.frozen_lake:FROZEN_LAKE",
    "gym": "retold.tasks.gym:GYM",
    "key-to-door": "retold.tasks.key_to_door:KEY_TO_DOOR",
    "maze": "retold.tasks.maze:MAZE",
    "minigrid": "retold.tasks.minigrid:MINIGRID",
    "package-delivery": "retold.tasks.package_delivery:PACKAGE_DELIVERY",
    "popgym": "retold.tasks.popgym:POPGYM",
    "tmaze": "retold.tasks.tmaze:TMAZE",
    "tmaze-active": "retold.tasks.tmaze:TMAZE_ACTIVE",
    "wind": "retold.tasks.wind:WIND",
    "xland": "retold.tasks.xland:XLAND",
}


def task_names() -> tuple[str, ...]:
    """Names of all tasks and families that are installed, sorted."""
    return tuple(sorted({*_OWN, *_entry_points()}))


def find_task(name: str) -> Task:
    """The task of a name such as `maze` or `popgym/RepeatFirstEasy`.

    Raises:
        TaskError: there is no such task, or what declares it cannot be imported.
    """
    first, slash, member = name.partition("/")
    if first == TRIAL and slash:
        return make_trial_task(find_task(member))
    found = find_declaration(first)
    if isinstance(found, Task):
        if slash:
            raise TaskError(f"Task {first} is no family: it has no {member!r}. Name it {first!r}.")
        return found
    task = found.find(member)
    if task is None:
        raise TaskError(
            f"There is no task {name!r}. {suggest(name, [f'{first}/{m}' for m in found.members()])}"
        )
    return task


def find_declaration(name: str) -> Task | TaskFamily:
    """The task or family of a name without a slash.

    Raises:
        TaskError: there is none, or it cannot be imported.
    """
    others = _entry_points()
    if name not in _OWN and name not in others:
        raise TaskError(f"There is no task {name!r}. {suggest(name, task_names())}")
    if name in others:
        return _load_foreign(others[name])
    module, _, attribute = _OWN[name].partition(":")
    found: Task | TaskFamily = getattr(import_module(module), attribute)
    return found


def complete_arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A task's arguments, defaults filled in and each one checked.

    Raises:
        TaskError: the task or an argument does not exist, or a value is out of range.
    """
    return complete(find_task(name), given)


def make_task(name: str, given: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """A ready environment whose infos say what each transition did; the simulator is imported now.

    Raises:
        TaskError: the task, an argument or the simulator does not exist, or it cannot be made.
    """
    task = find_task(name)
    arguments = complete(task, given)
    try:
        environment = task.make(arguments)
    except ImportError as error:
        raise TaskError(
            f"Task {name} needs the package {error.name!r}. Install it with "
            f"`pip install 'retold[{task.extra}]'`."
        ) from error
    except RetoldError:
        raise
    except Exception as error:  # whatever another package's constructor raises
        raise TaskError(
            f"Task {name} cannot be made with {arguments}: {type(error).__name__}: {error}. Correct "
            f"the task or its arguments."
        ) from error
    if isinstance(environment, World):
        return InstructionWrapper(environment)
    return environment if task.gives_facts else FactsWrapper(environment)


def describe_task(name: str, given: Mapping[str, Any]) -> TaskDescription:
    """What is stored of a task; no simulator is started."""
    task = find_task(name)
    arguments = complete(task, given)
    return TaskDescription(
        name=name,
        kwargs=arguments,
        code_version=task.code_version,
        limit_is=task.limit_is,
        horizon=task.horizon(arguments),
        vocabulary=task.vocabulary(arguments),
        max_instruction_length=task.most_goals(arguments),
    )


def task_spaces(name: str, given: Mapping[str, Any]) -> tuple[Space, Space]:
    """Observation and action space as they are stored."""
    environment = make_task(name, given)
    try:
        return (
            from_gymnasium(environment.observation_space),
            from_gymnasium(environment.action_space),
        )
    finally:
        environment.close()


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
    task = find_task(name)
    return task.exploration(complete(task, given))


def task_versions(name: str) -> dict[str, str]:
    """Versions of the packages that a task's dynamics come from: a replay holds within them."""
    return {
        package: _version(package)
        for package in dict.fromkeys(("retold", *find_task(name).packages, "numpy"))
    }


@cache
def _entry_points() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINTS):
        other = found.get(point.name)
        is_own = point.name in _OWN or point.name == TRIAL
        taken = "Retold itself" if is_own else other and _distribution(other)
        if taken:
            raise TaskError(
                f"The package {_distribution(point)} adds a task {point.name!r}, which {taken} has "
                f"already. Rename its entry point, or uninstall it."
            )
        found[point.name] = point
    return found


def _load_foreign(point: EntryPoint) -> Task | TaskFamily:
    try:
        found = point.load()
    except Exception as error:
        raise TaskError(
            f"The package {_distribution(point)} adds the task {point.name!r} as {point.value}, "
            f"which cannot be imported: {type(error).__name__}: {error}. Correct or uninstall it."
        ) from error
    if not isinstance(found, Task | TaskFamily) or found.name != point.name:
        raise TaskError(
            f"The package {_distribution(point)} adds the task {point.name!r} as {point.value}, "
            f"which is no Task or TaskFamily of that name. Correct or uninstall it."
        )
    return found


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
