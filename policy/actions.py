"""Actions as networks take and give them: choices among options, or amounts in [-1, 1]."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import UsageError
from retold.schemas.spaces import BoxSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace

ActionKind = Literal["choice", "choices", "amounts"]


@dataclass(frozen=True, kw_only=True)
class ActionCodec:
    """One action leaf, between its stored form and the networks'."""

    path: str
    kind: ActionKind
    shape: tuple[int, ...]
    dtype: str
    counts: tuple[int, ...]
    """Options of each choice; empty for amounts."""
    start: tuple[int, ...]
    """Number of each choice's first option; empty for amounts."""
    low: tuple[float, ...]
    """Least amounts; empty for choices."""
    high: tuple[float, ...]
    """Largest amounts; empty for choices."""

    @property
    def size(self) -> int:
        """Numbers of an action's vector: options of all choices, or amounts."""
        return sum(self.counts) or len(self.low)

    @property
    def outputs(self) -> int:
        """Numbers that describe a distribution: a logit an option, or mean and log-spread."""
        return self.size if self.counts else 2 * self.size

    def encode(self, stored: Tensor) -> Tensor:
        """`[..., choices]`, int64 from 0, or `[..., amounts]` in [-1, 1], from `[..., *shape]`."""
        flat = stored.flatten(stored.ndim - len(self.shape)) if self.shape else stored[..., None]
        if self.counts:
            counted = flat.long()
            start = torch.tensor(self.start, device=stored.device) if any(self.start) else 0
            return counted - start
        low, high = (torch.tensor(bound, device=stored.device) for bound in (self.low, self.high))
        return (2 * (flat.float() - low) / (high - low) - 1).clamp(-1, 1)

    def vector(self, encoded: Tensor) -> Tensor:
        """`[..., size]`, float32: options one-hot side by side, or the amounts."""
        if not self.counts:
            return encoded.float()
        if len(self.counts) == 1:
            return _one_hot(encoded[..., 0], self.counts[0])
        parts = [_one_hot(encoded[..., place], count) for place, count in enumerate(self.counts)]
        return torch.cat(parts, -1)

    def option_vectors(self) -> NDArray[np.float32] | None:
        """`[options, size]`: the vector of each option of the one choice; None for other actions."""
        if self.kind != "choice":
            return None
        every = torch.arange(self.counts[0]) + self.start[0]
        return np.asarray(self.vector(self.encode(every)).numpy())

    def decode(self, numbers: ArrayLike) -> Any:
        """The value to act with, from options counted from 0 or amounts in [-1, 1]."""
        if self.kind == "choice":
            return np.dtype(self.dtype).type(numbers + self.start[0])  # type: ignore[operator]
        if self.counts:
            value = np.asarray(numbers) + np.asarray(self.start)
        else:
            low, high = np.asarray(self.low), np.asarray(self.high)
            value = np.clip(low + (np.asarray(numbers) + 1) / 2 * (high - low), low, high)
        return value.reshape(self.shape).astype(self.dtype)[()]


def make_action_codec(schema: DatasetSchema) -> ActionCodec:
    """The codec of a dataset's actions.

    Raises:
        UsageError: the action space is none that a policy acts in.
    """
    space = schema.action_space
    match space:
        case DiscreteSpace():
            return _choices("choice", (), space.dtype, (space.n,), (space.start,))
        case MultiDiscreteSpace():
            counts = tuple(np.asarray(space.nvec).flatten().tolist())
            start = np.zeros(space.shape) if space.start is None else np.asarray(space.start)
            first = tuple(int(number) for number in start.flatten())
            return _choices("choices", space.shape, space.dtype, counts, first)
        case MultiBinarySpace():
            count = math.prod(space.shape)
            return _choices("choices", space.shape, space.dtype, (2,) * count, (0,) * count)
        case BoxSpace() if np.dtype(space.dtype).kind == "f":
            low, high = (_bound(limit, space.shape) for limit in (space.low, space.high))
            if not np.isfinite([*low, *high]).all() or min(np.subtract(high, low)) <= 0:
                raise UsageError(
                    "The actions are a Box without finite bounds, but the policy acts between "
                    "bounds. Choose a task with bounded actions, or rescale them in a wrapper."
                )
            return ActionCodec(
                path="action", kind="amounts", shape=space.shape, dtype=space.dtype,
                counts=(), start=(), low=low, high=high,
            )  # fmt: skip
        case _:
            raise UsageError(
                f"The actions are a {type(space).__name__}, but the policy acts in Discrete, "
                f"MultiDiscrete, MultiBinary and bounded float Box spaces. Choose such a task."
            )


def _one_hot(number: Tensor, count: int) -> Tensor:
    """`[..., count]`, float32; torch's own looks for the largest number first."""
    return (number[..., None] == torch.arange(count, device=number.device)).float()


def _choices(
    kind: ActionKind,
    shape: tuple[int, ...],
    dtype: str,
    counts: tuple[int, ...],
    start: tuple[int, ...],
) -> ActionCodec:
    return ActionCodec(
        path="action", kind=kind, shape=shape, dtype=dtype, counts=counts, start=start, low=(),
        high=(),
    )  # fmt: skip


def _bound(limit: Any, shape: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(np.broadcast_to(np.asarray(limit, np.float64), shape).flatten().tolist())
