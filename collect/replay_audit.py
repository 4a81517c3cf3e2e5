"""Replays of many episodes of a dataset, in several processes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from retold.collect.replay import find_replayable, find_versions, replay_episode
from retold.collect.worker_process import WorkerProcess
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError, RetoldError
from retold.schemas.findings import Finding

_FEW = 8
"""Episodes a worker that are not worth its start."""
_AHEAD = 2
"""Rows that a worker is given before it has answered."""


@dataclass(frozen=True)
class Replayed:
    """The outcome for one row."""

    row: int
    is_replayable: bool
    finding: Finding | None


def replay_dataset(
    dataset: DatasetPath,
    most_episodes: int | None,
    workers: int | None,
    sources: Mapping[str, DatasetPath] | None = None,
) -> Iterator[Replayed]:
    """Replay episodes of a dataset, spread evenly over its rows; in whatever order they finish.

    Args:
        dataset: or a snapshot of it.
        most_episodes: how many; None for all.
        workers: processes; None for one a core, or none where there is little to do.
        sources: where datasets that variants refer to have moved, by dataset id.

    Raises:
        DatasetError: the dataset holds episodes of tasks that Retold cannot make.
    """
    with DatasetReader.open(dataset, sources=sources) as reader:
        if any(task.is_imported for task in reader.schema.tasks):
            raise DatasetError(
                f"{dataset}: its episodes were imported, and there is no task to replay them "
                f"in. Audit without --replay."
            )
        count = min(most_episodes or len(reader), len(reader))
        rows = np.linspace(0, len(reader) - 1, count).round().astype(int).tolist()
    if workers is None:
        workers = min(os.cpu_count() or 1, len(rows) // _FEW)
    if workers < 2:
        yield from _replay_rows(dataset, rows, sources)
        return
    yield from _replay_in_workers(dataset, rows, min(workers, len(rows)), sources)


def work(
    connection: Any,
    heartbeat: Any,
    dataset: DatasetPath,
    sources: Mapping[str, DatasetPath] | None,
) -> None:
    """A worker's side: rows in, outcomes out, until no more come."""
    with DatasetReader.open(dataset, sources=sources) as reader:
        while (row := connection.recv()) is not None:
            connection.send(_replay_row(reader, row))


def _replay_rows(
    dataset: DatasetPath, rows: Sequence[int], sources: Mapping[str, DatasetPath] | None
) -> Iterator[Replayed]:
    with DatasetReader.open(dataset, sources=sources) as reader:
        for row in rows:
            yield _replay_row(reader, row)


def _replay_row(reader: DatasetReader, row: int) -> Replayed:
    episode = find_replayable(reader, row)
    if episode is None:
        return Replayed(row, False, None)
    task = reader.array_schema(row).tasks[episode.record.task]
    finding = replay_episode(episode, task)
    if finding is not None:  # once more, with the versions, which are slow to find
        finding = replay_episode(episode, task, find_versions(reader, episode))
    return Replayed(row, True, finding)


def _replay_in_workers(
    dataset: DatasetPath,
    rows: Sequence[int],
    workers: int,
    sources: Mapping[str, DatasetPath] | None,
) -> Iterator[Replayed]:
    left = iter(rows)
    pool = {
        worker.connection: worker
        for worker in (WorkerProcess(f"{__name__}:work", dataset, sources) for _ in range(workers))
    }
    waiting = dict.fromkeys(pool, 0)
    try:
        for connection in list(pool) * _AHEAD:
            row = next(left, None)
            waiting[connection] += row is not None
            _send(connection, row)
        while any(waiting.values()):
            ready = wait([connection for connection, count in waiting.items() if count])
            for connection in [connection for connection in pool if connection in ready]:
                try:
                    outcome: Replayed = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise RetoldError(
                        f"{dataset}: a process that replays episodes has died. Replay again with "
                        f"--workers 0 to see why."
                    ) from None
                row = next(left, None)
                waiting[connection] += (row is not None) - 1
                _send(connection, row)
                yield outcome
    finally:
        for worker in pool.values():
            worker.kill()


def _send(connection: Connection, row: int | None) -> None:
    """Ask for a row, or say that there is none left.

    A process that was told so has gone when it is told again; one that died before is noticed where
    its outcome is missed.
    """
    with suppress(BrokenPipeError):
        connection.send(row)
