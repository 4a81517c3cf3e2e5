"""The recurrent trajectory encoder: the baseline of recurrent off-policy actor-critics."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig


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

    def start(self, slots: int) -> "RecurrentSteps":
        """Zeros for some episodes at once."""
        return RecurrentSteps(
            copy.deepcopy(self), torch.zeros(self._shape[0], slots, self._shape[1])
        )


class RecurrentSteps:
    """The hidden state of several episodes, and what moves it."""

    def __init__(self, encoder: RecurrentEncoder, hidden: Tensor) -> None:
        """Begin at `[layers, slots, features]`."""
        self._encoder = encoder
        self._hidden = hidden

    def clear(self, slot: int) -> None:
        """Forget an episode."""
        self._hidden[:, slot] = 0

    def advance(self, x: Tensor, step: NDArray[np.int64], slots: Tensor | None) -> Tensor:
        """`[batch, features]`."""
        rows = slice(None) if slots is None else slots
        before = self._hidden[:, rows].contiguous()
        remembered, hidden = self._encoder.gru(x[:, None], before)
        self._hidden[:, rows] = hidden
        encoded: Tensor = self._encoder.norm(x + remembered[:, 0])
        return encoded
