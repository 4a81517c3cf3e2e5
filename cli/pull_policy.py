"""`retold pull-policy`: a policy from the Hub, every file checked; nothing in it is executed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retold.cli.policy_facts import LARGEST_FACTS
from retold.cli.push_policy import LARGEST_DESCRIPTION
from retold.dataset.derive import refuse_existing
from retold.dataset.files import sync_folder
from retold.dataset.hub_client import HubRepository
from retold.dataset.hub_flags import PullFlags
from retold.dataset.hub_log import LARGEST_CARD, keep_file
from retold.dataset.hub_revision import HubRevision
from retold.dataset.paths import refuse_links
from retold.schemas.errors import PolicyError

if TYPE_CHECKING:
    from retold.schemas.policy import PolicyDescription

_WEIGHTS = "policy.safetensors"
_EXTRAS = {
    "config.json": LARGEST_FACTS,
    "evaluation.json": LARGEST_FACTS,
    "README.md": LARGEST_CARD,
}
"""What may come along, and the bytes that each may have."""
_HEADER_BYTES = 1_000_000
"""Of a weights file, besides the tensors: far more than names and shapes take."""


@dataclass(frozen=True, kw_only=True)
class PullPolicyConfig(PullFlags):
    """What `retold pull-policy` is asked."""


@dataclass(frozen=True, kw_only=True)
class PullPolicyResult:
    """What was pulled."""

    policy: str
    """Its folder."""
    policy_id: str
    update: int
    """Trainer updates behind the weights."""
    task: str
    repository: str
    commit: str
    """Of the repository."""
    new_bytes: int
    """Bytes that were downloaded now."""


def pull_policy(config: PullPolicyConfig) -> PullPolicyResult:
    """Make a copy of a policy; it appears when it is whole.

    Raises:
        PolicyError: there is none, or it is not what it promises to be.
        DatasetError: the Hub does not deliver it, the output exists, or there is no room. What was
            downloaded is not downloaded again.
    """
    repository = HubRepository(config.name, "model")
    revision = HubRevision(repository, repository.find_head(config.name.revision))
    description = _read_there(revision)
    target = config.target
    came = 0
    if not _is_here(revision, target):
        refuse_existing(target)
        came = _make_copy(revision, description, target)
    return PullPolicyResult(
        policy=str(target),
        policy_id=description.policy_id,
        update=description.update,
        task=description.schema.tasks[0].name,
        repository=str(config.name),
        commit=revision.commit,
        new_bytes=came,
    )


def _read_there(revision: HubRevision) -> "PolicyDescription":
    from retold.policy.snapshot import parse_description

    where = revision.where("policy.json")
    if "policy.json" not in revision.files:
        hint = ""
        if "dataset.json" in revision.files:
            hint = " It holds a dataset: use `retold pull`."
        raise PolicyError(
            f"{where}: there is no policy of Retold's here (policy.json is missing).{hint} Look at "
            f"the repository."
        )
    return parse_description(revision.read_file("policy.json", LARGEST_DESCRIPTION), where)


def _is_here(revision: HubRevision, target: Path) -> bool:
    """Whether the output is this very policy already.

    Raises:
        PolicyError: it is, but it was damaged.
    """
    from retold.policy.snapshot import load_snapshot

    path = target / "policy.json"
    if not path.is_file() or not revision.files["policy.json"].holds_bytes(path.read_bytes()):
        return False
    load_snapshot(target)
    return True


def _make_copy(revision: HubRevision, description: "PolicyDescription", target: Path) -> int:
    """Fetch what is missing aside, check it, and give it its name; bytes that came."""
    from retold.policy.snapshot import load_snapshot

    size = _check_weights(revision, description)
    aside = target.with_name(f".{target.name}.pull")
    refuse_links(aside)
    with _telling_disk(aside):
        known = aside / "policy.json"
        there = revision.files["policy.json"]
        if known.is_file() and not there.holds_bytes(known.read_bytes()):
            shutil.rmtree(aside)  # left by an interrupted pull of another
        aside.mkdir(parents=True, exist_ok=True)
        came = keep_file(revision, "policy.json", aside / "policy.json", LARGEST_DESCRIPTION)
        for name, limit in _EXTRAS.items():
            if name in revision.files and revision.files[name].size <= limit:
                came += keep_file(revision, name, aside / name, limit)
            else:
                (aside / name).unlink(missing_ok=True)
        _check_room(revision, aside, size)
        came += revision.download(_WEIGHTS, aside / _WEIGHTS, size, description.weights_sha256)
        try:
            load_snapshot(aside)
        except PolicyError as error:
            shutil.rmtree(aside)
            raise PolicyError(
                f"{revision.where(_WEIGHTS)}: these are no weights of what policy.json describes. They "
                f"were not kept; do not use this repository."
            ) from error
        refuse_existing(target)
        os.rename(aside, target)
        sync_folder(target.parent)
    return came


def _check_weights(revision: HubRevision, description: "PolicyDescription") -> int:
    """The size of the weights, which must be what the architecture asks for.

    Raises:
        PolicyError: it is not; nothing was downloaded.
    """
    from retold.policy.snapshot import measure_weights

    where = revision.where(_WEIGHTS)
    file = revision.files.get(_WEIGHTS)
    if file is None:
        raise PolicyError(
            f"{where}: the file is missing. Do not use this repository until its owner has pushed "
            f"again."
        )
    needed = measure_weights(description, revision.where("policy.json"))
    if not needed < file.size <= needed + _HEADER_BYTES:
        raise PolicyError(
            f"{where}: it has {file.size:,} bytes, but the architecture in policy.json asks for "
            f"{needed:,}. Nothing was downloaded; do not use this repository."
        )
    if file.sha256 is not None and file.sha256 != description.weights_sha256:
        raise PolicyError(
            f"{where}: these are not the weights that policy.json names (their hash differs). "
            f"Nothing was downloaded; do not use this repository until its owner has pushed again."
        )
    return file.size


def _check_room(revision: HubRevision, aside: Path, size: int) -> None:
    free = shutil.disk_usage(aside).free
    if size > free:
        raise PolicyError(
            f"{revision.where(_WEIGHTS)}: it has {size:,} bytes, but {aside} has room for "
            f"{free:,}. It was not downloaded; make room, then run again."
        )


@contextmanager
def _telling_disk(aside: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PolicyError(
            f"{error.filename or aside}: it cannot be written: {error.strerror}. Make room or choose "
            f"another place, then run the same command again."
        ) from error
