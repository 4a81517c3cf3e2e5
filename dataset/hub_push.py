"""`retold push`: a dataset on the Hub, as exactly one commit on the one that the push was planned on."""

import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retold.dataset.hub_branch import (
    HubBranch,
    PlannedFile,
    carry_out,
    plan_push,
    read_branch,
)
from retold.dataset.hub_card import FIGURE, Retelling, make_card
from retold.dataset.hub_card_text import read_license
from retold.dataset.hub_client import HubRepository, Upload
from retold.dataset.hub_content import (
    MANAGED,
    check_content,
    check_limits,
    snapshot_files,
    source_files,
    upload_bytes,
)
from retold.dataset.hub_flags import PushFlags
from retold.dataset.hub_log import fetch_log
from retold.dataset.hub_names import HubName, parse_hub_target
from retold.dataset.hub_scan import refuse_leaks, scan_files, scan_tables
from retold.dataset.hub_stage import stage_copy
from retold.dataset.hub_viewer import viewer_files
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import SourceFlag
from retold.dataset.summary import summarize
from retold.dataset.zarr_codec import Profile
from retold.schemas.errors import DatasetError, UsageError

logger = logging.getLogger(__name__)

Measure = Callable[[DatasetReader, str], Retelling]
"""What relabelling knows of a snapshot that is to be shown under a repository's name."""


@dataclass(frozen=True, kw_only=True)
class PushConfig(SourceFlag, PushFlags):
    """What `retold push` is asked."""

    dataset: DatasetPath
    """Dataset to send, or a snapshot (`DATASET@12`). It is never written to."""
    materialize: bool = False
    """Send a copy in which variants have arrays of their own, with a log of its own."""
    profile: Profile | None = None
    """Send a copy with these codecs: `fast` (LZ4) or `small` (zstd); without it shards are sent as
    they are."""


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
        branch = read_branch(repository)
        license = config.license or read_license(branch.card, str(name))
        if license is None and config.dry_run:
            logger.warning("%s: a push will ask for a licence, e.g. --license cc-by-4.0.", name)
            license = "unknown"
        if license is None:
            raise UsageError(
                f"{name}: under which licence may others use it? Say so with --license, e.g. "
                f"cc-by-4.0, mit or cc0-1.0."
            )
        pushed = _stage(config, reader, name, branch, Path(folder))
        retelling = measure(reader, name.repository)
        wanted = _collect_files(name, pushed, retelling, license, branch.card)
        return _carry_out(config, branch, pushed, wanted)


def _stage(
    config: PushConfig,
    reader: DatasetReader,
    name: HubName,
    branch: HubBranch,
    folder: Path,
) -> DatasetReader:
    """The dataset itself, or the copy of it that is sent."""
    if not config.materialize and config.profile is None:
        _check_follows(reader, name, branch)
        return reader
    published = None
    if branch.revision is not None and "dataset.json" in branch.files:
        published = folder / "copy"
        fetch_log(branch.revision, "", published)
    return stage_copy(
        reader,
        folder,
        published=published,
        where=str(name),
        materialize=config.materialize,
        profile=config.profile,
    )


def _check_follows(reader: DatasetReader, name: HubName, branch: HubBranch) -> None:
    """See that the dataset is the one that is there, or goes on from it (format rule 9).

    Raises:
        DatasetError: it is another, or went another way.
    """
    there = branch.files.get("dataset.json")
    if there is None:
        return
    mine = snapshot_files(reader)
    file = mine["dataset.json"]
    if not there.holds(file.size, file.sha256, file.read):
        raise DatasetError(
            f"{name}: it holds another dataset than {reader.path} (dataset.json differs). Push to "
            f"another repository; a copy that --materialize or --profile made goes on with that flag."
        )
    numbers = [n for n in range(len(branch.files)) if f"commits/{n:08d}.json" in branch.files]
    for number in numbers:
        path = f"commits/{number:08d}.json"
        if path not in mine:
            raise DatasetError(
                f"{name}: it has commit {number}, which {reader.path} lacks: its newest is "
                f"{reader.snapshot.number}. Get it with `retold pull {name.repository} "
                f"{reader.path}`, then push again."
            )
        if not branch.files[path].holds(mine[path].size, mine[path].sha256, mine[path].read):
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
    config: PushConfig, branch: HubBranch, pushed: DatasetReader, wanted: Mapping[str, Upload]
) -> PushResult:
    refuse_leaks(
        pushed.path,
        [*scan_files(wanted), *scan_tables(pushed)],
        allow_paths=config.allow_paths,
        instead="Push a copy with a log of its own with --materialize",
    )
    plan = plan_push(branch, wanted, MANAGED, config.tag)
    after = (branch.files.keys() | wanted.keys()) - set(plan.gone)
    check_limits(config.dataset, plan.changed, dict.fromkeys(after))
    commit = None
    if not config.dry_run:
        check_content(plan.changed)
        commit = carry_out(
            plan,
            marker="dataset.json",
            message=f"Push commit {pushed.snapshot.number} of dataset {pushed.dataset_id}",
            is_private=config.private,
        )
    return PushResult(
        repository=str(branch.repository.name),
        dataset_id=pushed.dataset_id,
        snapshot=pushed.snapshot.number,
        is_dry_run=config.dry_run,
        commit=commit,
        tag=config.tag,
        files=len(plan.changed),
        bytes=plan.bytes,
        unchanged=plan.unchanged,
        removed=len(plan.gone),
        changes=plan.changes if config.dry_run else (),
    )
