"""Distributions over several choices, or over amounts in [-1, 1] (tanh of a Gaussian)."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from retold.policy.actions import ActionCodec

_LOG_SPREAD = (-5.0, 2.0)
_EDGE = 1e-4
"""Amounts nearer to the bounds than this count as this near: tanh reaches them at infinity only."""


def draw_noise(codec: ActionCodec, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """`[*shape, size]`: what `sample` turns into an action: Gumbel or Gaussian numbers."""
    wanted = (*shape, codec.size)
    drawn = rng.gumbel(size=wanted) if codec.counts else rng.standard_normal(wanted)
    return torch.from_numpy(drawn.astype(np.float32))


def sample(codec: ActionCodec, outputs: Tensor, noise: Tensor) -> Tensor:
    """An action vector `[..., size]` with a gradient to the outputs.

    Choices are one-hot; the gradient is that of the probabilities (straight through).
    """
    if not codec.counts:
        mean, log_spread = _gaussian(outputs)
        return torch.tanh(mean + log_spread.exp() * noise)
    parts = []
    pairs = zip(
        torch.split(outputs, list(codec.counts), -1),
        torch.split(noise, list(codec.counts), -1),
        strict=True,
    )
    for logits, gumbel in pairs:
        chances = logits.softmax(-1)
        drawn = F.one_hot((logits + gumbel).argmax(-1), logits.shape[-1]).to(chances.dtype)
        parts.append(drawn + chances - chances.detach())
    return torch.cat(parts, -1)


def log_probability(codec: ActionCodec, outputs: Tensor, encoded: Tensor) -> Tensor:
    """`[..., discounts]` of the stored action.

    Args:
        codec: of the action.
        outputs: `[..., discounts, outputs]`.
        encoded: `[..., choices]` int64, or `[..., amounts]` in [-1, 1].
    """
    if codec.counts:
        total = torch.zeros(outputs.shape[:-1], dtype=outputs.dtype, device=outputs.device)
        for place, logits in enumerate(torch.split(outputs, list(codec.counts), -1)):
            index = encoded[..., place][..., None, None].expand(*logits.shape[:-1], 1)
            total = total + logits.log_softmax(-1).gather(-1, index).squeeze(-1)
        return total
    mean, log_spread = _gaussian(outputs)
    amount = encoded[..., None, :].to(outputs.dtype).clamp(-1 + _EDGE, 1 - _EDGE)
    before = torch.atanh(amount)
    standard = (before - mean) * (-log_spread).exp()
    log_density = -0.5 * standard.square() - log_spread - 0.5 * math.log(2 * math.pi)
    return (log_density - torch.log1p(-amount.square())).sum(-1)


def entropy(codec: ActionCodec, outputs: Tensor) -> Tensor:
    """`[..., discounts]`; of amounts, the Gaussian's before the tanh."""
    if codec.counts:
        parts = [
            torch.special.entr(logits.softmax(-1)).sum(-1)
            for logits in torch.split(outputs, list(codec.counts), -1)
        ]
        return torch.stack(parts).sum(0)
    _, log_spread = _gaussian(outputs)
    return (log_spread + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def acting_numbers(codec: ActionCodec, outputs: Tensor) -> Tensor:
    """What acting needs: probabilities side by side, or means and spreads before the tanh."""
    if codec.kind == "choice":
        return outputs.softmax(-1)
    if codec.counts:
        return torch.cat(
            [logits.softmax(-1) for logits in torch.split(outputs, list(codec.counts), -1)], -1
        )
    mean, log_spread = _gaussian(outputs)
    return torch.cat([mean, log_spread.exp()], -1)


def _gaussian(outputs: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_spread = outputs.chunk(2, -1)
    low, high = _LOG_SPREAD
    return mean, low + (high - low) * torch.sigmoid(log_spread)
