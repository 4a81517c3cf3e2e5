"""`retold compact`: fewer, larger shards; or a copy in which variants have arrays of their own."""

from collections.abc import Iterator
from dataclasses import dataclass

from retold.dataset.derive import Selection, write_dataset
from retold.dataset.evict import MOST_PLANS
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.rewrite import rewrite_rows, shard_share, stored_profile
from retold.dataset.schema_file import read_schema
from retold.dataset.shard_files import ShardFiles
from retold.dataset.snapshot_names import open_log_to_write
from retold.dataset.sources import SourceFlag
from retold.dataset.zarr_codec import Profile
from retold.schemas.commit import ShardEntry, Snapshot
from retold.schemas.errors import ConflictError, UsageError


@dataclass(frozen=True, kw_only=True)
class CompactConfig(SourceFlag):
    """What `retold compact` is asked."""

    dataset: DatasetPath
    """Dataset whose shards are merged; only read with --materialize."""
    output: DatasetPath | None = None
    """New dataset to make with --materialize."""
    materialize: bool = False
    """Write a new dataset, OUTPUT, in which variants are episodes with arrays of their own."""
    profile: Profile | None = None
    """Codecs: `fast` (LZ4) or `small` (zstd); shards that have others are rewritten. Without it
    merged shards keep theirs."""
    small_bytes: int = 8_000_000
    """Shards of fewer bytes on disk are merged with their neighbours."""

    def __post_init__(self) -> None:
        if self.materialize != (self.output is not None):
            raise UsageError(
                "OUTPUT and --materialize belong together: a dataset is compacted where it is, "
                "and materialized into a new one. Give both or neither."
            )
        if self.small_bytes < 1:
            raise UsageError(f"--small-bytes is {self.small_bytes}, but must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class CompactResult:
    """What became of the shards."""

    dataset: str
    """The dataset that was written."""
    shards_before: int
    shards: int
    episodes: int
    bytes_before: int
    bytes: int
    snapshot: int | None
    """Number of the newest commit."""


def compact(config: CompactConfig) -> CompactResult:
    """Merge small shards, a commit for each new one; episodes, ids and order stay.

    Raises:
        DatasetError: there is no dataset, or a shard is damaged.
    """
    if config.output is not None:
        return _materialize(config, config.output)
    log = open_log_to_write(config.dataset)
    before = log.live_shards()
    conflicts = 0
    while (base := log.head()) is not None:
        run = next(_find_runs(log, config, base.number), None)
        if run is None:
            break
        try:
            _merge_run(log, config, base, run)
        except ConflictError:
            conflicts += 1
            if conflicts > MOST_PLANS:
                raise
    return _result(config.dataset, log, before)


def _find_runs(log: CommitLog, config: CompactConfig, through: int) -> Iterator[list[ShardEntry]]:
    """Neighbouring small shards that fit into one, and single ones of another profile."""
    run: list[ShardEntry] = []
    filled = 0.0
    shards = log.shards_by_age(through)
    schemas = {name: read_schema(log.path, name) for name in {entry.schema for entry in shards}}
    for entry in shards:
        share = shard_share(
            schemas[entry.schema],
            is_raw=entry.kind == "raw",
            episodes=entry.episodes,
            steps=entry.steps,
        )
        is_small = entry.bytes < config.small_bytes and share < 0.5
        fits = bool(run) and (entry.schema, entry.kind) == (run[0].schema, run[0].kind)
        if not (is_small and fits and filled + share <= 1):
            if len(run) > 1:
                yield run
            run, filled = [], 0.0
        if is_small:
            run.append(entry)
            filled += share
    if len(run) > 1:
        yield run
    if config.profile is not None:
        for entry in shards:
            has_arrays = entry.kind == "raw"
            if has_arrays and ShardFiles(log.path, entry).manifest.profile != config.profile:
                yield [entry]


def _merge_run(
    log: CommitLog, config: CompactConfig, base: Snapshot, run: list[ShardEntry]
) -> None:
    with DatasetReader(log, base, {}, shards=run) as reader:
        rows = [row for entry in run for row in reader.shard_rows(entry.shard_id)]
        profile = config.profile or stored_profile(reader, run[0].shard_id)
        added = rewrite_rows(reader, rows, log.path, profile=profile)
    old = [entry.shard_id for entry in run]
    log.append(
        operation="compact",
        base=base,
        added=added,
        removed=old,
        details={"replaces": {entry.shard_id: old for entry in added}},
    )


def _materialize(config: CompactConfig, output: DatasetPath) -> CompactResult:
    with DatasetReader.open(config.dataset, sources=config.moved(config.dataset)) as reader:
        selection = Selection(reader, tuple(range(len(reader))))
        write_dataset(
            output,
            [selection],
            operation="materialize",
            details={},
            profile=config.profile,
            materialize=True,
        )
        return _result(output, CommitLog.open(output), reader.shards)


def _result(path: DatasetPath, log: CommitLog, before: tuple[ShardEntry, ...]) -> CompactResult:
    head = log.head()
    live = () if head is None else log.live_shards(head.number)
    return CompactResult(
        dataset=str(path),
        shards_before=len(before),
        shards=len(live),
        episodes=sum(entry.episodes for entry in live),
        bytes_before=sum(entry.bytes for entry in before),
        bytes=sum(entry.bytes for entry in live),
        snapshot=None if head is None else head.number,
    )
