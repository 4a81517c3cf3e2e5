"""`retold log`, `retold diff` and `retold tag`: what was done to a dataset, and its named snapshots."""

from dataclasses import dataclass
from typing import Any

from retold.dataset.divergence import find_divergence
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.snapshot_names import add_tag, open_log, read_tags
from retold.schemas.commit import Commit
from retold.schemas.errors import DatasetError


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What `retold log` is asked."""

    dataset: DatasetPath
    """Dataset whose commits are listed, or a snapshot (`DATASET@12`), for those that led to it."""


@dataclass(frozen=True, kw_only=True)
class CommitLine:
    """One commit, in a line."""

    number: int
    time: str
    operation: str
    added: int
    """Episodes in the shards that came."""
    removed: int
    """Shards that left."""
    tags: str
    """Names of the snapshot that it made."""
    command: str


@dataclass(frozen=True, kw_only=True)
class LogResult:
    """The history of a dataset."""

    dataset: str
    dataset_id: str
    commits: tuple[CommitLine, ...]
    """The newest first."""


def list_commits(config: LogConfig) -> LogResult:
    """Every commit of a dataset, the newest first.

    Raises:
        DatasetError: there is no dataset.
    """
    log, snapshot = open_log(config.dataset)
    tags: dict[int, list[str]] = {}
    for name, tagged in read_tags(log).items():
        tags.setdefault(tagged.number, []).append(name)
    commits = [] if snapshot is None else list(log.commits(snapshot.number))
    return LogResult(
        dataset=str(log.path),
        dataset_id=log.dataset_id,
        commits=tuple(_line(commit, tags.get(commit.number, [])) for commit in reversed(commits)),
    )


@dataclass(frozen=True, kw_only=True)
class DiffConfig:
    """What `retold diff` is asked."""

    one: DatasetPath
    """Dataset, or snapshot (`DATASET@12`), to start from."""
    two: DatasetPath
    """Dataset, or snapshot, to compare with it."""


@dataclass(frozen=True, kw_only=True)
class DiffResult:
    """In what two snapshots differ."""

    one: str
    two: str
    only_one: int
    """Episodes that only the first holds."""
    only_two: int
    changed: int
    """Episodes of one id whose rows differ."""
    same: int
    history: str
    """How the logs belong together."""
    episodes: tuple[dict[str, Any], ...]
    """What became of each episode that is not the same."""


def diff(config: DiffConfig) -> DiffResult:
    """The episodes in which two snapshots differ, by id.

    Raises:
        DatasetError: there is no dataset, or no such snapshot.
    """
    with DatasetReader.open(config.one) as one, DatasetReader.open(config.two) as two:
        rows = [_rows_by_id(reader) for reader in (one, two)]
        history = _describe_history(one, two)
    differing = [
        {
            "episode": episode_id,
            "change": "removed" if episode_id not in rows[1] else "added",
        }
        for episode_id in [*rows[0], *rows[1]]
        if (episode_id in rows[0]) != (episode_id in rows[1])
    ]
    both = rows[0].keys() & rows[1].keys()
    changed = sorted(
        episode_id for episode_id in both if rows[0][episode_id] != rows[1][episode_id]
    )
    return DiffResult(
        one=str(config.one),
        two=str(config.two),
        only_one=len(rows[0].keys() - both),
        only_two=len(rows[1].keys() - both),
        changed=len(changed),
        same=len(both) - len(changed),
        history=history,
        episodes=(*differing, *({"episode": name, "change": "changed"} for name in changed)),
    )


@dataclass(frozen=True, kw_only=True)
class TagConfig:
    """What `retold tag` is asked."""

    dataset: DatasetPath
    """Dataset whose newest snapshot is tagged, or the snapshot (`DATASET@12`)."""
    name: str
    """The tag. It never moves, and `gc` keeps what it names."""


@dataclass(frozen=True, kw_only=True)
class TagResult:
    """What the name stands for."""

    dataset: str
    tag: str
    snapshot: int
    """The commit that it names."""
    sha256: str


def tag(config: TagConfig) -> TagResult:
    """Give a snapshot a name for good; `DATASET@NAME` reads it.

    Raises:
        DatasetError: the name is another snapshot's, or nothing has been committed.
    """
    log, snapshot = open_log(config.dataset)
    if snapshot is None:
        raise DatasetError(
            f"{config.dataset}: nothing has been committed yet, so there is nothing to tag. Fill "
            f"the dataset first."
        )
    add_tag(log, config.name, snapshot)
    return TagResult(
        dataset=str(log.path), tag=config.name, snapshot=snapshot.number, sha256=snapshot.sha256
    )


def _line(commit: Commit, tags: list[str]) -> CommitLine:
    return CommitLine(
        number=commit.number,
        time=commit.time,
        operation=commit.operation,
        added=sum(entry.episodes for entry in commit.added),
        removed=len(commit.removed),
        tags=" ".join(sorted(tags)),
        command=commit.command,
    )


def _rows_by_id(reader: DatasetReader) -> dict[str, dict[str, Any]]:
    """Episodes by id, without where they lie."""
    placement = ("offset", "event_offset", "event_count")
    table = reader.table.drop_columns(list(placement))
    return {row["episode_id"]: row for row in table.to_pylist()}


def _describe_history(one: DatasetReader, two: DatasetReader) -> str:
    if one.dataset_id != two.dataset_id:
        return "two datasets"
    parted = find_divergence(one.log, two.log)
    if parted is not None and parted.number <= min(one.snapshot.number, two.snapshot.number):
        return f"copies that went different ways at commit {parted.number}"
    return f"one dataset, commits {one.snapshot.number} and {two.snapshot.number}"
