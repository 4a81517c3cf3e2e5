"""`retold export`: a dataset as files of another format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from retold.dataset.foreign_files import refuse_existing
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import SourceFlag
from retold.schemas.errors import DatasetError, UsageError

Format = Literal["minari", "hdf5", "parquet"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig(SourceFlag):
    """What `retold export` is asked."""

    format: Format
    """What to write: `minari` (a dataset directory), `hdf5` (one file) or `parquet` (a folder that
    `datasets.load_dataset` and DuckDB read)."""
    dataset: DatasetPath
    """Dataset to read. It is never changed."""
    target: Path
    """File or directory to make. It must not exist, and appears whole."""
    snapshot: int | None = None
    """Number of the commit to export; none means the newest."""
    data_format: Literal["hdf5", "arrow", "parquet"] | None = None
    """Minari's storage; none means that of the imported dataset, or hdf5."""
    dataset_id: str | None = None
    """Minari's id of the result; none means that of the imported dataset, or one named after the
    task."""
    layout: Literal["d4rl", "robomimic"] | None = None
    """Layout of an HDF5 file; none means that of the imported file, or d4rl."""
    rows: Literal["steps", "episodes"] = "steps"
    """What one row of Parquet is: a step (and one more for each final observation) or an episode."""

    def __post_init__(self) -> None:
        for name, owner in (
            ("data_format", "minari"),
            ("dataset_id", "minari"),
            ("layout", "hdf5"),
        ):
            if getattr(self, name) is not None and self.format != owner:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for {owner}, not {self.format}. Leave it out."
                )


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What was written."""

    target: str
    format: str
    episodes: int
    steps: int
    left_out: tuple[str, ...]
    """Parts of the dataset that the other format has no place for."""


def export_dataset(config: ExportConfig) -> ExportResult:
    """Write a snapshot of a dataset in another format.

    Raises:
        DatasetError: the target exists, or there is nothing to write.
    """
    refuse_existing(config.target)
    with DatasetReader.open(
        config.dataset, snapshot=config.snapshot, sources=config.moved(config.dataset)
    ) as reader:
        if not len(reader):
            raise DatasetError(
                f"{config.dataset}: no episode is live. Collect or import some first."
            )
        try:
            _export(config, reader)
        except ImportError as error:
            raise DatasetError(
                f"Writing {config.format} needs the package {error.name!r}. Install it with "
                f"`pip install 'retold[interchange]'`."
            ) from error
        return ExportResult(
            target=str(config.target),
            format=config.format,
            episodes=len(reader),
            steps=int(reader.lengths.sum()),
            left_out=_left_out(config, reader),
        )


def _export(config: ExportConfig, reader: DatasetReader) -> None:
    imported = reader.schema.tasks[0].kwargs
    if config.format == "minari":
        from retold.dataset.minari_export import export_minari

        data_format = config.data_format or imported.get("minari", {}).get("data_format", "hdf5")
        export_minari(reader, config.target, data_format, config.dataset_id)
    elif config.format == "hdf5":
        from retold.dataset.hdf5_export import export_hdf5

        layout = config.layout or imported.get("hdf5", {}).get("layout", "d4rl")
        export_hdf5(reader, config.target, layout)
    else:
        from retold.dataset.parquet_export import export_parquet

        export_parquet(reader, config.target, config.rows)


def _left_out(config: ExportConfig, reader: DatasetReader) -> tuple[str, ...]:
    """What the other format has no place for."""
    tasks, leaves = reader.schema.tasks, reader.schema.info_leaves
    left_out = []
    if config.format != "parquet" and not all(task.is_imported for task in tasks):
        if any(task.vocabulary is not None for task in tasks):
            left_out += ["goal events", "instructions"]
        left_out += ["soft resets", "policies"]
    if config.format == "hdf5" and "hdf5" not in tasks[0].kwargs:
        if config.layout != "robomimic":
            left_out.append("seeds, reset options and attributes of episodes")
        if any(leaf.path.startswith("initial_info/") for leaf in leaves):
            left_out.append("infos of the environment's reset")
    if config.format == "minari" and any(leaf.path.startswith("column/") for leaf in leaves):
        left_out.append("columns that are no infos")
    return tuple(left_out)
