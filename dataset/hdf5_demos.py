"""HDF5 files of demonstrations as robomimic has them: one group each, named `data/demo_0`.

Where `next_obs` is missing, the last transition of a demonstration is left out as in flat files.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from retold.dataset.foreign_episode import ForeignEpisode, is_skipped
from retold.dataset.foreign_files import hash_files, reading
from retold.dataset.hdf5_flat import declared_spaces, hdf5_task
from retold.dataset.hdf5_tree import (
    Columns,
    append_rows,
    check_binary,
    check_rows,
    find_columns,
    infer_space,
    read_attributes,
    read_leaves,
    rows_equal,
    split_extras,
)
from retold.schemas.dataset_schema import TaskDescription
from retold.schemas.episode import Leaves
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import DictSpace, Space, TupleSpace, quote_key

_KNOWN = frozenset({"obs", "next_obs", "actions", "rewards", "dones", "infos"})


class DemoSource:
    """A file with groups `data/demo_<number>`, in the order of their numbers."""

    def __init__(self, path: Path, file: h5py.File, skip: Sequence[str]) -> None:
        self.path = path
        self._skip = skip
        self._file = file
        names = [name for name in file["data"] if re.fullmatch(r"demo_\d+", name)]
        self._names = sorted(names, key=lambda name: int(name.removeprefix("demo_")))
        for name in self._names:
            for field in ("obs", "actions", "rewards", "dones"):
                if field not in file["data"][name]:
                    raise DatasetError(
                        f"{path}: {field!r} is missing in data/{name}. A demonstration has obs, "
                        f"actions, rewards and dones, and preferably next_obs."
                    )
        used = {
            node.name
            for name in self._names
            for node in find_columns(file["data"][name], "").values()
        }
        _, self._extras, self.left_out = split_extras(file, used, None)

    @cached_property
    def spaces(self) -> tuple[Space, Space]:
        """Declared by an export of Retold's, or inferred from the data."""
        demos = [self._file["data"][name] for name in self._names]
        return declared_spaces(self.path, self._file["data"]) or (
            infer_space([demo["obs"] for demo in demos], is_action=False),
            infer_space([demo["actions"] for demo in demos], is_action=True),
        )

    @property
    def sha256(self) -> str:
        """Of the file."""
        return hash_files(self.path, (self.path,))

    def task(self, horizon: int) -> TaskDescription:
        """What the demonstrations are of, as far as the file says."""
        about = {
            "layout": "robomimic",
            "attributes": read_attributes(self._file),
            "data_attributes": read_attributes(self._file["data"]),
            "values": self._extras,
            "is_wrapped": self._is_wrapped,
            "reward_shape": list(self._file["data"][self._names[0]]["rewards"].shape[1:]),
            "has_next": all("next_obs" in self._file["data"][name] for name in self._names),
        }
        return hdf5_task(self.path, about, horizon)

    def episodes(self) -> Iterator[ForeignEpisode | None]:
        """The demonstrations in order; None for one without a whole transition."""
        for name in self._names:
            where = f"{self.path}: data/{name}"
            with reading(where, "a demonstration"):
                yield self._read(where, name)

    def _observed(self, demo: h5py.Group, name: str) -> Any:
        """An export of Retold's wraps an observation that has no keys in a group of one."""
        node = demo.get(name, {})
        return node["observation"] if self._is_wrapped and "observation" in node else node

    @cached_property
    def _is_wrapped(self) -> bool:
        has_keys = isinstance(self.spaces[0], DictSpace | TupleSpace)
        return not has_keys and isinstance(self._file["data"][self._names[0]]["obs"], h5py.Group)

    def _read(self, where: str, name: str) -> ForeignEpisode | None:
        demo = self._file["data"][name]
        columns = {
            path: column
            for path, column in _find_steps(demo).items()
            if not is_skipped(path, self._skip)
        }
        count = next(iter(find_columns(demo["actions"], "action").values())).shape[0]
        observations = find_columns(self._observed(demo, "obs"), "observation")
        following = find_columns(self._observed(demo, "next_obs"), "observation")
        check_rows(where, {**columns, **observations}, count)
        check_rows(where, following, count)
        rows = read_leaves(columns, 0, count)
        observation = read_leaves(observations, 0, count)
        notes: dict[str, Any] = {"name": name}
        if following:
            after = read_leaves(following, 0, count)
            rows |= _uneven(observation, after)
            observation = {
                path: append_rows(part, after[path][-1:]) for path, part in observation.items()
            }
        else:
            notes["last"] = {path: part[-1:] for path, part in rows.items()}
            rows = {path: part[:-1] for path, part in rows.items()}
        if not len(rows["reward"]):
            return None
        return _from_rows(where, observation, rows, notes, read_attributes(demo))


def _find_steps(demo: h5py.Group) -> Columns:
    """Every dataset of a demonstration with one row a step, but for observations."""
    columns = {
        **find_columns(demo["actions"], "action"),
        **find_columns(demo.get("infos", {}), "info"),
        "reward": demo["rewards"],
        "terminated": demo["dones"],
    }
    for key in demo:
        if key not in _KNOWN:
            columns |= find_columns(demo[key], f"column/{quote_key(key)}")
    return columns


def _uneven(observation: Leaves, after: Leaves) -> Leaves:
    """All of `next_obs`, if it says anything else than the observations one row down."""
    is_even = set(after) == set(observation) and all(
        rows_equal(part[1:], after[path][:-1]).all() for path, part in observation.items()
    )
    if is_even:
        return {}
    return {f"column/next_obs{path[len('observation') :]}": part for path, part in after.items()}


def _from_rows(
    where: str,
    observation: Leaves,
    rows: Leaves,
    notes: dict[str, Any],
    attributes: dict[str, Any],
) -> ForeignEpisode:
    length = len(rows["reward"])
    columns = {path: part for path, part in rows.items() if path.startswith("column/")}
    terminated = rows["terminated"]
    check_binary(where, "dones", terminated)
    last = np.arange(length) == length - 1
    if (terminated.astype(np.bool_) & ~last).any():
        # robomimic may mark every step of success: only an end of the episode terminates it.
        columns["column/dones"] = terminated
        terminated = np.where(last, terminated, 0).astype(terminated.dtype)
    return ForeignEpisode(
        where=where,
        observation=observation,
        action={path: part for path, part in rows.items() if path.split("/")[0] == "action"},
        reward=rows["reward"].reshape(length),
        terminated=terminated,
        truncated=last & (terminated == 0),
        info={path: part for path, part in rows.items() if path.startswith("info/")},
        columns=columns,
        attributes=attributes,
        notes=notes,
    )
