"""Causal attention within sequences that lie one after the other, over a sliding window.

Nothing is computed across sequences or on padding, and no mask is larger than a block of queries by
the keys it can see: memory and time grow linearly in steps at a fixed window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from retold.policy.block_attention import BlockPlan, Rotation, attend_blocks, plan_blocks
from retold.policy.varlen_attention import (
    VarlenPlan,
    find_kernel,
    multiplies_in_half,
    plan_varlen,
)

_ROTARY_BASE = 10_000.0
_BLOCK = 256
"""Queries of a block where a sequence is longer than the window."""


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


@dataclass(frozen=True)
class PiecePlan:
    """What torch's own attention is asked for, in turn."""

    pieces: tuple[AttentionPiece, ...]
    rotation: Rotation | None


AttentionPlan = PiecePlan | BlockPlan | VarlenPlan


def plan_attention(
    lengths: Sequence[int], window: int, rotation: Rotation | None, device: torch.device
) -> AttentionPlan:
    """How the rows of sequences are attended to; it serves all layers.

    Args:
        lengths: rows of each sequence.
        window: rows that a row sees, itself included.
        rotation: of queries and keys; None: they stay as they are.
        device: that attends.
    """
    if device.type == "cpu":
        return plan_blocks(lengths, window, rotation)
    kernel = find_kernel() if device.type == "cuda" and multiplies_in_half() else None
    if kernel is not None:
        return plan_varlen(lengths, window, rotation, device, kernel)
    return plan_pieces(lengths, window, rotation, device)


def attend(projected: Tensor, plan: AttentionPlan) -> Tensor:
    """`[rows, heads, features]` of what each row sees.

    Args:
        projected: `[rows, 3, heads, features]`: queries, keys and values; features that are turned
            together lie side by side.
        plan: of the rows.
    """
    if isinstance(plan, BlockPlan):
        return attend_blocks(projected, plan)
    query, key, value = turned(projected, plan.rotation)
    if isinstance(plan, VarlenPlan):
        return plan.kernel(query, key, value, plan.starts, plan.longest, plan.window)
    output = torch.empty_like(query)
    for piece in plan.pieces:
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


def turned(projected: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, `[rows, heads, features]`; the first two turned."""
    query, key, value = projected.unbind(1)
    if rotation is None:
        return query, key, value
    dtype = projected.dtype
    return rotate(query, rotation).to(dtype), rotate(key, rotation).to(dtype), value


def plan_pieces(
    lengths: Sequence[int], window: int, rotation: Rotation | None, device: torch.device
) -> PiecePlan:
    """The plan for torch's own attention, on any device."""
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
    return PiecePlan(tuple(pieces), rotation)


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
    first, second = x[..., ::2], x[..., 1::2]
    pairs = torch.stack([first * cosine - second * sine, first * sine + second * cosine], -1)
    return pairs.flatten(-2)


def _take(x: Tensor, first: int, rows: int, sequences: int) -> Tensor:
    """`[sequences, heads, rows, features]`, a view of `[all rows, heads, features]`."""
    part = x[first : first + rows * sequences]
    return part.view(sequences, rows, *x.shape[1:]).transpose(1, 2)


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
