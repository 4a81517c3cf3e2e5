"""Actor and critic heads on every timestep, for several discounts at once, of one choice of action."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.ensemble import (
    EnsembleLayers,
    ensemble_linear,
    flat_rows,
    make_actor,
    make_ensemble_weight,
)


class Heads(nn.Module):
    """A categorical actor and an ensemble of critics, each with one output a discount.

    Critics give outputs for all actions, so that one pass serves the action taken, the state's
    value and the actor: normalised values (`PopArt` knows their units), or logits of bins.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        actions: int,
        discounts: int,
        critics: int,
        *,
        layers: int = 1,
        bins: int = 1,
    ) -> None:
        super().__init__()
        self._shape = (discounts, actions)
        self._bins = bins
        outputs = discounts * actions * bins
        self.actor = make_actor(width, hidden, layers, discounts * actions)
        self.critic_input = make_ensemble_weight(critics, width, hidden)
        self.critic_input_bias = nn.Parameter(torch.zeros(critics, 1, hidden))
        self.critic_hidden = EnsembleLayers(critics, hidden, layers - 1)
        self.critic_output = make_ensemble_weight(critics, hidden, outputs)
        self.critic_output_bias = nn.Parameter(torch.zeros(critics, 1, outputs))
        if bins > 1:
            # All bins as likely: the value is 0, not the chance sum of the outermost bins.
            nn.init.zeros_(self.critic_output)

    def log_policy(self, x: Tensor) -> Tensor:
        """Log-probabilities `[..., discounts, actions]` from `[..., features]`, float32."""
        logits: Tensor = self.actor(x)
        return F.log_softmax(logits.float().view(*logits.shape[:-1], *self._shape), -1)

    def values(self, x: Tensor) -> Tensor:
        """Outputs `[critics, ..., discounts, actions]` from `[..., features]`, float32.

        Of two-hot critics, `[critics, ..., discounts, actions, bins]`.
        """
        flat, leading = flat_rows(x, len(self.critic_input))
        hidden = ensemble_linear(flat, self.critic_input, self.critic_input_bias)
        hidden = self.critic_hidden(F.leaky_relu_(hidden))
        output = ensemble_linear(hidden, self.critic_output, self.critic_output_bias)
        bins = (self._bins,) if self._bins > 1 else ()
        return output.float().view(len(output), *leading, *self._shape, *bins)

    @torch.no_grad()
    def rescale_output(self, ratio: Tensor, shift: Tensor) -> None:
        """Replace every critic output y by `ratio * y + shift`; both are `[discounts]`."""
        discounts, actions = self._shape
        by_action = ratio.repeat_interleave(actions)
        self.critic_output.mul_(by_action)
        self.critic_output_bias.mul_(by_action).add_(shift.repeat_interleave(actions))
        assert len(ratio) == discounts, ratio.shape
