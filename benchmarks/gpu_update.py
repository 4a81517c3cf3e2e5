"""Updates on a GPU: packed in bfloat16, beside the same model padded, and what the GPU could do.

Ragged windows, a fixed number of tokens an update. The share of the peak counts the products of the
packed rows alone, forward and back, attention's among them, over the GPU's dense bfloat16 peak; what is
done on padding counts for nothing. First the kernels of attention are compared with plain attention in
float32. `--tiny` runs the same on the CPU, at sizes that say nothing but that it runs.

    python benchmarks/gpu_update.py --json
    python benchmarks/gpu_update.py --tiny
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from provenance import describe_commit
from update_case import ACTIONS, FEATURES, make_batches, make_config, make_schema, time_updates
from update_padded import PaddedUpdate
from update_roofline import count_attention_flops, count_product_flops

from retold.policy.attention import attend, plan_attention, plan_pieces, rotary_angles
from retold.train.batch import Batch
from retold.train.config import TrainConfig
from retold.train.device import autocast, choose_device, move
from retold.train.learner import Learner

_LENGTHS, _WIDTHS, _TOKENS = (512, 2_048, 8_192), (256, 512), 65_536
_TINY_LENGTHS, _TINY_WIDTHS, _TINY_TOKENS = (16, 32), (32,), 256
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bfloat16 FLOP/s by a part of the GPU's name, of the makers' data sheets."""
Row = dict[str, Any]


def compare_kernels(device: torch.device, length: int) -> Row:
    """Largest differences of the device's attention and its gradient from plain float32's."""
    lengths, window, heads, features = (length, length // 3, 1, length - 1), length // 2, 4, 32
    generator = torch.Generator(device).manual_seed(0)
    shape = (sum(lengths), 3, heads, features)
    exact = torch.randn(shape, device=device, generator=generator, requires_grad=True)
    step = torch.cat([torch.arange(n, device=device) for n in lengths])
    rotation = rotary_angles(step, features)
    wanted = attend(exact, plan_pieces(lengths, window, rotation, device))
    weight = torch.randn(wanted.shape, device=device, generator=generator)
    (wanted_back,) = torch.autograd.grad((wanted * weight).sum(), exact)
    half = exact.detach().bfloat16().requires_grad_()
    with autocast(device, "bfloat16"):
        plan = plan_attention(lengths, window, rotation, device)
        found = attend(half, plan)
    (found_back,) = torch.autograd.grad((found.float() * weight).sum(), half)
    error = float((found - wanted).detach().abs().amax() / wanted.abs().amax())
    error_back = float((found_back - wanted_back).abs().amax() / wanted_back.abs().amax())
    kernel = getattr(plan, "kernel", None)
    name = type(plan).__name__ if kernel is None else kernel.__qualname__
    return _row(device, "attention", name, error, "of the largest") | {"of_gradient": error_back}


def measure_updates(
    device: torch.device, lengths: Sequence[int], widths: Sequence[int], tokens: int, seconds: float
) -> Iterator[Row]:
    """Packed and padded, at every length and width; windows are ragged."""
    for width in widths:
        for length in lengths:
            config = _config(length, width, device)
            batches = make_batches(length, max(1, tokens * 16 // (9 * length)), 2, is_ragged=True)
            case = f"d = {width}, L = {length}, ragged"
            packed = Learner(config, make_schema(length), device)
            row = _timed(device, case + ", packed", packed.update, batches, seconds)
            mean = sum(_count_flops(config, batch) for batch in batches) / len(batches)
            steps = sum(sum(batch.lengths) for batch in batches) / len(batches)
            rate = mean * row["value"] / steps
            peak = _peak(device)
            yield row | {"flops": rate} | ({} if peak is None else {"of_peak": rate / peak})
            del packed
            learner = Learner(config, make_schema(length), device)
            plain = _timed(device, case + ", padded", _padded(learner, device), batches, seconds)
            yield plain | {"packed_to_padded": row["value"] / plain["value"]}


def _config(length: int, width: int, device: torch.device) -> TrainConfig:
    return make_config(
        length,
        model_width=width,
        heads=width // 32,
        feedforward_width=4 * width,
        precision="bfloat16" if device.type == "cuda" else "float32",
    )


def _padded(learner: Learner, device: torch.device) -> Callable[[Batch], float]:
    update = PaddedUpdate(learner)

    def run(batch: Batch) -> float:
        with autocast(device, learner._config.precision):
            return update(move(batch, device))

    return run


def _count_flops(config: TrainConfig, batch: Batch) -> float:
    inputs = FEATURES + 1 + ACTIONS + 3
    return count_product_flops(config, batch.lengths, inputs, ACTIONS) + count_attention_flops(
        config, batch.lengths
    )


def _peak(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


def _timed(
    device: torch.device,
    case: str,
    update: Callable[[Batch], object],
    batches: Sequence[Batch],
    seconds: float,
) -> Row:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        timing = time_updates(update, batches, seconds)  # each update ends by reading its loss
    except torch.cuda.OutOfMemoryError:
        return _row(device, "update", case, 0.0, "valid timesteps/s") | {"out_of_memory": True}
    row = _row(device, "update", case, timing.median, "valid timesteps/s")
    if device.type == "cuda":
        row["peak_gigabytes"] = torch.cuda.max_memory_allocated(device) / 1e9
    return row


def _row(device: torch.device, part: str, case: str, value: float, unit: str) -> Row:
    return {
        "command": shlex.join(["python", "benchmarks/gpu_update.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seed": 0,
        "part": part,
        "case": case,
        "value": value,
        "unit": unit,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a reading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, in some seconds")
    parser.add_argument("--seconds", type=float, default=8.0, help="of updates behind each figure")
    given = parser.parse_args(arguments)
    device = choose_device("cpu" if given.tiny else "cuda")
    sizes = (
        (_TINY_LENGTHS, _TINY_WIDTHS, _TINY_TOKENS) if given.tiny else (_LENGTHS, _WIDTHS, _TOKENS)
    )
    print(_format(compare_kernels(device, 40 if given.tiny else 1_000), given.json), flush=True)
    for row in measure_updates(device, *sizes, 0.1 if given.tiny else given.seconds):
        print(_format(row, given.json), flush=True)


def _format(row: Row, is_json: bool) -> str:
    if is_json:
        return json.dumps(row)
    known = {"command", "commit", "device", "torch", "seed", "part", "case", "value", "unit"}
    rest = ", ".join(f"{name} {value:.3g}" for name, value in row.items() if name not in known)
    return f"{row['part']:10} {row['case']:32} {row['value']:12,.4g} {row['unit']}; {rest}"


if __name__ == "__main__":
    main()
