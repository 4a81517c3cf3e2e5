"""The interface of trajectory encoders: whole sequences at once, or a step at a time with a memory."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.memoryless import MemorylessEncoder
from retold.policy.recurrent import RecurrentEncoder
from retold.policy.transformer import TransformerEncoder


class TrajectorySteps(Protocol):
    """A trajectory encoder that takes a step at a time, and what it remembers of some episodes."""

    def clear(self, slot: int) -> None:
        """Forget an episode."""

    def advance(self, x: Tensor, step: NDArray[np.int64], slots: Tensor | None) -> Tensor:
        """`[batch, features]` of one step of the episodes in `slots`, which is remembered.

        Args:
            x: `[batch, features]`.
            step: `[batch]`.
            slots: `[batch]`, int64, all different; None: every one, in order.
        """


class TrajectoryEncoder(Protocol):
    """Steps of a trajectory in, the same steps with their past out."""

    def __call__(self, x: Tensor, step: Tensor, lengths: Sequence[int]) -> Tensor:
        """`[rows, features]` of sequences that lie one after the other.

        Args:
            x: `[rows, features]`.
            step: `[rows]`, int64: number of the step in its trajectory.
            lengths: rows of each sequence.
        """

    def start(self, slots: int) -> TrajectorySteps:
        """Nothing seen yet by some episodes at once; the weights are those of now."""


def make_trajectory_encoder(config: ArchitectureConfig) -> nn.Module:
    """The encoder that an architecture asks for: a module, and a `TrajectoryEncoder`."""
    match config.encoder:
        case "transformer":
            return TransformerEncoder(config)
        case "gru":
            return RecurrentEncoder(config)
        case "memoryless":
            return MemorylessEncoder(config)
