"""The files of a commit log: read with every check there is, and published exclusively."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from retold.dataset.files import create_exclusively, list_names, replace_atomically
from retold.dataset.paths import AnyPath, DatasetPath, path_inside
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Commit
from retold.schemas.errors import DatasetError, FormatError
from retold.schemas.faults import reach

logger = logging.getLogger(__name__)

_RESTORE = (
    "Restore it from a copy of the dataset, or save what is sound with `retold repair DATASET NEW`"
)


def commit_path(dataset: AnyPath, number: int) -> AnyPath:
    """The file of a commit."""
    return dataset / "commits" / f"{number:08d}.json"


def read_commit(
    dataset: DatasetPath,
    number: int,
    dataset_id: str,
    parent_sha256: str | None,
    encoded: bytes | None = None,
) -> tuple[Commit, str] | None:
    """A commit and the hash of its file; None if there is no such commit.

    Args:
        dataset: its folder.
        number: of the commit.
        dataset_id: the dataset's.
        parent_sha256: what the commit must name as the one before; the empty string: anything.
        encoded: the content of its file, if that has been read.

    Raises:
        FormatError: the file is damaged, or does not follow from the commit before.
    """
    path = path_inside(dataset, "commits", f"{number:08d}.json")
    try:
        encoded = path.read_bytes() if encoded is None else encoded
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetError(
            f"{path}: it cannot be read: {error.strerror}. Check its permissions."
        ) from error
    try:
        commit = Commit.decode(str(path), encoded)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path}: this commit is damaged. {_RESTORE}.") from error
    if commit.dataset_id not in (None, dataset_id):
        raise FormatError(
            f"{path}: it belongs to dataset {commit.dataset_id}, but {dataset / 'dataset.json'} "
            f"says {dataset_id}. {_RESTORE}."
        )
    if commit.number != number or parent_sha256 not in ("", commit.parent_sha256):
        raise FormatError(
            f"{path}: it does not follow from the commit before it (its parent's hash differs). "
            f"Restore both from a copy of the dataset, or save what is sound with `retold repair "
            f"DATASET NEW`."
        )
    return commit, sha256_hex(encoded)


def read_commits_ahead(dataset: DatasetPath, numbers: Sequence[int]) -> dict[int, bytes]:
    """Files of commits, asked for at once where they lie on a store; what is missing is left out.

    On disk there are none: reading them in turn takes no longer.
    """
    if isinstance(dataset, Path) or not numbers:
        return {}
    folder = path_inside(dataset, "commits")
    try:
        found = folder.read_files([f"{number:08d}.json" for number in numbers])
    except OSError:  # whoever reads the file says so
        return {}
    return {int(name.partition(".")[0]): content for name, content in found.items()}


def publish_commit(dataset: DatasetPath, commit: Commit) -> bool:
    """Whether a commit became the commit of its number; it is durable then.

    Raises:
        DatasetError: the file system refuses; nothing was changed.
    """
    path = path_inside(dataset, "commits", f"{commit.number:08d}.json")
    reach("commit-before")
    try:
        is_ours = create_exclusively(path, commit.encoded, fault="commit-inside")
    except OSError as error:
        # The reply may be lost although the commit was made: then it is there, and ours.
        if path.exists() and path.read_bytes() == commit.encoded:
            logger.warning("%s: committed, but the disk said: %s.", path, error)
            return True
        raise DatasetError(
            f"{path}: the commit cannot be written: {error.strerror}. Nothing was changed; "
            f"free space, or choose a folder with hard links or a store that can be written, then "
            f"run again."
        ) from error
    reach("commit-after")
    if is_ours:
        # A hint only: readers look for the next number from here on.
        replace_atomically(dataset / "LATEST", encode_latest(commit.dataset_id, commit.number))
    return is_ours


def encode_latest(dataset_id: str | None, number: int) -> bytes:
    """The content of `LATEST`: a number, and digits by which a damaged one is told."""
    return f"{number} {sha256_hex(f'{dataset_id} {number}'.encode())[:16]}\n".encode()


def read_latest(dataset: DatasetPath, dataset_id: str) -> int | None:
    """The number in `LATEST`; None if it is missing, damaged, or written without check digits."""
    try:
        content = path_inside(dataset, "LATEST").read_bytes()
    except OSError:
        return None
    match = re.fullmatch(rb"([0-9]{1,9}) [0-9a-f]{16}\n", content)
    number = int(match[1]) if match else -1
    return number if content == encode_latest(dataset_id, number) else None


def check_reaches_latest(dataset: DatasetPath, dataset_id: str, count: int) -> bool:
    """Whether the log of `count` commits ends where `LATEST` says; False: more is there by now.

    Raises:
        FormatError: a commit that was there is missing.
    """
    latest = read_latest(dataset, dataset_id)
    if latest is None or latest < count:
        return True
    # Listing the folder makes a network file system look again.
    if commit_path(dataset, count).name in list_names(dataset / "commits"):
        return False
    raise FormatError(
        f"{commit_path(dataset, count)}: this commit is missing, but {dataset / 'LATEST'} says "
        f"that there are {latest + 1}. {_RESTORE}."
    )
