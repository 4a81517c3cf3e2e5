"""How chunks of a Zarr v3 array become bytes: codec profiles, chunk shapes and checksums."""

import math
import struct
from dataclasses import dataclass
from typing import Any, Literal, get_args

import google_crc32c
import numpy as np
from numcodecs import blosc, zstd
from numpy.typing import NDArray

from retold.dataset.blosc_library import decompress_blosc

Profile = Literal["fast", "small"]
PROFILES: tuple[Profile, ...] = get_args(Profile)

_SCALAR_CHUNK_ROWS = 4096
_CHUNK_BYTES = 262_144
CRC_BYTES = 4
read_checksum = struct.Struct("<I").unpack_from
"""`(checksum,)` from bytes and the place where it stands in them."""


@dataclass(frozen=True)
class Codec:
    """One compressor, followed by a CRC-32C of its output."""

    name: Literal["blosc", "zstd"]
    level: int
    compressor: str = ""
    """Blosc's inner compressor."""
    is_shuffled: bool = False
    """Byte shuffle, which pays where items are wider than one byte. Bit shuffle never paid."""

    def encode(self, chunk: NDArray[Any]) -> bytes:
        """Compressed bytes that end in the little-endian CRC-32C of what goes before."""
        if self.name == "zstd":
            body = bytes(zstd.compress(chunk.tobytes(), self.level))
        else:
            # More than one internal thread gives equal content unequal bytes.
            blosc.set_nthreads(1)
            flat = chunk.reshape(-1)
            body = bytes(
                blosc.compress(flat, self.compressor.encode(), self.level, int(self.is_shuffled), 0)
            )
        return body + int(google_crc32c.value(body)).to_bytes(CRC_BYTES, "little")

    def metadata(self, itemsize: int) -> list[dict[str, Any]]:
        """The codecs' entries in `zarr.json`, in order of encoding."""
        if self.name == "zstd":
            entry: dict[str, Any] = {
                "name": "zstd",
                "configuration": {"level": self.level, "checksum": False},
            }
        else:
            entry = {
                "name": "blosc",
                "configuration": {
                    "cname": self.compressor,
                    "clevel": self.level,
                    "shuffle": "shuffle" if self.is_shuffled else "noshuffle",
                    "typesize": itemsize,
                    "blocksize": 0,
                },
            }
        return [entry, {"name": "crc32c"}]


def choose_codec(profile: Profile, itemsize: int) -> Codec:
    """The codec of a profile for items of one size."""
    is_wide = itemsize > 1
    if profile == "fast":
        return Codec("blosc", 5, "lz4", is_wide)
    return Codec("blosc", 3, "zstd", True) if is_wide else Codec("zstd", 3)


def choose_chunk_rows(row_shape: tuple[int, ...], itemsize: int) -> int:
    """Rows of one inner chunk: 4096 for scalars, 128 for vectors, down to 16 for frames.

    A power of two near 256 KiB: a window reads few chunks and little that it does not want.
    """
    if not row_shape:
        return _SCALAR_CHUNK_ROWS
    row_bytes = max(1, itemsize * math.prod(row_shape))
    return int(max(16, min(128, 2 ** int(math.log2(max(1, _CHUNK_BYTES // row_bytes))))))


def check_body(body: bytes, checksum: int) -> None:
    """Compare a chunk's compressed bytes with their checksum.

    Raises:
        ValueError: they were changed; the caller names the file.
    """
    if google_crc32c.value(body) != checksum or not body:
        raise ValueError("a chunk's checksum is wrong")


def decode_body(name: str, body: bytes, chunk: NDArray[Any], address: int, size: int) -> None:
    """Fill a whole, contiguous chunk of `size` bytes, which begins at `address`, from its bytes.

    Raises:
        ValueError: the compressed stream is wrong; the caller names the file.
    """
    if name == "blosc":
        decompress_blosc(body, chunk, address, size)
        return
    try:
        zstd.decompress(body, chunk.reshape(-1).view(np.uint8))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"a chunk cannot be decompressed ({error})") from error
