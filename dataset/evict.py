"""`retold evict`: let the oldest episodes go, or those that meet a condition."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retold.dataset.expression import parse_condition
from retold.dataset.filter import COLUMNS
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.rewrite import rewrite_rows, stored_profile
from retold.dataset.shard_files import ShardFiles
from retold.dataset.snapshot_names import open_log_to_write
from retold.schemas.commit import ShardEntry, Snapshot
from retold.schemas.errors import ConflictError, DatasetError, UsageError

MOST_PLANS = 50
"""How often an operation is planned anew when others change the dataset meanwhile."""


@dataclass(frozen=True, kw_only=True)
class EvictConfig:
    """What `retold evict` is asked."""

    dataset: DatasetPath
    """Dataset whose episodes go. Their files stay until `retold gc`."""
    episodes: int | None = None
    """Most episodes to keep."""
    steps: int | None = None
    """Most transitions to keep, in whole episodes."""
    bytes: int | None = None
    """Most bytes on disk to keep, in whole shards."""
    where: str | None = None
    """Let go of the episodes that meet this condition instead, however old: a generation of
    variants, for example, is "strategy == 'some' and relabel_seed == 0"."""

    def __post_init__(self) -> None:
        limits = {name: getattr(self, name) for name in ("episodes", "steps", "bytes")}
        has_limit = any(limit is not None for limit in limits.values())
        if has_limit == (self.where is not None):
            raise UsageError(
                "Give --episodes, --steps or --bytes to say how much to keep, or --where to say "
                "what goes; one or the other."
            )
        if self.where is not None:
            parse_condition(self.where, COLUMNS)
        for name, limit in limits.items():
            if limit is not None and limit < 1:
                raise UsageError(f"--{name} is {limit}, but at least 1 is kept.")


@dataclass(frozen=True, kw_only=True)
class EvictResult:
    """What went and what stayed."""

    dataset: str
    evicted: int
    """Episodes that left."""
    episodes: int
    """Episodes that stay."""
    steps: int
    """Transitions of those."""
    bytes: int
    snapshot: int | None
    """Number of the newest commit."""


@dataclass(frozen=True)
class _Plan:
    kept: tuple[ShardEntry, ...]
    boundary: ShardEntry | None
    """The shard of which only the newest episodes stay."""
    boundary_episodes: int
    removed: tuple[ShardEntry, ...]
    """The boundary included."""


def evict(config: EvictConfig) -> EvictResult:
    """Let episodes leave the dataset: the oldest, until the limits hold, or those of a condition.

    Raises:
        DatasetError: there is no dataset, or nothing would stay.
    """
    log = open_log_to_write(config.dataset)
    for _ in range(MOST_PLANS):
        base = log.head()
        if base is None:
            return _result(log, config, 0)
        try:
            if config.where is not None:
                return _result(log, config, _evict_where(log, base, config.where))
            plan = _plan(log, config, base.number)
            return _result(log, config, _evict(log, base, plan) if plan.removed else 0)
        except ConflictError:
            continue
    raise ConflictError(
        f"{config.dataset}: other processes changed the dataset {MOST_PLANS} times meanwhile. "
        f"Run again when they are done."
    )


def _plan(log: CommitLog, config: EvictConfig, through: int) -> _Plan:
    limits = {
        name: limit
        for name in ("episodes", "steps", "bytes")
        if (limit := getattr(config, name)) is not None
    }
    shards = log.shards_by_age(through)
    total = dict.fromkeys(limits, 0)
    kept: list[ShardEntry] = []
    for entry in reversed(shards):
        new = {name: total[name] + getattr(entry, name) for name in limits}
        if any(new[name] > limits[name] for name in limits):
            break
        kept.append(entry)
        total = new
    kept.reverse()
    if len(kept) == len(shards):
        return _Plan(tuple(kept), None, 0, ())
    boundary = shards[len(shards) - len(kept) - 1]
    left = {name: limits[name] - total[name] for name in limits}
    count = 0 if "bytes" in limits else _count_newest(log, boundary, left)
    if not kept and not count:
        raise DatasetError(
            f"{log.path}: no episode would stay: the newest alone is more than the limit. Give a "
            f"higher limit."
        )
    removed = tuple(shards[: len(shards) - len(kept)])
    return _Plan(tuple(kept), boundary if count else None, count, removed)


def _count_newest(log: CommitLog, entry: ShardEntry, left: Mapping[str, int]) -> int:
    """How many of a shard's last episodes fit into what is left of the limits."""
    lengths = ShardFiles(log.path, entry).table["length"].to_numpy()[::-1]
    steps = np.cumsum(lengths.astype(np.int64))
    count = int(np.searchsorted(steps, left.get("steps", int(steps[-1])), side="right"))
    return min(count, left.get("episodes", count))


def _evict(log: CommitLog, base: Snapshot, plan: _Plan) -> int:
    """Commit a plan; how many episodes left."""
    added: list[ShardEntry] = []
    replaces: dict[str, list[str]] = {}
    if plan.boundary is not None:
        old = plan.boundary
        with DatasetReader(log, base, {}) as reader:
            rows = reader.shard_rows(old.shard_id)
            profile = stored_profile(reader, old.shard_id)
            added = rewrite_rows(reader, rows[-plan.boundary_episodes :], log.path, profile=profile)
        replaces = {entry.shard_id: [old.shard_id] for entry in added}
    evicted = sum(entry.episodes for entry in plan.removed) - plan.boundary_episodes
    log.append(
        operation="evict",
        base=base,
        added=added,
        removed=[entry.shard_id for entry in plan.removed],
        details={"evicted": evicted, "replaces": replaces},
    )
    return evicted


def _evict_where(log: CommitLog, base: Snapshot, where: str) -> int:
    """Commit the removal of the episodes that meet a condition; how many left."""
    meets = parse_condition(where, COLUMNS)
    added: list[ShardEntry] = []
    removed: list[str] = []
    replaces: dict[str, list[str]] = {}
    evicted = 0
    with DatasetReader(log, base, {}) as reader:
        for shard in reader.shards:
            rows = reader.shard_rows(shard.shard_id)
            table = reader.shard_reader(shard.shard_id).table.select(list(COLUMNS)).to_pylist()
            stay = [row for row, values in zip(rows, table, strict=True) if not meets(values)]
            if len(stay) == len(rows):
                continue
            evicted += len(rows) - len(stay)
            removed.append(shard.shard_id)
            profile = stored_profile(reader, shard.shard_id)
            made = rewrite_rows(reader, stay, log.path, profile=profile) if stay else []
            added += made
            replaces |= {entry.shard_id: [shard.shard_id] for entry in made}
    if removed:
        log.append(
            operation="evict",
            base=base,
            added=added,
            removed=removed,
            details={"evicted": evicted, "where": where, "replaces": replaces},
        )
    return evicted


def _result(log: CommitLog, config: EvictConfig, evicted: int) -> EvictResult:
    head = log.head()
    live = () if head is None else log.live_shards(head.number)
    return EvictResult(
        dataset=str(config.dataset),
        evicted=evicted,
        episodes=sum(entry.episodes for entry in live),
        steps=sum(entry.steps for entry in live),
        bytes=sum(entry.bytes for entry in live),
        snapshot=None if head is None else head.number,
    )
