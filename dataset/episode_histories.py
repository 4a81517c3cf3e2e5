"""Histories: the episodes of one task, in the order of the training that made them, end to end.

One task is one entry of the dataset's tasks (a name with its arguments) under one run seed. Variants
stand where their sources do, and form a history for each of their numbers under one strategy and
seed, so that no history tells an episode twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.episode_columns import UNKNOWN
from retold.dataset.reader import DatasetReader
from retold.dataset.window_draws import Draw
from retold.dataset.window_filler import find_source_rows
from retold.schemas.errors import DatasetError

_RANDOM = -1
"""Stands before the first update: what random actions made comes first."""
_BY_ORIGIN = ("run_seed", "index", "policy_update")


@dataclass(frozen=True, kw_only=True)
class WindowParts:
    """Windows of histories, cut at the ends of episodes. `[parts]` each, in order."""

    draw: Draw
    """Windows of single episodes."""
    counts: tuple[int, ...]
    """`[windows]`: parts of each window of histories."""
    position: NDArray[np.int64]
    """Number of each part's first transition in its history."""
    before: NDArray[np.int64]
    """Transitions of the window of histories before each part."""


class EpisodeHistories:
    """The histories of a mixture's datasets."""

    def __init__(self, readers: Sequence[DatasetReader]) -> None:
        """Order the episodes.

        Raises:
            DatasetError: which policy made an episode is not known, so it has no place.
        """
        self._rows = [_find_histories(reader) for reader in readers]
        lengths = [reader.columns.length for reader in readers]
        self._ends = [
            [np.cumsum(length[rows]) for rows in histories]
            for histories, length in zip(self._rows, lengths, strict=True)
        ]

    @property
    def lengths(self) -> list[NDArray[np.int64]]:
        """`[histories]` of each dataset: transitions."""
        return [np.array([ends[-1] for ends in each], np.int64) for each in self._ends]

    def rows(self, dataset: int, history: int) -> NDArray[np.int64]:
        """`[episodes]`: rows of a history's episodes, in order."""
        return self._rows[dataset][history]

    def trim(self, draw: Draw) -> Draw:
        """The windows, those shorter by a transition that end with an episode another one follows.

        So the row that a window ends with, which only bootstraps, is one that acting sees, too.
        """
        length = draw.length.copy()
        places = zip(draw.dataset.tolist(), draw.row.tolist(), draw.start.tolist(), strict=True)
        for place, (dataset, history, start) in enumerate(places):
            ends = self._ends[dataset][history]
            is_end = (ends[:-1] == start + length[place]).any()
            length[place] -= is_end and length[place] > 1
        return Draw(dataset=draw.dataset, row=draw.row, start=draw.start, length=length)

    def split(self, draw: Draw) -> WindowParts:
        """Windows of histories as windows of their episodes; `draw.row` numbers histories."""
        parts: list[tuple[int, int, int, int]] = []
        position, before, counts = [], [], []
        columns = (draw.dataset, draw.row, draw.start, draw.length)
        for dataset, history, start, length in zip(*(c.tolist() for c in columns), strict=True):
            ends, rows = self._ends[dataset][history], self._rows[dataset][history]
            first = int(np.searchsorted(ends, start, side="right"))
            last = int(np.searchsorted(ends, start + length, side="left"))
            counts.append(last - first + 1)
            for number in range(first, last + 1):
                begin = int(ends[number - 1]) if number else 0
                low, high = max(start, begin), min(start + length, int(ends[number]))
                parts.append((dataset, int(rows[number]), low - begin, high - low))
                position.append(low)
                before.append(low - start)
        table = np.array(parts, np.int64).T
        return WindowParts(
            draw=Draw(dataset=table[0], row=table[1], start=table[2], length=table[3]),
            counts=tuple(counts),
            position=np.array(position, np.int64),
            before=np.array(before, np.int64),
        )


def _find_histories(reader: DatasetReader) -> list[NDArray[np.int64]]:
    """Rows of the episodes of each history, in order."""
    table = reader.table
    origin = {name: _numbers(table, name) for name in _BY_ORIGIN}
    is_random = np.array([policy == "random" for policy in table["policy"].to_pylist()], np.bool_)
    for number, source_id in enumerate(reader.columns.source_ids):
        source = reader.source_reader(source_id)
        mine, rows = find_source_rows(reader, source, number)
        for name in _BY_ORIGIN:
            origin[name][mine] = _numbers(source.table, name)[rows]
        policies = source.table["policy"].take(rows).to_pylist()
        is_random[mine] = [policy == "random" for policy in policies]
    update = origin["policy_update"]
    _check_updates(reader, update, is_random)
    strategies = table["strategy"].fill_null("").to_pylist()
    names = {name: number for number, name in enumerate(sorted(set(strategies)))}
    keys = np.stack(
        [
            reader.columns.source.astype(np.int64),
            _numbers(table, "task"),
            origin["run_seed"],
            np.array([names[name] for name in strategies], np.int64),
            _numbers(table, "relabel_seed"),
            _numbers(table, "variant"),
        ]
    )
    order = np.lexsort((origin["index"], np.where(is_random, _RANDOM, update), *keys[::-1]))
    changes = np.flatnonzero((np.diff(keys[:, order], axis=1) != 0).any(0)) + 1
    return list(np.split(order.astype(np.int64), changes)) if len(order) else []


def _check_updates(
    reader: DatasetReader, update: NDArray[np.int64], is_random: NDArray[np.bool_]
) -> None:
    if not len(update):
        return
    advice = "Collect with `--policy RUN` or `retold loop`, or train with --context episode."
    unknown = np.flatnonzero((update == UNKNOWN) & ~is_random)
    if len(unknown):
        episode = reader.table["episode_id"][int(unknown[0])].as_py()
        raise DatasetError(
            f"{reader.path}: episode {episode} does not say which update of a policy made it "
            f"(policy_update), so it has no place in a history. {advice}"
        )
    if (update == UNKNOWN).all():
        raise DatasetError(
            f"{reader.path}: random actions made every episode, so no training is there to order "
            f"them by. {advice}"
        )


def _numbers(table: pa.Table, name: str) -> NDArray[np.int64]:
    column = table[name].cast(pa.int64()).fill_null(UNKNOWN)
    numbers: NDArray[np.int64] = column.to_numpy().copy()
    return numbers
