"""Rewards of goal-conditioned data, recomputed for another goal.

Names as they are written on the command line and stored with every variant:

    within:D             1 where the goal is at most D away, otherwise 0 (PointMaze, AntMaze)
    penalty:D            0 where the goal is at most D away, otherwise -1 (Fetch)
    negative-distance    minus the distance (Fetch, dense)
    exp-distance         exp(-distance) (PointMaze, dense)
    environment          `compute_reward` of the environment that the dataset names
    module:function      a function of your own, called as `compute_reward` is

Distances are Euclidean, computed in the goals' own precision, as Gymnasium-Robotics does.
"""

import contextlib
import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.schemas.dataset_schema import TaskDescription
from retold.schemas.errors import RelabelError, UsageError

GoalReward = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float32]]
"""Rewards `[n]` of transitions, from `achieved_goal[t+1]` and the goal, `[n, ...]` each."""

_WITH_DISTANCE = ("within", "penalty")
_PLAIN = ("negative-distance", "exp-distance", "environment")
NAMES = (*(f"{name}:DISTANCE" for name in _WITH_DISTANCE), *_PLAIN, "module:function")


def distance_of(name: str) -> float | None:
    """How near counts as reached, for the rewards that say so."""
    kind, _, rest = name.partition(":")
    return float(rest) if kind in _WITH_DISTANCE else None


def check_goal_reward(name: str) -> None:
    """Refuse a name that stands for nothing, before any work.

    Raises:
        UsageError: the names that there are, or what keeps the function from being found.
    """
    kind, colon, rest = name.partition(":")
    if kind in _WITH_DISTANCE:
        try:
            is_distance = 0 <= float(rest) < float("inf")
        except ValueError:
            is_distance = False
        if not is_distance:
            raise UsageError(
                f"--goal-reward is {name!r}, but {kind} needs a distance of at least 0. Write, for "
                f"example, {kind}:0.45."
            )
    elif name not in _PLAIN:
        if not colon:
            raise UsageError(f"--goal-reward is {name!r}. Choose one of {', '.join(NAMES)}.")
        _import_function(kind, rest)


def make_goal_reward(name: str, task: TaskDescription, *, is_ours: bool = True) -> GoalReward:
    """The function behind a name.

    Args:
        name: as on the command line.
        task: of the dataset; `environment` asks it for the environment.
        is_ours: whether the user gave the name. One that stands in a dataset may be anybody's, and
            then no function that it names is imported or called.

    Raises:
        RelabelError: the environment is not installed or has no `compute_reward`, or the name is
            a function's and not the user's own.
    """
    kind, _, rest = name.partition(":")
    function = _named_reward(kind, rest)
    if function is None and name == "environment":
        compute_reward = _environment_reward(task)
        function = lambda achieved, goal: compute_reward(achieved, goal, {})
    elif function is None and is_ours:
        imported = _import_function(kind, rest)
        function = lambda achieved, goal: imported(achieved, goal, {})
    elif function is None:
        raise RelabelError(
            f"Task {task.name}: its rewards come from {name!r}, a function that a dataset names "
            f"and that is therefore not run. Retell it to have them computed again."
        )
    return lambda achieved, goal: _checked(name, function(achieved, goal), len(achieved))


def _named_reward(kind: str, rest: str) -> Callable[[NDArray[Any], NDArray[Any]], Any] | None:
    if kind in _WITH_DISTANCE:
        limit = float(rest)
        reached, missed = (1.0, 0.0) if kind == "within" else (0.0, -1.0)
        return lambda achieved, goal: np.where(distances(achieved, goal) <= limit, reached, missed)
    if kind == "negative-distance":
        return lambda achieved, goal: -distances(achieved, goal)
    if kind == "exp-distance":
        return lambda achieved, goal: np.exp(-distances(achieved, goal))
    return None


def distances(achieved: NDArray[Any], goal: NDArray[Any]) -> NDArray[Any]:
    """`[n]`: Euclidean distances over the last axis."""
    return np.asarray(np.linalg.norm(achieved - goal, axis=-1))


def _import_function(module: str, function: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a user's module raises
        raise UsageError(
            f"--goal-reward {module}:{function}: it cannot be imported: {type(error).__name__}: "
            f"{error}. Check that the module is installed or on PYTHONPATH, also where the workers "
            f"run."
        ) from error
    return found


def _environment_reward(task: TaskDescription) -> Callable[..., Any]:
    """`compute_reward` of the environment, looked up by its id among those that are registered.

    Gymnasium's own way to make an environment from a stored specification would import and call
    whatever the dataset says.
    """
    import gymnasium

    try:
        specification = json.loads(task.kwargs["minari"]["env_spec"])
        name, kwargs = str(specification["id"]), dict(specification.get("kwargs") or {})
    except (KeyError, TypeError, ValueError) as error:
        raise RelabelError(
            f"Task {task.name}: the dataset does not say which environment it comes from. Give "
            f"--goal-reward a name or a function: {', '.join(NAMES)}."
        ) from error
    with contextlib.suppress(ImportError):  # the environment may come from elsewhere
        gymnasium.register_envs(importlib.import_module("gymnasium_robotics"))
    try:
        if name not in gymnasium.registry:
            raise RelabelError(f"there is no environment {name!r} among those installed")
        function: Callable[..., Any] = gymnasium.make(name, **kwargs).unwrapped.compute_reward  # type: ignore[attr-defined]
    except Exception as error:  # whatever a simulator raises
        raise RelabelError(
            f"Task {task.name}: the reward function of its environment cannot be had: {error}. "
            f"Install the environment, or give --goal-reward a name: {', '.join(NAMES)}."
        ) from error
    return function


def _checked(name: str, rewards: Any, count: int) -> NDArray[np.float32]:
    rewards = np.asarray(rewards, np.float32)
    if rewards.shape != (count,) or not np.isfinite(rewards).all():
        raise RelabelError(
            f"--goal-reward {name}: it returned shape {rewards.shape} for {count} transitions, or "
            f"numbers that are not finite. Return one finite reward for each."
        )
    checked: NDArray[np.float32] = rewards
    return checked
