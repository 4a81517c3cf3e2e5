"""An episode as another format has it: any dtypes, flags anywhere, infos of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.schemas.episode import Leaves
from retold.schemas.spaces import quote_key, unquote_key


@dataclass(frozen=True, kw_only=True)
class ForeignEpisode:
    """What importers read and exporters write. Text leaves are object arrays of `str`."""

    where: str
    """File and episode, for messages."""
    observation: Leaves
    """`[time + 1, ...]` each, by leaf path."""
    action: Leaves
    """`[time, ...]` each, by leaf path."""
    reward: NDArray[Any]
    """`[time]`"""
    terminated: NDArray[Any]
    """`[time]`"""
    truncated: NDArray[Any]
    """`[time]`"""
    info: Leaves = field(default_factory=dict)
    """`[time, ...]`, or `[time + 1, ...]` where the reset has infos too; paths start with `info/`."""
    columns: Leaves = field(default_factory=dict)
    """`[time, ...]` each: other columns of the source; paths start with `column/`."""
    has_infos: bool = True
    """Whether the source has infos at all, be they empty."""
    seed: int | None = None
    options: Mapping[str, Any] | None = None
    """What the environment was reset with, besides the seed."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that was said of the episode."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the format itself must remember to give the episode back."""

    @property
    def length(self) -> int:
        """Number of transitions."""
        return len(self.reward)


def tree_to_leaves(value: Any, path: str) -> Leaves:
    """The arrays of nested dicts and tuples by leaf path; strings become object arrays of `str`."""
    if isinstance(value, Mapping):
        items = [(quote_key(str(key)), item) for key, item in value.items()]
    elif isinstance(value, tuple):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {path: _as_rows(value)}
    return {
        name: rows
        for part, item in items
        for name, rows in tree_to_leaves(item, f"{path}/{part}").items()
    }


def leaves_to_tree(leaves: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Nested dicts of the leaves below a path; the inverse of `tree_to_leaves` for dicts."""
    tree: dict[str, Any] = {}
    for name, rows in leaves.items():
        if not name.startswith(f"{path}/"):
            continue
        *parents, last = [unquote_key(part) for part in name[len(path) + 1 :].split("/")]
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = rows
    return tree


def is_skipped(path: str, skip: Sequence[str]) -> bool:
    """Whether a path is among names to leave out, or lies below one."""
    return any(path == name or path.startswith(f"{name}/") for name in skip)


def _as_rows(value: Any) -> NDArray[Any]:
    rows = np.asarray(value)
    if rows.dtype.kind not in "OUS":
        return rows
    texts = np.empty(len(rows) if rows.ndim else 0, object)
    for number, text in enumerate(rows if rows.ndim else ()):
        if not isinstance(text, str | bytes):
            raise TypeError(f"it holds {type(text).__name__} values, not numbers or text")
        texts[number] = text.decode() if isinstance(text, bytes) else str(text)
    return texts
