"""`retold gc`: files that no snapshot worth keeping needs are deleted."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from retold.dataset.commit_files import commit_path
from retold.dataset.gc_files import LocalFiles, StoredItem, StoreFiles, gc_files
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.pins import read_pins
from retold.dataset.snapshot_names import open_log_to_write, read_tags
from retold.schemas.commit import Commit
from retold.schemas.errors import ConflictError, UsageError

logger = logging.getLogger(__name__)

Files = LocalFiles | StoreFiles

_MOST_PLANS = 50
_CHECKPOINTS_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class GcConfig:
    """What `retold gc` is asked."""

    dataset: DatasetPath
    """Dataset whose unneeded files are deleted."""
    keep: float = 7.0
    """Days for which snapshots are kept after a newer one replaced them."""
    grace: float = 24.0
    """Hours for which files that no kept snapshot needs are left to whoever may be writing them;
    must be longer than a commit takes, and 0 only where nobody writes."""
    dry_run: bool = False
    """Say what would be deleted, and delete nothing."""

    def __post_init__(self) -> None:
        for name in ("keep", "grace"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name} is {getattr(self, name)}, but must be at least 0.")


@dataclass(frozen=True, kw_only=True)
class DroppedFile:
    """One file or folder that is not needed."""

    path: str
    """Inside the dataset."""
    reason: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class GcResult:
    """What was deleted, or would be."""

    dataset: str
    deleted: bool
    """Whether it was; a dry run only says so."""
    files: int
    bytes: int
    snapshot: int | None
    """Number of the commit that records it; none if there was none to make."""
    dropped: tuple[DroppedFile, ...]


def collect_garbage(config: GcConfig) -> GcResult:
    """Delete what is needed by no head, tag, unexpired pin or young snapshot, and is old enough.

    The plan is logged first; the log is read again just before, and a commit records what goes.

    Raises:
        DatasetError: there is no dataset, or a pin cannot be read, so that its needs are unknown.
    """
    log = open_log_to_write(config.dataset)
    for _ in range(_MOST_PLANS):
        base = log.head()
        files = gc_files(log.path)
        plan = list(_plan(log, files, config))
        if config.dry_run or not plan:
            return _result(config, plan, None, deleted=not config.dry_run)
        for item in plan:
            logger.info("gc drops %s (%s).", item.path, item.reason)
        shards = [item.path.rpartition("/")[2] for item in plan if item.path.startswith("shards/")]
        number = None
        if shards and base is not None:
            try:
                number = log.append(
                    operation="gc",
                    base=base,
                    details={"dropped": shards, "bytes": sum(item.bytes for item in plan)},
                    check=_refuse_changes(log, shards),
                ).number
            except ConflictError:
                continue
        done = [item for item in plan if files.delete(item.path, config.grace * 3600)]
        return _result(config, done, number, deleted=True)
    raise ConflictError(
        f"{config.dataset}: other processes changed the dataset {_MOST_PLANS} times meanwhile. "
        f"Nothing was deleted; run again when they are done."
    )


def _find_kept(log: CommitLog, files: Files, keep_seconds: float, now: float) -> set[int]:
    """Numbers of the snapshots whose shards must stay."""
    head = log.head()
    if head is None:
        return set()
    kept = {head.number, *(snapshot.number for snapshot in read_tags(log).values())}
    kept |= {
        pin.snapshot.number
        for pin in read_pins(log.path)
        if pin.expires.timestamp() > now and pin.snapshot.number <= head.number
    }
    # A snapshot is as old as the commit that replaced it, by the store's clock.
    written = {item.name: item.youngest for item in files.files_in("commits")}
    for number in range(head.number - 1, -1, -1):
        if now - written.get(commit_path(log.path, number + 1).name, math.inf) >= keep_seconds:
            break
        kept.add(number)
    return kept


def _plan(log: CommitLog, files: Files, config: GcConfig) -> Iterator[DroppedFile]:
    now = files.now(is_dry=config.dry_run)
    needed = _needed_shards(log, _find_kept(log, files, config.keep * 86400, now))
    latest = now - config.grace * 3600
    named = {entry.shard_id for commit in log.commits() for entry in commit.added}
    for item in files.shards():
        if item.name not in needed and item.youngest <= latest:
            reason = "in no kept snapshot" if item.name in named else "never committed"
            yield _dropped(item, reason)
    for item in files.leftovers():
        if item.youngest <= latest:
            yield _dropped(item, "left by a killed writer")
    expiries = {pin.path.name: pin.expires.timestamp() for pin in read_pins(log.path)}
    for item in files.files_in("pins"):
        if expiries.get(item.name, now) <= latest:
            yield _dropped(item, "an expired pin")
    checkpoints = list(files.files_in("checkpoints"))
    numbers = sorted({item.name[:8] for item in checkpoints})[-_CHECKPOINTS_KEPT:]
    for item in checkpoints:
        if item.name[:8] not in numbers and item.youngest <= latest:
            yield _dropped(item, "an older checkpoint")


def _needed_shards(log: CommitLog, numbers: set[int]) -> set[str]:
    """Shards that are live in some of the snapshots."""
    needed: set[str] = set()
    live: set[str] = set()
    for commit in log.commits():
        live.difference_update(commit.removed)
        live.update(entry.shard_id for entry in commit.added)
        if commit.number in numbers:
            needed |= live
    return needed


def _refuse_changes(log: CommitLog, shards: Sequence[str]) -> Callable[[Sequence[Commit]], None]:
    def check(since: Sequence[Commit]) -> None:
        for commit in since:
            added = {entry.shard_id for entry in commit.added}
            if commit.operation == "tag" or added & set(shards):
                raise ConflictError(f"{log.path}: the dataset changed meanwhile. Run again.")

    return check


def _dropped(item: StoredItem, reason: str) -> DroppedFile:
    return DroppedFile(path=item.path, reason=reason, bytes=item.bytes)


def _result(
    config: GcConfig, items: Sequence[DroppedFile], number: int | None, *, deleted: bool
) -> GcResult:
    return GcResult(
        dataset=str(config.dataset),
        deleted=deleted,
        files=len(items),
        bytes=sum(item.bytes for item in items),
        snapshot=number,
        dropped=tuple(items),
    )
