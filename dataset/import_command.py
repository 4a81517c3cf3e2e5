"""`retold import`: episodes of another format into a dataset."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from retold.dataset.foreign_conversion import to_episode
from retold.dataset.foreign_episode import ForeignEpisode, is_skipped
from retold.dataset.foreign_files import reading
from retold.dataset.foreign_schema import SchemaScan
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.writer import DatasetWriter
from retold.schemas.commit import Commit
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.errors import ConflictError, DatasetError, UsageError
from retold.schemas.spaces import Leaf, Space

logger = logging.getLogger(__name__)

Format = Literal["minari", "hdf5", "parquet", "hf-dataset"]


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """What `retold import` is asked."""

    format: Format
    """What the source is: `minari` (a dataset of any of its storages), `hdf5` (D4RL's flat columns
    or robomimic's demonstrations, told apart by their content), `parquet`, or `hf-dataset` (any table of
    steps or episodes, whose columns --mapping names)."""
    source: Path
    """Minari directory or id, HDF5 file, Parquet file or folder, or for hf-dataset also a dataset on
    the Hub, OWNER/NAME or OWNER/NAME@TAG. It is never changed."""
    dataset: DatasetPath
    """Dataset to append to; made if there is none."""
    skip: tuple[str, ...] = ()
    """Infos or other columns to leave out, by path such as `info/camera`; may be repeated."""
    mapping: Path | None = None
    """TOML file that says which columns of an hf-dataset are observation, action, reward and so on."""

    def __post_init__(self) -> None:
        if (self.format == "hf-dataset") != (self.mapping is not None):
            raise UsageError(
                "An hf-dataset needs --mapping FILE, which names its columns."
                if self.mapping is None
                else f"--mapping is for hf-dataset, not {self.format}. Leave it out."
            )


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """What was imported."""

    dataset: str
    episodes: int
    """Episodes written now."""
    skipped: int
    """Episodes of the source that had been imported before."""
    steps: int
    dropped_episodes: int
    """Episodes of the source without a whole transition, or of which something is missing that the
    mapping lets go."""
    dropped_steps: int
    """Last transitions left out for want of the observation after them; their episodes end one
    transition earlier, truncated."""
    jumps: int
    """Episodes that no flag ends, but whose next observation is not the one in the row below."""
    left_out: tuple[str, ...]
    """Parts of the source that the format has no place for."""
    snapshot: int | None
    """Number of the newest commit."""


class Source(Protocol):
    """What the readers of all formats have in common."""

    path: Path
    left_out: tuple[str, ...]
    """Parts of the source that a dataset has no place for."""

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Observation and action space."""

    @property
    def sha256(self) -> str:
        """Of all that the episodes are made from."""

    def task(self, horizon: int) -> TaskDescription:
        """What the episodes are of."""

    def episodes(self) -> Iterator[ForeignEpisode | None]:
        """The episodes in order; None for one without a whole transition."""


def import_dataset(config: ImportConfig) -> ImportResult:
    """Check every episode of the source, then write those that are not in the dataset yet.

    Raises:
        DatasetError: something in the source is off; nothing has been written.
    """
    source = open_source(config.format, config.source, config.skip, config.mapping)
    with reading(config.source, config.format):
        identity = {
            "format": config.format,
            "source_sha256": source.sha256,
            "skip": sorted(config.skip),
        }
    scan, counts = _scan(config, source)
    with reading(config.source, config.format):
        task = source.task(scan.longest)
    if (config.dataset / "dataset.json").exists():  # refused before anything is made
        schema = scan.schema(task, _known_leaves(CommitLog.open(config.dataset), scan, task))
    else:
        schema = scan.schema(task)
    log = CommitLog.create(config.dataset)
    written, steps = _write(log, schema, source, config.skip, identity)
    head = log.head()
    return ImportResult(
        dataset=str(config.dataset),
        episodes=written,
        skipped=scan.episodes - written,
        steps=steps,
        dropped_episodes=counts["dropped_episodes"],
        dropped_steps=counts["dropped_steps"],
        jumps=counts["jumps"],
        left_out=source.left_out,
        snapshot=None if head is None else head.number,
    )


def open_source(
    name: Format, path: Path, skip: Sequence[str] = (), mapping: Path | None = None
) -> Source:
    """The reader of a format; its library is imported now.

    Raises:
        DatasetError: the library is missing, or there is nothing to read.
    """
    try:
        if name == "minari":
            from retold.dataset.minari_source import MinariSource

            return MinariSource(path)
        if name == "hdf5":
            from retold.dataset.hdf5_source import open_hdf5

            return open_hdf5(path, skip)
        if name == "hf-dataset":
            from retold.dataset.table_source import open_table

            assert mapping is not None
            return open_table(path, mapping)
        from retold.dataset.parquet_source import ParquetSource

        return ParquetSource(path)
    except ImportError as error:
        raise DatasetError(
            f"Reading {name} needs the package {error.name!r}. Install it with "
            f"`pip install 'retold[{'hub' if name == 'hf-dataset' else 'interchange'}]'`."
        ) from error


def _scan(config: ImportConfig, source: Source) -> tuple[SchemaScan, Counter[str]]:
    """Every episode of the source checked, and what must be reported counted."""
    with reading(config.source, config.format):
        scan = SchemaScan(*source.spaces)
    counts: Counter[str] = Counter()
    for foreign in _kept_episodes(source, config.skip):
        if foreign is None:
            counts["dropped_episodes"] += 1
            continue
        scan.add(foreign)
        counts["dropped_steps"] += "last" in foreign.notes
        counts["jumps"] += "jump" in foreign.notes
    if not scan.episodes:
        raise DatasetError(
            f"{config.source}: there is no episode with a whole transition. Nothing was written."
        )
    return scan, counts


def _kept_episodes(source: Source, skip: Sequence[str]) -> Iterator[ForeignEpisode | None]:
    for foreign in source.episodes():
        if foreign is None or not skip:
            yield foreign
            continue
        yield replace(
            foreign,
            info={k: v for k, v in foreign.info.items() if not is_skipped(k, skip)},
            columns={k: v for k, v in foreign.columns.items() if not is_skipped(k, skip)},
        )


def _known_leaves(log: CommitLog, scan: SchemaScan, task: TaskDescription) -> tuple[Leaf, ...]:
    """Optional leaves of a dataset that the source may be appended to."""
    if log.head() is None:
        return ()
    with DatasetReader.open(log.path) as reader:
        if not reader.shards:
            return ()
        stored = reader.schema
    mine = scan.schema(task)
    if not all(known.is_imported for known in stored.tasks):
        raise DatasetError(
            f"{log.path}: the dataset holds episodes of task {stored.tasks[0].name}, which were "
            f"collected. Import into another dataset; training mixes several."
        )
    for name in ("observation_space", "action_space"):
        if getattr(stored, name) != getattr(mine, name):
            raise DatasetError(
                f"{log.path}: its {name} differs from the source's. Import into another dataset; "
                f"training mixes several."
            )
    return stored.info_leaves


def _write(
    log: CommitLog,
    schema: DatasetSchema,
    source: Source,
    skip: Sequence[str],
    identity: Mapping[str, Any],
) -> tuple[int, int]:
    """Write what is not committed yet; numbers of episodes and transitions."""
    base = log.head()
    committed = _find_imported(tuple(log.commits()), identity)
    writer = DatasetWriter(log, schema)
    episodes = steps = 0

    def flush() -> None:
        indices = [episode.record.index for episode in writer.episodes]
        details = {"identity": identity, "source": str(source.path), "episodes": indices}

        def check(since: Sequence[Commit]) -> None:
            if not _find_imported(since, identity).isdisjoint(indices):
                raise ConflictError(
                    f"{log.path}: another process imported the same source meanwhile. Run again."
                )

        writer.flush("import", details, base=base, check=check)

    for index, foreign in enumerate(_kept_episodes(source, skip)):
        if foreign is None or index in committed:
            continue
        writer.add(
            to_episode(
                foreign,
                schema,
                dataset_id=log.dataset_id,
                source_sha256=identity["source_sha256"],
                index=index,
            )
        )
        episodes += 1
        steps += foreign.length
        if writer.should_flush:
            flush()
            logger.info("%d episodes are imported.", episodes)
    flush()
    return episodes, steps


def _find_imported(commits: Sequence[Commit], identity: Mapping[str, Any]) -> set[int]:
    """Episodes of the source that were ever committed; evicted ones are not imported again."""
    return {
        index
        for commit in commits
        if commit.operation == "import"
        and commit.details["identity"]["source_sha256"] == identity["source_sha256"]
        for index in commit.details["episodes"]
    }
