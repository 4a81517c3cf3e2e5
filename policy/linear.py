"""Linear layers whose largest singular value is learned, so that attention cannot sharpen at will."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FIRST_ITERATIONS = 15
_LEAST_NORM = 1e-12


class SigmaLinear(nn.Linear):
    """A weight scaled to a learned spectral norm (sigmaReparam, Zhai et al. 2023, arXiv 2303.06296).

    The norm is estimated by power iteration, a step an update (`iterate_power`), never in forward:
    acting and a repeated forward give the same.
    """

    left: Tensor
    right: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.ones(()))
        self.register_buffer("left", F.normalize(torch.randn(outputs), dim=0))
        self.register_buffer("right", F.normalize(torch.randn(inputs), dim=0))
        for _ in range(_FIRST_ITERATIONS):
            self.iterate_power()

    @property
    def scaled_weight(self) -> Tensor:
        """`[outputs, inputs]`."""
        scaled: Tensor = _Scaled.apply(self.weight, self.gain, self.left, self.right)  # type: ignore[no-untyped-call]
        return scaled

    def forward(self, x: Tensor) -> Tensor:
        """`[..., outputs]`."""
        return F.linear(x, self.scaled_weight, self.bias)

    @torch.no_grad()
    def iterate_power(self) -> None:
        """One step of power iteration."""
        for side, other, weight in (
            (self.right, self.left, self.weight.t()),
            (self.left, self.right, self.weight),
        ):
            torch.mv(weight, other, out=side)
            side /= torch.linalg.vector_norm(side).clamp_min(_LEAST_NORM)


class _Scaled(torch.autograd.Function):
    """`weight * gain / norm` by few passes over the weight, and few over its gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, gain: Tensor, left: Tensor, right: Tensor) -> Tensor:
        norm = torch.dot(left, torch.mv(weight, right))
        ctx.save_for_backward(weight, gain, left, right, norm)
        return weight * (gain / norm)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weight, gain, left, right, norm = ctx.saved_tensors
        to_gain = torch.dot(gradient.reshape(-1), weight.reshape(-1)) / norm
        scale = gain / norm
        to_weight = (gradient * scale).addr_(left * (-to_gain * scale), right)
        return to_weight, to_gain, None, None


def make_linear(inputs: int, outputs: int, *, is_scaled: bool) -> nn.Linear:
    """A linear layer, of learned spectral norm if asked."""
    return SigmaLinear(inputs, outputs) if is_scaled else nn.Linear(inputs, outputs)


def weight_of(layer: nn.Linear) -> Tensor:
    """`[outputs, inputs]` that rows are multiplied by."""
    return layer.scaled_weight if isinstance(layer, SigmaLinear) else layer.weight


def scaled_layers(module: nn.Module) -> tuple[SigmaLinear, ...]:
    """Every layer of learned spectral norm."""
    return tuple(part for part in module.modules() if isinstance(part, SigmaLinear))
