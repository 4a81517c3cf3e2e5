"""Decoding the Arrow and Parquet files of Minari datasets.

Minari's own reader fails on infos of one number a step and returns nested infos as rows of dicts, so
that the files are read here.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
from numpy.typing import NDArray

from retold.schemas.episode import Leaves
from retold.schemas.spaces import Leaf, unquote_key


def read_arrow_episode(
    folder: Path, data_format: str, leaves: tuple[Leaf, ...]
) -> tuple[Leaves, dict[str, Any]]:
    """All arrays of one episode; what stands behind the last transition is cut.

    Args:
        folder: of the episode.
        data_format: `arrow` or `parquet`.
        leaves: of observation and action.

    Returns:
        Leaves by path, `reward`, `terminated` and `truncated` among them; and infos as nested dicts.
    """
    files = sorted(str(path) for path in folder.glob("part-*"))
    table = pyarrow.dataset.dataset(files, format=data_format).to_table()
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    length = table.num_rows - 1
    arrays: Leaves = {}
    for leaf in leaves:
        name, *keys = leaf.path.split("/")
        column = columns[f"{name}s"]
        for key in keys:
            column = column.field(unquote_key(key))
        rows = column if name == "observation" else column[:length]
        arrays[leaf.path] = _decode_column(rows, leaf)
    for name, field in _FLAT.items():
        arrays[name] = columns[field][:length].to_numpy(zero_copy_only=False)
    return arrays, _decode_infos(columns["infos"]) if "infos" in columns else {}


_FLAT = {"reward": "rewards", "terminated": "terminations", "truncated": "truncations"}


def _decode_column(column: Any, leaf: Leaf) -> NDArray[Any]:
    if pa.types.is_binary(column.type):
        from PIL import Image

        frames = [np.asarray(Image.open(io.BytesIO(frame))) for frame in column.to_pylist()]
        return np.stack(frames)
    if leaf.is_ragged:
        texts = np.empty(len(column), object)
        texts[:] = column.to_pylist()
        return texts
    if pa.types.is_fixed_size_list(column.type):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(flat).reshape(len(column), *leaf.shape)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _decode_infos(column: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for number, field in enumerate(column.type):
        rows = column.field(number)
        if pa.types.is_struct(field.type):
            tree[field.name] = _decode_infos(rows)
        elif pa.types.is_fixed_size_list(field.type):
            shape = (field.metadata or {}).get(b"shape", str(field.type.list_size).encode())
            sizes = [int(size) for size in shape.decode().split(",") if size]
            flat = rows.flatten().to_numpy(zero_copy_only=False)
            tree[field.name] = np.ascontiguousarray(flat).reshape(len(rows), *sizes)
        else:
            tree[field.name] = rows.to_numpy(zero_copy_only=False)
    return tree
