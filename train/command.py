"""`retold train`: learn a policy from datasets and publish it in the run's registry."""

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from retold.dataset.episode_columns import UNKNOWN
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, split_snapshot
from retold.dataset.pins import pin
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.policy.registry import PolicyRegistry
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Snapshot
from retold.schemas.errors import RunError, UsageError
from retold.schemas.stop_signals import note_stop_signals
from retold.train.batch import Batch, read_batch
from retold.train.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from retold.train.config import TrainConfig
from retold.train.learner import Learner, NotFiniteError
from retold.train.memory import keep_freed_memory
from retold.train.metrics import MetricsWriter
from retold.train.run import open_run

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 2.0
_MOST_NAMED = 6

__all__ = ["TrainConfig", "TrainResult", "train"]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where a run stands."""

    run: str
    updates: int
    """Updates of the run in all."""
    updates_now: int
    """Updates done by this call."""
    loss: float | None
    policy: str | None
    """Folder of the newest published policy."""
    seconds: float


def train(config: TrainConfig) -> TrainResult:
    """Train up to `config.updates` updates.

    Raises:
        RunError: the run exists and `resume` is not given, differs, or learning diverged.
        DatasetError: a dataset is missing or empty (with `follow` it is waited for).
    """
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    started = time.monotonic()
    # Before anything is made:
    if config.follow:
        _refuse_snapshots(config)
    else:
        _check_data(config)
    open_run(config)
    registry = PolicyRegistry.create(config.run)
    checkpoints = list_checkpoints(config.run)
    state, facts = read_checkpoint(checkpoints[-1]) if checkpoints else (None, {})
    metrics: dict[str, float] = {}
    with ExitStack() as stack, note_stop_signals() as stopped:
        if config.follow:
            _wait_for_data(config, stopped)
            if number := stopped():
                raise RunError(
                    f"{config.run}: stopped by {signal.Signals(number).name} before the first "
                    f"update, while waiting for episodes. Go on with --resume."
                )
        data = stack.enter_context(_Data(config, _pinned_snapshots(config, state, facts)))
        learner = Learner(config, data.schema)
        if state is not None:
            learner.load_state(state)
        first = learner.update_count
        writer = stack.enter_context(MetricsWriter(config.run, first, config.updates))
        while learner.update_count < config.updates and not stopped():
            metrics = _update(config, learner, data)
            writer.write(learner.update_count, metrics)
            is_last = learner.update_count == config.updates or bool(stopped())
            if is_last or learner.update_count % config.publish_every == 0:
                registry.publish(
                    learner.policy, update=learner.update_count, snapshots=data.snapshots
                )
                if config.follow and not is_last:
                    data.reopen({})
            if is_last or learner.update_count % config.checkpoint_every == 0:
                _keep(config, learner, data, writer)
        if number := stopped():
            raise RunError(
                f"{config.run}: stopped by {signal.Signals(number).name} after update "
                f"{learner.update_count}, which is kept. Go on with --resume."
            )
    newest = registry.latest()
    return TrainResult(
        run=str(config.run),
        updates=learner.update_count,
        updates_now=learner.update_count - first,
        loss=metrics.get("loss"),
        policy=None if newest is None else str(newest),
        seconds=time.monotonic() - started,
    )


class _Data:
    """The snapshots that windows are drawn from, pinned while they are needed."""

    def __init__(self, config: TrainConfig, numbers: Mapping[str, int]) -> None:
        self._config = config
        self._stack = ExitStack()
        self.reopen(numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def reopen(self, numbers: Mapping[str, int]) -> None:
        """Draw from these commits from now on, and from the heads of datasets without a number."""
        config = self._config
        self._stack.close()
        moved = config.moved(*config.data)
        self.readers = [
            self._stack.enter_context(
                DatasetReader.open(
                    path, snapshot=numbers.get(str(path)), sources=moved, cache=config.cache
                )
            )
            for path in config.data
        ]
        self.schema = self.readers[0].schema
        name = "train-" + sha256_hex(str(config.run.resolve()).encode())[:16]
        for reader in self.readers:
            _check_fits(reader, self.readers[0])
            self._stack.enter_context(
                pin(reader.path, name, f"train {config.run.name}", reader.snapshot)
            )
        self._sampler = WindowSampler(
            self.readers,
            window_length=config.context_length,
            seed=config.seed,
            weights=config.weight or None,
            threads=config.threads,
        )
        self._windows = self._sampler.make_batch(config.batch_size)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """What is drawn from now."""
        return tuple(reader.snapshot for reader in self.readers)

    def draw(self, number: int, most_goals: int) -> Batch:
        """The windows of one update, as tensors."""
        return read_batch(
            self._sampler,
            self._windows,
            number,
            most_goals=most_goals,
            burn_in=self._config.burn_in_steps,
        )

    def find_not_finite(self) -> list[str]:
        """The episodes drawn last of which a window holds NaN or an infinity, and in which field."""
        windows, found = self._windows, []
        fields = {**windows.observation, **windows.previous_action}
        fields["reward"] = windows.previous_reward
        for member, length in enumerate(windows.length.tolist()):
            bad = [
                name
                for name, values in fields.items()
                if values.dtype.kind == "f" and not np.isfinite(values[member, : length + 1]).all()
            ]
            if bad:
                found.append(f"{self._name(member)} ({', '.join(bad)})")
        return list(dict.fromkeys(found))

    def name_episodes(self) -> list[str]:
        """The episodes drawn last."""
        return list(dict.fromkeys(map(self._name, range(len(self._windows.row)))))

    def _name(self, member: int) -> str:
        reader = self.readers[int(self._windows.dataset[member])]
        record = reader.record(int(self._windows.row[member]))
        return f"{record.episode_id} of {reader.path}"

    def facts(self, number: int) -> dict[str, float]:
        """What is known of the episodes that were drawn last, for update `number`."""
        windows = self._windows
        places = list(zip(windows.dataset.tolist(), windows.row.tolist(), strict=True))
        columns = [(self._sampler.columns(dataset), row) for dataset, row in places]
        returns = [float(column.episode_return[row]) for column, row in columns]
        updates = [int(column.policy_update[row]) for column, row in columns]
        facts = {"episode_return": float(np.mean(returns))}
        known = [update for update in updates if update != UNKNOWN]
        if known:
            # Updates between the episodes' snapshots and their use: 0 for the newest policy's.
            facts["policy_lag"] = number - float(np.mean(known))
        return facts


def _update(config: TrainConfig, learner: Learner, data: _Data) -> dict[str, float]:
    updates_before = learner.update_count
    batch = data.draw(updates_before, learner.policy.most_goals)
    try:
        metrics = learner.update(batch)
    except NotFiniteError as error:
        raise RunError(_explain_not_finite(config, error, data)) from error
    return metrics | data.facts(updates_before)


def _explain_not_finite(config: TrainConfig, error: NotFiniteError, data: _Data) -> str:
    """Where learning stopped, whose fault it may be, and what to do. Nothing was published since."""
    if bad := data.find_not_finite():
        return (
            f"{error} Values that are not finite are stored in {_list_some(bad)}. Leave these "
            f"episodes out with `retold filter`, and train a new run on what is left."
        )
    return (
        f"{error} All that is stored is finite; the batch's episodes are "
        f"{_list_some(data.name_episodes())}. Go on from the last checkpoint with --resume, or begin "
        f"a new run with a --learning-rate below {config.learning_rate:g}."
    )


def _list_some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _keep(config: TrainConfig, learner: Learner, data: _Data, writer: MetricsWriter) -> None:
    writer.flush()
    facts = {
        "target": config.updates,
        "snapshots": {
            str(path): snapshot.to_json()
            for path, snapshot in zip(config.data, data.snapshots, strict=True)
        },
    }
    write_checkpoint(config.run, learner.update_count, learner.state(), facts)


def _pinned_snapshots(
    config: TrainConfig, state: Mapping[str, Any] | None, facts: Mapping[str, Any]
) -> dict[str, int]:
    """Commits that an interrupted run was drawing from; one that is extended reads the heads."""
    if state is None or state["update_count"] >= facts["target"]:
        return {}
    return {path: snapshot["number"] for path, snapshot in facts["snapshots"].items()}


def _check_data(config: TrainConfig) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(DatasetReader.open(path)) for path in config.data]
        for reader in readers:
            _check_fits(reader, readers[0])


def _check_fits(reader: DatasetReader, first: DatasetReader) -> None:
    one, other = first.schema, reader.schema
    if not one.covers(other):
        raise UsageError(
            f"{reader.path}: it holds {other.tasks[0].name}, whose spaces or goals differ from "
            f"those of {first.path} ({one.tasks[0].name}), or whose instructions are longer. Name "
            f"the dataset with the longest instructions first, or train in two runs."
        )


def _refuse_snapshots(config: TrainConfig) -> None:
    for path in config.data:
        folder, snapshot = split_snapshot(path)
        if snapshot is not None:
            raise UsageError(
                f"{path}: a snapshot never grows, so --follow would wait for nothing. Give "
                f"{folder} itself, or leave out --follow."
            )


def _wait_for_data(config: TrainConfig, stopped: Callable[[], int]) -> None:
    """Until every dataset has an episode, or a signal arrives."""
    for path in config.data:
        if not _has_episodes(path):
            logger.info("Waiting for the first episodes in %s.", path)
        while not stopped() and not _has_episodes(path):
            time.sleep(_WAIT_SECONDS)


def _has_episodes(path: DatasetPath) -> bool:
    if not (path / "dataset.json").exists() or CommitLog.open(path).head() is None:
        return False
    with DatasetReader.open(path) as reader:
        return len(reader) > 0
