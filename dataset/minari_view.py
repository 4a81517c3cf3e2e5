"""A dataset as a `minari.MinariDataset`: Minari's read API over Retold's files, nothing copied."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import minari
import numpy as np
from minari.dataset.minari_storage import MinariStorage
from minari.serialization import deserialize_space
from numpy.typing import NDArray

from retold.dataset.foreign_conversion import to_foreign
from retold.dataset.foreign_episode import ForeignEpisode, leaves_to_tree
from retold.dataset.minari_spaces import space_to_minari
from retold.dataset.paths import DatasetPath
from retold.dataset.plain_values import unpack
from retold.dataset.reader import DatasetReader
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import Space, unflatten_value

_SET_ANEW = frozenset({"data_format", "jpeg_encoding", "observation_space", "action_space"})


def as_minari(path: DatasetPath | str, *, snapshot: int | None = None) -> minari.MinariDataset:
    """A dataset as Minari reads its own; episodes are decoded when they are asked for.

    Args:
        path: the dataset's folder or URL.
        snapshot: number of a commit; None: the newest.

    Raises:
        DatasetError: there is no dataset, or no episode is live.
    """
    return minari.MinariDataset(RetoldStorage(DatasetReader.open(path, snapshot=snapshot)))


class RetoldStorage(MinariStorage):  # type: ignore[misc]  # Minari has no types
    """Minari's storage interface over a snapshot. It cannot be written through."""

    FORMAT = "retold"

    def __init__(self, reader: DatasetReader) -> None:
        self._reader = reader
        observation_space, action_space = minari_spaces(reader.schema)
        super().__init__(
            Path(str(reader.path)), observation_space, action_space, jpeg_encoding=False
        )
        self._metadata = {
            **minari_metadata(reader),
            "observation_space": observation_space,
            "action_space": action_space,
            "total_episodes": len(reader),
            "total_steps": int(reader.lengths.sum()),
            "data_format": self.FORMAT,
            "jpeg_encoding": False,
        }

    @property
    def metadata(self) -> dict[str, Any]:
        """What Minari knows of a dataset; a fresh copy."""
        return dict(self._metadata)

    def foreign_episodes(self, indices: Iterable[int]) -> Iterator[ForeignEpisode]:
        """Episodes as exporters write them."""
        for index in indices:
            yield read_foreign(self._reader, int(index))

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Episodes as Minari's own storages return them."""
        schema = self._reader.schema
        for index in episode_indices:
            foreign = read_foreign(self._reader, int(index))
            yield _EpisodeContent(
                {"id": index, **minari_fields(foreign, schema)}, seed=foreign.seed
            )

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Seeds, reset options and whatever else was said of episodes."""
        for index in episode_indices:
            yield {"id": index, **minari_attributes(read_foreign(self._reader, int(index)))}

    @classmethod
    def _create(cls, *arguments: Any, **options: Any) -> NoReturn:
        raise DatasetError(
            "Minari cannot make a Retold dataset. Write one with Minari, then `retold import minari`."
        )

    def update_metadata(self, metadata: dict[str, Any]) -> NoReturn:
        """Refuse: commits are never changed."""
        self._refuse()

    def update_episode_metadata(
        self, metadatas: Iterable[dict[str, Any]], episode_indices: Iterable[int] | None = None
    ) -> NoReturn:
        """Refuse: commits are never changed."""
        self._refuse()

    def update_episodes(self, episodes: Iterable[Any]) -> NoReturn:
        """Refuse: commits are never changed."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DatasetError(
            f"{self._reader.path}: Minari may read this dataset, not change it. Append to it with "
            f"`retold collect` or `retold import`."
        )


class _EpisodeContent(dict[str, Any]):
    """An episode's dict, which knows the seed without having it as a key.

    Minari's `EpisodeData(**episode)` takes no seed, `update_from_storage` asks for it by `get`.
    """

    def __init__(self, content: Mapping[str, Any], *, seed: int | None) -> None:
        super().__init__(content)
        self._seed = seed

    def get(self, key: str, default: Any = None) -> Any:
        return self._seed if key == "seed" else super().get(key, default)


def read_foreign(reader: DatasetReader, row: int) -> ForeignEpisode:
    """One episode as exporters write it."""
    return to_foreign(reader.read_episode(row), f"{reader.path}: episode {row}")


def minari_fields(foreign: ForeignEpisode, schema: DatasetSchema) -> dict[str, Any]:
    """The arrays of an episode in Minari's trees."""
    infos: dict[str, Any] | None = leaves_to_tree(_with_lists(foreign.info), "info")
    if not foreign.has_infos and not infos:
        infos = None
    return {
        "observations": _tree(schema.observation_space, foreign.observation, "observation"),
        "actions": _tree(schema.action_space, foreign.action, "action"),
        "rewards": foreign.reward,
        "terminations": foreign.terminated,
        "truncations": foreign.truncated,
        "infos": infos,
    }


def minari_attributes(foreign: ForeignEpisode) -> dict[str, Any]:
    """What Minari keeps beside an episode's arrays."""
    attributes = {"total_steps": foreign.length, **foreign.attributes}
    if foreign.seed is not None:
        attributes["seed"] = foreign.seed
    if foreign.options is not None:
        attributes["options"] = dict(foreign.options)
    return attributes


def minari_spaces(schema: DatasetSchema) -> tuple[Any, Any]:
    """Gymnasium's spaces; those of an imported dataset as Minari had declared them."""
    imported = schema.tasks[0].kwargs.get("minari", {})
    spaces = (schema.observation_space, schema.action_space)
    names = ("observation_space", "action_space")
    observation, action = (
        deserialize_space(imported.get(name) or json.dumps(space_to_minari(space)))
        for name, space in zip(names, spaces, strict=True)
    )
    return observation, action


def minari_metadata(reader: DatasetReader) -> dict[str, Any]:
    """Minari's metadata: those that were imported, or what is known of a Retold dataset."""
    task = reader.schema.tasks[0]
    imported = unpack(dict(task.kwargs.get("minari", {})))
    metadata = {name: value for name, value in imported.items() if name not in _SET_ANEW}
    for name in ("author", "author_email"):
        if name in metadata:
            metadata[name] = set(metadata[name])
    if not imported:
        metadata["description"] = (
            f"Task {task.name} of Retold dataset {reader.dataset_id}, snapshot "
            f"{reader.snapshot.number}."
        )
    name = re.sub(r"[^-\w]+", "-", task.name).strip("-") or "episodes"
    name = name if re.search(r"-v\d+$", name) else f"{name}-v0"
    metadata.setdefault("dataset_id", f"retold/{name}")
    if metadata.get("minari_version") not in minari.supported_dataset_versions:
        metadata["minari_version"] = minari.__version__
    return metadata


def _tree(space: Space, leaves: Mapping[str, NDArray[Any]], path: str) -> Any:
    return unflatten_value(space, _with_lists(leaves), path)


def _with_lists(leaves: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Text as the lists of `str` that Minari reads and writes."""
    return {
        path: rows.tolist() if rows.dtype == np.object_ else rows for path, rows in leaves.items()
    }
