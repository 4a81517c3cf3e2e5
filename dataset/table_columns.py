"""Columns of a stranger's table as rows of leaves: any nesting, with nulls noticed."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retold.dataset.parquet_columns import decode_rows
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import quote_key


class IncompleteError(Exception):
    """An episode lacks something, or holds what nobody can read."""


def is_list(kind: Any) -> bool:
    """Whether values of a type are lists of any length."""
    kind = _plain_type(kind)
    return kind is not None and bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_nested_type(kind: Any) -> bool:
    """Whether values of a type have parts."""
    return _is_any_list(_plain_type(kind)) or bool(pa.types.is_struct(kind))


def column_type(schema: pa.Schema, name: str) -> Any:
    """The type of a column, or of a field of a struct (`a.b`); None if there is none."""
    if name in schema.names:
        return schema.field(name).type
    first, *keys = name.split(".")
    kind = schema.field(first).type if first in schema.names else None
    for key in keys:
        kind = _plain_type(kind)
        if kind is not None and _is_any_list(kind):
            kind = kind.value_type
        if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(key) < 0:
            return None
        kind = kind.field(key).type
    return kind if keys else None


def take_column(table: pa.Table, name: str, *, row: int | None) -> Any:
    """One Arrow array of a row a step.

    Args:
        table: a batch.
        name: of a column, or of a field of a struct (`a.b`).
        row: the episode whose list is meant; None: each row is a step.
    """
    top, keys = (name, []) if name in table.column_names else _split_name(name)
    if row is None:
        column = _one_chunk(table[top])
        for key in keys:
            column = pc.struct_field(column, key)
        return _plain_array(column)
    column = _one_chunk(table[top].slice(row, 1))
    is_flat = False
    for key in ["", *keys]:
        if key:
            column = _plain_array(pc.struct_field(column, key))
        if not is_flat and _is_any_list(column.type):
            if column.null_count:
                raise IncompleteError(f"{name!r} is null")
            column, is_flat = _plain_array(column.flatten()), True
    return column


def split_leaves(column: Any, path: str) -> dict[str, Any]:
    """The leaves of a struct by path, lists within it flattened where it is one episode's."""
    column = _plain_array(column)
    if not pa.types.is_struct(column.type) or _is_image(column.type):
        return {path: column}
    return {
        name: leaf
        for field in column.type
        for name, leaf in split_leaves(
            pc.struct_field(column, field.name), f"{path}/{quote_key(field.name)}"
        ).items()
    }


def decode_leaf(arrays: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """`[rows, ...]` and `[rows]`: the values, and whether there is one. Several columns make a vector."""
    decoded = [_decode(array) for array in arrays]
    if len(decoded) == 1:
        return decoded[0]
    rows = np.stack([rows for rows, _ in decoded], axis=-1)
    return rows, np.all([present for _, present in decoded], axis=0)


def decode_whole(path: str, arrays: Sequence[Any], count: int) -> NDArray[Any]:
    """`[count, ...]`: the first rows of a leaf, of which none may be null.

    Raises:
        IncompleteError: one is, or there are fewer.
    """
    if min(map(len, arrays)) < count:
        raise IncompleteError(f"{path!r} has {min(map(len, arrays))} rows, but {count} are needed")
    try:
        rows, present = decode_leaf([array.slice(0, count) for array in arrays])
    except IncompleteError as error:
        raise IncompleteError(f"{path!r}: {error}") from error
    if not present.all():
        raise IncompleteError(f"{path!r} is null in step {int(np.argmin(present))}")
    return rows


def _decode(array: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    if _is_image(array.type):
        return _decode_images(array)
    inner = array.drop_null()
    while _is_any_list(inner.type):
        inner = _plain_array(inner.flatten())
        if inner.null_count:
            raise IncompleteError("a list has a null in it")
    if pa.types.is_null(inner.type):
        return np.zeros(len(array), np.bool_), np.zeros(len(array), np.bool_)
    try:
        rows, present = decode_rows(array)
    except ValueError as error:
        raise IncompleteError(str(error)) from error
    is_text = pa.types.is_string(inner.type) or pa.types.is_large_string(inner.type)
    if rows.dtype.kind not in "biuf" and not (is_text and rows.ndim == 1):
        raise IncompleteError(f"its type is {array.type}, which is neither numbers nor text")
    return rows, present


def _decode_images(array: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Pixels of images that are held as files; those that lie elsewhere are never looked for."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DatasetError(
            "Reading images needs the package 'PIL'. Install it with `pip install "
            "'retold[interchange]'`."
        ) from error
    files = pc.struct_field(array, "bytes").to_pylist()
    present = np.asarray([file is not None for file in files], np.bool_)
    images = []
    for file in files:
        if file is not None:
            try:
                images.append(np.asarray(Image.open(io.BytesIO(file))))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise IncompleteError(f"an image cannot be read: {error}") from error
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise IncompleteError(f"its images are of {len(shapes)} shapes, not of one")
    rows = np.zeros((len(files), *(images[0].shape if images else ())), np.uint8)
    if images:
        rows = rows.astype(images[0].dtype)
        rows[present] = np.stack(images)
    return rows, present


def _is_image(kind: Any) -> bool:
    """Whether a type is what `datasets` keeps an image in."""
    return bool(pa.types.is_struct(kind)) and {field.name for field in kind} == {"bytes", "path"}


def _is_any_list(kind: Any) -> bool:
    return is_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def _split_name(name: str) -> tuple[str, list[str]]:
    first, *keys = name.split(".")
    return first, keys


def _plain_type(kind: Any) -> Any:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _plain_array(array: Any) -> Any:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _one_chunk(column: Any) -> Any:
    """The column as one array; joining copies, which a single chunk does not need."""
    return _plain_array(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
