"""`schemas/<sha256>.json` of a dataset: tasks, spaces, fields and goal vocabularies."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.instruction import REWARD_VERSION
from retold.schemas.spaces import (
    Leaf,
    Space,
    space_from_json,
    space_leaves,
    space_to_json,
)
from retold.schemas.vocabulary import GoalVocabulary

LimitKind = Literal["termination", "truncation"]

IMPORTED = "imported"
"""The code version of tasks that Retold cannot make: their episodes came from another format."""

ACHIEVED_GOAL, DESIRED_GOAL = "observation/achieved_goal", "observation/desired_goal"
"""Leaves of goal-conditioned observations, as Gymnasium's `GoalEnv` names them."""

TRANSITION_LEAVES = (
    Leaf("reward", "float32", ()),
    Leaf("terminated", "bool", ()),
    Leaf("truncated", "bool", ()),
    Leaf("environment_terminated", "bool", ()),
    Leaf("reset", "bool", ()),
)
"""Fields that every raw shard has, besides observations and actions."""


@dataclass(frozen=True, kw_only=True)
class TaskDescription:
    """One task with its arguments: enough to make it again and to read its goal ids."""

    name: str
    kwargs: Mapping[str, Any]
    """Every argument, defaults filled in."""
    code_version: str
    """Version of the task's dynamics: replay is promised within one."""
    limit_is: LimitKind
    """Whether the step limit is part of the task or a cap from outside."""
    horizon: int
    """Longest episode, in transitions."""
    vocabulary: GoalVocabulary | None = None
    """None for tasks without goals."""
    max_instruction_length: int = 0
    """Most goals in one instruction; 0 without goals."""
    reward_version: int = REWARD_VERSION
    goal_reward: str | None = None
    """What recomputed the rewards of goal-conditioned variants, as `retold relabel --goal-reward`
    takes it; None for everything else."""

    @property
    def is_imported(self) -> bool:
        """Whether the episodes came from another format: bounds of a Box are then a claim only."""
        return self.code_version == IMPORTED

    @property
    def identity(self) -> bytes:
        """Equal for equal tasks: canonical JSON of everything above."""
        return encode_json(_task_to_json(self))


@dataclass(frozen=True, kw_only=True)
class DatasetSchema:
    """What the arrays and ids of a shard mean. All shards of a dataset agree on the spaces."""

    tasks: tuple[TaskDescription, ...]
    observation_space: Space
    action_space: Space
    info_leaves: tuple[Leaf, ...] = ()
    """Optional leaves of a transition: declared infos (`info/…`), infos of the environment's reset
    (`initial_info/…`, at step 0), and of an imported file its own rewards and flags where they say
    more than Retold's (`source/…`) and its other columns (`column/…`)."""

    @cached_property
    def observation_leaves(self) -> tuple[Leaf, ...]:
        """The observation's leaves, paths starting with `observation`."""
        return space_leaves(self.observation_space, "observation")

    @cached_property
    def action_leaves(self) -> tuple[Leaf, ...]:
        """The action's leaves, paths starting with `action`."""
        return space_leaves(self.action_space, "action")

    @property
    def is_goal_conditioned(self) -> bool:
        """Whether observations hold an achieved and a desired goal of one form (`GoalEnv`)."""
        leaves = {leaf.path: leaf for leaf in self.observation_leaves}
        one, other = leaves.get(ACHIEVED_GOAL), leaves.get(DESIRED_GOAL)
        if one is None or other is None or one.is_ragged or other.is_ragged:
            return False
        return (one.dtype, one.shape) == (other.dtype, other.shape)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Every per-step leaf of a raw shard; goal events are kept apart."""
        return (
            *self.observation_leaves,
            *self.action_leaves,
            *TRANSITION_LEAVES,
            *self.info_leaves,
        )

    def covers(self, other: "DatasetSchema") -> bool:
        """Whether a policy made for this schema can see and act on the other's episodes.

        Spaces and goal vocabulary must be equal, and no instruction longer than the policy reads.
        """
        most_goals, other_most_goals = (
            max(task.max_instruction_length for task in schema.tasks) for schema in (self, other)
        )
        return (
            self.observation_space == other.observation_space
            and self.action_space == other.action_space
            and self.tasks[0].vocabulary == other.tasks[0].vocabulary
            and other_most_goals <= most_goals
        )

    def to_json(self) -> dict[str, Any]:
        """The schema as plain JSON values; each vocabulary once, by its hash."""
        return {
            "format_version": 1,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "fields": [
                {
                    "path": leaf.path,
                    "dtype": leaf.dtype,
                    "shape": list(leaf.shape),
                    "ragged": leaf.is_ragged,
                    "optional": leaf.is_optional,
                }
                for leaf in self.leaves
            ],
            "tasks": [_task_to_json(task) for task in self.tasks],
            "vocabularies": {
                task.vocabulary.sha256: task.vocabulary.to_json()
                for task in self.tasks
                if task.vocabulary is not None
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DatasetSchema":
        """The inverse of `to_json`; all fields but the optional ones follow from the spaces."""
        vocabularies = {
            sha256: GoalVocabulary.from_json(item)
            for sha256, item in content["vocabularies"].items()
        }
        return cls(
            tasks=tuple(_task_from_json(item, vocabularies) for item in content["tasks"]),
            observation_space=space_from_json(content["observation_space"]),
            action_space=space_from_json(content["action_space"]),
            info_leaves=tuple(
                Leaf(
                    item["path"],
                    item["dtype"],
                    tuple(item["shape"]),
                    is_ragged=item["ragged"],
                    is_optional=True,
                )
                for item in content["fields"]
                if item["optional"]
            ),
        )

    @cached_property
    def encoded(self) -> bytes:
        """The bytes of the schema's file."""
        return encode_json(self.to_json())

    @cached_property
    def sha256(self) -> str:
        """The name of the schema's file."""
        return sha256_hex(self.encoded)


def _task_to_json(task: TaskDescription) -> dict[str, Any]:
    goal_reward = {} if task.goal_reward is None else {"goal_reward": task.goal_reward}
    return goal_reward | {
        "name": task.name,
        "kwargs": dict(task.kwargs),
        "code_version": task.code_version,
        "limit_is": task.limit_is,
        "horizon": task.horizon,
        "vocabulary": None if task.vocabulary is None else task.vocabulary.sha256,
        "max_instruction_length": task.max_instruction_length,
        "reward_version": task.reward_version,
    }


def _task_from_json(
    content: Mapping[str, Any], vocabularies: Mapping[str, GoalVocabulary]
) -> TaskDescription:
    sha256 = content["vocabulary"]
    return TaskDescription(
        name=content["name"],
        kwargs=content["kwargs"],
        code_version=content["code_version"],
        limit_is=content["limit_is"],
        horizon=content["horizon"],
        vocabulary=None if sha256 is None else vocabularies[sha256],
        max_instruction_length=content["max_instruction_length"],
        reward_version=content["reward_version"],
        goal_reward=content.get("goal_reward"),
    )
