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
        self._output = self._weight.new_empty(0, len(weight))

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, outputs]`."""
        return torch.addmm(self._bias, x, self._weight, out=self.reserve(len(x)))

    def reserve(self, rows: int) -> Tensor:
        """`[rows, outputs]`: where so many rows will be written to."""
        if len(self._output) != rows:
            self._output = self._weight.new_empty(rows, len(self._bias))
        return self._output


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


def fold_linear(layer: nn.Linear, norm: nn.LayerNorm | None = None) -> FoldedLinear:
    """A layer, and the weights of the norm before it: of that only `normed` is left to do."""
    return FoldedLinear(*fold_norm(weight_of(layer), layer.bias, norm))


def fold_norm(weight: Tensor, bias: Tensor, norm: nn.LayerNorm | None) -> tuple[Tensor, Tensor]:
    """Weight `[outputs, inputs]` and bias of a linear layer, with the weights of the norm before it."""
    if norm is None:
        return weight, bias
    return weight * norm.weight, bias + weight @ norm.bias


def normed(x: Tensor, norm: nn.LayerNorm | None = None) -> Tensor:
    """`[rows, features]` after a norm, or after one without weights; a module's call takes longer."""
    if norm is None:
        return torch.layer_norm(x, x.shape[-1:])
    return torch.layer_norm(x, x.shape[-1:], norm.weight, norm.bias)
