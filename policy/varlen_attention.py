"""Causal attention on a GPU by kernels that take sequences of any lengths side by side.

FlashAttention's own package serves where it is installed (Dao 2023, arXiv 2307.08691), the one that
comes with torch elsewhere. Both take half precision alone.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, `[rows, 1, features / 2]` each."""
_DTYPES = frozenset({torch.float16, torch.bfloat16})
_LEAST_CAPABILITY = (8, 0)
"""Of a GPU that the kernels are written for."""


class VarlenKernel(Protocol):
    """Attention within sequences, causal, each row seeing the last `window` rows, itself included."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, window: int
    ) -> Tensor:
        """`[rows, heads, features]`; the first three are of that shape.

        Args:
            query: of all rows.
            key: of all rows.
            value: of all rows.
            starts: `[sequences + 1]`, int32: first row of each, then the number of rows.
            longest: rows of the longest sequence.
            window: rows that a row sees.
        """


@dataclass(frozen=True)
class VarlenPlan:
    """Where sequences begin; it serves all layers."""

    starts: Tensor
    """`[sequences + 1]`, int32."""
    longest: int
    window: int
    rotation: Rotation | None
    kernel: VarlenKernel


def plan_varlen(
    lengths: Sequence[int],
    window: int,
    rotation: Rotation | None,
    device: torch.device,
    kernel: VarlenKernel,
) -> VarlenPlan:
    """The plan of sequences of so many rows."""
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    return VarlenPlan(starts.to(device), max(lengths), window, rotation, kernel)


def multiplies_in_half() -> bool:
    """Whether products on a GPU are in half precision, as the kernels want them: by autocast."""
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") in _DTYPES


@functools.cache
def find_kernel() -> VarlenKernel | None:
    """The best kernel of this machine's GPU; None if there is none."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
        return None
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return _torch_kernel()

    def attend(
        query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, window: int
    ) -> Tensor:
        attended: Tensor = flash_attn_varlen_func(
            query, key, value, starts, starts, longest, longest, causal=True,
            window_size=(min(window, longest) - 1, 0),
        )  # fmt: skip
        return attended

    return attend


def _torch_kernel() -> VarlenKernel | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None

    def attend(
        query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, window: int
    ) -> Tensor:
        attended = varlen_attn(
            query, key, value, starts, starts, longest, longest,
            window_size=(min(window, longest) - 1, 0),
        )  # fmt: skip
        assert isinstance(attended, Tensor)
        return attended

    return attend
