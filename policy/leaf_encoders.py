"""Encoders of one leaf of the observation; every leading axis is kept."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.image_encoders import ImageEncoder, ResidualImageEncoder
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
_LEAST_IMAGE = 36
"""Sides of a frame from which on it is taken as an image."""


class IdEncoder(nn.Module):
    """A map of ids, each embedded, then mixed."""

    def __init__(self, count: int, axes: int, cells: int, start: Any = 0) -> None:
        super().__init__()
        self.features = 64
        self._axes = axes
        self._start = torch.as_tensor(start, dtype=torch.int64).flatten()
        self.table = nn.Embedding(count, _ID_FEATURES)
        self.mix = nn.Linear(cells * _ID_FEATURES, self.features)

    def forward(self, ids: Tensor) -> Tensor:
        """`[..., features]`."""
        flat = _flatten(ids, self._axes).long() - self._start.to(ids.device)
        # What stands in padding may be no id at all.
        flat = flat.clamp(0, self.table.num_embeddings - 1)
        return F.leaky_relu(self.mix(self.table(flat).flatten(-2)))


class VectorEncoder(nn.Module):
    """Amounts, scaled to about [-1, 1] where the space is bounded."""

    center: Tensor
    scale: Tensor

    def __init__(self, low: Any, high: Any, shape: Sequence[int]) -> None:
        super().__init__()
        self.features = math.prod(shape)
        self._axes = len(shape)
        low = torch.as_tensor(low, dtype=torch.float64).broadcast_to(tuple(shape)).flatten()
        high = torch.as_tensor(high, dtype=torch.float64).broadcast_to(tuple(shape)).flatten()
        is_bounded = torch.isfinite(low) & torch.isfinite(high) & (high > low)
        center = torch.where(is_bounded, (high + low) / 2, 0.0)
        scale = torch.where(is_bounded, 2 / (high - low), 1.0)
        self.register_buffer("center", center.float(), persistent=False)
        self.register_buffer("scale", scale.float(), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """`[..., features]`."""
        return (_flatten(values, self._axes).float() - self.center) * self.scale


def make_leaf_encoder(leaf: Leaf, image_encoder: Literal["cnn", "impala"] = "cnn") -> nn.Module:
    """The encoder that suits a leaf's space.

    Raises:
        UsageError: there is none.
    """
    axes, cells = len(leaf.shape), math.prod(leaf.shape)
    match leaf.space:
        case DiscreteSpace(n=n, start=start):
            return IdEncoder(n, 0, 1, start)
        case MultiDiscreteSpace(nvec=nvec, start=start):
            return IdEncoder(int(max(_flat(nvec))), axes, cells, 0 if start is None else start)
        case MultiBinarySpace():
            return VectorEncoder(0, 1, leaf.shape)
        case BoxSpace(dtype="uint8") if axes == 3 and min(leaf.shape[:2]) >= _LEAST_IMAGE:
            if image_encoder == "impala":
                return ResidualImageEncoder(leaf.shape)
            return ImageEncoder(leaf.shape)
        case BoxSpace(low=0, high=int() as high) if axes == 2 and high < _MOST_IDS:
            return IdEncoder(high + 1, axes, cells)
        case BoxSpace():
            return VectorEncoder(leaf.space.low, leaf.space.high, leaf.shape)
        case _:
            raise UsageError(
                f"The policy cannot see {leaf.path!r}, a {type(leaf.space).__name__}. It takes Box, "
                f"Discrete, MultiDiscrete and MultiBinary, in Dict and Tuple too."
            )


def _flatten(rows: Tensor, axes: int) -> Tensor:
    """`[..., cells]` from `[..., *shape]` of so many axes."""
    return rows.flatten(rows.ndim - axes) if axes else rows[..., None]


def _flat(nested: Any) -> list[int]:
    return [n for item in nested for n in _flat(item)] if isinstance(nested, tuple) else [nested]
