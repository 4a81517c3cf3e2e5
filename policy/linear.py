"""Linear layers whose largest singular value is learned, so that attention cannot sharpen at will."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FIRST_ITERATIONS = 15


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
        norm = torch.dot(self.left, torch.mv(self.weight, self.right))
        return self.weight * (self.gain / norm)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., outputs]`."""
        return F.linear(x, self.scaled_weight, self.bias)

    @torch.no_grad()
    def iterate_power(self) -> None:
        """One step of power iteration."""
        right = F.normalize(torch.mv(self.weight.t(), self.left), dim=0)
        self.right.copy_(right)
        self.left.copy_(F.normalize(torch.mv(self.weight, right), dim=0))


def make_linear(inputs: int, outputs: int, *, is_scaled: bool) -> nn.Linear:
    """A linear layer, of learned spectral norm if asked."""
    return SigmaLinear(inputs, outputs) if is_scaled else nn.Linear(inputs, outputs)


def weight_of(layer: nn.Linear) -> Tensor:
    """`[outputs, inputs]` that rows are multiplied by."""
    return layer.scaled_weight if isinstance(layer, SigmaLinear) else layer.weight


def iterate_powers(module: nn.Module) -> None:
    """One step of power iteration in every layer that has one."""
    for part in module.modules():
        if isinstance(part, SigmaLinear):
            part.iterate_power()


@torch.no_grad()
def fold_linears(module: nn.Module) -> nn.Module:
    """A copy with plain linear layers of the same outputs, which act faster."""
    folded = copy.deepcopy(module)
    for parent in folded.modules():
        for name, part in parent.named_children():
            if isinstance(part, nn.Linear):
                plain = nn.Linear(part.in_features, part.out_features)
                weight = part.scaled_weight if isinstance(part, SigmaLinear) else part.weight
                # Few rows times a weight that lies by inputs take two thirds of the time.
                plain.weight = nn.Parameter(weight.t().contiguous().t(), requires_grad=False)
                plain.bias.copy_(part.bias)
                setattr(parent, name, plain)
    return folded
