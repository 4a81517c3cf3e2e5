"""Which windows an update learns from: a pure function of the sampler's draws and the update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.episode_columns import UNKNOWN
from retold.dataset.window_draws import Draw
from retold.schemas.errors import RunError
from retold.schemas.identity import numbered_stream, stream_key
from retold.train.config import TrainConfig

_MOST_DRAWS = 10_000
"""Draws in a row of which no window may be used, before the data is given up."""


@dataclass(frozen=True, kw_only=True)
class UpdateWindows:
    """The windows of one update, for all processes together."""

    draw: Draw
    next_draw: int
    """Number of the first draw that the update after it takes."""
    skipped: int
    """Windows that were too old."""


class WindowChooser:
    """Takes windows from one draw after the other, until an update has enough of them."""

    def __init__(
        self,
        config: TrainConfig,
        choose: Callable[[int, int], Draw],
        made_by: Sequence[NDArray[np.int64]],
    ) -> None:
        """Know the draws.

        Args:
            config: of the run.
            choose: the windows of a draw, from its number and their count.
            made_by: update of the policy behind each episode of each dataset.
        """
        self._config = config
        self._choose = choose
        self._made_by = tuple(made_by)
        self._key = stream_key(config.seed, "old windows")

    def choose(self, update: int, first_draw: int, least: int = 1) -> UpdateWindows:
        """The windows of an update.

        Args:
            update: updates before it.
            first_draw: number of the first draw to take.
            least: windows to take in any case.

        Raises:
            RunError: every window is older than `--max-policy-lag`.
        """
        parts: list[Draw] = []
        number, windows, tokens, skipped, fruitless = first_draw, 0, 0, 0, 0
        while not self._is_enough(windows, tokens, least):
            draw = self._choose(number, self._config.batch_size)
            is_fresh = self._is_fresh(draw, update, number)
            places = np.flatnonzero(is_fresh)[
                : self._missing(draw, is_fresh, windows, tokens, least)
            ]
            # Windows behind the last one taken are neither used nor skipped.
            end = int(places[-1]) + 1 if len(places) else len(draw)
            skipped += int((~is_fresh[:end]).sum())
            fruitless = 0 if len(places) else fruitless + 1
            if fruitless > _MOST_DRAWS:
                raise RunError(self._explain_old(update))
            parts.append(draw.take(places))
            windows += len(places)
            tokens += int(draw.length[places].sum())
            number += 1
        return UpdateWindows(draw=Draw.join(parts), next_draw=number, skipped=skipped)

    def _is_enough(self, windows: int, tokens: int, least: int) -> bool:
        budget = self._config.tokens_per_update
        if budget is None:
            return windows >= self._config.batch_size
        return tokens >= budget and windows >= least

    def _missing(
        self, draw: Draw, is_fresh: NDArray[np.bool_], windows: int, tokens: int, least: int
    ) -> int:
        """Fresh windows of a draw that are still needed."""
        budget = self._config.tokens_per_update
        if budget is None:
            return self._config.batch_size - windows
        reached = tokens + np.cumsum(draw.length[is_fresh])
        return max(int(np.searchsorted(reached, budget)) + 1, least - windows)

    def _is_fresh(self, draw: Draw, update: int, number: int) -> NDArray[np.bool_]:
        """`[windows]`: what a bound on the policies' age lets through."""
        config = self._config
        if config.max_policy_lag is None:
            return np.ones(len(draw), np.bool_)
        places = zip(draw.dataset.tolist(), draw.row.tolist(), strict=True)
        made_by = np.array([self._made_by[dataset][row] for dataset, row in places], np.int64)
        lag = np.where(made_by == UNKNOWN, 0, update - made_by)
        if config.old_windows == "skip":
            is_fresh: NDArray[np.bool_] = lag <= config.max_policy_lag
            return is_fresh
        chance = (config.max_policy_lag + 1) / (np.maximum(lag, 0) + 1)
        drawn: NDArray[Any] = numbered_stream(self._key, number).random(len(draw))
        kept: NDArray[np.bool_] = drawn < chance
        return kept

    def _explain_old(self, update: int) -> str:
        config = self._config
        newest = max((int(made_by.max(initial=UNKNOWN)) for made_by in self._made_by), default=0)
        return (
            f"{config.run}: update {update + 1}: no window is younger than --max-policy-lag "
            f"{config.max_policy_lag}; the newest policy that acted in the data is that of update "
            f"{newest}. Collect with --policy {config.run}, or give a higher --max-policy-lag."
        )


def windows_of_rank(lengths: NDArray[np.int64], rank: int, ranks: int) -> NDArray[np.int64]:
    """Places of the windows that one of several processes works on, rising.

    Longest first they are dealt out to and fro, so that every process has about as many steps.
    """
    order = np.argsort(-lengths, kind="stable")
    turn, place = np.divmod(np.arange(len(order)), ranks)
    dealt = np.where(turn % 2 == 0, place, ranks - 1 - place)
    return np.sort(order[dealt == rank])
