"""Heads of several choices or of amounts: critics that take the action as an input."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.actions import ActionCodec
from retold.policy.ensemble import (
    EnsembleLayers,
    ensemble_linear,
    flat_rows,
    make_actor,
    make_ensemble_weight,
)


class VectorHeads(nn.Module):
    """An actor of several categories or of tanh-Gaussians, and critics of state and action."""

    def __init__(
        self,
        codec: ActionCodec,
        width: int,
        hidden: int,
        discounts: int,
        critics: int,
        *,
        layers: int,
    ) -> None:
        super().__init__()
        self.codec = codec
        self._discounts = discounts
        self.actor = make_actor(width, hidden, layers, discounts * codec.outputs)
        self.critic_input = make_ensemble_weight(critics, width, hidden)
        self.critic_action = make_ensemble_weight(critics, codec.size, hidden)
        self.critic_input_bias = nn.Parameter(torch.zeros(critics, 1, hidden))
        self.critic_hidden = EnsembleLayers(critics, hidden, layers - 1)
        self.critic_output = make_ensemble_weight(critics, hidden, discounts)
        self.critic_output_bias = nn.Parameter(torch.zeros(critics, 1, discounts))

    def distribution(self, x: Tensor) -> Tensor:
        """Logits, or means and log-spreads, `[..., discounts, outputs]`, float32."""
        outputs: Tensor = self.actor(x)
        return outputs.float().view(*outputs.shape[:-1], self._discounts, self.codec.outputs)

    def values_at(self, x: Tensor, action: Tensor, *, is_constant: bool = False) -> Tensor:
        """Normalised Q `[critics, rows, discounts]`, float32.

        Args:
            x: `[rows, features]`.
            action: `[rows, size]`, or `[rows, discounts, size]` with an action for each discount.
            is_constant: take weights and x as constants: the gradient flows to the action alone.
        """
        critics, rows = len(self.critic_input), len(x)
        flat, _ = flat_rows(x.detach() if is_constant else x, critics)
        state = ensemble_linear(
            flat, self.critic_input, self.critic_input_bias, is_constant=is_constant
        )
        by_action = self.critic_action.detach() if is_constant else self.critic_action
        if action.ndim == 2:
            hidden = state + action @ by_action
            hidden = self.critic_hidden(F.leaky_relu(hidden), is_constant)
            output = ensemble_linear(
                hidden, self.critic_output, self.critic_output_bias, is_constant=is_constant
            )
            return output.float()
        # [rows, discounts, size] -> [critics, rows, discounts, hidden] -> rows and discounts as one
        moved = action.flatten(0, 1) @ by_action
        hidden = state[:, :, None] + moved.view(critics, rows, self._discounts, -1)
        hidden = self.critic_hidden(F.leaky_relu(hidden).flatten(1, 2), is_constant)
        hidden = hidden.view(critics, rows, self._discounts, -1)
        parameters: tuple[Tensor, Tensor] = (self.critic_output, self.critic_output_bias)
        weight, bias = (p.detach() if is_constant else p for p in parameters)
        own: Tensor = (hidden * weight.transpose(1, 2)[:, None]).sum(-1) + bias
        return own.float()

    @torch.no_grad()
    def rescale_output(self, ratio: Tensor, shift: Tensor) -> None:
        """Replace every critic output y by `ratio * y + shift`; both are `[discounts]`."""
        self.critic_output.mul_(ratio)
        self.critic_output_bias.mul_(ratio).add_(shift)
