"""Rows of leaves as Arrow columns: Dict and Tuple are structs, arrays nested lists of fixed size."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retold.schemas.episode import Leaves
from retold.schemas.spaces import quote_key, unquote_key


def encode_rows(rows: NDArray[Any], present: NDArray[np.bool_] | None = None) -> Any:
    """`[rows, ...]` as one Arrow array.

    Args:
        rows: text as an object array of `str`.
        present: `[rows]`; the others become null.
    """
    absent = None if present is None or present.all() else ~present
    if rows.dtype == object:
        return pa.array(rows, pa.string(), mask=absent)
    if rows.ndim == 1:
        return pa.array(np.ascontiguousarray(rows), mask=absent)
    flat: Any = pa.array(np.ascontiguousarray(rows).reshape(-1))
    for size in reversed(rows.shape[2:]):
        flat = _wrap(flat, size, None, 0)
    return _wrap(flat, rows.shape[1], absent, len(rows))


def decode_rows(column: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The inverse of `encode_rows`; rows that are null are zero, or empty text."""
    present = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    found = _decode_present(column if present.all() else column.filter(pa.array(present)))
    if present.all():
        return found, present
    fill: Any = "" if found.dtype == object else 0
    rows = np.full((len(present), *found.shape[1:]), fill, found.dtype)
    rows[present] = found
    return rows, present


def nest_columns(columns: Mapping[str, Any], path: str) -> Any:
    """Arrow arrays by leaf path as one column: a struct, unless the path is a leaf itself."""
    if path in columns:
        return columns[path]
    keys = dict.fromkeys(
        name[len(path) + 1 :].split("/")[0] for name in columns if name.startswith(f"{path}/")
    )
    children = [nest_columns(columns, f"{path}/{key}") for key in keys]
    return pa.StructArray.from_arrays(children, names=[unquote_key(key) for key in keys])


def split_column(column: Any, path: str) -> dict[str, Any]:
    """The inverse of `nest_columns`."""
    if not pa.types.is_struct(column.type):
        return {path: column}
    return {
        name: child
        for number, field in enumerate(column.type)
        for name, child in split_column(
            column.field(number), f"{path}/{quote_key(field.name)}"
        ).items()
    }


def decode_column(column: Any, path: str) -> Leaves:
    """Rows of every leaf in a column without nulls."""
    return {name: decode_rows(child)[0] for name, child in split_column(column, path).items()}


def _wrap(values: Any, size: int, absent: NDArray[np.bool_] | None, count: int) -> Any:
    if size == 0:  # Arrow cannot tell how many empty lists there are
        offsets = pa.array(np.zeros(count + 1, np.int32))
        return pa.ListArray.from_arrays(offsets, values)
    mask = None if absent is None else pa.array(absent)
    return pa.FixedSizeListArray.from_arrays(values, size, mask=mask)


def _decode_present(column: Any) -> NDArray[Any]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = np.empty(len(column), object)
        texts[:] = column.to_pylist()
        return texts
    count, sizes, values = len(column), [], column
    while pa.types.is_fixed_size_list(values.type):
        sizes.append(values.type.list_size)
        values = values.flatten()
    if _is_list(values.type):
        return _decode_lists(values, count, sizes)
    flat = np.asarray(values.to_numpy(zero_copy_only=False))
    return np.ascontiguousarray(flat).reshape(count, *sizes)


def _decode_lists(values: Any, count: int, sizes: list[int]) -> NDArray[Any]:
    """Lists of variable type, but of one length: what other writers make of arrays."""
    while _is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        lengths = pc.list_value_length(values)
        least, most = pc.min(lengths).as_py(), pc.max(lengths).as_py()
        if least != most:
            raise ValueError(f"its lists have {least} to {most} items, not one length")
        below = values.flatten()
        sizes = [*sizes, len(below) // len(values) if len(values) else 0]
        values = below
    flat = np.asarray(values.to_numpy(zero_copy_only=False))
    return np.ascontiguousarray(flat).reshape(count, *sizes)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
