"""Blocks of files that lie elsewhere, kept on this machine's disk between runs."""

import logging
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c

logger = logging.getLogger(__name__)

BLOCK_BYTES = 8_192
"""So small that a window of some kilobytes fetches little beside it."""
_ENTRY = struct.Struct("<Q")
"""Of a block that is there: 1 + its CRC-32C. A crash may leave an entry without its block."""

Fetch = Callable[[int, int], bytes]
"""Bytes `start..end-1` of a file from where it lies."""


class BlockCache:
    """Blocks by the hash of the file's content, so that nothing kept is ever out of date.

    Several processes may use one folder at once.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._written = 0
        self._shrink()

    def read(self, key: str, size: int, start: int, end: int, fetch: Fetch) -> bytes:
        """Bytes `start..end-1` of a file.

        Args:
            key: hash of its content, in hex digits.
            size: its bytes.
            start: the first byte.
            end: the first byte that is not wanted, at most `size`.
            fetch: gets what is not here; called at most once.
        """
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = self._load(key, size, first, last)
        missing = [number for number in range(first, last + 1) if number not in blocks]
        if missing:
            begin = missing[0] * BLOCK_BYTES
            content = fetch(begin, min(size, (missing[-1] + 1) * BLOCK_BYTES))
            for number in range(missing[0], missing[-1] + 1):
                place = number * BLOCK_BYTES - begin
                blocks[number] = content[place : place + BLOCK_BYTES]
            self._store(key, {number: blocks[number] for number in missing})
        joined = b"".join(blocks[number] for number in range(first, last + 1))
        return joined[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _paths(self, key: str) -> tuple[Path, Path]:
        folder = self._folder / key[:2]
        return folder / key, folder / f"{key}.index"

    def _load(self, key: str, size: int, first: int, last: int) -> dict[int, bytes]:
        count = last - first + 1
        path, index = self._paths(key)
        try:
            entries = _read_at(index, first * _ENTRY.size, count * _ENTRY.size)
            content = _read_at(path, first * BLOCK_BYTES, count * BLOCK_BYTES)
        except OSError:
            return {}
        blocks = {}
        for place, (entry,) in enumerate(_ENTRY.iter_unpack(entries[: len(entries) // 8 * 8])):
            block = content[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES]
            wanted = min(BLOCK_BYTES, size - (first + place) * BLOCK_BYTES)
            if entry and len(block) >= wanted and _entry(block[:wanted]) == entry:
                blocks[first + place] = block[:wanted]
        return blocks

    def _store(self, key: str, blocks: dict[int, bytes]) -> None:
        """Keep blocks; where that fails, the next reader fetches them again."""
        path, index = self._paths(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for number, block in blocks.items():
                _write_at(path, number * BLOCK_BYTES, block)
                _write_at(index, number * _ENTRY.size, _ENTRY.pack(_entry(block)))
        except OSError as error:
            logger.warning("%s: nothing can be kept there: %s.", self._folder, error.strerror)
            return
        self._written += sum(map(len, blocks.values()))
        if self._written > self._limit_bytes // 10:
            self._shrink()

    def _shrink(self) -> None:
        """Delete the files written longest ago until the rest is within the limit."""
        self._written = 0
        files = sorted(self._list(), key=lambda found: found[1])
        total = sum(size for _, _, size in files)
        for path, _, size in files:
            if total <= self._limit_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _list(self) -> Iterator[tuple[Path, float, int]]:
        for path in self._folder.glob("??/*"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield path, found.st_mtime, found.st_blocks * 512


def _entry(block: bytes) -> int:
    return 1 + int(google_crc32c.value(block))


def _read_at(path: Path, start: int, count: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, count, start)
    finally:
        os.close(descriptor)


def _write_at(path: Path, start: int, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, content, start)
    finally:
        os.close(descriptor)
