"""Any Gymnasium environment as a task `gym/ID`, e.g. `gym/CartPole-v1`.

Observations and rewards are stored as they come. A goal-conditioned environment (`GoalEnv`, whose
observations hold `achieved_goal` and `desired_goal`) is known by its spaces, and can be retold.
"""

from typing import Any

import gymnasium
from gymnasium import error as gymnasium_errors
from gymnasium.envs.registration import EnvSpec

from retold.schemas.errors import TaskError
from retold.tasks.arguments import suggest
from retold.tasks.definition import Argument, Arguments, Task, TaskFamily


def known_ids() -> tuple[str, ...]:
    """Ids that Gymnasium knows now; packages register more when they are imported."""
    return tuple(sorted(gymnasium.registry))


def find_environment(environment_id: str) -> Task | None:
    """The task of an id; `module:ID` imports the module that registers it."""
    try:
        spec = gymnasium.spec(environment_id)
    except (gymnasium_errors.Error, ImportError):
        return None
    limit = spec.max_episode_steps
    return Task(
        name=f"gym/{environment_id}",
        sentence=f"Gymnasium's {environment_id}.",
        arguments={
            "limit": Argument(limit or 0, help="Steps after which an episode is cut."),
            "make": Argument({}, help="What `gymnasium.make` is given besides."),
        },
        limit_is="truncation",
        horizon=lambda arguments: _horizon(environment_id, arguments),
        make=lambda arguments: _make(spec, environment_id, arguments),
        packages=_packages(spec),
    )


def _horizon(environment_id: str, arguments: Arguments) -> int:
    if not arguments["limit"]:
        raise TaskError(
            f"Task gym/{environment_id} has no step limit of its own. Give one, for example "
            f"`--task-args '{{\"limit\": 1000}}'`."
        )
    return int(arguments["limit"])


def _make(spec: EnvSpec, environment_id: str, arguments: Arguments) -> gymnasium.Env[Any, Any]:
    limit = _horizon(environment_id, arguments)
    given = dict(arguments["make"])
    try:
        return gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **given)
    except gymnasium_errors.DependencyNotInstalled as error:
        raise TaskError(
            f"Task gym/{environment_id} needs a package that is not installed: {error}"
        ) from error
    except (gymnasium_errors.Error, TypeError, AttributeError) as error:
        raise TaskError(
            f"Task gym/{environment_id}: Gymnasium cannot make it with {given}: {error}. "
            f"{suggest(environment_id, known_ids())}"
        ) from error


def _packages(spec: EnvSpec) -> tuple[str, ...]:
    module = spec.entry_point if isinstance(spec.entry_point, str) else ""
    first = module.partition(".")[0].partition(":")[0]
    rest = ("mujoco",) if ".mujoco" in module else ()
    return tuple(dict.fromkeys(("gymnasium", *([first] if first else []), *rest)))


GYM = TaskFamily(
    name="gym",
    sentence="Any Gymnasium environment, by its id.",
    members=known_ids,
    find=find_environment,
)
