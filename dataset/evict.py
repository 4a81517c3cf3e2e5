"""`retold evict`: let the oldest episodes go."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retold.dataset.ages import shards_by_age
from retold.dataset.log import CommitLog
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

    dataset: Path
    """Dataset whose oldest episodes go. Their files stay until `retold gc`."""
    episodes: int | None = None
    """Most episodes to keep."""
    steps: int | None = None
    """Most transitions to keep, in whole episodes."""
    bytes: int | None = None
    """Most bytes on disk to keep, in whole shards."""

    def __post_init__(self) -> None:
        limits = {name: getattr(self, name) for name in ("episodes", "steps", "bytes")}
        if all(limit is None for limit in limits.values()):
            raise UsageError("How much to keep is not said. Give --episodes, --steps or --bytes.")
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
    """Let the oldest episodes leave the dataset, first in first out, until the limits hold.

    Raises:
        DatasetError: there is no dataset, or nothing would stay.
    """
    log = open_log_to_write(config.dataset)
    for _ in range(MOST_PLANS):
        base = log.head()
        plan = None if base is None else _plan(log, config, base.number)
        if base is None or plan is None or not plan.removed:
            return _result(log, config, 0)
        try:
            return _result(log, config, _evict(log, base, plan))
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
    shards = shards_by_age(log, through)
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


def _result(log: CommitLog, config: EvictConfig, evicted: int) -> EvictResult:
    head, live = log.head(), log.live_shards()
    return EvictResult(
        dataset=str(config.dataset),
        evicted=evicted,
        episodes=sum(entry.episodes for entry in live),
        steps=sum(entry.steps for entry in live),
        bytes=sum(entry.bytes for entry in live),
        snapshot=None if head is None else head.number,
    )
