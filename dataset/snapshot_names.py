"""`DATASET@12` and `DATASET@name`: a dataset as one of its commits, or a tag, left it."""

import re
from collections.abc import Sequence
from pathlib import Path

from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, split_snapshot
from retold.schemas.commit import Commit, Snapshot
from retold.schemas.errors import ConflictError, DatasetError, UsageError

TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
"""A tag begins with a letter: what begins with a digit is a commit's number."""


def open_log(path: DatasetPath) -> tuple[CommitLog, Snapshot | None]:
    """The log of `DATASET` or `DATASET@12`, and the snapshot that is meant: the head without `@`.

    Raises:
        DatasetError: there is no dataset, or no such snapshot.
    """
    folder, name = split_snapshot(path)
    log = CommitLog.open(folder)
    return log, log.head() if name is None else find_snapshot(log, name)


def open_log_to_write(path: DatasetPath) -> CommitLog:
    """The log of a dataset that a command is about to change.

    Raises:
        UsageError: a snapshot is given, which never changes.
    """
    folder, name = split_snapshot(path)
    if name is not None:
        raise UsageError(f"{path}: a snapshot never changes. Give {folder} itself.")
    return CommitLog.open(folder)


def find_snapshot(log: CommitLog, name: str) -> Snapshot:
    """The snapshot of a commit's number or a tag.

    Raises:
        DatasetError: there is none.
    """
    if re.fullmatch(r"[0-9]{1,9}", name):
        return log.snapshot(int(name))
    tags = read_tags(log)
    if name not in tags:
        known = f"its tags are {', '.join(tags)}" if tags else "it has no tags"
        raise DatasetError(
            f"{log.path}: there is no snapshot {name!r}; {known}. Give a commit's number or a tag; "
            f"list both with `retold log {log.path}`."
        )
    return tags[name]


def refuse_dropped(log: CommitLog, snapshot: Snapshot) -> None:
    """Refuse an older snapshot whose shards are no longer there.

    Raises:
        DatasetError: `gc` dropped some of them, or they are missing.
    """
    live = {entry.shard_id for entry in log.live_shards()}
    missing = [e.shard_id for e in log.live_shards(snapshot.number) if e.shard_id not in live]
    missing = [shard_id for shard_id in missing if not _is_there(log.path, shard_id)]
    if not missing:
        return
    drops = [c for c in log.commits() if missing[0] in c.details.get("dropped", ())]
    reason = f"`gc` dropped it in commit {drops[-1].number}" if drops else "it is missing"
    raise DatasetError(
        f"{log.path}: snapshot {snapshot.number} needs shard {missing[0]}, but {reason}. Choose a "
        f"newer snapshot; keep others with `retold tag`."
    )


def _is_there(dataset: DatasetPath, shard_id: str) -> bool:
    path = dataset / "shards" / shard_id[:2] / shard_id
    return path.is_dir() if isinstance(path, Path) else (path / "manifest.json").exists()


def read_tags(log: CommitLog) -> dict[str, Snapshot]:
    """Every tag of a dataset. Tags stand in the log, so that they never move."""
    return {
        commit.details["tag"]: Snapshot.from_json(commit.details["snapshot"])
        for commit in log.commits()
        if commit.operation == "tag"
    }


def add_tag(log: CommitLog, name: str, snapshot: Snapshot) -> Snapshot:
    """Give a snapshot a name for good; the snapshot that the tag's own commit makes.

    A tag that names this snapshot already is left as it is.

    Raises:
        UsageError: the name cannot be a tag.
        DatasetError: the name is that of another snapshot.
    """
    if TAG_NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot be a tag. Begin with a letter; letters, digits, '.', '_' and '-' may "
            f"follow, up to 64 of them."
        )
    while True:
        base = log.head()
        known = read_tags(log).get(name)
        if known is not None and known != snapshot:
            raise DatasetError(
                f"{log.path}: tag {name!r} names commit {known.number} for good. Choose another "
                f"name for commit {snapshot.number}."
            )
        if known is not None and base is not None:
            return base
        try:
            return log.append(
                operation="tag",
                base=base,
                details={"tag": name, "snapshot": snapshot.to_json()},
                check=lambda since: _refuse_same(log, since, name),
            )
        except ConflictError:
            continue


def _refuse_same(log: CommitLog, since: Sequence[Commit], name: str) -> None:
    for commit in since:
        if commit.operation == "tag" and commit.details["tag"] == name:
            raise ConflictError(f"{log.path}: another process made tag {name!r}. Run again.")
