"""Several small networks of one shape, run as one batched product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_actor(width: int, hidden: int, layers: int, outputs: int) -> nn.Sequential:
    """An actor: hidden layers, then one output layer."""
    parts: list[nn.Module] = []
    for inputs in (width, *[hidden] * (layers - 1)):
        parts += [nn.Linear(inputs, hidden), nn.LeakyReLU(inplace=True)]
    return nn.Sequential(*parts, nn.Linear(hidden, outputs))


class EnsembleLayers(nn.Module):
    """Weights of the hidden layers of an ensemble after the first, `[critics, inputs, outputs]`."""

    def __init__(self, critics: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.weight = nn.ParameterList(
            make_ensemble_weight(critics, hidden, hidden) for _ in range(layers)
        )
        self.bias = nn.ParameterList(
            nn.Parameter(torch.zeros(critics, 1, hidden)) for _ in range(layers)
        )

    def forward(self, x: Tensor, is_constant: bool = False) -> Tensor:
        """`[critics, rows, hidden]`; constant weights take no gradient."""
        for weight, bias in zip(self.weight, self.bias, strict=True):
            x = F.leaky_relu_(ensemble_linear(x, weight, bias, is_constant=is_constant))
        return x


def make_ensemble_weight(critics: int, inputs: int, outputs: int) -> nn.Parameter:
    """`[critics, inputs, outputs]`, uniform as in `nn.Linear`."""
    bound = inputs**-0.5
    return nn.Parameter(torch.empty(critics, inputs, outputs).uniform_(-bound, bound))


def ensemble_linear(
    x: Tensor, weight: Tensor, bias: Tensor, *, is_constant: bool = False
) -> Tensor:
    """`[critics, rows, outputs]` from `[critics, rows, inputs]`."""
    if is_constant:
        weight, bias = weight.detach(), bias.detach()
    return torch.baddbmm(bias, x, weight)


def flat_rows(x: Tensor, critics: int) -> tuple[Tensor, Sequence[int]]:
    """`[critics, rows, features]`, one and the same for all, and the leading sizes of x."""
    flat = x.reshape(1, -1, x.shape[-1])
    return flat.expand(critics, -1, -1), x.shape[:-1]
