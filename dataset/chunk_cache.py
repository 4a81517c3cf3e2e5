"""Decoded chunks, kept under a budget of bytes; the longest unused go first."""

from collections import OrderedDict
from threading import Lock
from typing import Any

from numpy.typing import NDArray


class ChunkCache:
    """Shared by all arrays of a reader, and by its decoding threads."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._chunks: OrderedDict[tuple[int, int], NDArray[Any]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """What is kept now."""
        return self._bytes

    def get(self, key: tuple[int, int]) -> NDArray[Any] | None:
        """A chunk, which the caller does not change, or None."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def put(self, key: tuple[int, int], chunk: NDArray[Any]) -> None:
        """Keep a chunk that fits into the budget at all."""
        if chunk.nbytes > self.budget_bytes:
            return
        with self._lock:
            old = self._chunks.pop(key, None)
            self._bytes += chunk.nbytes - (0 if old is None else old.nbytes)
            self._chunks[key] = chunk
            while self._bytes > self.budget_bytes:
                self._bytes -= self._chunks.popitem(last=False)[1].nbytes
