"""Data parallel training: every process takes its share of each update's windows."""

from collections.abc import Iterable

import torch
from torch import Tensor, distributed


def ranks() -> int:
    """Number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of every process's tensor, the same in all of them."""
    if ranks() == 1:
        return x
    total = x.clone()
    distributed.all_reduce(total)
    return total


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its sum over processes; missing ones count as zero."""
    if ranks() == 1:
        return
    with torch.no_grad():
        wanted = list(parameters)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
        total = sum_over_ranks(torch.cat([part.flatten() for part in parts]))
        sizes = [part.numel() for part in parts]
        for parameter, flat in zip(wanted, torch.split(total, sizes), strict=True):
            parameter.grad = flat.view_as(parameter).clone()
