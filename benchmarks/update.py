"""How fast a packed update is, beside a plain padded update of the same model in the same run.

The complete learner (all mechanisms, losses, statistics, clipping, optimiser, target copies), float32
and 2 threads. The peer's figures were taken elsewhere on this kind of machine; the yardstick's reading
stands beside each of ours.

    python benchmarks/update.py --json
    python benchmarks/update.py --quick
    python benchmarks/update.py --part rate --part roofline
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from provenance import describe_commit, describe_machine
from torch.profiler import ProfilerActivity, profile
from update_case import (
    ACTIONS,
    FEATURES,
    Timing,
    make_batches,
    make_config,
    make_schema,
    time_updates,
)
from update_padded import PaddedUpdate
from update_roofline import measure_roofline
from yardstick import PEER_ROWS_PER_SECOND, ForeignLoad, read_yardstick

from retold.train.batch import Batch
from retold.train.learner import Learner
from retold.train.memory import keep_freed_memory

PEER = {(128, False): 7_084, (128, True): 4_007, (512, False): 2_879, (512, True): 1_670}
"""AMAGO's valid timesteps/s, by length and raggedness, at the yardstick's `PEER_ROWS_PER_SECOND`."""
MECHANISMS: dict[str, dict[str, Any]] = {
    "NormFormer's norms": {"normformer": False},
    "head scaling": {"head_scaling": False},
    "sigmaReparam": {"sigma_reparam": False},
    "rotary positions": {"positions": "none"},
    "input normalisation": {"input_normalisation": False},
    "PopArt": {"popart": False},
    "two critics fewer": {"critics": 2},
    "all discounts but one": {"discounts": (0.999,)},
    "two-hot critics instead": {"critic": "two-hot"},
}
_BATCH = 24
Row = dict[str, Any]


def measure_rates(lengths: Sequence[int], batch_size: int, seconds: float) -> Iterator[Row]:
    """Ours and the padded update, full and ragged."""
    for length in lengths:
        for is_ragged in (False, True):
            batches = make_batches(length, batch_size, 3, is_ragged=is_ragged)
            name = f"L = {length}, {'ragged' if is_ragged else 'full'}"
            peer = PEER.get((length, is_ragged)) if batch_size == _BATCH else None
            packed = Learner(make_config(length), make_schema(length))
            row = _timed("rate", f"{name}, packed", packed.update, batches, seconds)
            if peer:
                at_same_speed = peer * row["yardstick"] / PEER_ROWS_PER_SECOND
                row |= {"peer": peer, "of_peer": row["value"] / at_same_speed}
            yield row
            padded = PaddedUpdate(Learner(make_config(length), make_schema(length)))
            plain = _timed("rate", f"{name}, padded", padded, batches, seconds)
            yield plain | {"packed_to_padded": row["value"] / plain["value"]}


def measure_share(lengths: Sequence[int], batch_size: int, seconds: float) -> Iterator[Row]:
    """The share of the roofline that the update reaches."""
    for length in lengths:
        (batch,) = make_batches(length, batch_size, 1, is_ragged=False)
        config = make_config(length)
        learner = Learner(config, make_schema(length))
        row = _timed("roofline", f"L = {length}, full", learner.update, [batch], seconds)
        # What is seen, whether there was an action and which, reward, reset and step.
        inputs = FEATURES + 1 + ACTIONS + 3
        roof = measure_roofline(config, batch.lengths, inputs, ACTIONS)
        steps = sum(batch.lengths)
        yield row | {
            "roof": steps / roof.seconds,
            "share": row["value"] * roof.seconds / steps,
            "roof_without_attention": steps / roof.product_seconds,
            "products_gflops": roof.product_flops / roof.product_seconds / 1e9,
            "peak_gflops": roof.peak_flops_per_second / 1e9,
            "products_of_peak": roof.product_flops
            / roof.product_seconds
            / roof.peak_flops_per_second,
            "update_of_peak": roof.product_flops
            * row["value"]
            / steps
            / roof.peak_flops_per_second,
        }


def measure_mechanisms(length: int, batch_size: int, seconds: float) -> Iterator[Row]:
    """The update with each mechanism switched off in turn, readings in turn with the whole."""
    batches = make_batches(length, batch_size, 3, is_ragged=False)
    schema = make_schema(length)
    whole = Learner(make_config(length), schema)
    for name, changes in MECHANISMS.items():
        config = make_config(length, **changes)
        if config.acting_discount not in config.discounts:
            config = make_config(length, **changes, acting_discount=config.discounts[0])
        without = Learner(config, schema)
        before = time_updates(whole.update, batches, seconds / 2)
        row = _timed("mechanism", name, without.update, batches, seconds)
        after = time_updates(whole.update, batches, seconds / 2)
        rate = Timing(before.rates + after.rates).median
        yield row | {"whole": rate, "cost": 1 - rate / row["value"]}


def measure_profile(length: int, batch_size: int) -> Iterator[Row]:
    """Share of the update's time of the operations that take most."""
    batches = make_batches(length, batch_size, 3, is_ragged=False)
    learner = Learner(make_config(length), make_schema(length))
    for batch in batches:
        learner.update(batch)
    load = ForeignLoad()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for batch in batches:
            learner.update(batch)
    averages = sorted(seen.key_averages(), key=lambda one: -one.self_cpu_time_total)
    total = sum(one.self_cpu_time_total for one in averages)
    for one in averages[:20]:
        facts = {"milliseconds": one.self_cpu_time_total / 1e3 / len(batches)}
        yield _row("profile", one.key, one.self_cpu_time_total / total, "share of the update") | {
            **facts,
            "calls": one.count / len(batches),
            "foreign_cores": load.cores(),
        }


def measure_bf16(lengths: Sequence[int], batch_size: int, seconds: float) -> Iterator[Row]:
    """The same update under CPU autocast to bfloat16."""
    for length in lengths:
        learner = Learner(make_config(length), make_schema(length))

        def update(batch: Batch, learner: Learner = learner) -> object:
            with torch.autocast("cpu", torch.bfloat16):
                return learner.update(batch)

        batches = make_batches(length, batch_size, 3, is_ragged=False)
        yield _timed("bf16", f"L = {length}, full", update, batches, seconds)


def _timed(
    part: str,
    case: str,
    update: Callable[[Batch], object],
    batches: Sequence[Batch],
    seconds: float,
) -> Row:
    load = ForeignLoad()
    timing = time_updates(update, batches, seconds)
    foreign = load.cores()
    return _row(part, case, timing.median, "valid timesteps/s") | {
        "best": max(timing.rates),
        "readings": len(timing.rates),
        "foreign_cores": foreign,
        "yardstick": read_yardstick(5),
    }


def _row(part: str, case: str, value: float, unit: str) -> Row:
    return {
        "command": shlex.join(["python", "benchmarks/update.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "dataset": "made up",
        "seed": 0,
        "threads": torch.get_num_threads(),
        "part": part,
        "case": case,
        "value": value,
        "unit": unit,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a reading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="shorter and smaller, in 60 s")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--seconds", type=float, default=4.0, help="of updates behind each figure")
    parser.add_argument("--length", type=int, action="append", help="transitions; 128 and 512")
    names = ("rate", "roofline", "mechanism", "profile", "bf16")
    parser.add_argument("--part", action="append", choices=names, help="all; quick: not bf16")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    lengths = given.length or ([32, 64] if given.quick else [128, 512])
    batch_size = 8 if given.quick else _BATCH
    seconds = 0.2 if given.quick else given.seconds
    parts = {
        "rate": lambda: measure_rates(lengths, batch_size, seconds),
        "roofline": lambda: measure_share(lengths, batch_size, seconds),
        "mechanism": lambda: measure_mechanisms(lengths[0], batch_size, seconds),
        "profile": lambda: measure_profile(lengths[0], batch_size),
        "bf16": lambda: measure_bf16(lengths, batch_size, seconds),
    }
    # bfloat16 takes minutes on a CPU without instructions for it.
    for name in given.part or (names[:-1] if given.quick else names):
        for row in parts[name]():
            print(json.dumps(row) if given.json else _describe(row), flush=True)


def _describe(row: Row) -> str:
    hidden = {"command", "commit", "machine", "dataset", "seed", "threads", "part", "case", "unit"}
    rest = ", ".join(
        f"{name} {value:,.3g}" if abs(value) < 100 else f"{name} {value:,.0f}"
        for name, value in row.items()
        if name not in hidden and name != "value"
    )
    value = f"{row['value']:,.3f}" if row["value"] < 1 else f"{row['value']:,.0f}"
    return f"{row['part']:10} {row['case']:42} {value:>8} {row['unit']}; {rest}"


if __name__ == "__main__":
    main()
