"""How a task declares itself: a frozen record of facts and of functions of its arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from retold.schemas.dataset_schema import LimitKind
from retold.schemas.exploration import ExplorationSchedule
from retold.schemas.vocabulary import GoalVocabulary

Arguments = Mapping[str, Any]
"""Every argument of a task by name, defaults filled in."""


@dataclass(frozen=True)
class Argument:
    """One argument of a task. The default's type is the argument's."""

    default: Any
    minimum: float = 0
    choices: tuple[str, ...] = ()
    is_range: bool = False
    """Whether `[least, most]` is taken beside a single number."""
    is_odd: bool = False
    help: str = ""
    """What it says, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class ReferenceReturns:
    """What an episode returns on average, as a measure for policies."""

    random: float | None = None
    """To uniformly random actions; None: not known for these arguments."""
    best: float | None = None
    """To the player below; None: not known for these arguments."""
    player: str = ""
    """Who earns `best`: `optimal`, or what it knows and does."""


Player = Callable[[Any], Any]
"""A scripted player of one episode: the next action for an observation."""


def no_vocabulary(arguments: Arguments) -> GoalVocabulary | None:
    """For tasks without goals."""
    return None


def no_goals(arguments: Arguments) -> int:
    """For tasks without goals."""
    return 0


def no_exploration(arguments: Arguments) -> ExplorationSchedule | None:
    """For tasks that leave exploration to the command."""
    return None


def unknown_returns(arguments: Arguments) -> ReferenceReturns:
    """For tasks whose returns nobody has measured."""
    return ReferenceReturns()


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that Retold knows of a task before its simulator is imported."""

    name: str
    sentence: str
    """What is asked of the agent."""
    arguments: Mapping[str, Argument]
    limit_is: LimitKind
    """Whether the step limit is part of the task or a cap from outside."""
    horizon: Callable[[Arguments], int]
    """Longest episode, in transitions."""
    make: Callable[[Arguments], gymnasium.Env[Any, Any]]
    """A ready environment: a `World`, or one whose infos say what a transition did, or any other."""
    code_version: str = "1"
    """Rises when the same seed and actions would show something else."""
    vocabulary: Callable[[Arguments], GoalVocabulary | None] = no_vocabulary
    most_goals: Callable[[Arguments], int] = no_goals
    """Goals of the longest instruction."""
    returns: Callable[[Arguments], ReferenceReturns] = unknown_returns
    exploration: Callable[[Arguments], ExplorationSchedule | None] = no_exploration
    """How a learned policy explores unless it is told."""
    player: Callable[[gymnasium.Env[Any, Any]], Player] | None = None
    """The player behind the reference return, for an environment that was just reset; it may look
    inside."""
    packages: tuple[str, ...] = ()
    """Distributions that the dynamics come from, besides Retold: a replay names their versions."""
    extra: str = "envs"
    """Retold's extra that installs them."""
    is_fast: bool = False
    """Whether a step costs less than handing it to another process."""
    gives_facts: bool = False
    """Whether infos hold `instruction` and `initial_goals` (of a reset), `events`,
    `environment_terminated`, `reset` and `success` (of a step). Whatever else is adapted."""


@dataclass(frozen=True, kw_only=True)
class TaskFamily:
    """Tasks named `family/member`, made when one is asked for."""

    name: str
    sentence: str
    members: Callable[[], tuple[str, ...]]
    """Members that are known; there may be more."""
    find: Callable[[str], Task | None]
    """The task of a member's name, or None if there is none."""
