"""The causal Transformer over trajectories: whole at once, or begun a step at a time."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.attention import attend, plan_attention, rotary_angles, turned
from retold.policy.block_attention import Rotation
from retold.policy.transformer_block import TransformerBlock
from retold.policy.transformer_steps import TransformerSteps


class TransformerEncoder(nn.Module):
    """Blocks over a sliding attention window, and a norm."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self._config = config
        self._head_width = config.model_width // config.heads
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.model_width)

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

    @torch.no_grad()
    def start(self, slots: int) -> TransformerSteps:
        """Nothing seen yet by some episodes at once."""
        blocks = cast(Iterable[TransformerBlock], self.blocks)
        return TransformerSteps(self._config, blocks, self.norm, slots)

    def _rotation(self, step: Tensor, dtype: torch.dtype) -> Rotation | None:
        if self._config.positions == "none":
            return None
        # Angles of late steps need more digits than half precision has.
        return rotary_angles(step, self._head_width, torch.promote_types(dtype, torch.float32))
