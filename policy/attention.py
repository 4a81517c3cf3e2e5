"""Causal attention within sequences that lie one after the other, over a sliding window.

Nothing is computed across sequences or on padding, and no mask is larger than a block of queries by
the keys it can see: memory and time grow linearly in steps at a fixed window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ROTARY_BASE = 10_000.0
_BLOCK = 256
"""Queries of a block where a sequence is longer than the window."""
Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, `[rows, 1, features / 2]` each."""


@dataclass(frozen=True)
class AttentionPiece:
    """Queries and the keys that some of them see; rows of all sequences count through."""

    first_query: int
    queries: int
    first_key: int
    keys: int
    sequences: int = 1
    """Equally long sequences that follow one another; queries and keys are then one's."""
    mask: Tensor | None = None
    """`[queries, keys]`, float: 0 or -inf; None: causal."""


def plan_attention(
    lengths: Sequence[int], window: int, device: torch.device
) -> tuple[AttentionPiece, ...]:
    """How the rows of sequences are attended to; it serves all layers.

    Args:
        lengths: rows of each sequence.
        window: rows that a row sees, itself included.
        device: of the masks.
    """
    pieces: list[AttentionPiece] = []
    band: Tensor | None = None
    first = 0
    for length in lengths:
        last = pieces[-1] if pieces else None
        if length > window:
            band = _band(window, device) if band is None else band
            pieces += _blocks(first, length, window, band)
        elif last is not None and last.mask is None and last.queries == length:
            # Causal pieces are whole sequences, so one more of the same length joins them.
            pieces[-1] = AttentionPiece(
                last.first_query, length, last.first_key, length, last.sequences + 1
            )
        else:
            pieces.append(AttentionPiece(first, length, first, length))
        first += length
    return tuple(pieces)


def attend(query: Tensor, key: Tensor, value: Tensor, plan: Sequence[AttentionPiece]) -> Tensor:
    """`[rows, heads, features]` of what each row sees; all three are `[rows, heads, features]`."""
    if query.device.type == "cpu":
        attended: Tensor = _CpuAttention.apply(query, key, value, plan)  # type: ignore[no-untyped-call]
        return attended
    output = torch.empty_like(query)
    for piece in plan:
        q, k, v = (
            _take(part, first, rows, piece.sequences)
            for part, first, rows in (
                (query, piece.first_query, piece.queries),
                (key, piece.first_key, piece.keys),
                (value, piece.first_key, piece.keys),
            )
        )
        mask = None if piece.mask is None else piece.mask.to(q.dtype)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        rows = slice(piece.first_query, piece.first_query + piece.queries * piece.sequences)
        output[rows] = seen.transpose(1, 2).flatten(0, 1)
    return output


def rotary_angles(step: Tensor, features: int, dtype: torch.dtype = torch.float32) -> Rotation:
    """Cosines and sines of rotary positions (Su et al. 2021, arXiv 2104.09864).

    Args:
        step: `[rows]`, int64.
        features: of a head, even.
        dtype: of the result.
    """
    half = features // 2
    rates = _ROTARY_BASE ** (-torch.arange(half, device=step.device, dtype=torch.float32) / half)
    angle = (step[:, None, None].double() * rates.double()).to(dtype)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """`[rows, heads, features]`, turned: products of two rows depend on their distance alone."""
    cosine, sine = rotation
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class _CpuAttention(torch.autograd.Function):
    """Flash attention piece by piece into one output, and back into one gradient.

    Autograd's own slicing would make a gradient of full size for every piece.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Sequence[AttentionPiece]
    ) -> Tensor:
        output = torch.empty_like(query)
        sums = []
        for piece in plan:
            q, k, v = _parts(query, key, value, piece)
            seen, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, piece.mask is None, attn_mask=_mask_like(piece, q)
            )
            _take(output, piece.first_query, piece.queries, piece.sequences).copy_(seen)
            sums.append(log_sum)
        ctx.save_for_backward(query, key, value, output, *sums)
        ctx.plan = plan
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, output, *sums = ctx.saved_tensors
        parts = (query, key, value)
        gradients = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for piece, log_sum in zip(ctx.plan, sums, strict=True):
            q, k, v = _parts(*parts, piece)
            seen, back = (
                _take(part, piece.first_query, piece.queries, piece.sequences)
                for part in (output, gradient.contiguous())
            )
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                back, q, k, v, seen, log_sum, 0.0, piece.mask is None,
                attn_mask=_mask_like(piece, q),
            )  # fmt: skip
            _take(gradients[0], piece.first_query, piece.queries, piece.sequences).copy_(found[0])
            for whole, part in zip(gradients[1:], found[1:], strict=True):
                _take(whole, piece.first_key, piece.keys, piece.sequences).add_(part)
        return *gradients, None


def _parts(
    query: Tensor, key: Tensor, value: Tensor, piece: AttentionPiece
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _take(query, piece.first_query, piece.queries, piece.sequences),
        _take(key, piece.first_key, piece.keys, piece.sequences),
        _take(value, piece.first_key, piece.keys, piece.sequences),
    )


def _take(x: Tensor, first: int, rows: int, sequences: int) -> Tensor:
    """`[sequences, heads, rows, features]`, a view of `[all rows, heads, features]`."""
    part = x[first : first + rows * sequences]
    return part.view(sequences, rows, *x.shape[1:]).transpose(1, 2)


def _mask_like(piece: AttentionPiece, query: Tensor) -> Tensor | None:
    return None if piece.mask is None else piece.mask.to(query.dtype)


def _band(window: int, device: torch.device) -> Tensor:
    """`[block, window - 1 + block]`: 0 where a query of a block sees a key, -inf elsewhere."""
    row = torch.arange(_BLOCK, device=device)[:, None]
    age = row + window - 1 - torch.arange(window - 1 + _BLOCK, device=device)
    band = torch.zeros(age.shape, device=device)
    return band.masked_fill_((age < 0) | (age >= window), float("-inf"))


def _blocks(first: int, length: int, window: int, band: Tensor) -> list[AttentionPiece]:
    blocks = []
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        oldest = max(0, start - window + 1)
        column = window - 1 - (start - oldest)
        mask = band[: end - start, column : column + end - oldest]
        blocks.append(
            AttentionPiece(first + start, end - start, first + oldest, end - oldest, mask=mask)
        )
    return blocks
