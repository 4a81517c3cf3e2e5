"""The interface of trajectory encoders: whole sequences at once, or a step at a time with a state."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.memoryless import MemorylessEncoder
from retold.policy.recurrent import RecurrentEncoder
from retold.policy.transformer import TransformerEncoder


class TrajectoryState(Protocol):
    """What the steps of several episodes in flight have left behind."""

    def clear(self, slot: int) -> None:
        """Forget an episode."""


class TrajectoryEncoder(Protocol):
    """Steps of a trajectory in, the same steps with their past out."""

    def __call__(self, x: Tensor, step: Tensor, lengths: Sequence[int]) -> Tensor:
        """`[rows, features]` of sequences that lie one after the other.

        Args:
            x: `[rows, features]`.
            step: `[rows]`, int64: number of the step in its trajectory.
            lengths: rows of each sequence.
        """

    def make_state(self, slots: int) -> TrajectoryState:
        """An empty state for some episodes at once."""

    def advance(self, x: Tensor, step: Tensor, state: TrajectoryState, slots: Tensor) -> Tensor:
        """`[batch, features]` of one step of the episodes in `slots`; the state takes it in.

        Args:
            x: `[batch, features]`.
            step: `[batch]`, int64.
            state: of `make_state`.
            slots: `[batch]`, int64, all different.
        """


def make_trajectory_encoder(config: ArchitectureConfig) -> nn.Module:
    """The encoder that an architecture asks for: a module, and a `TrajectoryEncoder`."""
    match config.encoder:
        case "transformer":
            return TransformerEncoder(config)
        case "gru":
            return RecurrentEncoder(config)
        case "memoryless":
            return MemorylessEncoder(config)
