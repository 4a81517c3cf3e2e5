"""How fast an update is: valid timesteps a second, full and ragged, with what the time goes to.

The peer's model and sizes: 32 floats observed, 8 actions, timestep layers 512 and 256, width 128, 3
blocks of 8 heads and 512 hidden units, heads of two layers of 256, 4 critics, 7 discounts, 24 sequences.
The complete update is timed: PopArt, targets, losses, clipping, AdamW, slow heads, input statistics.

Beside it, in the same run: a plain update of the same model that works on padding, as most code does;
the matrix products of the model's shapes alone, which no update can be faster than; each mechanism
switched off in turn; and the machine's own rate on a fixed workload.

    python benchmarks/update.py --json
    python benchmarks/update.py --quick
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import describe_commit, describe_machine
from torch import Tensor

from retold.policy.heads import Heads
from retold.policy.input_norm import moments_of
from retold.policy.inputs import PolicyInputs
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.spaces import BoxSpace, DiscreteSpace
from retold.train.batch import Batch
from retold.train.config import TrainConfig
from retold.train.learner import Learner
from retold.train.losses import actor_critic_losses, next_values
from retold.train.memory import keep_freed_memory

_OBSERVED, _ACTIONS, _BATCH = 32, 8, 24
_DISCOUNTS = (0.1, 0.9, 0.95, 0.97, 0.99, 0.995, 0.999)
_PEER = {(128, "full"): 7084, (128, "ragged"): 4007, (512, "full"): 2879, (512, "ragged"): 1670}
"""AMAGO's valid timesteps a second, taken elsewhere on this kind of machine at a yardstick of 24,200."""
_SWITCHES: dict[str, dict[str, Any]] = {
    "NormFormer's norms": {"normformer": False},
    "head scaling": {"head_scaling": False},
    "sigmaReparam": {"sigma_reparam": False},
    "rotary positions": {"positions": "none"},
    "input normalisation": {"input_normalisation": False},
    "PopArt": {"popart": False},
    "critics 3 and 4": {"critics": 2},
    "discounts 2 to 7": {"discounts": (0.999,), "acting_discount": 0.999},
}


@dataclass(frozen=True)
class Row:
    """One figure."""

    what: str
    value: float
    unit: str


def make_config(**changes: Any) -> TrainConfig:
    """The peer's model."""
    settings: dict[str, Any] = {
        "model_width": 128,
        "layers": 3,
        "heads": 8,
        "feedforward_width": 512,
        "timestep_widths": (512, 256),
        "head_width": 256,
        "head_layers": 2,
        "discounts": _DISCOUNTS,
        "attention_window": 512,
        **changes,
    }
    return TrainConfig(run=Path("unused"), data=(Path("unused"),), **settings)


def make_schema() -> DatasetSchema:
    """A task without goals."""
    task = TaskDescription(
        name="vectors", kwargs={}, code_version="1", limit_is="truncation", horizon=1000
    )
    return DatasetSchema(
        tasks=(task,),
        observation_space=BoxSpace((_OBSERVED,), "float32", -np.inf, np.inf),
        action_space=DiscreteSpace(_ACTIONS),
    )


def make_batch(lengths: Sequence[int], seed: int = 0) -> Batch:
    """Sequences of random steps, side by side, zeros after the end of shorter ones."""
    rng = np.random.default_rng(seed)
    batch, rows = len(lengths), max(lengths) + 1
    step = np.arange(rows)
    real = step <= np.array(lengths)[:, None]
    observation = rng.standard_normal((batch, rows, _OBSERVED), np.float32) * real[..., None]
    action = rng.integers(0, _ACTIONS, (batch, rows - 1)) * real[:, 1:]
    reward = (rng.random((batch, rows - 1), np.float32) < 0.05).astype(np.float32) * real[:, 1:]

    def before(values: Any) -> Tensor:
        return torch.from_numpy(np.concatenate([np.zeros_like(values[:, :1]), values], 1))

    return Batch(
        inputs=PolicyInputs(
            observation={"observation": torch.from_numpy(observation)},
            previous_action={"action": before(action)},
            has_previous=torch.from_numpy(real & (step > 0)),
            previous_reward=before(reward),
            previous_reset=torch.zeros(batch, rows, dtype=torch.bool),
            step=torch.from_numpy(np.where(real, step, 0)),
            instruction=torch.zeros(batch, 1, dtype=torch.int64),
            progress=torch.zeros(batch, rows, dtype=torch.int64),
        ),
        lengths=tuple(lengths),
        action=torch.from_numpy(action),
        reward=torch.from_numpy(reward),
        terminated=torch.zeros(batch, rows - 1, dtype=torch.bool),
        is_valid=torch.from_numpy(real[:, 1:]),
    )


def make_lengths(longest: int, kind: str) -> list[int]:
    """24 lengths: all the longest, or spread from a tenth of it to all of it, in random order."""
    if kind == "full":
        return [longest] * _BATCH
    spread = np.linspace(longest // 10, longest, _BATCH).round().astype(int)
    return [int(length) for length in np.random.default_rng(1).permutation(spread)]


def time_calls(work: Callable[[], Any], repeats: int, warm: int = 2) -> float:
    """Median seconds of a call."""
    for _ in range(warm):
        work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def padded_update(learner: Learner, batch: Batch) -> None:
    """The same model's update on padded windows: everything runs on every row, and a mask follows."""
    policy, scale = learner.policy, learner.scale
    heads, slow = policy.heads, learner.target_heads
    assert isinstance(heads, Heads) and isinstance(slow, Heads)
    amounts = policy.timestep_encoder.amounts(batch.inputs)
    policy.timestep_encoder.take_moments(moments_of(amounts.flatten(0, 1)))
    policy.iterate_powers()
    learner.optimiser.zero_grad(set_to_none=True)
    features = policy.encode(batch.inputs)
    subset = torch.arange(2).expand(len(learner.discounts), 2)
    with torch.no_grad():
        after = next_values(features[:, 1:].detach(), slow, scale, subset)
        alive = (~batch.terminated).float()[..., None]
        targets = 10 * batch.reward[..., None] + alive * learner.discounts * after
    rows = features[:, :-1].flatten(0, 1)
    mask = batch.is_valid.flatten()
    losses = actor_critic_losses(
        rows,
        batch.action.flatten(),
        targets.flatten(0, 1),
        heads,
        scale,
        count=mask.sum(),
    )
    # Losses of padding are left in: the mask changes what is learned, and nothing of the time.
    (10 * losses.critic + losses.online + 0.1 * losses.cloning).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    learner._step()


def time_products(learner: Learner, rows: int, repeats: int) -> tuple[float, float]:
    """Seconds of the update's matrix products alone at their shapes, and their operations."""
    config = learner.policy.architecture
    width, hidden, head = config.model_width, config.feedforward_units, config.head_width
    critics, discounts = config.critics, len(learner.discounts)
    mix = [m for m in learner.policy.timestep_encoder.mix if isinstance(m, torch.nn.Linear)]
    trunk = [(m.in_features, m.out_features) for m in mix]
    trunk.append((mix[-1].out_features, width))
    block = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    trunk += block * config.layers
    heads = [
        (width, head),
        *[(head, head)] * (config.head_layers - 1),
        (head, discounts * _ACTIONS),
    ]
    shapes = [(1, *shape, 3) for shape in trunk]
    shapes += [(count, *shape, 4) for count in (1, critics) for shape in heads]
    # Forward, and back to inputs and weights; target heads forward only, as a fourth.
    seconds = operations = 0.0
    for count, inputs, outputs, passes in shapes:
        x, w = torch.randn(count, rows, inputs), torch.randn(count, inputs, outputs)
        y = torch.empty(count, rows, outputs)
        one = time_calls(lambda x=x, w=w, y=y: torch.bmm(x, w, out=y), repeats)  # type: ignore[misc]
        seconds += one * passes
        operations += 2.0 * count * rows * inputs * outputs * passes
    return seconds, operations


def yardstick() -> float:
    """Rows a second of a fixed workload: forward and back through 8 blocks of 128 and 512."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(8):
        layers += [torch.nn.LayerNorm(128), torch.nn.Linear(128, 512), torch.nn.LeakyReLU()]
        layers.append(torch.nn.Linear(512, 128))
    model = torch.nn.Sequential(*layers)
    x = torch.randn(3072, 128)
    return 3072 / time_calls(lambda: model(x).square().mean().backward(), 20)


def measure(quick: bool) -> Iterator[Row]:
    """All figures."""
    repeats = 3 if quick else 7
    schema = make_schema()
    yield Row("yardstick", yardstick(), "rows/s")
    for longest in (128, 512):
        for kind in ("full", "ragged"):
            lengths = make_lengths(longest, kind)
            batch, valid = make_batch(lengths), sum(lengths)
            what = f"L {longest} {kind}"
            learner = Learner(make_config(), schema)
            seconds = time_calls(lambda: learner.update(batch), repeats)  # noqa: B023
            yield Row(f"{what}: update", valid / seconds, "timesteps/s")
            padded = time_calls(lambda: padded_update(learner, batch), repeats)  # noqa: B023
            yield Row(f"{what}: padded update", valid / padded, "timesteps/s")
            yield Row(f"{what}: to the padded update", padded / seconds, "ratio")
            yield Row(f"{what}: to AMAGO's figure", valid / seconds / _PEER[longest, kind], "ratio")
            products, operations = time_products(learner, valid, repeats)
            yield Row(f"{what}: matrix products alone", valid / products, "timesteps/s")
            yield Row(f"{what}: share of the products", products / seconds, "ratio")
            yield Row(f"{what}: rate of the products", operations / products / 1e9, "GFLOP/s")
            if not quick:  # minutes on a CPU without instructions for it
                with torch.autocast("cpu", torch.bfloat16):
                    lower = time_calls(lambda: learner.update(batch), 1, warm=1)  # noqa: B023
                yield Row(f"{what}: update in bfloat16", valid / lower, "timesteps/s")
    yield from measure_switches(repeats, schema)


def measure_switches(repeats: int, schema: DatasetSchema) -> Iterator[Row]:
    """What each mechanism costs: the update's time without it, alternating with the whole."""
    batch = make_batch(make_lengths(128, "ragged"))
    whole = Learner(make_config(), schema)
    for name, changes in _SWITCHES.items():
        other = Learner(make_config(**changes), schema)
        pairs = [
            (
                time_calls(lambda: whole.update(batch), 1, warm=0),
                time_calls(lambda: other.update(batch), 1, warm=0),  # noqa: B023
            )
            for _ in range(repeats + 1)
        ][1:]
        cost = 1 - statistics.median(without / with_ for with_, without in pairs)
        yield Row(f"cost of {name}", 100 * cost, "% of the update")


def profile(longest: int) -> str:
    """A table of where the time goes."""
    batch = make_batch(make_lengths(longest, "ragged"))
    learner = Learner(make_config(), make_schema())
    learner.update(batch)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(3):
            learner.update(batch)
    return str(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=24))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, within 60 s")
    parser.add_argument("--profile", type=int, metavar="L", help="print a profile instead")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    if arguments.profile:
        print(profile(arguments.profile))
        return
    facts = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "seed": 0,
    }
    for row in measure(arguments.quick):
        if arguments.json:
            print(json.dumps({**facts, "what": row.what, "value": row.value, "unit": row.unit}))
        else:
            print(f"{row.what:<40} {row.value:>14,.3f} {row.unit}", flush=True)


if __name__ == "__main__":
    main()
