"""The files of a commit log: read with every check there is, and published exclusively."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from retold.dataset.files import create_exclusively, list_names, replace_atomically
from retold.dataset.paths import AnyPath, DatasetPath, path_inside
from retold.dataset.remote_path import RemotePath
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Commit, ShardEntry
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


def read_commits_ahead(dataset: DatasetPath, numbers: Sequence[int]) -> dict[int, bytes | None]:
    """Files of commits, asked for at once where they lie on a store; None where there is none.

    On disk no number is answered: reading the files in turn takes no longer.
    """
    if isinstance(dataset, Path) or not numbers:
        return {}
    folder = path_inside(dataset, "commits")
    names = {number: f"{number:08d}.json" for number in numbers}
    try:
        found = folder.read_files(list(names.values()))
    except OSError:  # whoever reads the file says so
        return {}
    return {number: found.get(name) for number, name in names.items()}


def read_tail(
    dataset: RemotePath, dataset_id: str, start: int, end: int
) -> tuple[int | None, dict[int, bytes | None]]:
    """What `LATEST` says, and the files of commits that are there from `start` on, in one go or two.

    Args:
        dataset: its folder, on a store.
        dataset_id: the dataset's.
        start: the first number.
        end: the last number that is asked for at first, with `LATEST`, which may name more.

    Returns:
        The number in `LATEST`, and contents by number; None for one that is not there. Nothing if the
        store does not answer: whoever reads the files says so.
    """
    names = {number: f"commits/{number:08d}.json" for number in range(start, end + 1)}
    try:
        found = dataset.read_files(["LATEST", *names.values()])
    except OSError:
        return read_latest(dataset, dataset_id), {}
    latest = decode_latest(found.get("LATEST", b""), dataset_id)
    ahead = {number: found.get(name) for number, name in names.items()}
    more = range(end + 1, 0 if latest is None else latest + 2)
    return latest, ahead | read_commits_ahead(dataset, more)


def publish_commit(dataset: DatasetPath, commit: Commit) -> bool:
    """Whether a commit became the commit of its number; it is durable then.

    On a store the reply may be lost, and the second try find the first: if not, see whose it is.

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
        write_latest(dataset, commit)
    return is_ours


def write_latest(dataset: DatasetPath, commit: Commit) -> None:
    """Say that a commit is there: a hint only, from which readers look for the next number."""
    replace_atomically(dataset / "LATEST", encode_latest(commit.dataset_id, commit.number))


def encode_latest(dataset_id: str | None, number: int) -> bytes:
    """The content of `LATEST`: a number, and digits by which a damaged one is told."""
    return f"{number} {sha256_hex(f'{dataset_id} {number}'.encode())[:16]}\n".encode()


def read_latest(dataset: DatasetPath, dataset_id: str) -> int | None:
    """The number in `LATEST`; None if it is missing, damaged, or written without check digits."""
    try:
        content = path_inside(dataset, "LATEST").read_bytes()
    except OSError:
        return None
    return decode_latest(content, dataset_id)


def decode_latest(content: bytes, dataset_id: str) -> int | None:
    """The number in the content of `LATEST`; None if it is damaged."""
    match = re.fullmatch(rb"([0-9]{1,9}) [0-9a-f]{16}\n", content)
    number = int(match[1]) if match else -1
    return number if content == encode_latest(dataset_id, number) else None


def check_reaches_latest(
    dataset: DatasetPath, dataset_id: str, count: int, latest: int | None = None
) -> bool:
    """Whether the log of `count` commits ends where `LATEST` says; False: more is there by now.

    Args:
        dataset: its folder.
        dataset_id: the dataset's.
        count: how many commits were read.
        latest: what `LATEST` said before they were; it is read if None.

    Raises:
        FormatError: a commit that was there is missing.
    """
    if latest is None:
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


def apply_commit(live: dict[str, ShardEntry], commit: Commit, dataset: DatasetPath) -> None:
    """Take a commit's shards out of and into the live ones.

    Raises:
        FormatError: it removes a shard that is not live, or adds one that is.
    """
    path = commit_path(dataset, commit.number)
    for shard_id in commit.removed:
        if live.pop(shard_id, None) is None:
            raise FormatError(
                f"{path}: it removes shard {shard_id}, which is not live. Restore the log from a "
                f"copy of the dataset."
            )
    for entry in commit.added:
        if entry.shard_id in live:
            raise FormatError(
                f"{path}: it adds shard {entry.shard_id}, which is already live. Restore the log "
                f"from a copy of the dataset."
            )
        live[entry.shard_id] = entry
