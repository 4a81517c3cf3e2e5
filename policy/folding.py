"""Layers as acting uses them: few rows at a time, and as few operations as can be.

Weights that follow each other are multiplied out once, and outputs lie in arrays that are kept.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.linear import weight_of


class FoldedLinear:
    """A linear layer for few rows at a time; the next call writes over what it gave."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        # Few rows times a weight that lies by inputs take two thirds of the time.
        self._weight = weight.detach().t().clone(memory_format=torch.contiguous_format)
        self._bias = bias.detach().clone()
        self.reserve(1)

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, outputs]`."""
        if x.shape[0] != self._rows:
            self.reserve(x.shape[0])
        return torch.addmm(self._biases, x, self._weight, out=self._output)

    def reserve(self, rows: int) -> Tensor:
        """`[rows, outputs]`: where so many rows will be written to."""
        self._rows = rows
        self._biases = self._bias.expand(rows, -1)
        self._output = torch.empty_like(self._biases, memory_format=torch.contiguous_format)
        return self._output


class FoldedNorm:
    """A layer's norm; a module's call takes three times as long."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self._weight, self._bias = norm.weight.detach().clone(), norm.bias.detach().clone()
        self._shape = self._weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, features]`."""
        return torch.layer_norm(x, self._shape, self._weight, self._bias)


class FoldedStack:
    """Linear layers with leaky ReLUs between them."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Of weights `[outputs, inputs]` and biases."""
        *self._hidden, self._last = (FoldedLinear(*layer) for layer in layers)

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, outputs]`; the next call writes over them."""
        for layer in self._hidden:
            x = F.leaky_relu_(layer(x))
        return self._last(x)


def fold_linear(layer: nn.Module) -> FoldedLinear:
    """A linear layer, of learned spectral norm or not."""
    assert isinstance(layer, nn.Linear), layer
    return FoldedLinear(weight_of(layer), layer.bias)
