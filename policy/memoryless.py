"""The trajectory encoder that remembers nothing: what memory is worth shows beside it."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.folding import FoldedNorm, fold_linear


class MemorylessEncoder(nn.Module):
    """Feed-forward blocks on every step alone."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        width, hidden = config.model_width, config.feedforward_units
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.layers))
        self.hidden = nn.ModuleList(nn.Linear(width, hidden) for _ in range(config.layers))
        self.output = nn.ModuleList(nn.Linear(hidden, width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, step: Tensor, lengths: Sequence[int]) -> Tensor:
        """`[rows, features]`."""
        for norm, hidden, output in zip(self.norms, self.hidden, self.output, strict=True):
            x = x + output(F.leaky_relu(hidden(norm(x))))
        encoded: Tensor = self.norm(x)
        return encoded

    @torch.no_grad()
    def start(self, slots: int) -> "MemorylessSteps":
        """The same, a step at a time."""
        return MemorylessSteps(self)


class MemorylessSteps:
    """The blocks, folded."""

    def __init__(self, encoder: MemorylessEncoder) -> None:
        layers = zip(encoder.norms, encoder.hidden, encoder.output, strict=True)
        self._blocks = [
            (FoldedNorm(cast(nn.LayerNorm, norm)), fold_linear(hidden), fold_linear(output))
            for norm, hidden, output in layers
        ]
        self._norm = FoldedNorm(encoder.norm)

    def clear(self, slot: int) -> None:
        """Nothing to forget."""

    def advance(self, x: Tensor, step: NDArray[np.int64], slots: Tensor | None) -> Tensor:
        """`[batch, features]`."""
        for norm, hidden, output in self._blocks:
            x = x + output(F.leaky_relu_(hidden(norm(x))))
        return self._norm(x)
