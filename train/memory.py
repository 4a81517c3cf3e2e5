"""How this process takes memory from the system: an update's large tensors are the same every time."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Parameters of glibc's `mallopt`."""
_LARGEST_INT = 2**31 - 1
_GROW_BYTES = 64 * 2**20


def keep_freed_memory() -> bool:
    """Let freed memory stay with the process instead of going back to the system; whether it does.

    By default glibc maps every large tensor anew and returns it when it is freed, so that each
    update touches tens of thousands of pages for the first time: a tenth of its time at 3,000 rows,
    a sixth at 12,000. Memory is then freed when the process ends. Nothing is done where the C
    library is another one.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: _LARGEST_INT, _TOP_PAD: _GROW_BYTES}
    taken = [mallopt(parameter, value) == 1 for parameter, value in settings.items()]
    return all(taken)
