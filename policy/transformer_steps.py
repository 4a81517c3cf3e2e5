"""The causal Transformer a step at a time, from keys and values that are kept."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.attention import rotary_angles
from retold.policy.folding import FoldedLinear, FoldedNorm, fold_linear
from retold.policy.transformer_block import TransformerBlock

_FIRST_TURNS = 128
"""Steps that turns are worked out for at first; from then on for twice as many as were needed."""


class TransformerSteps:
    """Keys and values of the last steps of several episodes, and the weights that make more of them.

    The place of step t is t modulo the window, so nothing older than the window is ever seen, and
    acting equals the parallel forward at any length. Places that an episode has not reached hold
    what an earlier one left; they are masked.
    """

    def __init__(
        self,
        config: ArchitectureConfig,
        blocks: Iterable[TransformerBlock],
        norm: nn.LayerNorm,
        slots: int,
    ) -> None:
        self._window, self._heads = config.attention_window, config.heads
        self._head_width = config.model_width // config.heads
        sizes = (config.layers, 2, slots, self._heads, self._window, self._head_width)
        # Keys, turned, then values.
        memory = torch.zeros(sizes)
        self._flat = memory.flatten(2, 3)
        self._blocks = [_BlockSteps(*pair) for pair in zip(blocks, memory, strict=True)]
        self._norm = FoldedNorm(norm)
        self._every = np.arange(slots)
        self._turns = torch.empty(0, dtype=torch.complex64)
        self._is_turned = config.positions == "rotary"

    def clear(self, slot: int) -> None:
        """Nothing to do: an episode sees the places of its own steps alone."""

    def advance(self, x: Tensor, step: NDArray[np.int64], slots: Tensor | None) -> Tensor:
        """`[batch, features]` of one step of the episodes in `slots`; they are remembered."""
        first, last = int(step.min()), int(step.max())
        used = min(self._window, last + 1)
        steps = torch.from_numpy(step)
        turn = _Turn(
            slots=self._every if slots is None else slots.numpy(),
            place=step % self._window,
            used=used,
            # Unless all have come equally far, or further than the window.
            mask=self._mask(steps, used) if first + 1 < used else None,
            turns=self._turns_of(steps, last) if self._is_turned else None,
        )
        whole = self._flat[:, :, :, :used].unbind() if slots is None else [None] * len(self._blocks)
        for block, memory in zip(self._blocks, whole, strict=True):
            x = block.advance(x, turn, memory)
        return self._norm(x)

    def _mask(self, steps: Tensor, used: int) -> Tensor:
        """`[batch * heads, 1, used]`: -inf where an episode has not been yet, 0 elsewhere."""
        is_ahead = torch.arange(used) > steps[:, None]
        mask = torch.zeros(is_ahead.shape).masked_fill_(is_ahead, float("-inf"))
        return mask.repeat_interleave(self._heads, 0)[:, None]

    def _turns_of(self, steps: Tensor, last: int) -> Tensor:
        """`[batch, 1, 1, features / 2]`, complex: what queries and keys are multiplied by."""
        if last >= len(self._turns):
            every = torch.arange(2 * last + _FIRST_TURNS)
            self._turns = torch.complex(*rotary_angles(every, self._head_width))[:, None]
        return self._turns.index_select(0, steps)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the blocks share at a step."""

    slots: NDArray[np.int64]
    """`[batch]`"""
    place: NDArray[np.int64]
    """`[batch]`: where keys and values go."""
    used: int
    """Places that may hold something."""
    mask: Tensor | None
    turns: Tensor | None


class _BlockSteps:
    """A block's weights, folded, beside the memory of its layer."""

    def __init__(self, block: TransformerBlock, memory: Tensor) -> None:
        self._activate = block.activate
        self._attention_norm = FoldedNorm(block.attention_norm)
        self._after_attention = block.after_attention and FoldedNorm(block.after_attention)
        self._feedforward_norm = FoldedNorm(block.feedforward_norm)
        self._hidden_norm = block.hidden_norm and FoldedNorm(block.hidden_norm)
        self._sizes = (block.heads, memory.shape[-1])
        self._memory = memory
        # [2, slots, heads, window, features] -> [slots, window, 2, heads, features]
        # An array, whose rows are put in place in half a tensor's time.
        self._places = memory.permute(1, 3, 0, 2, 4).numpy()
        weight, bias = block.paired_projection()
        # Queries come scaled, as attention wants them.
        scale = torch.ones(len(bias))
        scale[: len(bias) // 3] = memory.shape[-1] ** -0.5
        self._project = FoldedLinear(weight * scale[:, None], bias * scale)
        self._mix = FoldedLinear(block.mixing_weight(), block.attention_output.bias)
        self._widen, self._narrow = map(fold_linear, block.feedforward.values())
        self._reserve(len(memory[0]))

    def advance(self, x: Tensor, turn: _Turn, memory: Tensor | None) -> Tensor:
        """`[batch, features]`.

        Args:
            x: `[batch, features]`.
            turn: of the step.
            memory: `[2, batch * heads, used, features]` of this layer, if every slot has a turn.
        """
        if x.shape[0] != self._rows:
            self._reserve(x.shape[0])
        self._project(self._attention_norm(x))
        if turn.turns is not None:
            self._pairs.mul_(turn.turns)
        self._places[turn.slots, turn.place] = self._key_value
        if memory is None:
            memory = self._memory[:, turn.slots, :, : turn.used].flatten(1, 2)
        self._attend(memory, turn.mask)
        mixed = self._mix(self._attended)
        x = x + (mixed if self._after_attention is None else self._after_attention(mixed))
        hidden = self._activate(self._widen(self._feedforward_norm(x)))
        if self._hidden_norm is not None:
            hidden = self._hidden_norm(hidden)
        return x + self._narrow(hidden)

    def _attend(self, memory: Tensor, mask: Tensor | None) -> None:
        keys, values = memory.unbind()
        self._queries.copy_(self._query)
        scores = torch.bmm(self._queries_by_head, keys.transpose(1, 2))
        if mask is not None:
            scores += mask
        torch.bmm(scores.softmax(-1), values, out=self._attended_by_head)

    def _reserve(self, rows: int) -> None:
        """Where the numbers of so many rows lie on their way through the block."""
        heads, features = self._sizes
        self._rows = rows
        projected = self._project.reserve(rows).view(rows, 3, heads, features)
        self._query, self._key_value = projected[:, 0], projected[:, 1:].numpy()
        pairs = projected[:, :2].view(rows, 2, heads, features // 2, 2)
        self._pairs = torch.view_as_complex(pairs)
        self._queries = torch.empty(rows, heads, features)
        self._queries_by_head = self._queries.view(rows * heads, 1, features)
        self._attended = torch.empty(rows, heads * features)
        self._attended_by_head = self._attended.view(rows * heads, 1, features)
