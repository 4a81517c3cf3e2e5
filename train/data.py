"""The snapshots that a run draws from, and the batches of its updates."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

import numpy as np

from retold.dataset.episode_columns import UNKNOWN, format_id
from retold.dataset.episode_histories import EpisodeHistories
from retold.dataset.pins import pin_reader
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.dataset.window_draws import Draw, WindowDraws
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Snapshot
from retold.schemas.errors import UsageError
from retold.train.batch import Batch
from retold.train.batch_reader import BatchReader, steps_to_goals
from retold.train.config import TrainConfig
from retold.train.parallel import from_first, rank, ranks
from retold.train.update_windows import UpdateWindows, WindowChooser, windows_of_rank

_BEST_SHARE = 0.05
"""Of the episodes, whose returns a `dt` policy asks for while acting."""
_MOST_NAMED = 24
"""Episodes that an error names."""


_Drawn = tuple[UpdateWindows, list[Batch]]


class TrainingData:
    """Draws windows from snapshots, which stay pinned while they are needed.

    While an update is under way, a thread draws the next one's windows: the same that would be
    drawn when they are asked for.
    """

    def __init__(
        self,
        config: TrainConfig,
        numbers: Mapping[str, int],
        *,
        next_draw: int = 0,
        is_pinned: bool = True,
    ) -> None:
        """Open the datasets.

        Args:
            config: of the run.
            numbers: commits to draw from; the heads of datasets without one.
            next_draw: number of the first draw.
            is_pinned: whether to leave a note in the datasets that they are needed.
        """
        self.next_draw = next_draw
        self._config = config
        self._is_pinned = is_pinned
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, "retold-batches")
        self._ahead: tuple[int, Future[_Drawn]] | None = None
        self.reopen(numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._take_ahead(None)
        self._thread.shutdown()
        self._stack.close()

    def reopen(self, numbers: Mapping[str, int]) -> None:
        """Draw from these commits from now on, and from the heads of datasets without a number."""
        config = self._config
        self._take_ahead(None)
        self._stack.close()
        if ranks() > 1:
            # One process looks, so that all draw from the same.
            numbers = from_first(lambda: self._resolve(numbers))
        self.readers = self._open(numbers, self._stack)
        self.schema = self.readers[0].schema
        for reader in self.readers:
            check_fits(reader, self.readers[0])
            if self._is_pinned and rank() == 0:
                name = "train-" + sha256_hex(str(config.run.resolve()).encode())[:16]
                holder = f"train {config.run.name}"
                self._stack.enter_context(pin_reader(reader, name, holder))
        self._histories: EpisodeHistories | None = None
        window_length = config.context_length
        if config.context == "history":
            self._histories = EpisodeHistories(self.readers)
            # A window's parts are read side by side, and none is longer than an episode.
            longest = max(int(reader.columns.length.max(initial=1)) for reader in self.readers)
            window_length = min(window_length, longest)
        self._sampler = WindowSampler(
            self.readers,
            window_length=window_length,
            seed=config.seed,
            weights=config.weight or None,
            threads=config.threads,
        )
        columns = [reader.columns for reader in self.readers]
        choose: Callable[[int, int], Draw] = self._sampler.choose
        if self._histories is not None:
            choose = self._history_windows(self._histories)
        self._chooser = WindowChooser(config, choose, [one.policy_update for one in columns])
        self._most = -(-config.batch_size // ranks())
        self._windows = self._sampler.make_batch(self._most)
        check_objective(config, self.readers)
        self._batches = BatchReader(
            self._sampler, columns, burn_in=config.burn_in_steps, objective=config.objective
        )

    def _history_windows(self, histories: EpisodeHistories) -> Callable[[int, int], Draw]:
        config = self._config
        draws = WindowDraws(
            histories.lengths,
            window_length=config.context_length,
            seed=config.seed,
            weights=config.weight or None,
            start_share=0.25,
            unit="steps",
            cut="pad",
        )
        return lambda number, batch_size: histories.trim(draws.draw(number, batch_size))

    def best_return(self) -> float:
        """Mean return of the best episodes, one in twenty but at least one, of all datasets."""
        returns = np.concatenate([reader.columns.episode_return for reader in self.readers])
        count = max(1, round(len(returns) * _BEST_SHARE))
        return float(np.sort(returns)[-count:].mean())

    def _open(self, numbers: Mapping[str, int], stack: ExitStack) -> list[DatasetReader]:
        config = self._config
        moved = config.moved(*config.data)
        return [
            stack.enter_context(
                DatasetReader.open(
                    path, snapshot=numbers.get(str(path)), sources=moved, cache=config.cache
                )
            )
            for path in config.data
        ]

    def _resolve(self, numbers: Mapping[str, int]) -> dict[str, int]:
        with ExitStack() as stack:
            readers = self._open(numbers, stack)
            return {str(reader.path): reader.snapshot.number for reader in readers}

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """What is drawn from now."""
        return tuple(reader.snapshot for reader in self.readers)

    def choose(self, update: int) -> UpdateWindows:
        """The windows of the update after `update` others, for all processes; nothing is read."""
        return self._chooser.choose(update, self.next_draw, least=ranks())

    def draw(self, update: int, most_goals: int) -> list[Batch]:
        """The windows of an update that are this process's, as batches whose gradients add up."""
        drawn = self._take_ahead(update)
        chosen, batches = drawn or self._draw(update, self.next_draw, most_goals)
        self._chosen, self.next_draw = chosen, chosen.next_draw
        if update + 1 < self._config.updates:
            ahead = self._thread.submit(self._draw, update + 1, chosen.next_draw, most_goals)
            self._ahead = update + 1, ahead
        return batches

    def _take_ahead(self, update: int | None) -> _Drawn | None:
        """What was drawn ahead for an update; once this returns, nothing is being drawn."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead[0] == update:
            return ahead[1].result()
        ahead[1].exception()  # nobody asked for it, nor for its error
        return None

    def _draw(self, update: int, next_draw: int, most_goals: int) -> _Drawn:
        chosen = self._chooser.choose(update, next_draw, least=ranks())
        mine = windows_of_rank(chosen.draw.length, rank(), ranks())
        parts = (mine[first : first + self._most] for first in range(0, len(mine), self._most))
        return chosen, [
            self._read(chosen.draw.take(part), part.tolist(), most_goals) for part in parts
        ]

    def _read(self, draw: Draw, numbers: Sequence[int], most_goals: int) -> Batch:
        parts = None if self._histories is None else self._histories.split(draw)
        count = len(draw) if parts is None else len(parts.draw)
        if count > self._windows.size:
            self._windows = self._sampler.make_batch(count)
        windows = self._windows.first(count)
        if parts is not None:
            return self._batches.read_parts(windows, parts, numbers, most_goals=most_goals)
        return self._batches.read(windows, draw, numbers, most_goals=most_goals)

    def read_first(self, count: int, most_goals: int) -> Batch:
        """The first windows of the next draw, as a batch; nothing moves on."""
        draw = self.choose(0).draw.take(slice(0, count))
        return self._read(draw, range(len(draw)), most_goals)

    def _episode_windows(self) -> Draw:
        """What was drawn last, as windows of single episodes."""
        draw = self._chosen.draw
        return draw if self._histories is None else self._histories.split(draw).draw

    def facts(self, update: int) -> dict[str, float]:
        """What is known of the episodes that were drawn last, after `update` updates."""
        draw = self._episode_windows()
        places = list(zip(draw.dataset.tolist(), draw.row.tolist(), strict=True))
        columns = [(self._sampler.columns(dataset), row) for dataset, row in places]
        returns = [float(column.episode_return[row]) for column, row in columns]
        updates = [int(column.policy_update[row]) for column, row in columns]
        facts = {"episode_return": float(np.mean(returns)), "tokens": float(draw.length.sum())}
        known = [made_by for made_by in updates if made_by != UNKNOWN]
        if known:
            # Updates between the episodes' snapshots and their use: 0 for the newest policy's.
            facts["policy_lag"] = update - float(np.mean(known))
        if self._config.max_policy_lag is not None:
            facts["old_windows"] = float(self._chosen.skipped)
        return facts

    def explain_not_finite(self) -> str:
        """Whose fault a loss that is not finite may be, by the last update's episodes; what to do."""
        self._take_ahead(None)
        if bad := self._find_not_finite():
            return (
                f"Values that are not finite are stored in {_list_some(bad)}. Leave these "
                f"episodes out with `retold filter`, and train a new run on what is left."
            )
        draw = self._episode_windows()
        names = [self._name(draw, place) for place in range(len(draw))]
        return (
            f"All that is stored is finite; the update's episodes are "
            f"{_list_some(list(dict.fromkeys(names)))}. Begin a new run with a --learning-rate "
            f"below {self._config.learning_rate:g}; the last checkpoint and policy are sound."
        )

    def _find_not_finite(self) -> list[str]:
        """Episodes of which a window holds NaN or an infinity, and in which field."""
        draw, found = self._episode_windows(), []
        for place in range(len(draw)):
            windows = self._sampler.fill(self._windows.first(1), draw.take(slice(place, place + 1)))
            rows = {**windows.observation, **windows.previous_action}
            rows["reward"] = windows.previous_reward
            bad = [
                name
                for name, values in rows.items()
                if values.dtype.kind == "f" and not np.isfinite(values).all()
            ]
            if bad:
                found.append(f"{self._name(draw, place)} ({', '.join(bad)})")
        return list(dict.fromkeys(found))

    def _name(self, draw: Draw, place: int) -> str:
        dataset, row = int(draw.dataset[place]), int(draw.row[place])
        episode = format_id(self._sampler.columns(dataset).episode_id[row])
        return f"{episode} of {self.readers[dataset].path}"


def _list_some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def check_objective(config: TrainConfig, readers: Sequence[DatasetReader]) -> None:
    """Refuse data that the objective, or a context of histories, can learn nothing from."""
    if config.context == "history":
        EpisodeHistories(readers)
    if config.objective != "gcsl":
        return
    if any(steps_to_goals(reader.columns).any() for reader in readers):
        return
    if all(reader.schema.tasks[0].vocabulary is None for reader in readers):
        what = "the data has no goals. Train with --objective bc or dt"
    else:
        what = (
            "no episode reached a goal of its instruction. Retell the data with `retold relabel` "
            "and give the variants as --data"
        )
    raise UsageError(f"--objective gcsl imitates what led to goals, but {what}.")


def check_fits(reader: DatasetReader, first: DatasetReader) -> None:
    """Refuse to mix datasets whose spaces or goals differ."""
    one, other = first.schema, reader.schema
    if not one.covers(other):
        raise UsageError(
            f"{reader.path}: it holds {other.tasks[0].name}, whose spaces or goals differ from "
            f"those of {first.path} ({one.tasks[0].name}), or whose instructions are longer. Name "
            f"the dataset with the longest instructions first, or train in two runs."
        )
