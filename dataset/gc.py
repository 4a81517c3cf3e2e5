"""`retold gc`: files that no snapshot worth keeping needs are deleted."""

import contextlib
import logging
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retold.dataset.commit_files import commit_path
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, path_inside, refuse_links
from retold.dataset.pins import read_pins
from retold.dataset.snapshot_names import open_log_to_write, read_tags
from retold.schemas.commit import Commit
from retold.schemas.errors import ConflictError, UsageError

logger = logging.getLogger(__name__)

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
    dataset = log.path
    if not isinstance(dataset, Path):
        raise UsageError(
            f"{config.dataset}: gc works in folders, where a file can be moved aside before it is "
            f"deleted. On a store, copy what is live with `retold filter` and delete the old one."
        )
    for _ in range(_MOST_PLANS):
        base = log.head()
        plan = list(_plan(log, dataset, config))
        if config.dry_run or not plan:
            return _result(config, plan, None, deleted=not config.dry_run)
        for item in plan:
            logger.info("gc drops %s (%s).", item.path, item.reason)
        shards = [Path(item.path).name for item in plan if item.path.startswith("shards/")]
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
        done = [item for item in plan if _delete(dataset, item, config)]
        return _result(config, done, number, deleted=True)
    raise ConflictError(
        f"{config.dataset}: other processes changed the dataset {_MOST_PLANS} times meanwhile. "
        f"Nothing was deleted; run again when they are done."
    )


def find_kept(log: CommitLog, dataset: Path, keep_seconds: float, now: float) -> set[int]:
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
    for number in range(head.number - 1, -1, -1):
        if now - commit_path(dataset, number + 1).stat().st_mtime >= keep_seconds:
            break
        kept.add(number)
    return kept


def _plan(log: CommitLog, dataset: Path, config: GcConfig) -> Iterator[DroppedFile]:
    now = _store_time(dataset, is_dry=config.dry_run)
    needed = _needed_shards(log, find_kept(log, dataset, config.keep * 86400, now))
    latest = now - config.grace * 3600
    named = {entry.shard_id for commit in log.commits() for entry in commit.added}
    for folder in _folders(dataset):
        if folder.name not in needed and _youngest(folder) <= latest:
            reason = "in no kept snapshot" if folder.name in named else "never committed"
            yield _dropped(dataset, folder, reason)
    for path in _leftovers(dataset):
        if _youngest(path) <= latest:
            yield _dropped(dataset, path, "left by a killed writer")
    for pin in read_pins(dataset):
        if pin.expires.timestamp() <= now - config.grace * 3600:
            yield _dropped(dataset, Path(str(pin.path)), "an expired pin")
    checkpoints = sorted(path_inside(dataset, "checkpoints").glob("[0-9]*.*"))
    numbers = sorted({path.name[:8] for path in checkpoints})[-_CHECKPOINTS_KEPT:]
    for path in checkpoints:
        if path.name[:8] not in numbers and _youngest(path) <= latest:
            yield _dropped(dataset, path, "an older checkpoint")


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


def _delete(dataset: Path, item: DroppedFile, config: GcConfig) -> bool:
    """Delete one file or folder, unless somebody made it young meanwhile; whether it went.

    It is moved aside first: a writer that finds its shard there makes it young before it commits,
    so one that is young by now is moved back, and one that was moved is not found by the writer.
    """
    path = dataset / item.path
    aside = path_inside(dataset, "tmp", f"gc-{uuid.uuid4().hex}")
    try:
        aside.parent.mkdir(exist_ok=True)
        os.rename(path, aside)
    except FileNotFoundError:
        return False
    if _youngest(aside) > _store_time(dataset, is_dry=False) - config.grace * 3600:
        with contextlib.suppress(OSError):  # taken: an equal shard was written meanwhile
            os.rename(aside, path)
            return False
    if aside.is_dir():
        shutil.rmtree(aside)
    else:
        aside.unlink()
    return True


def _folders(dataset: Path) -> Iterator[Path]:
    """Folders of shards, links refused."""
    shards = path_inside(dataset, "shards")
    for prefix in sorted(shards.iterdir()) if shards.is_dir() else ():
        refuse_links(path_inside(shards, prefix.name))
        yield from sorted(prefix.iterdir()) if prefix.is_dir() else ()


def _leftovers(dataset: Path) -> Iterator[Path]:
    """What killed writers leave: shards being built, and files without their final name."""
    for name in ("tmp", "commits", "schemas", "checkpoints", "pins"):
        folder = path_inside(dataset, name)
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                is_part = path.name.startswith(".") or name == "tmp"
                if (
                    is_part or (name == "pins" and path.suffix != ".json")
                ) and not path.is_symlink():
                    yield path
    for pattern in (".dataset.json.*", ".LATEST.*"):
        yield from sorted(dataset.glob(pattern))


def _youngest(path: Path) -> float:
    """When the newest part of a file or folder was changed, by the store's clock.

    What goes while we look is somebody's at work, and so as young as can be.
    """
    try:
        times = [path.lstat().st_mtime]
        if path.is_dir():
            for root, folders, names in os.walk(path):
                inside = (os.path.join(root, name) for name in (*folders, *names))
                times += [os.lstat(name).st_mtime for name in inside]
    except FileNotFoundError:
        return math.inf
    return max(times)


def _store_time(dataset: Path, *, is_dry: bool) -> float:
    """Now, by the clock that stamps the dataset's files; a dry run writes nothing to ask it."""
    if is_dry:
        return time.time()
    probe = dataset / f".LATEST.{uuid.uuid4().hex}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


def _dropped(dataset: Path, path: Path, reason: str) -> DroppedFile:
    size = 0
    with contextlib.suppress(FileNotFoundError):  # it went by itself
        files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        size = sum(file.lstat().st_size for file in files)
    return DroppedFile(path=path.relative_to(dataset).as_posix(), reason=reason, bytes=size)


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
