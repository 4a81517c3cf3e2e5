"""`retold pull`: a dataset from the Hub, every file checked; nothing in it is believed or executed."""

import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from retold.dataset.commit_files import commit_path, encode_latest
from retold.dataset.derive import refuse_existing
from retold.dataset.divergence import Divergence, find_divergence
from retold.dataset.files import create_exclusively, replace_atomically, sync_folder, walk_files
from retold.dataset.hub_client import HubRepository
from retold.dataset.hub_flags import PullFlags
from retold.dataset.hub_log import LARGEST_CARD, fetch_log, keep_file
from retold.dataset.hub_names import HUB_PROTOCOL, HubName
from retold.dataset.hub_origin import SOURCES_FOLDER, Origin, read_origin, write_origin
from retold.dataset.hub_part import pull_part
from retold.dataset.hub_revision import HubRevision
from retold.dataset.log import CommitLog
from retold.dataset.paths import path_inside, refuse_links
from retold.dataset.remote_path import RemotePath
from retold.dataset.shard_files import ShardFiles
from retold.dataset.shard_place import place_shard
from retold.schemas.commit import ShardEntry
from retold.schemas.errors import ConflictError, DatasetError, FormatError, UsageError

logger = logging.getLogger(__name__)

LARGEST_SCHEMA = 64_000_000
LARGEST_MANIFEST = 64_000_000
_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class PullConfig(PullFlags):
    """What `retold pull` is asked."""

    episodes: str | None = None
    """Take only episodes that meet this condition on the columns of the episode table, into a new
    dataset; little of the rest is downloaded."""
    shards: int | None = None
    """Take only this many shards, the first ones, into a new dataset."""
    verify: bool = False
    """Run the whole audit afterwards; checksums are compared in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shards is not None and self.shards < 1:
            raise UsageError(f"--shards is {self.shards}, but must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class PullResult:
    """What was pulled."""

    dataset: str
    dataset_id: str
    repository: str
    commit: str
    """Of the repository."""
    snapshot: int
    """Number of the newest commit of the dataset's log."""
    episodes: int
    new_files: int
    """Files that were not here."""
    new_bytes: int
    """Bytes of them that were downloaded now."""


def pull_dataset(config: PullConfig) -> PullResult:
    """Make a copy of a dataset, or bring one up to date, or take a part of it into a new one.

    Raises:
        DatasetError: there is none, it is not what it promises to be, or there is no room. The output
            is as it was; what was downloaded is not downloaded again.
    """
    repository = HubRepository(config.name)
    commit = repository.find_head(config.name.revision)
    revision = HubRevision(repository, commit)
    if config.episodes is not None or config.shards is not None:
        snapshot = pull_part(revision, config.target, config.episodes, config.shards)
        with_files = walk_files(config.target)
        return _make_result(
            config, commit, snapshot.number, len(with_files), sum(with_files.values())
        )
    target = config.target
    is_new = not target.exists()
    if is_new:
        refuse_existing(target)
    elif not (target / "dataset.json").is_file():
        raise DatasetError(
            f"{target}: this exists and is not a dataset. Give a path that does not exist yet."
        )
    aside = target.with_name(f".{target.name}.pull")
    refuse_links(aside)
    try:
        _forget_other(revision, aside)
        job = _Job(revision, aside, target)
        job.fetch("")
        if is_new:
            write_origin(aside, Origin(config.name.repository, commit, job.newest))
            refuse_existing(target)
            os.rename(aside, target)
            sync_folder(target.parent)
        else:
            job.bring_up_to_date("", config.name.repository)
    except OSError as error:
        raise DatasetError(
            f"{error.filename or aside}: it cannot be written: {error.strerror}. Make room or choose "
            f"another place, then run the same command again."
        ) from error
    shutil.rmtree(aside, ignore_errors=True)
    return _make_result(config, commit, job.newest, job.files, job.bytes)


def _forget_other(revision: HubRevision, aside: Path) -> None:
    """Delete what an interrupted pull of another dataset left."""
    there, here = revision.files.get("dataset.json"), aside / "dataset.json"
    if there is None or not here.is_file():
        return
    if not there.holds_bytes(here.read_bytes()):
        shutil.rmtree(aside)


class _Job:
    """One pull: what is fetched lies aside, in the form of a dataset, until it is whole."""

    def __init__(self, revision: HubRevision, aside: Path, target: Path) -> None:
        self.files = self.bytes = 0
        self.newest = -1
        self._revision = revision
        self._aside = aside
        self._target = target

    def fetch(self, place: str) -> None:
        """Fetch what is missing of the dataset in a folder of the repository, and its sources."""
        aside, target = self._aside / place, self._target / place
        log = fetch_log(self._revision, place, aside, target)
        head = log.head()
        assert head is not None
        self._refuse_diverged(log, target)
        shards = [entry for entry in log.live_shards() if not _is_here(target, entry)]
        for name in dict.fromkeys(entry.schema for entry in log.live_shards()):
            self._keep(f"{place}schemas/{name}.json", LARGEST_SCHEMA)
        self._fetch_shards(place, aside, shards)
        if not place:
            self.newest = head.number
            if self._has(card := "README.md", LARGEST_CARD):
                self._keep(card, LARGEST_CARD)
            ids = sorted({source for commit in log.commits() for source in commit.sources})
            for dataset_id in ids:
                inner = f"{SOURCES_FOLDER}/{dataset_id}/"
                if f"{inner}dataset.json" in self._revision.files:
                    self.fetch(inner)
                    self._mark(aside / inner)

    def bring_up_to_date(self, place: str, repository: str) -> None:
        """Move what was fetched into the copy that is there: shards, then commits, in order.

        Raises:
            ConflictError: somebody committed to it meanwhile.
        """
        aside, target = self._aside / place, self._target / place
        target.mkdir(parents=True, exist_ok=True)
        (target / "commits").mkdir(exist_ok=True)
        for folder in sorted((aside / "shards").glob("??/*")):
            place_shard(folder, target, folder.name)
        for name in ("schemas", "dataset.json", "README.md"):
            _copy_missing(aside / name, target / name)
        log = CommitLog.open(aside, from_checkpoint=False)
        for commit in log.commits():
            content = commit_path(aside, commit.number).read_bytes()
            path = path_inside(target, "commits", f"{commit.number:08d}.json")
            if not create_exclusively(path, content) and path.read_bytes() != content:
                raise ConflictError(
                    f"{path}: somebody committed to the copy while it was pulled. Run again."
                )
        head = CommitLog.open(target).head()
        assert head is not None
        replace_atomically(target / "LATEST", encode_latest(log.dataset_id, head.number))
        pulled = log.head()
        assert pulled is not None
        known = read_origin(target)
        through = max(pulled.number, -1 if known is None else known.through)
        write_origin(target, Origin(repository, self._revision.commit, through))
        if not place:
            for folder in sorted((aside / SOURCES_FOLDER).glob("*")):
                self.bring_up_to_date(f"{SOURCES_FOLDER}/{folder.name}/", repository)

    def _fetch_shards(self, place: str, aside: Path, entries: list[ShardEntry]) -> None:
        """Fetch shards, their manifests first, so that all sizes are known before the rest."""
        wanted: list[tuple[str, Path, int, str]] = []
        for entry in entries:
            shard = ShardFiles(aside, entry)
            folder = path_inside(aside, "shards", entry.shard_id[:2], entry.shard_id)
            self._keep(f"{place}{shard.place}/manifest.json", LARGEST_MANIFEST)
            for name, file in shard.files.items():
                target = path_inside(folder, *name.split("/"))
                wanted.append((f"{place}{shard.place}/{name}", target, file.bytes, file.sha256))
        self._check_room(place, sum(size for _, target, size, _ in wanted if not target.exists()))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull") as pool:
            jobs = [pool.submit(self._revision.download, *file) for file in wanted]
            try:
                for job in jobs:
                    came = job.result()
                    self.bytes += came
                    self.files += came > 0
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _check_room(self, place: str, size: int) -> None:
        free = shutil.disk_usage(self._aside).free
        if size > free:
            raise DatasetError(
                f"{self._revision.where(place)}: its shards have {size:,} bytes, but {self._aside} "
                f"has room for {free:,}. None was downloaded; make room, or take a part with "
                f"--episodes or --shards."
            )

    def _has(self, path: str, limit: int) -> bool:
        return path in self._revision.files and self._revision.files[path].size <= limit

    def _keep(self, name: str, limit: int) -> None:
        came = keep_file(
            self._revision,
            name,
            self._aside / name,
            limit,
            path_inside(self._target, *name.split("/")),
        )
        self.bytes += came
        self.files += came > 0

    def _mark(self, folder: Path) -> None:
        """Note that a source came along from the Hub, so that its log is believed no more than that."""
        head = CommitLog.open(folder).head()
        assert head is not None
        name = self._revision.repository.name.repository
        write_origin(folder, Origin(name, self._revision.commit, head.number))

    def _refuse_diverged(self, log: CommitLog, target: Path) -> None:
        """Refuse where the copy here is another dataset, or went another way (format rule 9)."""
        if not (target / "dataset.json").exists():
            return
        mine = CommitLog.open(target)
        url = RemotePath(f"{HUB_PROTOCOL}://{self._revision.repository.name.repository}")
        if mine.dataset_id != log.dataset_id:
            raise DatasetError(
                f"{target}: it is dataset {mine.dataset_id}, but {url} holds {log.dataset_id}. Pull "
                f"to a path that does not exist yet."
            )
        parting = find_divergence(mine, log)
        if parting is not None:
            raise DatasetError(Divergence(target, url, parting.number).refusal)


def _is_here(target: Path, entry: ShardEntry) -> bool:
    """Whether a shard is in the copy already; the audit sees to its content."""
    path = path_inside(target, "shards", entry.shard_id[:2], entry.shard_id, "manifest.json")
    return path.is_file()


def _copy_missing(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for path in _plain_files(source):
            _copy_missing(path, path_inside(target, path.name))
    elif source.is_file() and (not target.exists() or target.name == "README.md"):
        replace_atomically(target, source.read_bytes())


def _plain_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file())


def _make_result(
    config: PullConfig, commit: str, snapshot: int, files: int, size: int
) -> PullResult:
    log = CommitLog.open(config.target)
    head = log.head()
    if head is None or head.number < snapshot:
        raise FormatError(f"{config.target}: the copy is not whole. Pull it again.")
    return PullResult(
        dataset=str(config.target),
        dataset_id=log.dataset_id,
        repository=str(HubName(config.name.repository, config.name.revision)),
        commit=commit,
        snapshot=head.number,
        episodes=sum(entry.episodes for entry in log.live_shards()),
        new_files=files,
        new_bytes=size,
    )
