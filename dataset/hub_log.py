"""The log of a dataset on the Hub, fetched and checked before anything that it names."""

import re
from pathlib import Path

from retold.dataset.commit_files import encode_latest
from retold.dataset.files import replace_atomically
from retold.dataset.hub_revision import HubRevision
from retold.dataset.log import CommitLog
from retold.schemas.errors import DatasetError

LARGEST_CARD = 1_000_000
LARGEST_DESCRIPTION = 100_000
"""Of `dataset.json`."""
LARGEST_COMMIT = 64_000_000
LARGEST_LOG = 1_000_000_000
"""Commits, in bytes: more than any log has, and less than what harms a machine."""
_COMMIT = re.compile(r"([0-9]{8})\.json")


def fetch_log(
    revision: HubRevision, place: str, folder: Path, known: Path | None = None
) -> CommitLog:
    """Write a dataset's `dataset.json`, commits and `LATEST` into a folder, and read them.

    Args:
        revision: of the repository.
        place: the dataset's folder in it, with a `/` at the end, or nothing.
        folder: on this machine; what is there already and equal is not asked for.
        known: an older copy, whose equal files are not asked for either.

    Raises:
        DatasetError: there is no dataset.
        FormatError: something is damaged, or larger than it may be.
    """
    if f"{place}dataset.json" not in revision.files:
        raise DatasetError(
            f"{revision.where(place)}: there is no dataset here (dataset.json is missing). Look at "
            f"the repository; `datasets.load_dataset` reads what others keep there."
        )
    names = {
        int(match[1]): f"{place}commits/{match[0]}"
        for name in revision.folders.get(f"{place}commits", ())
        if (match := _COMMIT.fullmatch(name))
    }
    numbers = [number for number in range(len(names)) if number in names]
    total = sum(revision.files[names[number]].size for number in numbers)
    if total > LARGEST_LOG:
        raise DatasetError(
            f"{revision.where(place)}: its commits have {total:,} bytes, but {LARGEST_LOG:,} is the "
            f"most that is read. Nothing was downloaded; do not use this repository."
        )
    (folder / "commits").mkdir(parents=True, exist_ok=True)
    for path in (folder / "commits").iterdir():  # left by a pull of a newer release
        match = _COMMIT.fullmatch(path.name)
        if match is None or int(match[1]) not in numbers:
            path.unlink()
    wanted = {"dataset.json": LARGEST_DESCRIPTION}
    wanted |= {f"commits/{number:08d}.json": LARGEST_COMMIT for number in numbers}
    for name, limit in wanted.items():
        copy = None if known is None else known / name
        keep_file(revision, f"{place}{name}", folder / name, limit, copy)
    log = CommitLog.open(folder, from_checkpoint=False)
    head = log.head()
    if head is None:
        raise DatasetError(f"{revision.where(place)}: nothing was committed to this dataset yet.")
    replace_atomically(folder / "LATEST", encode_latest(log.dataset_id, head.number))
    return log


def keep_file(
    revision: HubRevision, path: str, target: Path, limit: int, known: Path | None = None
) -> int:
    """Have a small file on this machine; bytes that came.

    Args:
        revision: of the repository.
        path: of the file in it.
        target: where it shall be.
        limit: bytes that it may have.
        known: where an equal one may be.
    """
    file = revision.files.get(path)
    for place in (target, known):
        if file is None or place is None or not place.is_file():
            continue
        content = place.read_bytes()
        if file.holds_bytes(content):
            if place is not target:
                _put(target, content)
            return 0
    content = revision.read_file(path, limit)
    _put(target, content)
    return len(content)


def _put(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(target, content)
