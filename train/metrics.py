"""A run's metrics: `metrics.jsonl`, TensorBoard, a tracker if asked for, and one line of progress."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from retold.schemas.canonical import encode_json
from retold.train.config import TrainConfig
from retold.train.tracking import Tracker

logger = logging.getLogger(__name__)

_LOG_SECONDS = 30.0


class MetricsWriter:
    """Appends one line an update. Lines after the checkpoint that a run goes on from are dropped."""

    def __init__(self, config: TrainConfig, update: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        run, updates = config.run, config.updates
        self._tracker = None if config.track is None else Tracker(config)
        path = run / "metrics.jsonl"
        _cut(path, update)
        self._file = path.open("ab")
        make_summary: Any = SummaryWriter
        self._summary = make_summary(str(run / "tensorboard"), purge_step=update + 1)
        self._bar = tqdm(total=updates, initial=update, unit="update", disable=None, leave=False)
        self._updates = updates
        self._first, self._started = update, time.monotonic()
        self._logged = self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
        self._file.close()
        self._summary.close()
        if self._tracker is not None:
            self._tracker.close()

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an update."""
        now = time.monotonic()
        rate = (update - self._first) / max(1e-9, now - self._started)
        row = {"update": update, "updates_per_second": rate, **metrics}
        self._file.write(encode_json(row))
        for name, value in row.items():
            if name != "update":
                self._summary.add_scalar(name, value, update)
        if self._tracker is not None:
            self._tracker.write(update, row)
        shown = {name: metrics[name] for name in ("loss", "episode_return")}
        self._bar.update()
        self._bar.set_postfix(shown, refresh=False)
        if now - self._logged > _LOG_SECONDS:
            self._logged = now
            logger.info("Update %d of %d, %.1f a second, %s.", update, self._updates, rate, shown)

    def flush(self) -> None:
        """Make what was recorded readable."""
        self._file.flush()
        self._summary.flush()


def _cut(path: Path, update: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n") and json.loads(line)["update"] <= update:
            kept.append(line)
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(b"".join(kept))
    aside.replace(path)
