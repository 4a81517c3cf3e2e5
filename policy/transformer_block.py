"""A block of the causal Transformer: all but the attention itself."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.linear import make_linear, weight_of


class TransformerBlock(nn.Module):
    """A pre-norm block; NormFormer's norms (arXiv 2110.09456) and head scaling where asked."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        width, hidden, is_scaled = (
            config.model_width,
            config.feedforward_units,
            config.sigma_reparam,
        )
        self.heads = config.heads
        self.activation = config.activation
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = make_linear(width, 3 * width, is_scaled=is_scaled)
        self.attention_output = make_linear(width, width, is_scaled=is_scaled)
        self.feedforward_norm = nn.LayerNorm(width)
        # Index 1 was the activation; the weights keep the names that they have had.
        self.feedforward = nn.ModuleDict(
            {
                "0": make_linear(width, hidden, is_scaled=is_scaled),
                "2": make_linear(hidden, width, is_scaled=is_scaled),
            }
        )
        self.head_scale = nn.Parameter(torch.ones(config.heads)) if config.head_scaling else None
        self.after_attention = nn.LayerNorm(width) if config.normformer else None
        self.hidden_norm = nn.LayerNorm(hidden) if config.normformer else None

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values, `[rows, 3, heads, features]`, paired as `attend` has them."""
        projected = F.linear(self.attention_norm(x), *self.paired_projection())
        return projected.view(len(x), 3, self.heads, -1)

    def paired_projection(self) -> tuple[Tensor, Tensor]:
        """Weight `[outputs, width]` and bias of queries, keys and values."""
        layer = self.query_key_value
        return _pair(weight_of(layer), self.heads), _pair(layer.bias, self.heads)

    def mixing_weight(self) -> Tensor:
        """`[width, width]`: what mixes the heads, each scaled."""
        weight = weight_of(self.attention_output)
        if self.head_scale is None:
            return weight
        return weight * self.head_scale.repeat_interleave(weight.shape[1] // self.heads)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add what was attended to, `[rows, heads, features]`, then the feed-forward part."""
        mixed = F.linear(attended.flatten(1), self.mixing_weight(), self.attention_output.bias)
        x = x + (mixed if self.after_attention is None else self.after_attention(mixed))
        hidden = self.activate(self.feedforward["0"](self.feedforward_norm(x)))
        if self.hidden_norm is not None:
            hidden = self.hidden_norm(hidden)
        output: Tensor = x + self.feedforward["2"](hidden)
        return output

    def activate(self, x: Tensor) -> Tensor:
        """The feed-forward part's activation, written over x where that can be."""
        # In place: the layer before needs no output of its own to go back.
        match self.activation:
            case "leaky-relu":
                return F.leaky_relu_(x)
            case "relu":
                return F.relu_(x)
            case _:
                return F.gelu(x)


def _pair(x: Tensor, heads: int) -> Tensor:
    """Rows of a weight, or a bias, of queries, keys and values in another order.

    What is turned together lies half a head apart in the weights, and side by side afterwards.
    """
    turned, kept = x.tensor_split([2 * len(x) // 3])
    halves = turned.view(2 * heads, 2, -1, *x.shape[1:])
    return torch.cat([halves.transpose(1, 2).reshape(turned.shape), kept])
