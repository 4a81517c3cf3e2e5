"""The trajectory encoder that remembers nothing: what memory is worth shows beside it."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig


class NoState:
    """Nothing to keep."""

    def clear(self, slot: int) -> None:
        """Nothing to forget."""


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

    def make_state(self, slots: int) -> NoState:
        """Nothing."""
        return NoState()

    def advance(self, x: Tensor, step: Tensor, state: NoState, slots: Tensor) -> Tensor:
        """`[batch, features]`."""
        return self.forward(x, step, ())
