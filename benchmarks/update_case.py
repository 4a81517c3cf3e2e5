"""The model, the batches and the clock that the update's figures are taken with."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import EpisodeRecord, Window
from retold.schemas.spaces import BoxSpace, DiscreteSpace
from retold.train.batch import Batch, make_batch
from retold.train.config import TrainConfig

FEATURES, ACTIONS = 32, 8
DISCOUNTS = (0.9, 0.95, 0.99, 0.993, 0.996, 0.999, 0.9999)


@dataclass(frozen=True)
class Timing:
    """Readings of one kind of update, in valid timesteps a second."""

    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.rates)


def make_schema(length: int) -> DatasetSchema:
    """32 unbounded amounts seen, 8 actions."""
    task = TaskDescription(
        name="made-up", kwargs={}, code_version="1", limit_is="truncation", horizon=length
    )
    return DatasetSchema(
        tasks=(task,),
        observation_space=BoxSpace((FEATURES,), "float32", -np.inf, np.inf),
        action_space=DiscreteSpace(ACTIONS),
    )


def make_config(length: int, **changes: Any) -> TrainConfig:
    """The peer's sizes: timestep layers 512 and 256, 3 blocks of 128, heads of two layers of 256."""
    config = TrainConfig(
        run=Path("run"),
        data=(Path("raw"),),
        context_length=length,
        attention_window=length + 1,
        discounts=DISCOUNTS,
        acting_discount=DISCOUNTS[-2],
        model_width=128,
        layers=3,
        heads=8,
        feedforward_width=512,
        timestep_widths=(512, 256),
        head_width=256,
        head_layers=2,
        critics=4,
        threads=2,
    )
    return dataclasses.replace(config, **changes)


def draw_lengths(length: int, batch_size: int, *, is_ragged: bool, seed: int) -> list[int]:
    """Transitions of each window: all of them, or anything from an eighth."""
    if not is_ragged:
        return [length] * batch_size
    rng = np.random.default_rng(seed)
    return [int(n) for n in rng.integers(max(1, length // 8), length + 1, batch_size)]


def make_batches(
    length: int, batch_size: int, count: int, *, is_ragged: bool, seed: int = 0
) -> list[Batch]:
    """Batches of random windows, each of one whole truncated episode."""
    return [
        make_batch(
            [
                make_window(n, seed=1000 * number + place)
                for place, n in enumerate(
                    draw_lengths(length, batch_size, is_ragged=is_ragged, seed=seed + number)
                )
            ],
            most_goals=0,
            burn_in=0,
        )
        for number in range(count)
    ]


def make_window(length: int, *, seed: int) -> Window:
    """A whole episode of noise."""
    rng = np.random.default_rng(seed)
    ends = np.arange(length) == length - 1
    return Window(
        record=EpisodeRecord(
            episode_id=f"{seed:032x}",
            task=0,
            length=length,
            episode_return=0.0,
            terminated=False,
            truncated=True,
            environment_terminated=False,
        ),
        dataset=0,
        start=0,
        observation={"observation": rng.standard_normal((length + 1, FEATURES), np.float32)},
        action={"action": rng.integers(0, ACTIONS, length)},
        reward=rng.standard_normal(length).astype(np.float32),
        terminated=np.zeros(length, np.bool_),
        truncated=ends,
        reset=np.zeros(length, np.bool_),
        progress=np.zeros(length + 1, np.uint32),
        previous_action=None,
        previous_reward=0.0,
        previous_reset=False,
    )


def time_updates(
    update: Callable[[Batch], object], batches: Sequence[Batch], seconds: float
) -> Timing:
    """Update over and over for some seconds, after each batch was seen once."""
    for batch in batches[:2]:
        update(batch)
    rates: list[float] = []
    finish = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < finish:
        batch = batches[len(rates) % len(batches)]
        started = time.perf_counter()
        update(batch)
        rates.append(sum(batch.lengths) / (time.perf_counter() - started))
    return Timing(tuple(rates))
