"""SIGTERM and SIGINT as a question that a loop asks, so that it ends where nothing is lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def note_stop_signals() -> Iterator[Callable[[], int]]:
    """A function that gives the number of the signal that arrived inside the block, or 0.

    Handlers can be set in the main thread alone; elsewhere the answer is always 0.
    """
    received = [0]

    def note(number: int, frame: FrameType | None) -> None:
        received[0] = number

    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: received[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
