"""Actor and critic heads on every timestep, for several discounts at once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Heads(nn.Module):
    """A categorical actor and an ensemble of critics, each with one output a discount.

    Critics give normalised values for all actions; `PopArt` knows their units.
    """

    def __init__(self, width: int, hidden: int, actions: int, discounts: int, critics: int) -> None:
        super().__init__()
        self._shape = (discounts, actions)
        self.actor = nn.Sequential(
            nn.Linear(width, hidden), nn.LeakyReLU(), nn.Linear(hidden, discounts * actions)
        )
        self.critic_input = nn.Parameter(torch.empty(critics, width, hidden))
        self.critic_input_bias = nn.Parameter(torch.zeros(critics, 1, hidden))
        self.critic_output = nn.Parameter(torch.empty(critics, hidden, discounts * actions))
        self.critic_output_bias = nn.Parameter(torch.zeros(critics, 1, discounts * actions))
        for weight in (self.critic_input, self.critic_output):
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    def log_policy(self, x: Tensor) -> Tensor:
        """Log-probabilities `[..., discounts, actions]` from `[..., features]`, float32."""
        logits: Tensor = self.actor(x)
        return F.log_softmax(logits.float().view(*logits.shape[:-1], *self._shape), -1)

    def values(self, x: Tensor) -> Tensor:
        """Normalised Q `[critics, ..., discounts, actions]` from `[..., features]`, float32."""
        flat = x.reshape(1, -1, x.shape[-1])
        hidden = F.leaky_relu(flat @ self.critic_input + self.critic_input_bias)
        output = hidden @ self.critic_output + self.critic_output_bias
        return output.float().view(len(self.critic_input), *x.shape[:-1], *self._shape)

    @torch.no_grad()
    def rescale_output(self, ratio: Tensor, shift: Tensor) -> None:
        """Replace every critic output y by `ratio * y + shift`; both are `[discounts]`."""
        discounts, actions = self._shape
        by_action = ratio.repeat_interleave(actions)
        self.critic_output.mul_(by_action)
        self.critic_output_bias.mul_(by_action).add_(shift.repeat_interleave(actions))
        assert len(ratio) == discounts, ratio.shape
