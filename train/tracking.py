"""Sending a run's metrics to a tracker of experiments besides: Weights & Biases or Trackio."""

import importlib
import importlib.util
import logging
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

from retold.schemas.errors import RunError, UsageError
from retold.train.config import TrainConfig

logger = logging.getLogger(__name__)


def check_tracker(config: TrainConfig) -> None:
    """Check that the tracker which is asked for is installed.

    Raises:
        UsageError: it is not.
    """
    if config.track is None:
        return
    found = importlib.util.find_spec(config.track)
    # What a tracker leaves in the working folder has its name too, but is no package.
    if found is None or found.origin is None:
        raise UsageError(
            f"--track {config.track} needs a package that is not installed. Run "
            f"`pip install 'retold[{config.track}]'`."
        )


class Tracker:
    """One run of a tracker; a training run that is resumed goes on with its own.

    `metrics.jsonl` is the record. A tracker gets what it gets: one that fails while a run learns is
    left alone from then on, and after a kill it is sent the updates since the checkpoint again.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Begin, or go on.

        Raises:
            RunError: the tracker refuses: it is not logged in, say.
        """
        assert config.track is not None
        self._name = config.track
        self._is_working = True
        number = _keep_id(config)
        given: dict[str, Any] = {
            "project": config.track_project,
            "config": config.to_json(),
            "resume": "allow",
        }
        if config.track == "wandb":
            given |= {"id": number, "name": config.run.name, "dir": str(config.run)}
        else:  # Trackio finds a run again by its name
            given |= {"name": f"{config.run.name}-{number}", "embed": False}
        try:
            with redirect_stdout(sys.stderr):  # what a command prints there is its result
                self._run = importlib.import_module(config.track).init(**given)
        except Exception as error:
            raise RunError(
                f"{config.run}: {config.track} cannot be started: {error} Correct that, or go on "
                f"without --track; metrics.jsonl holds every update either way."
            ) from error

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of an update."""
        self._try(lambda: self._run.log(dict(metrics), step=update))

    def close(self) -> None:
        """Send what is left."""
        self._try(self._run.finish)

    def _try(self, call: Callable[[], Any]) -> None:
        if not self._is_working:
            return
        try:
            with redirect_stdout(sys.stderr):
                call()
        except Exception as error:  # noqa: BLE001 - whatever it is, learning is worth more
            self._is_working = False
            logger.warning("%s failed and gets no more metrics of this run: %s", self._name, error)


def _keep_id(config: TrainConfig) -> str:
    """What tells the run from others of its name; kept in its folder, which may be moved."""
    path = config.run / "tracking-id"
    if not path.exists():
        aside = path.with_name(".tracking-id")
        aside.write_text(uuid.uuid4().hex[:12])
        os.replace(aside, path)
    return path.read_text().strip()
