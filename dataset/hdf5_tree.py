"""Trees of HDF5 groups and datasets as leaves: Dict is a group, Tuple a group of `_index_0` and so on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from retold.dataset.plain_values import pack
from retold.schemas.episode import Leaves
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    Space,
    TextSpace,
    TupleSpace,
    quote_key,
    space_leaves,
    unquote_key,
)

Columns = dict[str, h5py.Dataset]
"""Datasets by leaf path."""

_MOST_EXTRA_BYTES = 65_536


def find_columns(node: Any, path: str) -> Columns:
    """The datasets of a group (or a dataset itself) by the leaf path that they get."""
    if isinstance(node, h5py.Dataset):
        return {path: node}
    parts = {key: quote_key(key) for key in node}
    if is_tuple(node):
        parts = {f"_index_{number}": str(number) for number in range(len(node))}
    return {
        name: column
        for key, part in parts.items()
        for name, column in find_columns(node[key], f"{path}/{part}").items()
    }


def read_rows(column: h5py.Dataset, start: int, stop: int) -> NDArray[Any]:
    """Rows of a dataset; strings as an object array of `str`."""
    if h5py.check_string_dtype(column.dtype) is not None:
        return np.asarray(column.asstr()[start:stop], object)
    return np.asarray(column[start:stop])


def read_leaves(columns: Columns, start: int, stop: int) -> Leaves:
    """Rows of several datasets."""
    return {path: read_rows(column, start, stop) for path, column in columns.items()}


def is_tuple(node: Any) -> bool:
    """Whether a group's keys are `_index_0`, `_index_1` … without a gap."""
    return len(node) > 0 and set(node) == {f"_index_{number}" for number in range(len(node))}


def infer_space(nodes: list[Any], *, is_action: bool) -> Space:
    """The narrowest space that a file without declared spaces lets one believe in.

    Args:
        nodes: the datasets or groups of one field, one a demonstration, or a single one.
        is_action: whole numbers from 0 up are then Discrete, up to the largest seen.
    """
    first = nodes[0]
    if isinstance(first, h5py.Group):
        if is_tuple(first):
            keys = [f"_index_{number}" for number in range(len(first))]
        else:
            keys = list(first)
        below = [
            infer_space([node[key] for node in nodes if key in node], is_action=is_action)
            for key in keys
        ]
        if is_tuple(first):
            return TupleSpace(tuple(below))
        return DictSpace(tuple(zip(keys, below, strict=True)))
    shape, dtype = first.shape[1:], first.dtype
    if h5py.check_string_dtype(dtype) is not None:
        longest = max((len(text) for node in nodes for text in node.asstr()[()]), default=0)
        return TextSpace(longest)
    if dtype.kind == "b":
        return MultiBinarySpace(shape)
    if dtype.kind in "iu":
        return _infer_integers(nodes, shape, dtype, is_action=is_action)
    return BoxSpace(shape, dtype.name, float("-inf"), float("inf"))


def _infer_integers(
    nodes: list[h5py.Dataset], shape: tuple[int, ...], dtype: Any, *, is_action: bool
) -> Space:
    limits = np.iinfo(dtype)
    if is_action and shape == ():
        low = min(int(np.min(node[()], initial=0)) for node in nodes)
        high = max(int(np.max(node[()], initial=0)) for node in nodes)
        if low >= 0:
            return DiscreteSpace(high + 1, 0, dtype.newbyteorder("=").name)
    return BoxSpace(shape, dtype.newbyteorder("=").name, int(limits.min), int(limits.max))


def check_binary(where: Path | str, name: str, flags: NDArray[Any]) -> None:
    """Refuse flags that are neither 0 nor 1, NaN among them.

    Raises:
        DatasetError: names the first row that is off.
    """
    odd = np.flatnonzero((flags != 0) & (flags != 1))
    if flags.ndim != 1 or len(odd):
        is_flat = flags.ndim == 1
        what = f"is {flags[odd[0]]} at row {odd[0]}" if is_flat else f"has shape {flags.shape}"
        raise DatasetError(
            f"{where}: {name!r} {what}, but flags are one 0 or 1 a row. Correct the source and import "
            f"again; nothing was written."
        )


def check_rows(where: Path | str, columns: Columns, count: int) -> None:
    """Refuse columns of unequal lengths.

    Raises:
        DatasetError: names the first one.
    """
    for path, column in columns.items():
        rows = column.shape[0] if column.shape else 0
        if rows != count:
            can_skip = path.split("/")[0] in ("info", "column")
            skip = f", or leave it out with --skip {path}" if can_skip else ""
            raise DatasetError(
                f"{where}: {column.name!r} has {rows} rows, but 'actions' has {count}. Correct the "
                f"source{skip}; nothing was written."
            )


def split_extras(
    root: h5py.File, used: set[str], rows: int | None
) -> tuple[Columns, dict[str, Any], tuple[str, ...]]:
    """What else a file holds, besides the datasets in use.

    Args:
        root: the file.
        used: names of datasets that are read already.
        rows: rows of a column of steps; None: there are no other columns.

    Returns:
        Columns of steps (`column/…`), small values by name, and names of what is left out.
    """
    columns: Columns = {}
    values: dict[str, Any] = {}
    left_out: list[str] = []

    def visit(name: str, node: Any) -> None:
        if not isinstance(node, h5py.Dataset) or node.name in used:
            return
        if rows is not None and node.shape and node.shape[0] == rows:
            path = "/".join(quote_key(key) for key in name.split("/"))
            columns[f"column/{path}"] = node
        elif node.size is not None and node.nbytes <= _MOST_EXTRA_BYTES:
            values[name] = _read_value(node)
        else:
            left_out.append(name)

    root.visititems(visit)
    return columns, values, tuple(left_out)


def write_extras(root: Any, values: Mapping[str, Any]) -> None:
    """The inverse of `split_extras` for small values."""
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype == object:
            is_text = all(isinstance(item, str) for item in value.ravel())
            content = value.astype(h5py.string_dtype() if is_text else "S")
            root.create_dataset(name, data=content)
        else:
            root.create_dataset(name, data=value)


def read_attributes(node: Any) -> dict[str, Any]:
    """Attributes that can be kept, as they will be written again."""
    attributes = {}
    for name, value in node.attrs.items():
        try:
            pack(value)
        except TypeError:
            continue
        attributes[name] = value
    return attributes


def leaf_names(space: Space, path: str, name: str) -> dict[str, str]:
    """Names in the file of a space's leaves, by leaf path.

    Args:
        space: gives the structure.
        path: of the leaves, `observation` or `action`.
        name: of the field in the file, e.g. `observations`.
    """
    match space:
        case DictSpace():
            parts = [(quote_key(key), key, item) for key, item in space.spaces]
        case TupleSpace():
            parts = [
                (str(number), f"_index_{number}", item) for number, item in enumerate(space.spaces)
            ]
        case _:
            return {leaf.path: name for leaf in space_leaves(space, path)}
    return {
        leaf: full
        for part, key, item in parts
        for leaf, full in leaf_names(item, f"{path}/{part}", f"{name}/{key}").items()
    }


def plain_name(path: str) -> str:
    """A leaf path of nested dicts without its first part, keys as they were."""
    return "/".join(unquote_key(part) for part in path.split("/")[1:])


def write_rows(root: Any, name: str, rows: NDArray[Any]) -> None:
    """Write one dataset; text as UTF-8."""
    if rows.dtype == object:
        root.create_dataset(name, data=rows, dtype=h5py.string_dtype())
    else:
        root.create_dataset(name, data=rows)


def append_rows(rows: NDArray[Any], more: NDArray[Any]) -> NDArray[Any]:
    """Rows behind rows; of equal dtypes the byte order is kept, others become one that holds both."""
    dtype = rows.dtype if rows.dtype == more.dtype else None
    return np.concatenate([rows, more], dtype=dtype)


def rows_equal(one: NDArray[Any], two: NDArray[Any]) -> NDArray[np.bool_]:
    """`[rows]`: which rows agree, NaN with NaN."""
    if one.dtype == object or two.dtype == object:
        return np.asarray(one == two, np.bool_)
    same = one == two
    if one.dtype.kind == "f" and two.dtype.kind == "f":
        same |= np.isnan(one) & np.isnan(two)
    return np.asarray(same.all(axis=tuple(range(1, same.ndim))))


def _read_value(node: h5py.Dataset) -> Any:
    if h5py.check_string_dtype(node.dtype) is not None and node.dtype.kind == "O":
        return node.asstr()[()]
    return node[()]
