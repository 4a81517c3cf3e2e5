"""From what is seen at a step to the features of that step."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.inputs import PolicyInputs
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import UsageError
from retold.schemas.spaces import (
    BoxSpace,
    DiscreteSpace,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
)

_ID_FEATURES = 8
_MOST_IDS = 64
"""Integer maps with at most this many values are ids, which are embedded; others are amounts."""


class TimestepEncoder(nn.Module):
    """Observation, previous action, reward, reset, step and instruction as one vector."""

    def __init__(self, schema: DatasetSchema, width: int) -> None:
        super().__init__()
        self._actions = action_count(schema)
        self._start = _action_space(schema).start
        self._horizon = max(task.horizon for task in schema.tasks)
        self.observation = nn.ModuleDict(
            {_name(leaf): make_leaf_encoder(leaf) for leaf in schema.observation_leaves}
        )
        sizes = [_features(module) for module in self.observation.values()]
        self.instruction = InstructionEncoder(schema, width)
        # The null action is one more than the task's; then reward, reset and step.
        inputs = sum(sizes) + (self._actions + 1) + 3 + width
        self.mix = nn.Sequential(nn.Linear(inputs, 2 * width), nn.LeakyReLU())
        self.project = nn.Linear(2 * width, width)

    def forward(self, inputs: PolicyInputs) -> Tensor:
        """`[batch, time, features]`."""
        seen = [self.observation[_name_of(path)](rows) for path, rows in inputs.observation.items()]
        (action,) = inputs.previous_action.values()
        index = torch.where(inputs.has_previous, action.long() - self._start + 1, 0)
        facts = [
            F.one_hot(index, self._actions + 1).float(),
            inputs.previous_reward[..., None],
            inputs.previous_reset[..., None].float(),
            (inputs.step.float() / self._horizon)[..., None],
            self.instruction(inputs.instruction, inputs.progress),
        ]
        features: Tensor = self.project(self.mix(torch.cat([*seen, *facts], -1)))
        return features


class InstructionEncoder(nn.Module):
    """Goal words to features: the goals that are left, in order, the current one first.

    Completed goals are masked, so that what is left to do looks the same however it was reached.
    """

    word_ids: Tensor

    def __init__(self, schema: DatasetSchema, width: int) -> None:
        super().__init__()
        vocabulary = schema.tasks[0].vocabulary
        self._goals = max(task.max_instruction_length for task in schema.tasks)
        self._width = width
        if vocabulary is None or not self._goals:
            self._goals = 0
            return
        table = torch.from_numpy(vocabulary.word_ids)
        padded = torch.cat([torch.zeros_like(table[:1]), table])
        self.register_buffer("word_ids", padded, persistent=False)
        self.words = nn.Embedding(len(vocabulary.words) + 1, 16, padding_idx=0)
        self.goal = nn.Linear(16 * table.shape[1], 32)
        self.project = nn.Linear(32 * self._goals, width)

    def forward(self, instruction: Tensor, progress: Tensor) -> Tensor:
        """`[batch, time, features]` from `[batch, goals]` ids and `[batch, time]` progress."""
        batch, time = progress.shape
        if not self._goals:
            return torch.zeros(batch, time, self._width, device=progress.device)
        # [batch, goals, words, 16] -> [batch, goals, 32]
        goals = F.leaky_relu(self.goal(self.words(self.word_ids[instruction]).flatten(-2)))
        goals = goals * (instruction > 0)[..., None]
        padded = torch.cat([goals, torch.zeros_like(goals)], 1)
        places = progress.clamp(max=self._goals)[..., None] + torch.arange(
            self._goals, device=progress.device
        )
        rows = torch.arange(batch, device=progress.device)[:, None, None]
        left: Tensor = self.project(padded[rows, places].flatten(-2))
        return left


class _IdEncoder(nn.Module):
    """A map of ids, each embedded, then mixed."""

    def __init__(self, count: int, cells: int) -> None:
        super().__init__()
        self.features = 64
        self.table = nn.Embedding(count, _ID_FEATURES)
        self.mix = nn.Linear(cells * _ID_FEATURES, self.features)

    def forward(self, ids: Tensor) -> Tensor:
        # A Discrete leaf has no axes of its own: [batch, time] -> [batch, time, 1].
        flat = ids.flatten(2).long() if ids.ndim > 2 else ids.long()[..., None]
        return F.leaky_relu(self.mix(self.table(flat).flatten(-2)))


class _ImageEncoder(nn.Module):
    """Frames `[height, width, channels]` of bytes, through three convolutions."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.features = 128
        self.convolutions = nn.Sequential(
            nn.Conv2d(shape[2], 16, 8, 4),
            nn.LeakyReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.LeakyReLU(),
            nn.Conv2d(32, 32, 3, 1),
            nn.LeakyReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            size = self.convolutions(torch.zeros(1, shape[2], shape[0], shape[1])).shape[-1]
        self.mix = nn.Linear(size, self.features)

    def forward(self, frames: Tensor) -> Tensor:
        # [batch, time, height, width, channels] -> [batch * time, channels, height, width]
        flat = frames.flatten(0, 1).permute(0, 3, 1, 2).float() / 255 - 0.5
        features: Tensor = self.mix(self.convolutions(flat))
        return F.leaky_relu(features).view(*frames.shape[:2], self.features)


class _VectorEncoder(nn.Module):
    """Amounts, scaled to about [-1, 1] where the space is bounded."""

    center: Tensor
    scale: Tensor

    def __init__(self, low: Any, high: Any, shape: Sequence[int]) -> None:
        super().__init__()
        self.features = math.prod(shape)
        low = torch.as_tensor(low, dtype=torch.float64).broadcast_to(tuple(shape)).flatten()
        high = torch.as_tensor(high, dtype=torch.float64).broadcast_to(tuple(shape)).flatten()
        is_bounded = torch.isfinite(low) & torch.isfinite(high) & (high > low)
        center = torch.where(is_bounded, (high + low) / 2, 0.0)
        scale = torch.where(is_bounded, 2 / (high - low), 1.0)
        self.register_buffer("center", center.float(), persistent=False)
        self.register_buffer("scale", scale.float(), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        flat = values.flatten(2) if values.ndim > 2 else values[..., None]
        return (flat.float() - self.center) * self.scale


def make_leaf_encoder(leaf: Leaf) -> nn.Module:
    """The encoder that suits a leaf's space."""
    match leaf.space:
        case DiscreteSpace(n=n, start=0):
            return _IdEncoder(n, 1)
        case MultiDiscreteSpace(nvec=nvec, start=None) if len(leaf.shape) == 1:
            return _IdEncoder(max(nvec), len(nvec))
        case MultiBinarySpace():
            return _VectorEncoder(0, 1, leaf.shape)
        case BoxSpace(dtype="uint8") if len(leaf.shape) == 3 and min(leaf.shape[:2]) >= 36:
            return _ImageEncoder(leaf.shape)
        case BoxSpace(low=0, high=int() as high) if len(leaf.shape) == 2 and high < _MOST_IDS:
            return _IdEncoder(high + 1, math.prod(leaf.shape))
        case BoxSpace():
            return _VectorEncoder(leaf.space.low, leaf.space.high, leaf.shape)
        case _:
            raise UsageError(
                f"The policy cannot see {leaf.path!r}, a {type(leaf.space).__name__}. It takes Box, "
                f"Discrete from 0, MultiDiscrete and MultiBinary, in Dict and Tuple too."
            )


def action_count(schema: DatasetSchema) -> int:
    """Number of actions.

    Raises:
        UsageError: the action space is not Discrete.
    """
    return _action_space(schema).n


def _action_space(schema: DatasetSchema) -> DiscreteSpace:
    if not isinstance(schema.action_space, DiscreteSpace):
        raise UsageError(
            f"The actions are a {type(schema.action_space).__name__}, but the policy acts in "
            f"Discrete spaces only. Choose a task with a Discrete action space."
        )
    return schema.action_space


def _features(module: nn.Module) -> int:
    features = module.features
    assert isinstance(features, int)
    return features


def _name(leaf: Leaf) -> str:
    return _name_of(leaf.path)


def _name_of(path: str) -> str:
    return path.replace("/", "__").replace(".", "_")
