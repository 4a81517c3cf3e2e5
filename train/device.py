"""The device that learns, and the numbers it multiplies with."""

import contextlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from retold.policy.inputs import PolicyInputs
from retold.schemas.errors import UsageError
from retold.train.batch import Batch
from retold.train.config import DeviceChoice, Precision
from retold.train.packed_batch import PackedBatch

T = TypeVar("T", PackedBatch, Batch, PolicyInputs)


def choose_device(choice: DeviceChoice) -> torch.device:
    """The device of this process; under torchrun each has a GPU of its own.

    Raises:
        UsageError: a GPU is asked for, but torch sees none.
    """
    has_gpu = torch.cuda.is_available()
    if choice == "cuda" and not has_gpu:
        raise UsageError(
            "--device is cuda, but torch finds no GPU here. Install a CUDA build of torch and its "
            "driver, or leave out --device to train on the CPU."
        )
    if choice == "cpu" or not has_gpu:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Products in bfloat16 where that was chosen; `auto` chooses it on a GPU that has it.

    Weights, statistics and losses stay in float32.
    """
    if precision == "auto":
        has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if has_bfloat16 else "float32"
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def move(rows: T, device: torch.device) -> T:
    """The batch, packed or not, or its inputs with every tensor on a device; the copies need not have ended."""
    if device.type == "cpu":
        return rows
    return replace(rows, **{f.name: _move(getattr(rows, f.name), device) for f in fields(rows)})


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        # Pinned memory lets the copy run beside what the GPU does.
        pinned = value.pin_memory() if device.type == "cuda" else value
        return pinned.to(device, non_blocking=True)
    if isinstance(value, PolicyInputs):
        return move(value, device)
    if isinstance(value, Mapping):
        return {name: _move(item, device) for name, item in value.items()}
    return value
