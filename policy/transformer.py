"""The causal Transformer over trajectories: whole at once, or a step at a time from a cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.attention import attend, plan_attention, rotary_angles, turned
from retold.policy.block_attention import Rotation
from retold.policy.linear import make_linear, weight_of


@dataclass
class TransformerState:
    """Keys and values of the last steps of several episodes, overwritten in turn.

    The place of step t is t modulo the window, so nothing older than the window is ever seen, and
    acting equals the parallel forward at any length. Places that an episode has not reached hold
    what an earlier one left; they are masked.
    """

    memory: Tensor
    """`[layers, slots, window, 2, heads, features]`: keys, rotated, then values."""

    def clear(self, slot: int) -> None:
        """Nothing to do: an episode sees the places of its own steps alone."""


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
        layer, heads = self.query_key_value, self.heads
        weight, bias = (_pair(part, heads) for part in (weight_of(layer), layer.bias))
        return F.linear(self.attention_norm(x), weight, bias).view(len(x), 3, heads, -1)

    def remember(
        self, x: Tensor, turns: Rotation | None, memory: Tensor, at: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Queries `[rows, heads, 1, features]`; keys and values are put into the memory.

        Args:
            x: `[rows, width]`.
            turns: cosines and signed sines, `[rows, 1, 1, features]` each.
            memory: `[slots, window, 2, heads, features]`.
            at: slot and place of each row.
        """
        projected = self.query_key_value(self.attention_norm(x)).view(len(x), 3, self.heads, -1)
        if turns is not None:  # in place and for both at once; halves of a head are pairs
            pairs = projected[:, :2]
            swapped = pairs.roll(pairs.shape[-1] // 2, -1)
            pairs.mul_(turns[0]).addcmul_(swapped, turns[1])
        slots, place = at
        memory[slots, place] = projected[:, 1:]
        query: Tensor = projected[:, 0, :, None]
        return query

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add what was attended to, `[rows, heads, features]`, then the feed-forward part."""
        mixed = self._mix_heads(attended)
        x = x + (mixed if self.after_attention is None else self.after_attention(mixed))
        hidden = self._activate(self.feedforward["0"](self.feedforward_norm(x)))
        if self.hidden_norm is not None:
            hidden = self.hidden_norm(hidden)
        output: Tensor = x + self.feedforward["2"](hidden)
        return output

    def _mix_heads(self, attended: Tensor) -> Tensor:
        rows, _, features = attended.shape
        if self.head_scale is None:
            mixed: Tensor = self.attention_output(attended.reshape(rows, -1))
            return mixed
        if rows < len(self.attention_output.weight):
            mixed = self.attention_output((attended * self.head_scale[:, None]).reshape(rows, -1))
            return mixed
        # The weight has fewer rows to scale.
        weight = weight_of(self.attention_output) * self.head_scale.repeat_interleave(features)
        return F.linear(attended.reshape(rows, -1), weight, self.attention_output.bias)

    def _activate(self, x: Tensor) -> Tensor:
        # In place: the layer before needs no output of its own to go back.
        match self.activation:
            case "leaky-relu":
                return F.leaky_relu_(x)
            case "relu":
                return F.relu_(x)
            case _:
                return F.gelu(x)


class TransformerEncoder(nn.Module):
    """Blocks over a sliding attention window, and a norm."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self._config = config
        self._head_width = config.model_width // config.heads
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.model_width)
        self._turns: Tensor | None = None

    def forward(self, x: Tensor, step: Tensor, lengths: Sequence[int]) -> Tensor:
        """`[rows, features]` of sequences that lie one after the other."""
        rotation = self._rotation(step, x.dtype)
        plan = plan_attention(lengths, self._config.attention_window, rotation, x.device)
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            x = block.finish(x, attend(block.project(x), plan))
        encoded: Tensor = self.norm(x)
        return encoded

    @torch.no_grad()
    def attention_facts(self, x: Tensor, step: Tensor) -> list[tuple[float, float]]:
        """Mean attention entropy (nats) and largest logit of each layer, for one sequence.

        Args:
            x: `[rows, features]`; all pairs of rows are held at once, so give few.
            step: `[rows]`, int64.
        """
        rotation = self._rotation(step, x.dtype)
        plan = plan_attention([len(x)], self._config.attention_window, rotation, x.device)
        row = torch.arange(len(x), device=x.device)
        age = row[:, None] - row
        is_hidden = (age < 0) | (age >= self._config.attention_window)
        facts = []
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            projected = block.project(x)
            query, key, _ = turned(projected, rotation)
            scores = torch.einsum("qhf,khf->hqk", query, key) * self._head_width**-0.5
            largest = scores.masked_fill(is_hidden, float("-inf"))
            entropy = torch.special.entr(largest.softmax(-1)).sum(-1)
            facts.append((float(entropy.mean()), float(largest.amax())))
            x = block.finish(x, attend(projected, plan))
        return facts

    def make_state(self, slots: int) -> TransformerState:
        """An empty cache for some episodes at once."""
        config = self._config
        sizes = (slots, config.attention_window, 2, config.heads, self._head_width)
        return TransformerState(torch.zeros(config.layers, *sizes))

    def advance(self, x: Tensor, step: Tensor, state: TransformerState, slots: Tensor) -> Tensor:
        """`[batch, features]` of one step of the episodes in `slots`; the cache takes it in."""
        first, last = (int(number) for number in step.aminmax())
        place = step % self._config.attention_window
        used = min(self._config.attention_window, last + 1)
        # Where every slot is asked in turn, the cache is read as it lies.
        is_whole = slots.tolist() == list(range(state.memory.shape[1]))
        rows: Tensor | slice = slice(None) if is_whole else slots
        mask = None
        if first + 1 < used:  # some have not come as far as others
            mask = (torch.arange(used, device=x.device) <= step[:, None])[:, None, None]
        turns = self._turns_of(step, last, x)
        for memory, block in zip(state.memory, self.blocks, strict=True):
            assert isinstance(block, TransformerBlock)
            query = block.remember(x, turns, memory, (slots, place))
            keys, values = memory[rows, :used].transpose(1, 3).unbind(2)
            attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            x = block.finish(x, attended[:, :, 0])
        encoded: Tensor = self.norm(x)
        return encoded

    def _turns_of(self, step: Tensor, last: int, x: Tensor) -> Rotation | None:
        """Cosines and signed sines, `[batch, 1, 1, features]` each, looked up."""
        if self._config.positions == "none":
            return None
        table = self._turns
        if (
            table is None
            or last >= len(table)
            or (table.dtype, table.device) != (x.dtype, x.device)
        ):
            steps = torch.arange(2 * last + 128, device=x.device)
            cosine, sine = rotary_angles(steps, self._head_width, x.dtype)
            table = torch.stack([torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)], 1)
            self._turns = table
        cosine, sine = table[step].unsqueeze(2).unbind(1)
        return cosine, sine

    def _rotation(self, step: Tensor, dtype: torch.dtype) -> Rotation | None:
        if self._config.positions == "none":
            return None
        # Angles of late steps need more digits than half precision has.
        return rotary_angles(step, self._head_width, torch.promote_types(dtype, torch.float32))


def _pair(x: Tensor, heads: int) -> Tensor:
    """Rows of a weight, or a bias, of queries, keys and values in another order.

    What is turned together lies half a head apart in the weights, and side by side afterwards.
    """
    turned, kept = x.tensor_split([2 * len(x) // 3])
    halves = turned.view(2 * heads, 2, -1, *x.shape[1:])
    return torch.cat([halves.transpose(1, 2).reshape(turned.shape), kept])
