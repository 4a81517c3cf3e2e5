"""A process of our own that runs one named function and talks over a connection.

It does not import the caller's main module, so that commands, scripts and notebooks can all have
workers. A worker ends when its caller does: its connection is closed then.
"""

import importlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import IO, Any

_BEAT_BYTES = 16
"""A float of when the call began, 0 between calls, and an integer of what it is labelled."""


class Heartbeat:
    """What a worker is busy with, in memory that its caller reads at any time."""

    def __init__(self, file: IO[bytes]) -> None:
        memory = memoryview(mmap.mmap(file.fileno(), _BEAT_BYTES))
        self._started, self._label = memory[:8].cast("d"), memory[8:].cast("q")

    def begin(self, label: int) -> None:
        """A call begins that may never return."""
        self._label[0] = label
        self._started[0] = time.monotonic()

    def end(self) -> None:
        """The call has returned."""
        self._started[0] = 0.0

    def read(self) -> tuple[float, int] | None:
        """Seconds that the call has taken so far, and its label; None between calls."""
        started = self._started[0]
        return (time.monotonic() - started, self._label[0]) if started else None


class WorkerProcess:
    """A running worker; its function is called as `function(connection, heartbeat, *arguments)`."""

    def __init__(self, function: str, *arguments: Any) -> None:
        """Start it.

        Args:
            function: `module:name`.
            arguments: anything that can be pickled.
        """
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as file, theirs:
            file.truncate(mmap.PAGESIZE)
            self.heartbeat = Heartbeat(file)
            descriptors = (theirs.fileno(), file.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
            )
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self.connection.send((function, arguments))

    def kill(self) -> int:
        """End it at once; its exit status, negative for the signal that ended it before."""
        status = self._process.poll()
        if status is None:
            self._process.kill()
        ended = self._process.wait()
        self.connection.close()
        return ended if status is None else status

    def wait(self, seconds: float | None = None) -> int:
        """Its exit status, once it has ended by itself; after so many seconds it is ended."""
        self.connection.close()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def main() -> None:
    """The worker's side."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller, who ends us
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    with os.fdopen(int(sys.argv[2]), "r+b") as file:
        heartbeat = Heartbeat(file)
    try:
        name, arguments = connection.recv()
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(connection, heartbeat, *arguments)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the caller has gone


if __name__ == "__main__":
    main()
