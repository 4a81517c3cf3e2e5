"""The recurrent trajectory encoder: the baseline of recurrent off-policy actor-critics."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig


@dataclass
class RecurrentState:
    """The hidden state of several episodes."""

    hidden: Tensor
    """`[layers, slots, features]`"""

    def clear(self, slot: int) -> None:
        """Forget an episode."""
        self.hidden[:, slot] = 0


class RecurrentEncoder(nn.Module):
    """A GRU over the trajectory beside a direct path, and a norm."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self._shape = (config.layers, config.model_width)
        self.gru = nn.GRU(config.model_width, config.model_width, config.layers, batch_first=True)
        self.norm = nn.LayerNorm(config.model_width)

    def forward(self, x: Tensor, step: Tensor, lengths: Sequence[int]) -> Tensor:
        """`[rows, features]`."""
        packed = nn.utils.rnn.pack_sequence(
            list(torch.split(x, list(lengths))), enforce_sorted=False
        )
        remembered, _ = self.gru(packed)
        whole = torch.cat(nn.utils.rnn.unpack_sequence(remembered))
        encoded: Tensor = self.norm(x + whole)
        return encoded

    def make_state(self, slots: int) -> RecurrentState:
        """Zeros for some episodes at once."""
        layers, width = self._shape
        return RecurrentState(torch.zeros(layers, slots, width))

    def advance(self, x: Tensor, step: Tensor, state: RecurrentState, slots: Tensor) -> Tensor:
        """`[batch, features]`."""
        remembered, hidden = self.gru(x[:, None], state.hidden[:, slots].contiguous())
        state.hidden[:, slots] = hidden
        encoded: Tensor = self.norm(x + remembered[:, 0])
        return encoded
