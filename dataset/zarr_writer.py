"""Writing whole arrays as standard Zarr v3, sharded along the first axis."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from retold.dataset.zarr_codec import Codec, Profile, choose_chunk_rows, choose_codec
from retold.schemas.canonical import encode_json

_SHARD_BYTES = 64_000_000
_THREADS = 2
_THREADED_BYTES = 4_000_000
"""Below this, starting threads takes longer than they save."""
_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}


def write_group(folder: Path) -> None:
    """Write the `zarr.json` that makes a folder a Zarr group."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    (folder / "zarr.json").write_bytes(encode_json(content))


def write_array(folder: Path, array: NDArray[Any], profile: Profile) -> None:
    """Write one array; every chunk is present, the last one padded with zeros.

    Args:
        folder: where `zarr.json` and `c/` go; must not exist.
        array: `[rows, ...]`.
        profile: codec profile.
    """
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    row_shape, itemsize = array.shape[1:], array.dtype.itemsize
    chunk_rows = choose_chunk_rows(row_shape, itemsize)
    chunk_bytes = max(1, chunk_rows * itemsize * math.prod(row_shape))
    chunks_needed = max(1, -(-len(array) // chunk_rows))
    shard_chunks = max(1, min(chunks_needed, _SHARD_BYTES // chunk_bytes))
    codec = choose_codec(profile, itemsize)
    folder.mkdir(parents=True)
    metadata = _array_metadata(array, chunk_rows, shard_chunks, codec)
    (folder / "zarr.json").write_bytes(encode_json(metadata))
    shard_rows = chunk_rows * shard_chunks
    for number, first in enumerate(range(0, len(array), shard_rows)):
        path = folder.joinpath("c", str(number), *("0" for _ in row_shape))
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = array[first : first + shard_rows]
        path.write_bytes(_encode_shard(rows, chunk_rows, shard_chunks, codec))


def _encode_shard(rows: NDArray[Any], chunk_rows: int, shard_chunks: int, codec: Codec) -> bytes:
    """Chunks one after the other, then an index of (offset, bytes) pairs and its CRC-32C."""
    chunks = [rows[first : first + chunk_rows] for first in range(0, len(rows), chunk_rows)]
    if chunks and len(chunks[-1]) < chunk_rows:
        padding = np.zeros((chunk_rows - len(chunks[-1]), *rows.shape[1:]), rows.dtype)
        chunks[-1] = np.concatenate([chunks[-1], padding])
    parts = _encode_chunks(chunks, codec)
    index = np.full((shard_chunks, 2), 2**64 - 1, "<u8")  # how Zarr marks a chunk beyond the array
    lengths = np.array([len(part) for part in parts], np.uint64)
    index[: len(parts), 0] = np.cumsum(lengths) - lengths
    index[: len(parts), 1] = lengths
    encoded_index = index.tobytes()
    checksum = google_crc32c.value(encoded_index).to_bytes(4, "little")
    return b"".join((*parts, encoded_index, checksum))


def _encode_chunks(chunks: list[NDArray[Any]], codec: Codec) -> list[bytes]:
    """Each chunk's bytes, which do not depend on the thread that made them."""
    if sum(chunk.nbytes for chunk in chunks) < _THREADED_BYTES:
        return [codec.encode(chunk) for chunk in chunks]
    parts = [b""] * len(chunks)

    def encode(places: range) -> None:
        for place in places:
            parts[place] = codec.encode(chunks[place])

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [
            pool.submit(encode, range(first, len(chunks), _THREADS)) for first in range(_THREADS)
        ]:
            done.result()
    return parts


def _array_metadata(
    array: NDArray[Any], chunk_rows: int, shard_chunks: int, codec: Codec
) -> dict[str, Any]:
    row_shape, itemsize = list(array.shape[1:]), array.dtype.itemsize
    to_bytes = _LITTLE_ENDIAN if itemsize > 1 else {"name": "bytes"}
    fill: Any = False if array.dtype == np.bool_ else 0.0 if array.dtype.kind == "f" else 0
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(array.shape),
        "data_type": array.dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [chunk_rows * shard_chunks, *row_shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [chunk_rows, *row_shape],
                    "codecs": [to_bytes, *codec.metadata(itemsize)],
                    "index_codecs": [_LITTLE_ENDIAN, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }
        ],
        "attributes": {},
    }
