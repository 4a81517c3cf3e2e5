"""Causal attention on the CPU as plain batched products: exact, and in memory linear in rows.

Sequences lie side by side in one buffer, longest first, and are attended to a block of queries at a
time. The blocks of one number are one batch of products, over all heads of all sequences that reach
so far. All but few scores are worked out again on the way back, so nothing is held that grows with
rows times keys. Powers of two stand in for exponentials: they take half the time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, `[rows, 1, features / 2]` each."""
_QUERIES, _LATE_QUERIES, _LATE = 26, 43, 256
"""Queries of a block, and where the longest sequence has more rows than the last: smaller products
are slower, larger blocks waste more behind the diagonal."""
_SCORES = 1 << 19
"""Scores of a batch: what follows a product then finds them in the processor's cache."""
_KEPT_SCORES = 1 << 22
"""Scores of a layer that are kept for the way back instead of being worked out again."""
_MOST_BITS = 60.0
"""Scores that may be powers of two without taking the largest off: far from what float32 ends at."""


@dataclass(frozen=True)
class BlockPlan:
    """Where packed rows lie in the buffer, and how they are turned; it serves all layers."""

    lengths: tuple[int, ...]
    """Of the sequences in the buffer."""
    window: int
    hidden: Tensor
    """`[block, block]`: -inf where a key is later than the query, 0 elsewhere."""
    rows: Tensor | None
    """`[sequences * time]`, int64: the packed row of each place, some row where there is none."""
    places: Tensor | None
    """`[rows]`, int64: the place of each packed row; None: packed rows are the buffer as it is."""
    turn: Tensor | None
    """`[2, sequences, 1, time, features / 2]`, complex: what queries and keys are multiplied by."""
    turn_back: Tensor | None
    """The same for their gradients."""


@dataclass(frozen=True)
class _Block:
    """A batch of products."""

    batch: slice
    """Of heads of sequences."""
    queries: slice
    keys: slice

    @property
    def scores(self) -> int:
        """That it has."""
        sizes = (part.stop - part.start for part in (self.batch, self.queries, self.keys))
        return math.prod(sizes)


def plan_blocks(lengths: Sequence[int], window: int, rotation: Rotation | None) -> BlockPlan:
    """The plan of packed sequences.

    Args:
        lengths: rows of each sequence.
        window: rows that a row sees, itself included.
        rotation: of each row; None: rows stay as they are.
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    ordered = tuple(lengths[number] for number in order)
    time = ordered[0]
    rows = places = turn = turn_back = None
    if ordered[-1] < time:
        first = np.cumsum([0, *lengths[:-1]])[order, None]
        row, last = np.arange(time), np.array(ordered)[:, None] - 1
        found = first + np.minimum(row, last)
        taken = np.empty(sum(lengths), np.int64)
        taken[found[row <= last]] = np.flatnonzero(row <= last)
        rows, places = torch.from_numpy(found.reshape(-1)), torch.from_numpy(taken)
    if rotation is not None:
        cosine, sine = (_to_buffer(part, ordered, rows).transpose(1, 2) for part in rotation)
        to_query, to_key = _factors(2 * cosine.shape[-1])
        angle, back = torch.complex(cosine, sine), torch.complex(cosine, -sine)
        turn = torch.stack([angle * to_query, angle])
        turn_back = torch.stack([back * to_key, back * math.log(2)])
    queries = _QUERIES if time <= _LATE else _LATE_QUERIES
    hidden = torch.full((queries, queries), -torch.inf).triu_(1)
    return BlockPlan(ordered, window, hidden, rows, places, turn, turn_back)


def attend_blocks(projected: Tensor, plan: BlockPlan) -> Tensor:
    """`[rows, heads, features]` of what each row sees.

    Args:
        projected: `[rows, 3, heads, features]`: queries, keys and values; features that are turned
            together lie side by side.
        plan: of the rows.
    """
    whole = projected.to(torch.promote_types(projected.dtype, torch.float32))
    with torch.autocast("cpu", enabled=False):
        attended: Tensor = _BlockAttention.apply(whole, plan)  # type: ignore[no-untyped-call]
    return attended.to(projected.dtype)


class _BlockAttention(torch.autograd.Function):
    """Nothing is divided by the sum of a query's powers but outputs, and gradients on the way in."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, plan: BlockPlan) -> Tensor:
        heads, features = projected.shape[2:]
        sides = _fill(_to_buffer(projected, plan.lengths, plan.rows), plan.turn)
        query, key, value = sides.flatten(1, 2)
        output = projected.new_empty(len(plan.lengths), plan.lengths[0], heads, features)
        total = output.new_empty(*query.shape[:2], 1)
        is_bounded = _most_bits(query, key) <= _MOST_BITS
        blocks, kept = list(_blocks(plan, heads)), []
        is_kept = sum(block.scores for block in blocks) <= _KEPT_SCORES
        for block in blocks:
            powers = _powers(query, key, block, plan, is_bounded)
            if is_kept:
                kept.append(powers)
            total[block.batch, block.queries] = sums = powers.sum(-1, keepdim=True)
            seen = torch.bmm(powers, value[block.batch, block.keys])
            taken = slice(block.batch.start // heads, block.batch.stop // heads)
            torch.div(
                seen.view(-1, heads, *seen.shape[1:]),
                sums.view(-1, heads, *sums.shape[1:]),
                out=output[taken, block.queries].transpose(1, 2),
            )
        packed = _from_buffer(output, plan.places)
        ctx.save_for_backward(sides, total, packed, *kept)
        ctx.plan, ctx.is_bounded = plan, is_bounded
        return packed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        sides, total, output, *kept = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            found = _attend_back(
                gradient, sides, total, output, kept, plan=ctx.plan, is_bounded=ctx.is_bounded
            )
        return found, None


def _attend_back(
    gradient: Tensor,
    sides: Tensor,
    total: Tensor,
    output: Tensor,
    kept: Sequence[Tensor],
    *,
    plan: BlockPlan,
    is_bounded: bool,
) -> Tensor:
    heads = sides.shape[2]
    query, key, value = sides.flatten(1, 2)
    back = _spread(gradient, plan).transpose(1, 2).flatten(0, 1) / total
    # What the sum of a query's powers takes back, for each of them.
    shared = _spread((gradient * output).sum(-1), plan).transpose(1, 2).reshape(total.shape) / total
    found = torch.empty_like(sides)
    found[1:] = 0
    to_query, to_key, to_value = found.flatten(1, 2)
    for number, block in enumerate(_blocks(plan, heads)):
        queries, keys = (block.batch, block.queries), (block.batch, block.keys)
        powers = kept[number] if kept else _powers(query, key, block, plan, is_bounded)
        to_value[keys].add_(torch.bmm(powers.transpose(1, 2), back[queries]))
        to_scores = torch.bmm(back[queries], value[keys].transpose(1, 2))
        to_scores.sub_(shared[queries]).mul_(powers)
        to_query[queries] = torch.bmm(to_scores, key[keys])
        to_key[keys].add_(torch.bmm(to_scores.transpose(1, 2), query[queries]))
    return _from_buffer(_empty(found, plan.turn_back), plan.places)


def _blocks(plan: BlockPlan, heads: int) -> Iterator[_Block]:
    """All products of a layer, none of which holds more than about `_SCORES` scores."""
    time = plan.lengths[0]
    for start in range(0, time, len(plan.hidden)):
        end = min(start + len(plan.hidden), time)
        oldest = max(0, start - plan.window + 1)
        sequences = sum(length > start for length in plan.lengths)
        most = max(1, _SCORES // ((end - start) * (end - oldest) * heads))
        for first in range(0, sequences, most):
            batch = slice(first * heads, min(first + most, sequences) * heads)
            yield _Block(batch, slice(start, end), slice(oldest, end))


def _powers(query: Tensor, key: Tensor, block: _Block, plan: BlockPlan, is_bounded: bool) -> Tensor:
    """`[batch, queries, keys]`: 2 to the power of scores, 0 where a query does not see a key."""
    scores = torch.bmm(
        query[block.batch, block.queries], key[block.batch, block.keys].transpose(1, 2)
    )
    queries, keys = scores.shape[1:]
    diagonal = scores[..., keys - queries :]
    # The query in row r of the block sees no key in a column before r + first.
    first = block.queries.start - plan.window + 1 - block.keys.start
    old = scores[..., : max(0, first + queries - 1)]
    if is_bounded:
        scores.exp2_()
        diagonal.tril_()
        old.triu_(first)
        return scores
    diagonal.add_(plan.hidden[:queries, :queries])
    if old.shape[-1]:
        old.add_(plan.hidden[-first : queries - 1, :queries].t())
    return scores.sub_(scores.amax(-1, keepdim=True)).exp2_()


def _most_bits(query: Tensor, key: Tensor) -> float:
    """No score is larger, whatever its sign: products of the longest."""
    return math.prod(float(torch.linalg.vector_norm(side, dim=-1).amax()) for side in (query, key))


def _factors(features: int) -> tuple[float, float]:
    """What queries are multiplied by so that scores are powers of two; and their gradients."""
    scale = features**-0.5
    return scale / math.log(2), scale


def _to_buffer(packed: Tensor, lengths: Sequence[int], rows: Tensor | None) -> Tensor:
    """`[sequences, time, ...]` from `[rows, ...]`; where there is no row, some other one."""
    found = packed if rows is None else packed.index_select(0, rows)
    return found.view(len(lengths), lengths[0], *packed.shape[1:])


def _spread(packed: Tensor, plan: BlockPlan) -> Tensor:
    """The same, but zero where there is no row."""
    if plan.places is None:
        return _to_buffer(packed, plan.lengths, None)
    shape = (len(plan.lengths), plan.lengths[0], *packed.shape[1:])
    places = packed.new_zeros(shape)
    places.flatten(0, 1).index_copy_(0, plan.places, packed)
    return places


def _from_buffer(buffer: Tensor, places: Tensor | None) -> Tensor:
    """`[rows, ...]` from `[sequences, time, ...]`."""
    flat = buffer.flatten(0, 1)
    return flat if places is None else flat.index_select(0, places)


def _fill(projected: Tensor, turn: Tensor | None) -> Tensor:
    """`[3, sequences, heads, time, features]` from `[sequences, time, 3, heads, features]`.

    Queries are scaled; queries and keys are turned.
    """
    moved = projected.permute(2, 0, 3, 1, 4)
    sides = torch.empty(moved.shape, dtype=moved.dtype)
    if turn is None:
        sides.copy_(moved)
        sides[0].mul_(_factors(moved.shape[-1])[0])
        return sides
    torch.mul(_pairs_of(moved[:2]), turn, out=_pairs_of(sides[:2]))
    sides[2] = moved[2]
    return sides


def _empty(sides: Tensor, turn: Tensor | None) -> Tensor:
    """The way back of `_fill`, for gradients."""
    _, sequences, heads, time, features = sides.shape
    projected = sides.new_empty(sequences, time, 3, heads, features)
    moved = projected.permute(2, 0, 3, 1, 4)
    if turn is None:
        sides[0].mul_(_factors(features)[1])
        sides[1].mul_(math.log(2))
        moved.copy_(sides)
        return projected
    torch.mul(_pairs_of(sides[:2]), turn, out=_pairs_of(moved[:2]))
    moved[2] = sides[2]
    return projected


def _pairs_of(x: Tensor) -> Tensor:
    """`[..., features / 2]`, complex, a view of `[..., features]`."""
    return torch.view_as_complex(x.unflatten(-1, (x.shape[-1] // 2, 2)))  # type: ignore[no-untyped-call]
