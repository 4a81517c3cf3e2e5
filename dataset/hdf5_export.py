"""Writing a dataset as one HDF5 file, flat as D4RL has them or by demonstration as robomimic does.

What was imported from such a file is written as it was; other datasets also say their spaces, in
attributes that `retold import hdf5` reads.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from retold.dataset.foreign_conversion import to_foreign
from retold.dataset.foreign_episode import ForeignEpisode
from retold.dataset.foreign_files import new_path, writing
from retold.dataset.foreign_schema import REWARD_LEAF, fit_dtype
from retold.dataset.hdf5_tree import append_rows, leaf_names, plain_name, write_extras, write_rows
from retold.dataset.plain_values import pack, unpack
from retold.dataset.reader import DatasetReader
from retold.schemas.canonical import encode_json
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode, Leaves
from retold.schemas.spaces import DictSpace, TupleSpace, space_to_json

Layout = Literal["d4rl", "robomimic"]


def export_hdf5(reader: DatasetReader, target: Path, layout: Layout) -> None:
    """Write one file; it appears whole.

    Raises:
        DatasetError: the target exists, or HDF5 cannot write an episode.
    """
    imported = unpack(dict(reader.schema.tasks[0].kwargs.get("hdf5", {})))
    about = imported if imported.get("layout") == layout else {}
    with new_path(target) as path, writing(target, "an HDF5 file"), h5py.File(path, "w") as file:
        file.attrs.update(about.get("attributes", {}))
        if layout == "d4rl":
            _write_flat(reader, file, about)
        else:
            _write_demos(reader, file, about)
        write_extras(file, about.get("values", {}))


class _ColumnWriter:
    """Appends rows to datasets; what an episode lacks is zero, and a mask says so."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._rows = 0
        self._gaps: dict[str, NDArray[np.bool_]] = {}

    def append(self, where: str, columns: Mapping[str, NDArray[Any]], count: int) -> None:
        """Rows of one episode by name, `[count, ...]` each."""
        for name, rows in columns.items():
            is_text = rows.dtype == object
            if name not in self._file:
                self._file.create_dataset(
                    name,
                    shape=(self._rows, *rows.shape[1:]),
                    maxshape=(None, *rows.shape[1:]),
                    dtype=h5py.string_dtype() if is_text else rows.dtype,
                    chunks=True,
                )
            column = self._file[name]
            column.resize(self._rows + count, axis=0)
            column[self._rows :] = (
                rows if is_text else fit_dtype(where, name, rows, column.dtype.str)
            )
        self._rows += count

    def mark(self, name: str, present: NDArray[np.bool_]) -> None:
        """Which of the rows to be appended next have a value in a column."""
        mask = self._gaps.get(name, np.zeros(0, np.bool_))
        padding = np.zeros(self._rows - len(mask), np.bool_)
        self._gaps[name] = np.concatenate([mask, padding, present])

    def finish(self) -> None:
        """Bring all columns to one length, and write the masks of those with gaps."""
        for name, mask in self._gaps.items():
            padded = np.concatenate([mask, np.zeros(self._rows - len(mask), np.bool_)])
            if name in self._file:
                self._file[name].resize(self._rows, axis=0)
                parents, _, last = name.rpartition("/")
                if not padded.all() and f"{parents}/_{last}" not in self._file:
                    self._file[f"{parents}/_{last}"] = padded


def _write_flat(reader: DatasetReader, file: h5py.File, about: Mapping[str, Any]) -> None:
    schema = reader.schema
    observed = leaf_names(schema.observation_space, "observation", "observations")
    acted = leaf_names(schema.action_space, "action", "actions")
    names = {**acted, "reward": "rewards", "terminated": "terminals"}
    if about.get("has_timeouts", True):
        names["truncated"] = "timeouts"
    if not about:
        file.attrs.update(_declare_spaces(schema))
    writer = _ColumnWriter(file)
    for row in range(len(reader)):
        episode = reader.read_episode(row)
        foreign = to_foreign(episode, f"{reader.path}: episode {row}")
        steps = _steps(episode, foreign, schema, is_exact=bool(about))
        last = foreign.notes.get("last", {})
        count = foreign.length + bool(last)
        columns = {}
        for path, rows in _with_last(steps, last).items():
            name = names.get(path) or _other_name(path)
            columns[name] = rows
        if "truncated" not in names:
            columns.pop("truncated", None)
        columns["rewards"] = columns["rewards"].reshape(count, *about.get("reward_shape", ()))
        for path, rows in _observations(episode, foreign, is_exact=bool(about)).items():
            columns[observed[path]] = rows[:count]
            if about.get("has_next", True):
                name = observed[path].replace("observations", "next_observations", 1)
                columns[name] = rows[1:]
        for leaf in schema.info_leaves:
            if leaf.path.startswith("info/") and not last:
                absent = np.zeros(count, np.bool_)
                writer.mark(_other_name(leaf.path), episode.info_present.get(leaf.path, absent))
        writer.append(foreign.where, columns, count)
    writer.finish()


def _write_demos(reader: DatasetReader, file: h5py.File, about: Mapping[str, Any]) -> None:
    schema = reader.schema
    has_keys = isinstance(schema.observation_space, DictSpace | TupleSpace)
    field = "obs/observation" if about.get("is_wrapped", not has_keys) else "obs"
    observed = leaf_names(schema.observation_space, "observation", field)
    names = leaf_names(schema.action_space, "action", "actions")
    names |= {"reward": "rewards", "terminated": "dones"}
    group = file.create_group("data")
    group.attrs.update(about["data_attributes"] if about else _describe(reader))
    for row in range(len(reader)):
        episode = reader.read_episode(row)
        foreign = to_foreign(episode, f"{reader.path}: episode {row}")
        name = foreign.notes.get("name", f"demo_{row}")
        demo = group.create_group(f"demo_{row}" if name in group else name)
        demo.attrs.update(foreign.attributes if about else _attributes(foreign))
        steps = _steps(episode, foreign, schema, is_exact=bool(about))
        steps.pop("truncated")
        own = {path: steps.pop(path) for path in list(steps) if path.startswith("column/next_obs/")}
        if "column/next_obs" in steps:
            own["column/next_obs"] = steps.pop("column/next_obs")
        if "column/dones" in steps:
            steps["terminated"] = steps.pop("column/dones")
        last = foreign.notes.get("last", {})
        steps["reward"] = steps["reward"].reshape(-1, *about.get("reward_shape", ()))
        for path, rows in _with_last(steps, last).items():
            write_rows(demo, names.get(path) or _other_name(path), rows)
        for path, rows in _observations(episode, foreign, is_exact=bool(about)).items():
            write_rows(demo, observed[path], rows if last else rows[:-1])
            if about.get("has_next", not last):
                following = own.get(f"column/next_obs{path[len('observation') :]}", rows[1:])
                write_rows(demo, observed[path].replace("obs", "next_obs", 1), following)


def _steps(
    episode: Episode, foreign: ForeignEpisode, schema: DatasetSchema, *, is_exact: bool
) -> Leaves:
    """Every column of an episode with one row a transition, by leaf path.

    Args:
        episode: as it is stored.
        foreign: as its source had it.
        schema: names the infos.
        is_exact: the source's dtypes; otherwise those of the dataset, equal in all episodes.
    """
    infos = {leaf.path for leaf in schema.info_leaves if leaf.path.startswith("info/")}
    info = {k: rows[-foreign.length :] for k, rows in foreign.info.items() if k in infos}
    if is_exact:
        fields = {**foreign.action, **info, **foreign.columns}
        reward = foreign.reward
        flags = (foreign.terminated, foreign.truncated)
    else:
        info = {path: episode.info[path] for path in info}
        fields = {**episode.action, **info}
        is_wide = REWARD_LEAF in schema.info_leaves
        reward = foreign.reward.astype(np.float64 if is_wide else np.float32)
        flags = (foreign.terminated.astype(np.bool_), foreign.truncated.astype(np.bool_))
    return {**fields, "reward": reward, "terminated": flags[0], "truncated": flags[1]}


def _observations(episode: Episode, foreign: ForeignEpisode, *, is_exact: bool) -> Leaves:
    return foreign.observation if is_exact else episode.observation


def _with_last(steps: Leaves, last: Mapping[str, Any]) -> Leaves:
    """With the transition that the import had left out."""
    return {
        path: append_rows(rows, last[path].reshape(1, *rows.shape[1:])) if path in last else rows
        for path, rows in steps.items()
    }


def _other_name(path: str) -> str:
    """`infos/x` for `info/x`, `x` for `column/x`, and whatever else under its own name."""
    kind = path.split("/")[0]
    if kind == "info":
        return f"infos/{plain_name(path)}"
    return plain_name(path) if kind == "column" else path


def _declare_spaces(schema: DatasetSchema) -> dict[str, str]:
    spaces = {"observation_space": schema.observation_space, "action_space": schema.action_space}
    return {name: encode_json(space_to_json(space)).decode() for name, space in spaces.items()}


def _describe(reader: DatasetReader) -> dict[str, Any]:
    task = reader.schema.tasks[0]
    environment = {
        "env_name": task.name,
        "env_version": task.code_version,
        "type": 2,
        "env_kwargs": dict(task.kwargs),
    }
    return {
        **_declare_spaces(reader.schema),
        "total": int(reader.lengths.sum()),
        "env_args": json.dumps(environment),
    }


def _attributes(foreign: ForeignEpisode) -> dict[str, Any]:
    attributes: dict[str, Any] = {"num_samples": foreign.length}
    if foreign.seed is not None:
        attributes["seed"] = foreign.seed
    if foreign.options is not None:
        attributes["options"] = encode_json(pack(dict(foreign.options))).decode()
    if foreign.attributes:
        attributes["attributes"] = encode_json(pack(dict(foreign.attributes))).decode()
    return attributes
