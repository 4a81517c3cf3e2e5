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
        return schema.field(schema.names.index(name)).type
    first, *keys = name.split(".")
    kind = schema.field(schema.names.index(first)).type if first in schema.names else None
    for key in keys:
        kind = _plain_type(kind)
        if kind is not None and _is_any_list(kind):
            kind = kind.value_type
        if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(key) < 0:
            return None
        kind = kind.field(key).type
    return kind if keys else None


def take_leaves(
    table: pa.Table, path: str, columns: Sequence[str], *, row: int | None
) -> dict[str, tuple[Any, ...]]:
    """Arrow arrays of a row a step, by the path of their leaf.

    Args:
        table: a batch.
        path: of what the columns hold; the leaves of a struct lie below it.
        columns: names of columns, or of fields of structs (`a.b`); several make one vector.
        row: the episode whose lists are meant; None: each row is a step.
    """
    if len(columns) > 1:
        arrays = [take_leaves(table, path, (name,), row=row) for name in columns]
        if any(list(found) != [path] for found in arrays):
            raise DatasetError(
                f"{path!r} is made of several columns, of which one is a struct. Name its fields in "
                f"the mapping: {columns[0]!r} as {columns[0] + '.field'!r}."
            )
        return {path: tuple(found[path][0] for found in arrays)}
    top, keys = (columns[0], []) if columns[0] in table.column_names else _split_name(columns[0])
    column = table[top] if row is None else table[top].slice(row, 1)
    # Lists of an episode are flattened once, be they within a struct or around it.
    column, is_flat = _flatten_once(_one_chunk(column), is_flat=row is None)
    for key in keys:
        column, is_flat = _flatten_once(pc.struct_field(column, key), is_flat=is_flat)
    leaves = _split_leaves(column, path)
    return {name: (_flatten_once(leaf, is_flat=is_flat)[0],) for name, leaf in leaves.items()}


def _flatten_once(column: Any, *, is_flat: bool) -> tuple[Any, bool]:
    column = _plain_array(column)
    if is_flat or not _is_any_list(column.type):
        return column, is_flat
    return _plain_array(column.flatten()), True


def _split_leaves(column: Any, path: str) -> dict[str, Any]:
    """The leaves of a struct by path."""
    column = _plain_array(column)
    if not pa.types.is_struct(column.type) or _is_image(column.type):
        return {path: column}
    return {
        name: leaf
        for field in column.type
        for name, leaf in _split_leaves(
            pc.struct_field(column, field.name), f"{path}/{quote_key(field.name)}"
        ).items()
    }


def decode_leaf(arrays: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """`[rows, ...]` and `[rows]`: the values, and whether there is one. Several columns make a vector."""
    decoded = [_decode(array) for array in arrays]
    if len(decoded) == 1:
        return decoded[0]
    if any(rows.dtype == object or rows.ndim > 2 for rows, _ in decoded):
        raise IncompleteError("its columns are not numbers, or lists of them, that make one vector")
    if len({len(rows) for rows, _ in decoded}) > 1:
        raise IncompleteError("its columns have different numbers of rows")
    # [rows] and [rows, items] -> [rows, all items]
    parts = [rows.reshape(len(rows), rows.shape[1] if rows.ndim == 2 else 1) for rows, _ in decoded]
    present: NDArray[np.bool_] = np.all([there for _, there in decoded], axis=0)
    return np.concatenate(parts, axis=1), present


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
