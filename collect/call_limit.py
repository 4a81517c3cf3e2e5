"""A limit on calls of environments in this process, which no other process watches over.

A thread looks at what the main thread is busy with. A call that takes too long is broken off by a
signal whose handler raises, as an error of the environment would. Code outside of Python that lets no
handler run cannot be broken off: the command is ended then, with a message.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

_SIGNAL = signal.SIGUSR2
_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 5.0
"""From the signal to the end of the command."""


class CallTooLong(Exception):
    """A call of an environment took longer than it may."""


class CallLimit:
    """As a worker's `Heartbeat`, for calls in the main thread of this process."""

    def __init__(self, task: str, timeout_seconds: float) -> None:
        self._task = task
        self._timeout_seconds = timeout_seconds
        self._call: tuple[float, int] | None = None
        self._ended = threading.Event()

    def begin(self, label: int) -> None:
        """A call begins that may never return."""
        self._call = (time.monotonic(), label)

    def end(self) -> None:
        """The call has returned."""
        self._call = None

    def __enter__(self) -> Self:
        self._before = signal.signal(_SIGNAL, self._break_off)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        signal.signal(_SIGNAL, self._before)

    def _excess(self) -> float:
        """Seconds beyond the limit."""
        call = self._call
        return 0.0 if call is None else time.monotonic() - call[0] - self._timeout_seconds

    def _break_off(self, number: int, frame: Any) -> None:
        if self._excess() > 0:
            raise CallTooLong(f"a call took more than {self._timeout_seconds:g} seconds")

    def _watch(self) -> None:
        while not self._ended.wait(min(_LOOK_SECONDS, self._timeout_seconds)):
            excess = self._excess()
            if excess > _GRACE_SECONDS:
                self._end_command()
            elif excess > 0:
                signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _end_command(self) -> None:
        call = self._call
        seed = call[1] if call is not None else "unknown"
        sys.stderr.write(
            f"retold collect: Task {self._task}, seed {seed}: the environment took more than "
            f"{self._timeout_seconds:g} seconds for one call and cannot be interrupted. Episodes that "
            f"were committed are kept; run again with --workers 1, where its process is replaced.\n"
        )
        sys.stderr.flush()
        os._exit(1)


@contextlib.contextmanager
def limit_calls(task: str, timeout_seconds: float) -> Iterator[CallLimit | None]:
    """The limit; None outside of the main thread, where no signal arrives."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    with CallLimit(task, timeout_seconds) as limit:
        yield limit
