"""What can be told of a damaged log: its commits up to the first damage, and what was live at its end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from retold.dataset.commit_files import commit_path, read_latest
from retold.dataset.dataset_file import read_dataset_id
from retold.dataset.files import list_names
from retold.dataset.paths import DatasetPath, path_inside
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Commit, ShardEntry, Snapshot, SourceEntry
from retold.schemas.errors import DatasetError, FormatError, RetoldError


@dataclass(frozen=True)
class SoundLog:
    """The sound part of a log."""

    dataset_id: str
    commits: tuple[bytes, ...]
    """Files of commits 0 to the last before the first damage."""
    snapshot: Snapshot
    """The one that the newest readable commit made."""
    shards: tuple[ShardEntry, ...]
    """Live after all commits that can be read."""
    sources: Mapping[str, SourceEntry]
    """Of commits after the first damage."""
    left: tuple[str, ...]
    """What is damaged."""


def read_sound_log(dataset: DatasetPath) -> SoundLog:
    """The sound part of a dataset's log.

    Raises:
        DatasetError: no commit can be read.
    """
    files, left = _read_files(dataset)
    dataset_id = _find_dataset_id(dataset, files, left)
    foreign = [n for n, (commit, _) in files.items() if commit.dataset_id not in (None, dataset_id)]
    for number in foreign:
        left.append(f"{commit_path(dataset, number)}: it belongs to another dataset")
        del files[number]
    _drop_disowned(dataset, files, left)
    end = max(files, default=-1)
    latest = read_latest(dataset, dataset_id)
    for number in range(max(end, -1 if latest is None else latest) + 1):
        path = commit_path(dataset, number)
        if number not in files and not any(str(path) in what for what in left):
            left.append(f"{path}: this commit is missing")
    if not files:
        raise DatasetError(f"{dataset}: no commit can be read, so there is nothing to save.")
    prefix = next((n for n in range(end + 1) if n not in files), end + 1)
    live: dict[str, ShardEntry] = {}
    sources: dict[str, SourceEntry] = {}
    for number in sorted(files):
        commit = files[number][0]
        for shard_id in commit.removed:
            live.pop(shard_id, None)
        live |= {entry.shard_id: entry for entry in commit.added}
        if number > prefix:
            sources |= commit.sources
    return SoundLog(
        dataset_id=dataset_id,
        commits=tuple(files[number][1] for number in range(prefix)),
        snapshot=Snapshot(dataset_id, end, sha256_hex(files[end][1])),
        shards=tuple(live.values()),
        sources=sources,
        left=tuple(left),
    )


def _read_files(dataset: DatasetPath) -> tuple[dict[int, tuple[Commit, bytes]], list[str]]:
    """Commits that can be read, each on its own, by number; and what is wrong with the others."""
    folder = path_inside(dataset, "commits")
    names = list_names(folder)
    if not names:
        raise DatasetError(f"{dataset}: there is no dataset here (it has no commits).")
    files: dict[int, tuple[Commit, bytes]] = {}
    left: list[str] = []
    for name in names:
        match = re.fullmatch(r"([0-9]{8})\.json", name)
        if not match:
            continue
        path = path_inside(folder, name)
        try:
            encoded = path.read_bytes()
            commit = Commit.decode(str(path), encoded)
            if commit.number != int(match[1]):
                raise ValueError(f"it says that it is commit {commit.number}")
            files[commit.number] = commit, encoded
        except FormatError as error:
            left.append(str(error))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            left.append(f"{path}: this commit is damaged ({error})")
    return files, left


def _drop_disowned(
    dataset: DatasetPath, files: dict[int, tuple[Commit, bytes]], left: list[str]
) -> None:
    """Leave out commits that are not what the next one names: they were changed."""
    for number in sorted(files):
        if number + 1 in files:
            named = files[number + 1][0].parent_sha256
            if sha256_hex(files[number][1]) != named:
                left.append(f"{commit_path(dataset, number)}: it is not what the next commit names")
                del files[number]


def _find_dataset_id(
    dataset: DatasetPath, files: Mapping[int, tuple[Commit, bytes]], left: list[str]
) -> str:
    """The id that the commits say, or else `dataset.json`."""
    said = [commit.dataset_id for commit, _ in files.values() if commit.dataset_id is not None]
    said += [commit.base.dataset_id for commit, _ in files.values() if commit.base is not None]
    known = max(set(said), key=said.count) if said else None
    try:
        found = read_dataset_id(dataset)
        if known in (None, found):
            return found
        left.append(f"{dataset / 'dataset.json'}: it says {found}, but the commits say {known}")
    except RetoldError as error:
        left.append(str(error))
        if known is None:
            raise
    assert known is not None
    return known
