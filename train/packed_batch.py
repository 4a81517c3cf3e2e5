"""A batch without padding: what the networks and losses run on."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retold.policy.inputs import PolicyInputs, pack_inputs, packed_index
from retold.train.batch import Batch


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """Sequences one after the other; the last row of each only bootstraps."""

    inputs: PolicyInputs
    """Packed, `[rows]`."""
    action: Tensor
    """`[rows, ...]`, as stored; zero in a sequence's last row."""
    reward: Tensor
    """`[rows]`, raw; zero in a sequence's last row."""
    terminated: Tensor
    """`[rows]`, bool."""
    valid: Tensor
    """`[valid]`, int64: rows that give a loss."""
    last: Tensor
    """`[valid]`, int64: the last row of each one's sequence."""
    numbers: tuple[int, ...]
    """Number of each sequence among the windows of its update."""


def pack_batch(batch: Batch) -> PackedBatch:
    """The batch's real rows."""
    # An episode's last row is nowhere seen where another episode follows: acting goes on from there.
    follows = np.ones(len(batch.lengths), np.int64)
    if batch.parts:
        follows[:] = 0
        follows[np.cumsum(batch.parts) - 1] = 1
    lengths = tuple((np.array(batch.lengths) + follows).tolist())
    time = batch.inputs.step.shape[1]
    index = packed_index(lengths, time)

    def pack(rows: Tensor) -> Tensor:
        after = torch.zeros_like(rows[:, :1])
        return torch.cat([rows, after], 1).flatten(0, 1)[index]

    valid = pack(batch.is_valid).nonzero().squeeze(-1)
    inputs = pack_inputs(batch.inputs, lengths, batch.parts)
    whole = torch.tensor(inputs.lengths)
    last = (whole.cumsum(0) - 1).repeat_interleave(whole)
    return PackedBatch(
        inputs=inputs,
        action=pack(batch.action),
        reward=pack(batch.reward),
        terminated=pack(batch.terminated),
        valid=valid,
        last=last[valid],
        numbers=batch.numbers,
    )
