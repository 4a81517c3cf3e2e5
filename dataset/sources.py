"""Finding the datasets that variants refer to."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retold.dataset.hub_names import HUB_PROTOCOL
from retold.dataset.hub_origin import SOURCES_FOLDER, pulled_through
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, dataset_path, is_plain_path, split_snapshot
from retold.dataset.remote_path import RemotePath, is_url
from retold.schemas.commit import SourceEntry
from retold.schemas.errors import DatasetError, RetoldError, UsageError


@dataclass(frozen=True, kw_only=True)
class SourceFlag:
    """The flag of every command that reads variants through the datasets they refer to."""

    source: tuple[str, ...] = ()
    """OLD=NEW: where a dataset that variants refer to has moved; OLD is its id or recorded location."""

    def moved(self, *datasets: DatasetPath) -> dict[str, DatasetPath]:
        """Where the sources of some datasets have moved, by dataset id."""
        return parse_moved(self.source, datasets)


def find_source(
    log: CommitLog, through: int, dataset_id: str, moved_to: DatasetPath | None
) -> DatasetPath:
    """Where a source dataset is now.

    Its recorded locations are tried in order, relative ones against the referring dataset. A place
    counts only if the dataset there has the id and, at the recorded number, the recorded commit.

    Args:
        log: log of the dataset that refers.
        through: newest commit to look at.
        dataset_id: the source.
        moved_to: where the user says it is; tried alone if given.

    Raises:
        DatasetError: it is at none of the places; both datasets are named.
    """
    entries = {
        commit.number: commit.sources[dataset_id]
        for commit in log.commits(through)
        if dataset_id in commit.sources
    }
    if not entries:
        raise DatasetError(
            f"{log.path}: it refers to dataset {dataset_id}, but no commit says where that is. "
            f"The log was damaged; restore it from a copy of the dataset."
        )
    reasons: list[str] = []
    pulled = pulled_through(log.path)
    for number, entry in reversed(entries.items()):
        known = _places(log.path, entry, is_foreign=number <= pulled)
        for place in known if moved_to is None else [moved_to]:
            reason = _why_not(place, entry)
            if reason is None:
                return place
            reasons.append(reason)
    raise DatasetError(
        f"{log.path}: the dataset {dataset_id} that its variants refer to was not found: "
        f"{'; '.join(dict.fromkeys(reasons))}. Put it back beside this dataset, or say "
        f"where it is with --source OLD=NEW."
    )


def parse_moved(texts: Sequence[str], datasets: Sequence[DatasetPath]) -> dict[str, DatasetPath]:
    """Where sources have moved, by dataset id, from texts such as `OLD=NEW`.

    Args:
        texts: OLD is a source's dataset id, or a location that a commit records or leads to.
        datasets: those whose variants may refer to it.

    Raises:
        UsageError: a text is no pair, or no dataset refers to its OLD.
    """
    known: dict[str, str] = {}
    for path in datasets if texts else ():
        folder, _ = split_snapshot(path)
        for commit in CommitLog.open(folder).commits():
            for dataset_id, entry in commit.sources.items():
                names = (dataset_id, *entry.locations, *map(str, _places(folder, entry)))
                known |= dict.fromkeys(names, dataset_id)
    moved: dict[str, DatasetPath] = {}
    for text in texts:
        old, separator, new = text.partition("=")
        if not (old and separator and new):
            raise UsageError(f"--source is {text!r}, but a moved source is written OLD=NEW.")
        if old not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"--source is {text!r}, but no variant refers to {old}. What they refer to: {listed}."
            )
        moved[known[old]] = dataset_path(new)
    return moved


def source_locations(source: DatasetPath, referrer: DatasetPath) -> tuple[str, ...]:
    """Where a source is, as a commit records it: first seen from who refers to it, then in full.

    Two datasets that are moved together so still find each other.
    """
    absolute = str(source.resolve())
    relative: str | None = None
    if isinstance(source, RemotePath) and isinstance(referrer, RemotePath):
        relative = source.location_from(referrer)
    elif isinstance(source, Path) and isinstance(referrer, Path):
        relative = os.path.relpath(absolute, referrer.resolve())
    return (absolute,) if relative is None else (relative, absolute)


def explain_dangling(
    referrer: DatasetPath,
    episode_id: str,
    source_episode_id: str,
    source: DatasetPath,
    source_dataset_id: str,
) -> str:
    """What to say of a variant whose source is not there."""
    return (
        f"{referrer}: episode {episode_id} refers to episode {source_episode_id} of {source} "
        f"(dataset {source_dataset_id}), where it is not live. Evict the variant, or restore its "
        f"source."
    )


def _places(
    referrer: DatasetPath, entry: SourceEntry, *, is_foreign: bool = False
) -> list[DatasetPath]:
    """Where a source may be, seen from who refers: what was pushed along, and recorded locations.

    Args:
        referrer: the dataset that refers.
        entry: of the source.
        is_foreign: the commit came from the Hub: what it says of places outside the dataset is
            nobody's word on this machine. Other repositories are trusted no less than this one.
    """
    places: list[DatasetPath] = []
    along = referrer.joinpath(SOURCES_FOLDER, entry.snapshot.dataset_id)
    if (along / "dataset.json").exists():
        places.append(along)
    for location in entry.locations:
        is_on_hub = location.startswith(f"{HUB_PROTOCOL}://")
        if is_foreign and not is_on_hub and not is_plain_path(location):
            continue
        if is_url(location) or os.path.isabs(location):
            places.append(dataset_path(location))
        elif isinstance(referrer, Path):
            places.append((referrer / location).resolve())
        else:
            with suppress(UsageError):  # it leads out of the store
                places.append(referrer.follow(location))
    return places


def _why_not(place: DatasetPath, entry: SourceEntry) -> str | None:
    """Why a place does not hold the source, or None if it does."""
    if not (place / "dataset.json").exists():
        return f"{place} is no dataset"
    try:
        log = CommitLog.open(place)
        if log.dataset_id != entry.snapshot.dataset_id:
            return f"{place} is dataset {log.dataset_id}"
        if log.snapshot(entry.snapshot.number).sha256 != entry.snapshot.sha256:
            return f"{place} has another commit {entry.snapshot.number}"
    except RetoldError as error:
        return str(error)
    return None
