"""Reading Minari datasets, HDF5 or Arrow, episode by episode."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from minari.dataset.minari_storage import MinariStorage
from minari.serialization import serialize_space

from retold.dataset.foreign_episode import ForeignEpisode, tree_to_leaves
from retold.dataset.foreign_files import hash_files, reading
from retold.dataset.minari_arrow import read_arrow_episode
from retold.dataset.minari_spaces import space_from_minari
from retold.dataset.plain_values import pack
from retold.schemas.dataset_schema import IMPORTED, TaskDescription
from retold.schemas.episode import Leaves
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import Leaf, Space, space_leaves

_OWN_ATTRIBUTES = frozenset({"id", "total_steps", "seed", "options"})
_FLAT = {"reward": "rewards", "terminated": "terminations", "truncated": "truncations"}
_DERIVED = frozenset({"total_episodes", "total_steps", "dataset_size"})
"""Metadata that an export computes anew."""


class MinariSource:
    """A Minari dataset, given by its directory or by the id of a local one."""

    left_out: tuple[str, ...] = ()
    """Nothing: all of a Minari dataset has a place."""

    def __init__(self, source: Path) -> None:
        self.path = _find_data(source)
        with reading(self.path / "metadata.json", "Minari metadata"):
            metadata = json.loads((self.path / "metadata.json").read_bytes())
            self._storage = MinariStorage.read(self.path)
            self._episodes = int(metadata["total_episodes"])
            self.metadata: Mapping[str, Any] = {
                name: value for name, value in metadata.items() if name not in _DERIVED
            }

    @cached_property
    def spaces(self) -> tuple[Space, Space]:
        """Observation and action space as Minari declares them."""
        with reading(self.path / "metadata.json", "Minari metadata"):
            declared = (self._storage.observation_space, self._storage.action_space)
            observation, action = (serialize_space(space, to_string=False) for space in declared)
            return space_from_minari(observation), space_from_minari(action)

    @property
    def sha256(self) -> str:
        """Of everything that the dataset consists of."""
        files = tuple(sorted(path for path in self.path.rglob("*") if path.is_file()))
        return hash_files(self.path, files)

    def task(self, horizon: int) -> TaskDescription:
        """What the episodes are of; Minari's metadata stand in its arguments."""
        spec: Mapping[str, Any] = {}
        if isinstance(self.metadata.get("env_spec"), str):
            with reading(self.path / "metadata.json", "Minari metadata"):
                spec = json.loads(self.metadata["env_spec"])
        limit = spec.get("max_episode_steps")
        return TaskDescription(
            name=str(spec.get("id") or self.metadata.get("dataset_id") or self.path.parent.name),
            kwargs={"format": "minari", "minari": pack(dict(self.metadata))},
            code_version=IMPORTED,
            limit_is="truncation",
            horizon=max(horizon, limit or 1),
        )

    def episodes(self) -> Iterator[ForeignEpisode | None]:
        """The episodes in order; None for one without any transition."""
        for number in range(self._episodes):
            where = f"{self.path}: episode {number}"
            with reading(where, "a Minari episode"):
                (attributes,) = self._storage.get_episode_metadata([number])
                episode = self._read(where, number, attributes)
            if episode.length != attributes.get("total_steps", episode.length):
                raise DatasetError(
                    f"{where}: it has {episode.length} rewards, but its metadata say "
                    f"{attributes['total_steps']} steps. Correct the source and import again; "
                    f"nothing was written."
                )
            yield episode if episode.length else None

    def _read(self, where: str, number: int, attributes: Mapping[str, Any]) -> ForeignEpisode:
        if self.metadata["data_format"] == "hdf5":
            (content,) = self._storage.get_episodes([number])
            arrays = {
                **tree_to_leaves(content["observations"], "observation"),
                **tree_to_leaves(content["actions"], "action"),
                **{name: np.asarray(content[field]) for name, field in _FLAT.items()},
            }
            infos = content["infos"]
        else:
            folder, data_format = self.path / str(number), self.metadata["data_format"]
            arrays, infos = read_arrow_episode(folder, data_format, self._leaves)
        return _to_foreign(where, arrays, attributes, infos)

    @cached_property
    def _leaves(self) -> tuple[Leaf, ...]:
        observation_space, action_space = self.spaces
        return (
            *space_leaves(observation_space, "observation"),
            *space_leaves(action_space, "action"),
        )


def _to_foreign(
    where: str,
    arrays: Leaves,
    attributes: Mapping[str, Any],
    infos: Mapping[str, Any] | None,
) -> ForeignEpisode:
    seed = attributes.get("seed")
    return ForeignEpisode(
        where=where,
        observation={k: v for k, v in arrays.items() if k.split("/")[0] == "observation"},
        action={k: v for k, v in arrays.items() if k.split("/")[0] == "action"},
        reward=arrays["reward"],
        terminated=arrays["terminated"],
        truncated=arrays["truncated"],
        info=tree_to_leaves(infos, "info") if infos else {},
        has_infos=infos is not None,
        seed=None if seed is None else int(seed),
        options=attributes.get("options"),
        attributes={k: v for k, v in attributes.items() if k not in _OWN_ATTRIBUTES},
    )


def _find_data(source: Path) -> Path:
    """The folder with `metadata.json`: the dataset's, its `data`, or that of a local id."""
    places = [source, source / "data"]
    if not source.is_absolute() and not source.exists():
        root = os.environ.get("MINARI_DATASETS_PATH", "~/.minari/datasets")
        places.append(Path(root).expanduser() / source / "data")
    for place in places:
        if (place / "metadata.json").is_file():
            return place
    raise DatasetError(
        f"{source}: there is no Minari dataset here (data/metadata.json is missing), nor a local one "
        f"of that id. Give its directory, or download it with `minari download {source}`."
    )
