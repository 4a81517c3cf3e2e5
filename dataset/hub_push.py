"""`retold push`: a dataset on the Hub, as exactly one commit on the one that the push was planned on."""

import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retold.dataset.hub_card import FIGURE, Retelling, make_card, read_license
from retold.dataset.hub_client import HubFile, HubRepository, Upload, refuse_moving
from retold.dataset.hub_content import (
    check_content,
    check_limits,
    find_changes,
    snapshot_files,
    source_files,
    upload_bytes,
)
from retold.dataset.hub_log import LARGEST_CARD, fetch_log
from retold.dataset.hub_names import HubName, parse_hub_target
from retold.dataset.hub_revision import HubRevision
from retold.dataset.hub_scan import refuse_leaks
from retold.dataset.hub_stage import stage_copy
from retold.dataset.hub_viewer import viewer_files
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.snapshot_names import TAG_NAME
from retold.dataset.sources import SourceFlag
from retold.dataset.summary import summarize
from retold.dataset.zarr_codec import Profile
from retold.schemas.errors import ConflictError, DatasetError, UsageError

logger = logging.getLogger(__name__)

Measure = Callable[[DatasetReader, str], Retelling]
"""What relabelling knows of a snapshot that is to be shown under a repository's name."""


@dataclass(frozen=True, kw_only=True)
class PushConfig(SourceFlag):
    """What `retold push` is asked."""

    dataset: DatasetPath
    """Dataset to send, or a snapshot (`DATASET@12`). It is never written to."""
    repository: str
    """Repository on the Hub, OWNER/NAME; made if there is none."""
    license: str | None = None
    """Licence, as the Hub abbreviates it, e.g. cc-by-4.0 or mit. Needed by the first push; later ones
    keep what the card says."""
    materialize: bool = False
    """Send a copy in which variants have arrays of their own, with a log of its own."""
    profile: Profile | None = None
    """Send a copy with these codecs: `fast` (LZ4) or `small` (zstd); without it shards are sent as
    they are."""
    private: bool = False
    """Make a new repository private."""
    tag: str | None = None
    """Name of this release, e.g. v1. It never moves."""
    allow_paths: bool = False
    """Send although the log or metadata name home folders of this machine."""
    dry_run: bool = False
    """Only say what would be sent."""

    def __post_init__(self) -> None:
        parse_hub_target(self.repository)
        if self.tag is not None and TAG_NAME.fullmatch(self.tag) is None:
            raise UsageError(
                f"--tag is {self.tag!r}. Begin with a letter; letters, digits, '.', '_' and '-' may "
                f"follow, up to 64 of them."
            )


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """One file that a push changes."""

    change: str
    """`add`, `replace` or `remove`."""
    bytes: int
    path: str


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What was sent, or would be."""

    repository: str
    dataset_id: str
    snapshot: int
    """Number of the newest commit of the dataset's log there."""
    is_dry_run: bool
    commit: str | None
    """Of the repository; None if it was only planned."""
    tag: str | None
    files: int
    """Files that are new or changed."""
    bytes: int
    """Their size. What the Hub has already, under whatever name, is not sent again."""
    unchanged: int
    removed: int
    """Files that are no longer live, and leave the main branch; releases keep them."""
    changes: tuple[PlannedFile, ...] = field(default=())
    """With --dry-run, each of them."""


@dataclass(frozen=True)
class _Remote:
    """The main branch as a push is planned on it."""

    revision: HubRevision | None
    """None: there is no repository yet."""
    tags: Mapping[str, str]
    card: str

    @property
    def commit(self) -> str | None:
        return None if self.revision is None else self.revision.commit

    @property
    def files(self) -> Mapping[str, HubFile]:
        return {} if self.revision is None else self.revision.files


def push_dataset(config: PushConfig, measure: Measure) -> PushResult:
    """Plan a push, and make it unless it is a dry run.

    Args:
        config: what to push.
        measure: tells of the goals and variants for the card.

    Raises:
        DatasetError: it cannot be sent; the repository's main branch is as it was.
    """
    name = parse_hub_target(config.repository)
    repository = HubRepository(name)
    with (
        DatasetReader.open(config.dataset, sources=config.moved(config.dataset)) as reader,
        tempfile.TemporaryDirectory(prefix="retold-push-") as folder,
    ):
        if not len(reader):
            raise DatasetError(
                f"{config.dataset}: no episode is live, so there is nothing to push."
            )
        if not config.dry_run:
            repository.check_login()
        remote = _read_remote(repository)
        license = config.license or read_license(remote.card, str(name))
        if license is None:
            raise UsageError(
                f"{name}: under which licence may others use it? Say so with --license, e.g. "
                f"cc-by-4.0, mit or cc0-1.0."
            )
        pushed = _stage(config, reader, name, remote, Path(folder))
        retelling = measure(reader, name.repository)
        wanted = _collect_files(name, pushed, retelling, license, remote.card)
        return _carry_out(config, repository, remote, pushed, wanted)


def _read_remote(repository: HubRepository) -> _Remote:
    if not repository.exists():
        return _Remote(None, {}, "")
    revision = HubRevision(repository, repository.find_head())
    card = b""
    if "README.md" in revision.files:
        card = revision.read_file("README.md", LARGEST_CARD)
    return _Remote(revision, repository.read_tags(), card.decode(errors="replace"))


def _stage(
    config: PushConfig,
    reader: DatasetReader,
    name: HubName,
    remote: _Remote,
    folder: Path,
) -> DatasetReader:
    """The dataset itself, or the copy of it that is sent."""
    if not config.materialize and config.profile is None:
        _check_follows(reader, name, remote)
        return reader
    published = None
    if remote.revision is not None and "dataset.json" in remote.files:
        published = folder / "copy"
        fetch_log(remote.revision, "", published)
    return stage_copy(
        reader,
        folder,
        published=published,
        where=str(name),
        materialize=config.materialize,
        profile=config.profile,
    )


def _check_follows(reader: DatasetReader, name: HubName, remote: _Remote) -> None:
    """See that the dataset is the one that is there, or goes on from it (format rule 9).

    Raises:
        DatasetError: it is another, or went another way.
    """
    there = remote.files.get("dataset.json")
    if there is None:
        return
    mine = snapshot_files(reader)
    file = mine["dataset.json"]
    if not there.holds(file.size, file.sha256, file.read):
        raise DatasetError(
            f"{name}: it holds another dataset than {reader.path} (dataset.json differs). Push to "
            f"another repository; a copy that --materialize or --profile made goes on with that flag."
        )
    numbers = [n for n in range(len(remote.files)) if f"commits/{n:08d}.json" in remote.files]
    for number in numbers:
        path = f"commits/{number:08d}.json"
        if path not in mine:
            raise DatasetError(
                f"{name}: it has commit {number}, which {reader.path} lacks: its newest is "
                f"{reader.snapshot.number}. Get it with `retold pull {name.repository} "
                f"{reader.path}`, then push again."
            )
        if not remote.files[path].holds(mine[path].size, mine[path].sha256, mine[path].read):
            raise DatasetError(
                f"{reader.path} and {name}: they are copies of one dataset that went different "
                f"ways: their commits {number} differ. Join them into a new dataset with `retold "
                f"merge OUTPUT --data {reader.path} --data {name}`."
            )


def _collect_files(
    name: HubName, pushed: DatasetReader, retelling: Retelling, license: str, card: str
) -> dict[str, Upload]:
    """Every file that the repository shall hold, besides those that are none of ours."""
    files = snapshot_files(pushed) | source_files(pushed)
    files |= {path: upload_bytes(content) for path, content in viewer_files(pushed).items()}
    if retelling.figure is not None:
        files[FIGURE] = upload_bytes(retelling.figure)
    made = make_card(
        name.repository,
        pushed,
        summarize(pushed, {}),
        retelling,
        license=license,
        existing=card,
    )
    files["README.md"] = upload_bytes(made.encode())
    return files


def _carry_out(
    config: PushConfig,
    repository: HubRepository,
    remote: _Remote,
    pushed: DatasetReader,
    wanted: Mapping[str, Upload],
) -> PushResult:
    refuse_leaks(wanted, pushed, allow_paths=config.allow_paths)
    changed, gone = find_changes(wanted, remote.files)
    after = (remote.files.keys() | wanted.keys()) - set(gone)
    check_limits(config.dataset, changed, dict.fromkeys(after))
    _check_tag(config, repository, remote, is_changed=bool(changed or gone))
    commit = remote.commit
    if not config.dry_run:
        check_content(changed)
        if changed or gone or commit is None:
            commit = _commit(config, repository, remote, pushed, changed, gone)
        assert commit is not None
        if config.tag is not None:
            repository.tag(config.tag, commit)
    return PushResult(
        repository=str(repository.name),
        dataset_id=pushed.dataset_id,
        snapshot=pushed.snapshot.number,
        is_dry_run=config.dry_run,
        commit=None if config.dry_run else commit,
        tag=config.tag,
        files=len(changed),
        bytes=sum(upload.size for upload in changed.values()),
        unchanged=len(wanted) - len(changed),
        removed=len(gone),
        changes=_list_changes(remote, changed, gone) if config.dry_run else (),
    )


def _list_changes(
    remote: _Remote, changed: Mapping[str, Upload], gone: list[str]
) -> tuple[PlannedFile, ...]:
    sent = [
        PlannedFile(
            change="replace" if path in remote.files else "add", bytes=upload.size, path=path
        )
        for path, upload in changed.items()
    ]
    removed = [
        PlannedFile(change="remove", bytes=remote.files[path].size, path=path) for path in gone
    ]
    return (*sorted(sent, key=lambda planned: -planned.bytes), *removed)


def _check_tag(
    config: PushConfig, repository: HubRepository, remote: _Remote, *, is_changed: bool
) -> None:
    """See before anything is sent that the release's name is free, or is that of what is there."""
    known = None if config.tag is None else remote.tags.get(config.tag)
    if known is not None and (is_changed or known != remote.commit):
        assert config.tag is not None
        raise refuse_moving(repository.name, config.tag, known)


def _commit(
    config: PushConfig,
    repository: HubRepository,
    remote: _Remote,
    pushed: DatasetReader,
    changed: Mapping[str, Upload],
    gone: list[str],
) -> str:
    parent = remote.commit
    if parent is None:
        repository.create(is_private=config.private)
        parent = repository.find_head()
        if "dataset.json" in repository.list_files(parent):
            raise ConflictError(
                f"{repository.name}: somebody else pushed there in the meantime. Nothing was "
                f"changed; run again to plan on what is there now."
            )
    size = sum(upload.size for upload in changed.values())
    logger.info("%s: sending %d files, %.1f MB", repository.name, len(changed), size / 1e6)
    return repository.commit(
        changed,
        gone,
        parent=parent,
        message=f"Push commit {pushed.snapshot.number} of dataset {pushed.dataset_id}",
    )
