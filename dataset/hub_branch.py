"""The main branch of a repository as a push is planned on it, and the one commit that changes it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retold.dataset.hub_client import HubFile, HubRepository, Upload, refuse_moving
from retold.dataset.hub_content import find_changes
from retold.dataset.hub_log import LARGEST_CARD
from retold.dataset.hub_revision import HubRevision
from retold.dataset.snapshot_names import TAG_NAME
from retold.schemas.errors import ConflictError, UsageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """One file that a push changes."""

    change: str
    """`add`, `replace` or `remove`."""
    bytes: int
    path: str


@dataclass(frozen=True)
class HubBranch:
    """What is on the main branch now."""

    repository: HubRepository
    revision: HubRevision | None
    """None: there is no repository yet."""
    tags: Mapping[str, str]
    card: str

    @property
    def commit(self) -> str | None:
        """The newest commit."""
        return None if self.revision is None else self.revision.commit

    @property
    def files(self) -> Mapping[str, HubFile]:
        """Its files, by path."""
        return {} if self.revision is None else self.revision.files


@dataclass(frozen=True)
class PushPlan:
    """What is to be changed on a main branch."""

    branch: HubBranch
    changed: Mapping[str, Upload]
    gone: Sequence[str]
    unchanged: int
    """Files that are there already."""
    tag: str | None

    @property
    def is_empty(self) -> bool:
        """Whether all is there as it shall be."""
        return self.branch.commit is not None and not self.changed and not self.gone

    @property
    def changes(self) -> tuple[PlannedFile, ...]:
        """Each file that is sent, the largest first, or leaves the branch."""
        there = self.branch.files
        sent = [
            PlannedFile(change="replace" if path in there else "add", bytes=upload.size, path=path)
            for path, upload in self.changed.items()
        ]
        removed = [
            PlannedFile(change="remove", bytes=there[path].size, path=path) for path in self.gone
        ]
        return (*sorted(sent, key=lambda planned: -planned.bytes), *removed)

    @property
    def bytes(self) -> int:
        """What is sent, at most: what the Hub has under any name is not."""
        return sum(upload.size for upload in self.changed.values())


def check_tag_name(tag: str | None) -> None:
    """See that a release may be called so.

    Raises:
        UsageError: it may not.
    """
    if tag is not None and TAG_NAME.fullmatch(tag) is None:
        raise UsageError(
            f"--tag is {tag!r}. Begin with a letter; letters, digits, '.', '_' and '-' may follow, "
            f"up to 64 of them."
        )


def read_branch(repository: HubRepository) -> HubBranch:
    """The main branch as it is now."""
    if not repository.exists():
        return HubBranch(repository, None, {}, "")
    revision = HubRevision(repository, repository.find_head())
    card = b""
    if "README.md" in revision.files:
        card = revision.read_file("README.md", LARGEST_CARD)
    return HubBranch(repository, revision, repository.read_tags(), card.decode(errors="replace"))


def plan_push(
    branch: HubBranch, wanted: Mapping[str, Upload], managed: tuple[str, ...], tag: str | None
) -> PushPlan:
    """What must be changed for a branch to hold the wanted files.

    Args:
        branch: as it is.
        wanted: files by path.
        managed: files and folders (`/` at the end) that are a push's own; what is not wanted goes.
        tag: name of the release.

    Raises:
        DatasetError: the tag names another commit.
    """
    changed, gone = find_changes(wanted, branch.files, managed)
    plan = PushPlan(branch, changed, gone, len(wanted) - len(changed), tag)
    known = None if tag is None else branch.tags.get(tag)
    if known is not None and (not plan.is_empty or known != branch.commit):
        assert tag is not None
        raise refuse_moving(branch.repository.name, tag, known)
    return plan


def carry_out(plan: PushPlan, *, marker: str, message: str, is_private: bool) -> str:
    """Make a plan's commit, if there is anything to change, and tag it; the branch's commit.

    Args:
        plan: of a push, whose files were checked.
        marker: path of a file that says that somebody has pushed there.
        message: of the commit.
        is_private: of a repository that is made now.

    Raises:
        ConflictError: somebody else was faster; nothing was changed.
        DatasetError: the Hub refused; the branch is as it was.
    """
    repository, commit = plan.branch.repository, plan.branch.commit
    if not plan.is_empty:
        parent = commit
        if parent is None:
            repository.create(is_private=is_private)
            parent = repository.find_head()
            if marker in repository.list_files(parent):
                raise ConflictError(
                    f"{repository.name}: somebody else pushed there in the meantime. Nothing was "
                    f"changed; run again to plan on what is there now."
                )
        logger.info(
            "%s: sending %d files, %.1f MB", repository.name, len(plan.changed), plan.bytes / 1e6
        )
        commit = repository.commit(plan.changed, plan.gone, parent=parent, message=message)
    assert commit is not None
    if plan.tag is not None:
        repository.tag(plan.tag, commit)
    return commit
