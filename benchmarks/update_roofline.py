"""What this machine's matrix products allow: the update's products alone, at the model's shapes."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retold.policy.attention import attend, plan_attention, rotary_angles
from retold.train.config import TrainConfig


@dataclass(frozen=True)
class Roofline:
    """Seconds of one update's products and attention, and the machine's best rate."""

    product_seconds: float
    product_flops: float
    attention_seconds: float
    peak_flops_per_second: float

    @property
    def seconds(self) -> float:
        """What an update takes at least."""
        return self.product_seconds + self.attention_seconds


def measure_roofline(
    config: TrainConfig, lengths: tuple[int, ...], inputs: int, actions: int
) -> Roofline:
    """Best of some readings of every product of one update.

    Args:
        config: of the model.
        lengths: transitions of each sequence.
        inputs: features that the timestep encoder takes.
        actions: options of the action.
    """
    seconds = 0.0
    rows, valid = sum(lengths) + len(lengths), sum(lengths)
    for layers, count in ((_trunk(config, inputs), rows), (_actor(config, actions), valid)):
        for number, (wide, high) in enumerate(layers):
            is_first = layers[0][0] == inputs and number == 0
            seconds += _linear_seconds(count, wide, high, is_first=is_first)
    for wide, high in _critic(config, actions):
        seconds += _batched_seconds(config.critics, valid, wide, high)
    for wide, high in _actor(config, actions):
        x, weight = torch.randn(valid, wide), torch.randn(wide, high)
        seconds += best_seconds(lambda x=x, weight=weight: x @ weight)  # type: ignore[misc]
    flops = count_product_flops(config, lengths, inputs, actions)
    return Roofline(seconds, flops, _attention_seconds(config, lengths), measure_peak())


def count_product_flops(
    config: TrainConfig, lengths: Sequence[int], inputs: int, actions: int
) -> float:
    """FLOP of the products of one update without attention's; arguments as of `measure_roofline`."""
    rows, valid = sum(lengths) + len(lengths), sum(lengths)
    trunk, actor, critic = _trunk(config, inputs), _actor(config, actions), _critic(config, actions)
    # Forward, and back to weights and inputs; the first layer's inputs need no gradient.
    total = sum(6.0 * rows * wide * high for wide, high in trunk)
    total -= 2.0 * rows * trunk[0][0] * trunk[0][1]
    # The targets ask the actor and the critics once more, forward.
    total += sum(8.0 * valid * wide * high for wide, high in actor)
    return total + sum(8.0 * config.critics * valid * wide * high for wide, high in critic)


def count_attention_flops(config: TrainConfig, lengths: Sequence[int]) -> float:
    """FLOP of all layers' attention over pairs that are seen; back counts 2.5 times forward."""
    window = config.attention_window
    pairs = 0.0
    for rows in (n + 1 for n in lengths):
        seen = min(rows, window)
        pairs += seen * (seen + 1) / 2 + (rows - seen) * window
    return 3.5 * 4.0 * config.layers * config.model_width * pairs


def measure_peak() -> float:
    """FLOP/s of the best large product."""
    side = 2048
    x, out = torch.randn(side, side), torch.empty(side, side)
    return 2.0 * side**3 / best_seconds(lambda: torch.mm(x, x, out=out))


def best_seconds(work: Callable[[], object], readings: int = 8) -> float:
    """The least of some readings after one that is left out."""
    work()
    found = []
    for _ in range(readings):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def _trunk(config: TrainConfig, inputs: int) -> list[tuple[int, int]]:
    width, hidden = config.model_width, config.architecture.feedforward_units
    sizes = [inputs, *config.architecture.timestep_units, width]
    block = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    return [*itertools.pairwise(sizes), *block * config.layers]


def _actor(config: TrainConfig, actions: int) -> list[tuple[int, int]]:
    hidden = [config.head_width] * config.head_layers
    sizes = [config.model_width, *hidden, len(config.discounts) * actions]
    return list(itertools.pairwise(sizes))


_critic = _actor


def _linear_seconds(rows: int, wide: int, high: int, *, is_first: bool) -> float:
    """Forward, and back to weights and, but for the first layer, to inputs."""
    x, weight = torch.randn(rows, wide), torch.randn(high, wide)
    y, into, back = torch.randn(rows, high), torch.empty(high, wide), torch.empty(rows, wide)
    parts: Iterator[Callable[[], Tensor]] = iter(
        (
            lambda: torch.mm(x, weight.t(), out=y),
            lambda: torch.mm(y.t(), x, out=into),
            lambda: torch.mm(y, weight, out=back),
        )
    )
    wanted = list(parts)[: 2 if is_first else 3]
    return sum(best_seconds(part) for part in wanted)


def _batched_seconds(critics: int, rows: int, wide: int, high: int) -> float:
    """Forward twice, of online and target critics, and back."""
    x, weight = torch.randn(critics, rows, wide), torch.randn(critics, wide, high)
    y, into = torch.randn(critics, rows, high), torch.empty(critics, wide, high)
    forward = best_seconds(lambda: torch.bmm(x, weight, out=y))
    to_weight = best_seconds(lambda: torch.bmm(x.transpose(1, 2), y, out=into))
    to_input = best_seconds(lambda: torch.bmm(y, weight.transpose(1, 2), out=x))
    return 2 * forward + to_weight + to_input


def _attention_seconds(config: TrainConfig, lengths: tuple[int, ...]) -> float:
    """Forward and back of the attention of all layers."""
    rows = sum(lengths) + len(lengths)
    features = config.model_width // config.heads
    projected = torch.randn(rows, 3, config.heads, features, requires_grad=True)
    step = torch.cat([torch.arange(n + 1) for n in lengths])
    rotation = rotary_angles(step, features)
    window = config.attention_window
    plan = plan_attention([n + 1 for n in lengths], window, rotation, projected.device)
    gradient = torch.randn(rows, config.heads, features)

    def both() -> None:
        attend(projected, plan).backward(gradient)  # type: ignore[no-untyped-call]

    return config.layers * best_seconds(both, 4)
