"""Writing a dataset as Minari's own files, losslessly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from retold.dataset.foreign_episode import ForeignEpisode
from retold.dataset.foreign_files import new_path, writing
from retold.dataset.minari_view import (
    minari_attributes,
    minari_fields,
    minari_metadata,
    minari_spaces,
    read_foreign,
)
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError

DataFormat = Literal["hdf5", "arrow", "parquet"]

_WRITTEN_BY_MINARI = frozenset({"total_steps", "seed", "options"})


def export_minari(
    reader: DatasetReader, target: Path, data_format: DataFormat, dataset_id: str | None
) -> None:
    """Write `target/data` as Minari would; images stay arrays, since JPEG loses.

    Args:
        reader: what to write.
        target: the directory to make; it appears whole.
        data_format: Minari's storage.
        dataset_id: Minari's id; None: the one that was imported, or one named after the task.

    Raises:
        DatasetError: the target exists, or Minari cannot write an episode.
    """
    with new_path(target.resolve()) as folder:  # Minari loses its way in relative paths
        folder.mkdir()
        observation_space, action_space = minari_spaces(reader.schema)
        metadata = minari_metadata(reader)
        if dataset_id is not None:
            metadata["dataset_id"] = dataset_id
        with writing(target, "a Minari dataset"):
            storage = MinariStorage.new(
                folder / "data",
                observation_space,
                action_space,
                data_format=data_format,
                jpeg_encoding=False,
            )
            storage.update_metadata(metadata)
            storage.update_episodes(_buffers(reader, data_format))
            storage.update_episode_metadata(_attributes(reader, data_format), range(len(reader)))


def _buffers(reader: DatasetReader, data_format: DataFormat) -> Iterator[EpisodeBuffer]:
    for row in range(len(reader)):
        foreign = read_foreign(reader, row)
        if data_format != "hdf5":
            _check_arrow(foreign)
        fields = minari_fields(foreign, reader.schema)
        if data_format != "hdf5":
            fields["infos"] = _list_scalars(fields["infos"] or {})
        options = None if foreign.options is None else dict(foreign.options)
        yield EpisodeBuffer(id=row, seed=foreign.seed, options=options, **fields)


def _attributes(reader: DatasetReader, data_format: DataFormat) -> Iterator[dict[str, Any]]:
    for row in range(len(reader)):
        attributes = minari_attributes(read_foreign(reader, row))
        rest = {k: v for k, v in attributes.items() if k not in _WRITTEN_BY_MINARI}
        yield _flatten(rest) if data_format == "hdf5" else rest


def _check_arrow(foreign: ForeignEpisode) -> None:
    """Minari's Arrow files have one row an observation, for infos too."""
    for path, rows in foreign.info.items():
        if len(rows) != foreign.length + 1:
            raise DatasetError(
                f"{foreign.where}: {path!r} has no value for the reset, which Minari's Arrow and "
                f"Parquet files ask for. Export with --data-format hdf5."
            )


def _list_scalars(infos: dict[str, Any]) -> dict[str, Any]:
    """Infos of one number a step as lists: from arrays Minari writes what it cannot read."""
    return {
        name: _list_scalars(rows)
        if isinstance(rows, dict)
        else list(rows)
        if np.ndim(rows) == 1
        else rows
        for name, rows in infos.items()
    }


def _flatten(attributes: dict[str, Any], path: str = "") -> dict[str, Any]:
    """HDF5 attributes are flat: Minari joins nested names with a slash."""
    flat: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{path}{name}/")
        else:
            flat[f"{path}{name}"] = value
    return flat
