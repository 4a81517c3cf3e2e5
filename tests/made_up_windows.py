"""Windows of a made-up task, of any action space, and small learners for them."""

from pathlib import Path
from typing import Any

import numpy as np

from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import EpisodeRecord, Window
from retold.schemas.spaces import BoxSpace, DiscreteSpace, Space
from retold.train.config import TrainConfig


def make_schema(
    action: Space | None = None, observation: Space | None = None, horizon: int = 50
) -> DatasetSchema:
    """Two amounts seen and one of three options taken, unless told otherwise."""
    task = TaskDescription(
        name="made-up", kwargs={}, code_version="1", limit_is="truncation", horizon=horizon
    )
    return DatasetSchema(
        tasks=(task,),
        observation_space=observation or BoxSpace((2,), "float32", -1.0, 1.0),
        action_space=action or DiscreteSpace(3),
    )


def make_window(
    length: int,
    seed: int,
    schema: DatasetSchema,
    *,
    start: int = 0,
    terminated: bool = False,
    instruction: tuple[int, ...] = (),
    **fields: Any,
) -> Window:
    """Random rows; `fields` stand in for some of the window's."""
    rng = np.random.default_rng(seed)
    ends = np.arange(length) == length - 1

    def rows(leaves: Any, count: int, most: int) -> dict[str, Any]:
        return {
            leaf.path: rng.uniform(-1, 1, (count, *leaf.shape)).astype(leaf.dtype)
            if leaf.dtype.startswith("float")
            else rng.integers(0, most, (count, *leaf.shape)).astype(leaf.dtype)
            for leaf in leaves
        }

    values: dict[str, Any] = {
        "record": EpisodeRecord(
            episode_id=f"{seed:032x}",
            task=0,
            length=start + length,
            episode_return=0.0,
            terminated=terminated,
            truncated=not terminated,
            environment_terminated=terminated,
            instruction=instruction,
        ),
        "dataset": 0,
        "start": start,
        "observation": rows(schema.observation_leaves, length + 1, 2),
        "action": rows(schema.action_leaves, length, 2),
        "reward": rng.standard_normal(length).astype(np.float32),
        "terminated": ends & terminated,
        "truncated": ends & (not terminated),
        "reset": np.zeros(length, np.bool_),
        "progress": np.zeros(length + 1, np.uint32),
        "previous_action": None,
        "previous_reward": 0.0,
        "previous_reset": False,
    }
    if start:
        (action,) = rows(schema.action_leaves, 1, 2).values()
        values |= {"previous_action": {"action": action[0]}, "previous_reward": 0.5}
    return Window(**(values | fields))


def make_config(**fields: Any) -> TrainConfig:
    """A learner of few weights."""
    small: dict[str, Any] = {
        "run": Path("run"),
        "data": (Path("raw"),),
        "model_width": 16,
        "layers": 1,
        "heads": 2,
        "head_width": 8,
        "discounts": (0.5, 0.9),
        "acting_discount": 0.9,
        "warmup_updates": 1,
    }
    return TrainConfig(**(small | fields))
