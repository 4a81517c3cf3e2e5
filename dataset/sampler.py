"""Windows of trajectories, drawn at random; what is drawn depends on the seed and a number alone."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from retold.dataset.reader import DatasetReader
from retold.schemas.episode import Window
from retold.schemas.errors import DatasetError, UsageError
from retold.schemas.identity import random_stream


class WindowSampler:
    """Draws windows from a weighted mixture of dataset snapshots.

    Episodes up to the window length are used whole. In longer ones the start is uniform over all
    places where a full window fits, except for a share of windows that starts at step 0.
    """

    def __init__(
        self,
        readers: Sequence[DatasetReader],
        *,
        window_length: int,
        seed: int,
        weights: Sequence[float] | None = None,
        start_share: float = 0.25,
        unit: Literal["steps", "episodes"] = "steps",
    ) -> None:
        """Index the readers' episodes.

        Args:
            readers: one for each dataset of the mixture.
            window_length: most transitions of a window, at least 1.
            seed: names the stream of draws.
            weights: share of windows from each dataset, in any scale; equal if None.
            start_share: share of windows of longer episodes that start at step 0, in [0, 1].
            unit: `steps`: an episode's chance grows with its length; `episodes`: all are equal.
        """
        weights = [1.0] * len(readers) if weights is None else list(weights)
        if len(weights) != len(readers):
            raise UsageError(
                f"There are {len(weights)} weights for {len(readers)} datasets. "
                f"Give one --weight after each --data, or none."
            )
        if min(weights, default=0.0) < 0 or sum(weights) <= 0:
            raise UsageError(
                f"The weights are {weights}. Give numbers of at least 0, not all of them 0."
            )
        for reader, weight in zip(readers, weights, strict=True):
            if weight > 0 and len(reader) == 0:
                raise DatasetError(f"{reader.path}: no episode is live. Collect some first.")
        self._readers = tuple(readers)
        self._window_length = window_length
        self._seed = seed
        self._start_share = start_share
        self._shares = np.cumsum(np.asarray(weights) / np.sum(weights))
        self._ends = [
            np.cumsum(reader.lengths if unit == "steps" else np.ones(len(reader), np.int64))
            for reader in readers
        ]

    def draw(self, number: int, batch_size: int) -> list[Window]:
        """Draw `number`: the same windows for the same snapshots and seed, whoever asks and when."""
        rng = random_stream(self._seed, "sample windows", number)
        windows = []
        for chance in rng.random(batch_size):
            dataset = int(np.searchsorted(self._shares, chance, side="right"))
            dataset = min(dataset, len(self._readers) - 1)
            reader, ends = self._readers[dataset], self._ends[dataset]
            row = int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))
            length = int(reader.lengths[row])
            start = 0
            if length > self._window_length and rng.random() >= self._start_share:
                start = int(rng.integers(length - self._window_length + 1))
            count = min(self._window_length, length - start)
            windows.append(reader.read_window(row, start, count, dataset=dataset))
        return windows
