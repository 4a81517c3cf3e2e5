"""Runs the real command, as a user's shell does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_fixtures import hub, running_hub  # noqa: F401  # fixtures

RunRetold = Callable[..., "subprocess.CompletedProcess[str]"]

RETOLD = Path(sys.executable).with_name("retold")


@pytest.fixture(scope="session")
def run_retold() -> RunRetold:
    """A function that runs `retold ARGUMENTS` to its end and returns what it printed.

    `kill_at` names the point at which the command kills its whole process group. It runs in a
    session of its own, so that nothing else dies with it.
    """

    def run(
        *arguments: str | Path, cwd: Path | None = None, kill_at: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("RETOLD_KILL_AT", None)
        if kill_at is not None:
            environment["RETOLD_KILL_AT"] = kill_at
        return subprocess.run(
            [RETOLD, *map(str, arguments)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )

    return run
