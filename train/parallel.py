"""Data parallel training: every process takes its share of each update's windows."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from retold.schemas.errors import RetoldError

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""How long processes wait for the first one, which may wait for data."""


@contextmanager
def joined_ranks() -> Iterator[None]:
    """Work together with the other processes of `torchrun`, if it started this one.

    What goes wrong is said by the first process alone; the others end in silence.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield
    except RetoldError as error:
        if rank() > 0:
            raise SystemExit(error.exit_status) from error
        raise
    finally:
        distributed.destroy_process_group()


def ranks() -> int:
    """Number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Number of this process; the first one writes."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def from_first(work: Callable[[], T]) -> T:
    """What the first process alone finds or does, in all of them; its error, too."""
    if ranks() == 1:
        return work()
    found: list[Any] = [None, None]
    if rank() == 0:
        try:
            found[0] = work()
        except (RetoldError, OSError) as error:
            found[1] = error
    distributed.broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    result: T = found[0]
    return result


def most_over_ranks(number: int) -> int:
    """The largest of every process's numbers."""
    if ranks() == 1:
        return number
    largest = torch.tensor(number)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    return int(largest)


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
