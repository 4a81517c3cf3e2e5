"""Reading windows of standard Zarr v3 sharded arrays, checksums verified at every decode."""

import json
import math
import mmap
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from retold.dataset.zarr_codec import decode_chunk
from retold.schemas.errors import FormatError


class ArrayReader:
    """One array on disk. Shards are mapped and their indices parsed once, on first use.

    The caller has checked the hash of `zarr.json`; everything else is verified here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        metadata = json.loads((folder / "zarr.json").read_bytes())
        try:
            sharding = metadata["codecs"][0]["configuration"]
            self.shape: tuple[int, ...] = tuple(metadata["shape"])
            self.dtype: np.dtype[Any] = np.dtype(metadata["data_type"]).newbyteorder("<")
            self._shard_rows: int = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
            self._chunk_rows: int = sharding["chunk_shape"][0]
            self._codec: str = sharding["codecs"][1]["name"]
        except (KeyError, IndexError, TypeError) as error:
            raise FormatError(
                f"{folder / 'zarr.json'}: this is not an array as docs/format.md describes it "
                f"({error!r} is missing). Find all damage with `retold audit`."
            ) from error
        self._shards: dict[int, tuple[memoryview, list[list[int]]]] = {}

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows `start..stop-1`, `[stop - start, ...]`, into `out` if given.

        Raises:
            FormatError: a chunk is missing or damaged; the file is named.
        """
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype) if out is None else out
        chunk_rows, filled = self._chunk_rows, 0
        while filled < stop - start:
            number, first = divmod(start + filled, chunk_rows)
            count = min(chunk_rows - first, stop - start - filled)
            if count == chunk_rows and rows.flags.c_contiguous:
                self._decode(number, rows[filled : filled + count])
            else:
                chunk = np.empty((chunk_rows, *self.shape[1:]), self.dtype)
                self._decode(number, chunk)
                rows[filled : filled + count] = chunk[first : first + count]
            filled += count
        return rows

    def read_all(self) -> NDArray[Any]:
        """The whole array."""
        return self.read(0, self.shape[0])

    def _decode(self, chunk_number: int, chunk: NDArray[Any]) -> None:
        shard, index_of_chunk = divmod(chunk_number, self._shard_rows // self._chunk_rows)
        if shard not in self._shards:
            self._shards[shard] = self._map_shard(shard)
        content, index = self._shards[shard]
        offset, length = index[index_of_chunk]
        try:
            if offset + length > len(content):
                raise ValueError("a chunk is missing")
            decode_chunk(self._codec, content[offset : offset + length], chunk)
        except ValueError as error:
            raise FormatError(
                f"{self._shard_path(shard)}: {error} (rows {chunk_number * self._chunk_rows} to "
                f"{(chunk_number + 1) * self._chunk_rows - 1}). Find all damage with `retold audit`."
            ) from error

    def _shard_path(self, shard: int) -> Path:
        return self.folder.joinpath("c", str(shard), *("0" for _ in self.shape[1:]))

    def _map_shard(self, shard: int) -> tuple[memoryview, list[list[int]]]:
        path = self._shard_path(shard)
        entries = self._shard_rows // self._chunk_rows
        try:
            with path.open("rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise FormatError(
                f"{path}: the file is missing or empty. Find all damage with `retold audit`."
            ) from error
        encoded = bytes(content[-(16 * entries + 4) :])
        index, checksum = encoded[:-4], int.from_bytes(encoded[-4:], "little")
        if len(encoded) != 16 * entries + 4 or google_crc32c.value(index) != checksum:
            raise FormatError(
                f"{path}: the shard index is damaged. Find all damage with `retold audit`."
            )
        return content, np.frombuffer(index, "<u8").reshape(entries, 2).tolist()

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded row."""
        return int(self.dtype.itemsize * math.prod(self.shape[1:]))
