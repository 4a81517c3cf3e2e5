"""`retold train`: learn a policy from datasets and publish it in the run's registry."""

import logging
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from retold.dataset.hub_names import HUB_PROTOCOL
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, split_snapshot
from retold.dataset.reader import DatasetReader
from retold.dataset.remote_path import RemotePath
from retold.policy.registry import PolicyRegistry
from retold.schemas.errors import RunError, UsageError
from retold.schemas.stop_signals import note_stop_signals
from retold.train.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from retold.train.config import TrainConfig
from retold.train.data import TrainingData, check_fits, check_objective
from retold.train.device import choose_device
from retold.train.learner import Learner, NotFiniteError
from retold.train.memory import keep_freed_memory
from retold.train.metrics import MetricsWriter
from retold.train.parallel import from_first, joined_ranks, most_over_ranks, rank, ranks
from retold.train.run import check_run, open_run
from retold.train.tracking import check_tracker

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 2.0

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


def check_training(config: TrainConfig) -> None:
    """Refuse what `train` would refuse before it begins.

    Raises:
        RunError: the run exists and `resume` is not given, or differs.
        DatasetError: a dataset is missing.
        UsageError: the datasets do not fit each other or the objective, or are fewer than processes;
            the tracker is not installed.
    """
    _check_ranks(config)
    check_tracker(config)
    if config.follow:
        _refuse_snapshots(config)
    else:
        _check_data(config)
    check_run(config)


def train(config: TrainConfig) -> TrainResult:
    """Train up to `config.updates` updates.

    Raises:
        RunError: the run exists and `resume` is not given, differs, or learning diverged.
        DatasetError: a dataset is missing or empty (with `follow` it is waited for).
    """
    assert not config.dry_run, "`retold.train.plan` plans"
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    with joined_ranks(), note_stop_signals() as stopped:
        started = time.monotonic()
        device = choose_device(config.device)  # refuses before anything is made
        # One process writes; it says what all go on from.
        start = from_first(lambda: _open(config, stopped))
        updates_now, loss = _learn(config, start, device, stopped)
        newest = PolicyRegistry.open(config.run).latest()
        return TrainResult(
            run=str(config.run),
            updates=start.updates + updates_now,
            updates_now=updates_now,
            loss=loss,
            policy=None if newest is None else str(newest),
            seconds=time.monotonic() - started,
        )


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What a run goes on from."""

    checkpoint: Path | None
    updates: int
    next_draw: int
    snapshots: Mapping[str, int]
    """Commits that an interrupted run was drawing from; one that is extended reads the heads."""


def _check_ranks(config: TrainConfig) -> None:
    if config.batch_size < ranks():
        raise UsageError(
            f"--batch-size is {config.batch_size}, but {ranks()} processes share it. Give at "
            f"least {ranks()}."
        )


def _open(config: TrainConfig, stopped: Callable[[], int]) -> _Start:
    """Make or check the run's folder and wait for data, before anything is learned."""
    check_training(config)
    open_run(config)
    PolicyRegistry.create(config.run)
    if config.follow:
        _wait_for_data(config, stopped)
        if number := stopped():
            raise RunError(
                f"{config.run}: stopped by {signal.Signals(number).name} before the first "
                f"update, while waiting for episodes. Go on with --resume."
            )
    checkpoints = list_checkpoints(config.run)
    if not checkpoints:
        return _Start(checkpoint=None, updates=0, next_draw=0, snapshots={})
    state, facts = read_checkpoint(checkpoints[-1])
    updates = int(state["update_count"])
    drawn_from = facts["snapshots"] if updates < facts["target"] else {}
    return _Start(
        checkpoint=checkpoints[-1],
        updates=updates,
        # Until updates could take several draws, each took one.
        next_draw=int(facts.get("next_draw", updates)),
        snapshots={path: snapshot["number"] for path, snapshot in drawn_from.items()},
    )


def _learn(
    config: TrainConfig, start: _Start, device: torch.device, stopped: Callable[[], int]
) -> tuple[int, float | None]:
    """The updates that are missing; their number and the last one's loss."""
    metrics: dict[str, float] = {}
    with ExitStack() as stack:
        data = stack.enter_context(TrainingData(config, start.snapshots, next_draw=start.next_draw))
        learner = Learner(config, data.schema, device)
        if start.checkpoint is not None:
            learner.load_state(read_checkpoint(start.checkpoint)[0])
        learner.aim_at(data.best_return())
        writer = None
        if rank() == 0:
            writer = stack.enter_context(MetricsWriter(config, start.updates))
        number = most_over_ranks(stopped())
        while learner.update_count < config.updates and not number:
            metrics = _update(learner, data)
            number = most_over_ranks(stopped())
            is_last = learner.update_count == config.updates or bool(number)
            if writer is not None:
                writer.write(learner.update_count, metrics)
                _store(config, learner, data, writer, is_last=is_last)
            if config.follow and not is_last and learner.update_count % config.publish_every == 0:
                data.reopen({})
                learner.aim_at(data.best_return())
        if number:
            raise RunError(
                f"{config.run}: stopped by {signal.Signals(number).name} after update "
                f"{learner.update_count}, which is kept. Go on with --resume."
            )
    return learner.update_count - start.updates, metrics.get("loss")


def _update(learner: Learner, data: TrainingData) -> dict[str, float]:
    before = learner.update_count
    batches = data.draw(before, learner.policy.most_goals)
    try:
        return learner.update(*batches) | data.facts(before)
    except NotFiniteError as error:
        raise RunError(f"{error} {data.explain_not_finite()}") from error


def _store(
    config: TrainConfig,
    learner: Learner,
    data: TrainingData,
    writer: MetricsWriter,
    *,
    is_last: bool,
) -> None:
    """Publish and keep what is due."""
    update = learner.update_count
    if is_last or update % config.publish_every == 0:
        registry = PolicyRegistry.open(config.run)
        registry.publish(learner.published, update=update, snapshots=data.snapshots)
    if is_last or update % config.checkpoint_every == 0:
        _keep(config, learner, data, writer)


def _keep(config: TrainConfig, learner: Learner, data: TrainingData, writer: MetricsWriter) -> None:
    writer.flush()
    facts = {
        "target": config.updates,
        "next_draw": data.next_draw,
        "snapshots": {
            str(path): snapshot.to_json()
            for path, snapshot in zip(config.data, data.snapshots, strict=True)
        },
    }
    write_checkpoint(
        config.run,
        learner.update_count,
        learner.state(),
        facts,
        keep=config.keep_checkpoints,
    )


def _check_data(config: TrainConfig) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(DatasetReader.open(path)) for path in config.data]
        for reader in readers:
            check_fits(reader, readers[0])
        check_objective(config, readers)


def _refuse_snapshots(config: TrainConfig) -> None:
    for path in config.data:
        folder, snapshot = split_snapshot(path)
        if snapshot is not None:
            raise UsageError(
                f"{path}: a snapshot never grows, so --follow would wait for nothing. Give "
                f"{folder} itself, or leave out --follow."
            )
        if isinstance(folder, RemotePath) and folder.protocol == HUB_PROTOCOL:
            raise UsageError(
                f"{path}: the Hub is read at the commit that is found first, so --follow would wait "
                f"for nothing. Leave out --follow, or follow a copy on this machine that `retold "
                f"pull` brings up to date."
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
