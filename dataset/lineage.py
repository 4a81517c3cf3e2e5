"""Where a dataset comes from: what it refers to, what it was made of, and theirs in turn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.sources import find_source
from retold.schemas.commit import Commit, Snapshot
from retold.schemas.errors import FormatError, RetoldError

_DEEPEST = 32


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """One dataset that another comes from."""

    generation: int
    """1 for what the dataset itself comes from, 2 for what those come from …"""
    relation: str
    """`source` (variants refer to its arrays) or `parent` (episodes were copied from it)."""
    dataset_id: str
    snapshot: int
    """The newest of its snapshots that was recorded."""
    path: str | None
    """Where it is now; None if nowhere where a commit says."""
    operations: Mapping[str, int]
    """How many commits of each kind made that snapshot; empty where it was not found."""
    used_by: str
    """The newest command that took from it."""
    lost: str | None
    """Why it was not found."""


def trace_lineage(
    log: CommitLog, through: int, moved: Mapping[str, DatasetPath]
) -> tuple[Ancestor, ...]:
    """All that a snapshot comes from, each dataset once, whoever it leads to right after it.

    Args:
        log: of the dataset.
        through: number of the snapshot.
        moved: where sources have moved, by dataset id.
    """
    return tuple(_trace(log, through, moved, 1, {log.dataset_id}))


def _trace(
    log: CommitLog,
    through: int,
    moved: Mapping[str, DatasetPath],
    generation: int,
    seen: set[str],
) -> Iterator[Ancestor]:
    taken: dict[str, tuple[str, Snapshot, Commit]] = {}
    for commit in log.commits(through):
        for snapshot in _parents(log, commit):
            taken[snapshot.dataset_id] = ("parent", snapshot, commit)
        for dataset_id, entry in commit.sources.items():
            taken[dataset_id] = ("source", entry.snapshot, commit)
    for dataset_id, (relation, snapshot, commit) in taken.items():
        if dataset_id in seen:
            continue
        seen.add(dataset_id)
        facts: dict[str, Any] = {"path": None, "operations": {}, "lost": None}
        found: CommitLog | None = None
        if relation == "source":
            try:
                place = find_source(log, through, dataset_id, moved.get(dataset_id))
                found = CommitLog.open(place)
                kinds = Counter(made.operation for made in found.commits(snapshot.number))
                facts |= {"path": str(place), "operations": dict(kinds)}
            except RetoldError as error:
                facts["lost"] = str(error)
        else:
            facts["lost"] = "its place is not recorded, since nothing of it is needed any more"
        yield Ancestor(
            generation=generation,
            relation=relation,
            dataset_id=dataset_id,
            snapshot=snapshot.number,
            used_by=commit.command,
            **facts,
        )
        if found is not None and generation < _DEEPEST:
            yield from _trace(found, snapshot.number, moved, generation + 1, seen)


def _parents(log: CommitLog, commit: Commit) -> list[Snapshot]:
    """The snapshots that a commit copied episodes from."""
    try:
        return [Snapshot.from_json(parent) for parent in commit.details.get("parents", ())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{log.path}: commit {commit.number}: its parents are no snapshots. Restore the commit "
            f"from a copy of the dataset."
        ) from error
