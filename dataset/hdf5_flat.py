"""HDF5 files of flat columns as D4RL has them: all episodes one after the other.

A file with `next_observations` has the observation after every transition. Without, the last
observation of an episode is the one before its last transition: that transition is left out, and the
episode ends one transition earlier, truncated. What was left out is kept in the episode's metadata.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from retold.dataset.foreign_episode import ForeignEpisode, is_skipped
from retold.dataset.foreign_files import hash_files, reading
from retold.dataset.hdf5_tree import (
    Columns,
    append_rows,
    check_binary,
    check_rows,
    find_columns,
    infer_space,
    read_attributes,
    read_leaves,
    read_rows,
    rows_equal,
    split_extras,
)
from retold.dataset.plain_values import pack
from retold.schemas.dataset_schema import IMPORTED, TaskDescription
from retold.schemas.episode import Leaves
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import Space, space_from_json, space_leaves

_CHUNK_ROWS = 16_384


class FlatSource:
    """A file with `observations`, `actions`, `rewards` and `terminals`."""

    def __init__(self, path: Path, file: h5py.File, skip: Sequence[str]) -> None:
        self.path = path
        self._file = file
        for name in ("observations", "actions", "rewards", "terminals"):
            if name not in file:
                raise DatasetError(
                    f"{path}: {name!r} is missing. A file of flat columns has observations, actions, "
                    f"rewards, terminals and preferably timeouts and next_observations."
                )
        self._observation = find_columns(file["observations"], "observation")
        self._next = find_columns(file.get("next_observations", {}), "observation")
        self._action = find_columns(file["actions"], "action")
        self._info = find_columns(file.get("infos", {}), "info")
        self._flags = {
            name: file[field]
            for name, field in (("terminated", "terminals"), ("truncated", "timeouts"))
            if field in file
        }
        self._rows = next(iter(self._action.values())).shape[0]
        groups = (self._observation, self._next, self._action, self._info, self._flags)
        used = {column.name for group in groups for column in group.values()} | {"/rewards"}
        self._columns, self._extras, self.left_out = split_extras(file, used, self._rows)
        for columns in (self._info, self._columns):
            for name in [name for name in columns if is_skipped(name, skip)]:
                del columns[name]
        for group in (*groups, {"reward": file["rewards"]}):
            check_rows(path, group, self._rows)
        if self._next and set(self._next) != set(self._observation):
            odd = min(set(self._next) ^ set(self._observation))
            raise DatasetError(
                f"{path}: 'observations' and 'next_observations' differ in {odd!r}. Correct the "
                f"source and import again; nothing was written."
            )

    @cached_property
    def spaces(self) -> tuple[Space, Space]:
        """Declared in the file's attributes by an export of Retold's, or inferred from the data."""
        return declared_spaces(self.path, self._file) or (
            infer_space([self._file["observations"]], is_action=False),
            infer_space([self._file["actions"]], is_action=True),
        )

    @property
    def sha256(self) -> str:
        """Of the file."""
        return hash_files(self.path, (self.path,))

    def task(self, horizon: int) -> TaskDescription:
        """What the episodes are of, as far as the file says."""
        about = {
            "layout": "d4rl",
            "attributes": read_attributes(self._file),
            "values": self._extras,
            "has_timeouts": "truncated" in self._flags,
            "has_next": bool(self._next),
            "reward_shape": list(self._file["rewards"].shape[1:]),
        }
        return hdf5_task(self.path, about, horizon)

    def episodes(self) -> Iterator[ForeignEpisode | None]:
        """The episodes in order; None for one without a whole transition."""
        with reading(self.path, "an HDF5 file"):
            bounds = self._find_bounds()
        for number, (start, stop, is_jump) in enumerate(bounds):
            where = f"{self.path}: episode {number} (rows {start} to {stop - 1})"
            with reading(where, "HDF5 columns"):
                yield self._read(where, start, stop, is_jump)

    def _find_bounds(self) -> list[tuple[int, int, bool]]:
        """First row, one past the last, and whether only a jump of the observation ends it."""
        ends = np.zeros(self._rows, np.bool_)
        for column in self._flags.values():
            flags = column[()]
            check_binary(self.path, column.name, flags)
            ends |= flags.astype(np.bool_)
        jumps = self._find_jumps() & ~ends
        stops = np.flatnonzero(ends | jumps) + 1
        stops = np.unique(np.append(stops, self._rows))
        starts = np.append(0, stops[:-1])
        return [
            (int(start), int(stop), bool(jumps[stop - 1]))
            for start, stop in zip(starts, stops, strict=True)
            if stop > start
        ]

    def _find_jumps(self) -> NDArray[np.bool_]:
        """`[rows]`: where the next observation is not the row below, so another episode follows."""
        jumps = np.zeros(self._rows, np.bool_)
        for path, column in self._next.items():
            for first in range(0, self._rows - 1, _CHUNK_ROWS):
                last = min(first + _CHUNK_ROWS, self._rows - 1)
                below = read_rows(self._observation[path], first + 1, last + 1)
                jumps[first:last] |= ~rows_equal(read_rows(column, first, last), below)
        return jumps

    def _read(self, where: str, start: int, stop: int, is_jump: bool) -> ForeignEpisode | None:
        steps: Columns = {**self._action, **self._info, **self._columns}
        steps |= {"reward": self._file["rewards"], **self._flags}
        rows = read_leaves(steps, start, stop)
        observation = read_leaves(self._observation, start, stop)
        notes: dict[str, Any] = {"jump": True} if is_jump else {}
        if self._next:
            final = read_leaves(self._next, stop - 1, stop)
            observation = {
                path: append_rows(part, final[path]) for path, part in observation.items()
            }
        else:
            if stop - start == 1:
                return None
            notes["last"] = {path: part[-1:] for path, part in rows.items()}
            rows = {path: part[:-1] for path, part in rows.items()}
        return _from_rows(where, observation, rows, notes)


def hdf5_task(path: Path, about: Mapping[str, Any], horizon: int) -> TaskDescription:
    """The task of an HDF5 file, with what an export must know in its arguments."""
    return TaskDescription(
        name=path.stem,
        kwargs={"format": "hdf5", "hdf5": pack(dict(about))},
        code_version=IMPORTED,
        limit_is="truncation",
        horizon=horizon,
    )


def declared_spaces(path: Path, node: Any) -> tuple[Space, Space] | None:
    """The spaces in a node's attributes, as `retold export hdf5` writes them."""
    names = ("observation_space", "action_space")
    if not all(name in node.attrs for name in names):
        return None
    with reading(path, "spaces in an attribute"):
        observation, action = (space_from_json(json.loads(node.attrs[name])) for name in names)
        for space in (observation, action):
            space_leaves(space, "")
        return observation, action


def _from_rows(
    where: str, observation: Leaves, rows: Leaves, notes: Mapping[str, Any]
) -> ForeignEpisode:
    length = len(rows["reward"])
    return ForeignEpisode(
        where=where,
        observation=observation,
        action={path: part for path, part in rows.items() if path.split("/")[0] == "action"},
        reward=rows["reward"].reshape(length),
        terminated=rows["terminated"],
        truncated=rows.get("truncated", np.zeros(length, np.bool_)),
        info={path: part for path, part in rows.items() if path.startswith("info/")},
        columns={path: part for path, part in rows.items() if path.startswith("column/")},
        notes=notes,
    )
