"""Windows of trajectories, drawn at random; what is drawn depends on the seed and a number alone."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from retold.dataset.chunk_cache import ChunkCache
from retold.dataset.episode_columns import EpisodeColumns
from retold.dataset.reader import DatasetReader
from retold.dataset.window_batch import WindowBatch, make_window_batch
from retold.dataset.window_draws import Cut, Draw, Unit, WindowDraws
from retold.dataset.window_filler import WindowFiller
from retold.schemas.episode import Window
from retold.schemas.errors import DatasetError, UsageError


class WindowSampler:
    """Draws windows from a weighted mixture of dataset snapshots.

    A draw is a pure function of (snapshots, seed, number): a resumed stream goes on where it was,
    and workers that draw different numbers (`worker_draws`) never draw the same.
    """

    def __init__(
        self,
        readers: Sequence[DatasetReader],
        *,
        window_length: int | None,
        seed: int,
        weights: Sequence[float] | None = None,
        start_share: float = 0.25,
        unit: Unit = "steps",
        cut: Cut = "pad",
        resident_bytes: int = 512_000_000,
        cache_bytes: int = 0,
        threads: int = 2,
    ) -> None:
        """Index the readers' episodes.

        Args:
            readers: one for each dataset of the mixture.
            window_length: most transitions of a window, at least 1; None for whole episodes.
            seed: names the stream of draws.
            weights: share of windows from each dataset, in any scale; equal if None.
            start_share: share of windows of longer episodes that start at step 0, in [0, 1];
                `aligned` windows take no notice of it.
            unit: `steps`: an episode's chance grows with its length; `episodes`: all are equal.
            cut: `pad`: episodes up to the window length are used whole and padded, in longer ones
                the start is uniform over all places where a full window fits; `drop`: the same,
                but episodes shorter than a window are never drawn; `aligned`: windows start at
                multiples of the window length, the last one of an episode is padded; with `steps`,
                every transition is then equally often in a window.
            resident_bytes: budget for scalar columns kept in memory; those beyond it are decoded
                for every window.
            cache_bytes: budget for decoded chunks that are kept; pays where windows come back to
                the same places.
            threads: 1, or 2 for decoding large chunks.
        """
        self._readers = tuple(readers)
        self._draws = WindowDraws(
            [reader.columns.length for reader in readers],
            window_length=window_length,
            seed=seed,
            weights=weights,
            start_share=start_share,
            unit=unit,
            cut=cut,
        )
        for number, reader in enumerate(readers):
            if self._draws.is_empty(number):
                raise DatasetError(_explain_empty(reader, self._draws.window_length))
        pool = ThreadPoolExecutor(1, "retold-decode") if threads > 1 else None
        cache = ChunkCache(cache_bytes) if cache_bytes else None
        self._fillers = [
            WindowFiller(reader, resident_bytes=resident_bytes, cache=cache, pool=pool)
            for reader in readers
        ]

    @property
    def window_length(self) -> int:
        """Most transitions of a window: of whole episodes, the longest one's."""
        return self._draws.window_length

    def columns(self, dataset: int) -> EpisodeColumns:
        """The episodes of one dataset of the mixture, to look drawn rows up in."""
        return self._readers[dataset].columns

    def make_batch(self, batch_size: int) -> WindowBatch:
        """Arrays for `sample_into`, to be filled over and over."""
        return make_window_batch(self._readers[0].schema, batch_size, self.window_length)

    def choose(self, number: int, batch_size: int) -> Draw:
        """Which windows draw `number` holds; nothing is read."""
        return self._draws.draw(number, batch_size)

    def sample_into(self, batch: WindowBatch, number: int) -> WindowBatch:
        """Fill a batch with draw `number`, and return it.

        Raises:
            FormatError: a chunk that is wanted is damaged; the file is named.
        """
        return self.fill(batch, self.choose(number, batch.size))

    def fill(self, batch: WindowBatch, draw: Draw) -> WindowBatch:
        """Fill a batch with chosen windows, as many as it holds, and return it.

        Raises:
            FormatError: a chunk that is wanted is damaged; the file is named.
        """
        if batch.window_length != self.window_length:
            raise UsageError(
                f"The batch is for windows of {batch.window_length} transitions, the sampler's "
                f"have {self.window_length}. Make it with the sampler's make_batch."
            )
        batch.dataset[:], batch.row[:] = draw.dataset, draw.row
        batch.start[:], batch.length[:] = draw.start, draw.length
        if len(self._fillers) == 1:
            self._fillers[0].fill(batch, np.arange(batch.size))
            return batch
        for dataset, filler in enumerate(self._fillers):
            members: NDArray[np.int64] = np.flatnonzero(draw.dataset == dataset)
            if len(members):
                filler.fill(batch, members)
        return batch

    def rewards_before(self, draw: Draw) -> NDArray[np.float64]:
        """`[windows]`: the sum of each episode's rewards before its window; 0 at an episode's start."""
        sums = np.zeros(len(draw), np.float64)
        for place in np.flatnonzero(draw.start).tolist():
            filler = self._fillers[int(draw.dataset[place])]
            sums[place] = filler.sum_rewards(int(draw.row[place]), int(draw.start[place]))
        return sums

    def draw(self, number: int, batch_size: int) -> list[Window]:
        """The windows of draw `number` one by one: slower than `sample_into`, the same content."""
        draw = self.choose(number, batch_size)
        places = zip(
            *(part.tolist() for part in (draw.dataset, draw.row, draw.start, draw.length)),
            strict=True,
        )
        return [
            self._readers[dataset].read_window(row, start, length, dataset=dataset)
            for dataset, row, start, length in places
        ]


def _explain_empty(reader: DatasetReader, window_length: int) -> str:
    if len(reader):
        return (
            f"{reader.path}: no episode has {window_length} transitions. Ask for shorter windows, "
            f"or pad shorter episodes."
        )
    return f"{reader.path}: no episode is live. Collect some first."
