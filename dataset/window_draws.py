"""Which windows a draw holds: a pure function of episode lengths, seed and number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from retold.schemas.errors import UsageError
from retold.schemas.identity import numbered_stream, stream_key

Unit = Literal["steps", "episodes"]
Cut = Literal["pad", "drop", "aligned"]
_BLOCK_DRAWS = 16
"""Draws that are chosen together, which takes hardly longer than choosing one."""
UNITS: tuple[Unit, ...] = get_args(Unit)
CUTS: tuple[Cut, ...] = get_args(Cut)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """`[batch]` each, int64."""

    dataset: NDArray[np.int64]
    """Number of the dataset in the mixture."""
    row: NDArray[np.int64]
    """The episode's row in its dataset."""
    start: NDArray[np.int64]
    """Number of the first transition in its episode."""
    length: NDArray[np.int64]
    """Transitions."""

    def __len__(self) -> int:
        return len(self.length)

    def take(self, places: NDArray[np.int64] | NDArray[np.bool_] | slice) -> "Draw":
        """Some of the windows."""
        return Draw(
            dataset=self.dataset[places],
            row=self.row[places],
            start=self.start[places],
            length=self.length[places],
        )

    @classmethod
    def join(cls, draws: "Sequence[Draw]") -> "Draw":
        """The windows of several draws, one draw after the other."""
        return cls(
            dataset=np.concatenate([draw.dataset for draw in draws]),
            row=np.concatenate([draw.row for draw in draws]),
            start=np.concatenate([draw.start for draw in draws]),
            length=np.concatenate([draw.length for draw in draws]),
        )


class WindowDraws:
    """Chooses windows from episodes of known lengths; it reads nothing."""

    def __init__(
        self,
        lengths: Sequence[NDArray[np.int64]],
        *,
        window_length: int | None,
        seed: int,
        weights: Sequence[float] | None,
        start_share: float,
        unit: Unit,
        cut: Cut,
    ) -> None:
        """Index the lengths; `WindowSampler` explains the arguments."""
        weights = [1.0] * len(lengths) if weights is None else list(weights)
        if len(weights) != len(lengths):
            raise UsageError(
                f"There are {len(weights)} weights for {len(lengths)} datasets. "
                f"Give one --weight after each --data, or none."
            )
        if min(weights, default=0.0) < 0 or sum(weights) <= 0:
            raise UsageError(
                f"The weights are {weights}. Give numbers of at least 0, not all of them 0."
            )
        if window_length is not None and window_length < 1:
            raise UsageError(f"The window length is {window_length}, but must be at least 1.")
        self._lengths = tuple(lengths)
        self._is_whole = window_length is None
        longest = max(int(length.max(initial=1)) for length in lengths)
        self.window_length = longest if window_length is None else window_length
        self._start_share = start_share
        self._unit, self._cut = unit, cut
        self._key = stream_key(seed, "sample windows")
        self._shares = np.cumsum(np.asarray(weights) / np.sum(weights))
        self._last = int(np.flatnonzero(weights)[-1])
        self._kept: tuple[tuple[int, int], NDArray[np.int64]] = ((-1, 0), np.empty((4, 0, 0), int))
        self._ends = [np.cumsum(self._chances(length)) for length in lengths]

    def is_empty(self, dataset: int) -> bool:
        """Whether a dataset has no window to draw, though it is asked for some."""
        share = np.diff(self._shares, prepend=0.0)[dataset]
        return bool(share > 0 and (not len(self._ends[dataset]) or self._ends[dataset][-1] == 0))

    def draw(self, number: int, batch_size: int) -> Draw:
        """Draw `number`."""
        block, place = divmod(number, _BLOCK_DRAWS)
        if self._kept[0] != (block, batch_size):
            self._kept = ((block, batch_size), self._draw_block(block, batch_size))
        drawn = self._kept[1][:, place]
        return Draw(dataset=drawn[0], row=drawn[1], start=drawn[2], length=drawn[3])

    def _draw_block(self, block: int, batch_size: int) -> NDArray[np.int64]:
        """`[4, draws, batch]`: dataset, row, start and length of each window of a block."""
        windows = _BLOCK_DRAWS * batch_size
        chance = numbered_stream(self._key, block).random((windows, 4)).T
        drawn = np.empty((4, windows), np.int64)
        dataset = np.searchsorted(self._shares, chance[0], side="right")
        drawn[0] = np.minimum(dataset, self._last)
        for place in np.unique(drawn[0]).tolist():
            members = np.flatnonzero(drawn[0] == place)
            drawn[1:, members] = self._choose(place, chance[1:, members])
        return drawn.reshape(4, _BLOCK_DRAWS, batch_size)

    def _chances(self, length: NDArray[np.int64]) -> NDArray[np.int64]:
        """`[episodes]`: how often each episode is drawn, in any scale."""
        chances = length if self._unit == "steps" else np.ones(len(length), np.int64)
        if self._cut == "drop" and not self._is_whole:
            chances = np.where(length >= self.window_length, chances, 0)
        return chances

    def _choose(
        self, dataset: int, chance: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Row, start and length of windows of one dataset from `[3, windows]` numbers in [0, 1)."""
        ends, most = self._ends[dataset], self.window_length
        target = (chance[0] * ends[-1]).astype(np.int64)
        row = np.searchsorted(ends, target, side="right")
        length = self._lengths[dataset][row]
        if self._is_whole:
            return row, np.zeros_like(row), length
        if self._cut == "aligned":
            if self._unit == "steps":
                tile = (target - (ends[row] - length)) // most
            else:
                tile = (chance[1] * -(-length // most)).astype(np.int64)
            start = tile * most
        else:
            places = np.maximum(length - most, 0) + 1
            start = (chance[2] * places).astype(np.int64)
            start[chance[1] < self._start_share] = 0
        return row, start, np.minimum(length - start, most)


def worker_draws(first: int, *, worker: int, workers: int) -> Iterator[int]:
    """The numbers from `first` on that one of several workers draws; no two draw the same."""
    if not 0 <= worker < workers:
        raise UsageError(f"Worker {worker} is not among {workers}. They count from 0.")
    return count(first + worker, workers)
