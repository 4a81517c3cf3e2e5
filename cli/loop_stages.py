"""The stages of an asynchronous loop, each in a process of its own that does what it is told.

A stage is told the number of an iteration, does that part of it through the function of the single
command, and answers. It ends at once when its loop ends, however that came about; a lock keeps the
next loop's stage waiting until it has.
"""

import fcntl
import os
import queue
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from retold.cli.loop_plan import LoopPlan
from retold.collect.command import collect
from retold.collect.worker_process import Heartbeat
from retold.dataset.reader import DatasetReader
from retold.relabel.command import relabel
from retold.schemas.errors import RetoldError
from retold.train.command import train

STAGES = ("collect", "relabel", "train")
"""In the order in which an iteration passes them."""


def serve(
    connection: "Connection[Any, Any]", heartbeat: Heartbeat, stage: str, plan: LoopPlan
) -> None:
    """A stage's side: numbers of iterations in until None, a message for each out."""
    import torch

    torch.set_num_threads(1)  # the stages share the cores; training sets its own number
    orders: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    with _lock(plan.run / f".{stage}.lock"):
        while (number := orders.get()) is not None:
            try:
                run_stage(stage, plan, number)
            except RetoldError as error:
                connection.send(error)
                return
            connection.send(number)


def run_stage(stage: str, plan: LoopPlan, number: int) -> None:
    """One stage's part of an iteration: what is missing of it."""
    if stage == "collect":
        collect(plan.collect_config(number))
    elif stage == "relabel":
        if plan.relabel is not None:
            relabel(plan.relabel_config())
    else:
        has_trained = (plan.run / "config.json").exists()
        is_mixed = count_variants(plan)[0] > 0
        train(plan.train_config(number, is_mixed=is_mixed, resume=has_trained))


def count_variants(plan: LoopPlan) -> tuple[int, int]:
    """Variants so far, and their bytes on disk."""
    if plan.relabel is None:
        return 0, 0
    with DatasetReader.open(plan.retold) as reader:
        shards = reader.shards
    return sum(shard.episodes for shard in shards), sum(shard.bytes for shard in shards)


def _listen(connection: "Connection[Any, Any]", orders: "queue.SimpleQueue[int | None]") -> None:
    """Pass orders on; without a loop there is nobody to work for, whatever is under way."""
    try:
        while (order := connection.recv()) is not None:
            orders.put(order)
    except (EOFError, OSError):
        os._exit(1)
    orders.put(None)


class _lock:
    """Held while a stage of a run works; waits for a stage that is about to end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = self._path.open("wb")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        self._file.close()
