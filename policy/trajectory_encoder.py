"""The causal Transformer over a trajectory: whole at once, or a step at a time from a cache."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig

_ROTARY_BASE = 10_000.0


@dataclass
class TrajectoryCache:
    """Keys and values of the last steps of several episodes, overwritten in turn.

    The place of step t is t modulo the window, so nothing older than the window is ever seen, and
    acting equals the parallel forward at any length.
    """

    keys: Tensor
    """`[slots, layers, heads, window, features]`, rotated."""
    values: Tensor
    """`[slots, layers, heads, window, features]`"""
    steps: Tensor
    """`[slots, window]`, int64: step that each place holds, -1 if none."""

    def clear(self, slot: int) -> None:
        """Forget an episode."""
        self.steps[slot] = -1


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.LeakyReLU(), nn.Linear(4 * width, width)
        )

    def project(self, x: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `[batch, heads, time, features]`; the first two rotated."""
        batch, time, width = x.shape
        # [batch, time, 3 * width] -> 3 of [batch, heads, time, features]
        projected = self.query_key_value(self.attention_norm(x))
        split = projected.view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        return _rotate(query, step), _rotate(key, step), value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add what was attended to, then the feed-forward part."""
        x = x + self.attention_output(attended.transpose(1, 2).reshape(x.shape))
        mixed: Tensor = self.feedforward(self.feedforward_norm(x))
        return x + mixed


class TrajectoryEncoder(nn.Module):
    """Pre-norm blocks with rotary positions and a sliding attention window."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self._config = config
        self.blocks = nn.ModuleList(
            _Block(config.model_width, config.heads) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.model_width)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """`[batch, time, features]` of whole windows; `step` is `[batch, time]`.

        Rows after a sequence's end cannot be seen by rows before it, so padding needs no mask here.
        """
        time = x.shape[1]
        mask = None
        if time > self._config.attention_window:
            row = torch.arange(time, device=x.device)
            age = row[:, None] - row[None, :]
            mask = (age >= 0) & (age < self._config.attention_window)
        for block in self.blocks:
            assert isinstance(block, _Block)
            query, key, value = block.project(x, step)
            attended = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None
            )
            x = block.finish(x, attended)
        encoded: Tensor = self.norm(x)
        return encoded

    def make_cache(self, slots: int) -> TrajectoryCache:
        """An empty cache for some episodes at once."""
        config = self._config
        shape = (
            slots,
            config.layers,
            config.heads,
            config.attention_window,
            config.model_width // config.heads,
        )
        return TrajectoryCache(
            torch.zeros(shape),
            torch.zeros(shape),
            torch.full((slots, config.attention_window), -1),
        )

    def advance(self, x: Tensor, step: Tensor, cache: TrajectoryCache, slots: Tensor) -> Tensor:
        """`[batch, features]` of one step of the episodes in `slots`; the cache takes it in.

        Args:
            x: `[batch, features]`.
            step: `[batch]`, int64.
            cache: what the episodes' earlier steps left.
            slots: `[batch]`, int64, all different.
        """
        place = step % self._config.attention_window
        cache.steps[slots, place] = step
        used = min(self._config.attention_window, int(step.max()) + 1)
        held = cache.steps[slots, :used]
        # Places hold this episode's steps: those cleared are -1, all others are in the window.
        mask = (held >= 0)[:, None, None, :]
        x = x[:, None]
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, _Block)
            query, key, value = block.project(x, step[:, None])
            cache.keys[slots, layer, :, place] = key[:, :, 0]
            cache.values[slots, layer, :, place] = value[:, :, 0]
            attended = F.scaled_dot_product_attention(
                query,
                cache.keys[slots, layer, :, :used],
                cache.values[slots, layer, :, :used],
                attn_mask=mask,
            )
            x = block.finish(x, attended)
        encoded: Tensor = self.norm(x)
        return encoded[:, 0]


def _rotate(x: Tensor, step: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864): products depend on distance alone.

    Args:
        x: `[batch, heads, time, features]`.
        step: `[batch, time]`, int64.
    """
    half = x.shape[-1] // 2
    rates = _ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = (step[:, None, :, None].double() * rates.double()).float()
    cosine, sine = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
