"""What a push sends when it is not the dataset as it lies: a copy with other codecs or arrays of its own.

The copy is a dataset of its own id with a log of its own. A second push of the same dataset goes on in
the log that is on the Hub: it takes out what is no longer there, and adds what is new.
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from retold.dataset.commit_files import publish_commit
from retold.dataset.dataset_file import create_dataset
from retold.dataset.derive import Selection, write_dataset
from retold.dataset.hub_origin import SOURCES_FOLDER
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.zarr_codec import Profile
from retold.schemas.commit import Commit, ShardEntry, Snapshot, SourceEntry
from retold.schemas.errors import DatasetError


def stage_copy(
    reader: DatasetReader,
    folder: Path,
    *,
    published: Path | None,
    where: str,
    materialize: bool,
    profile: Profile | None,
) -> DatasetReader:
    """The copy of a snapshot, ready to be sent.

    Args:
        reader: of the snapshot.
        folder: an empty one of this machine, to make the copy in.
        published: a folder with the `dataset.json` and log that are on the Hub, which the copy goes on
            from; None: there are none.
        where: the repository, for messages.
        materialize: give variants arrays of their own.
        profile: codecs; None: those that the shards have.

    Raises:
        DatasetError: what is on the Hub was not made of this dataset.
    """
    made = folder / "made"
    write_dataset(
        made,
        [Selection(reader, tuple(range(len(reader))))],
        operation="push",
        details={},
        profile=profile,
        materialize=materialize,
    )
    written = CommitLog.open(made)
    copy = folder / "copy" if published is None else published
    if published is None:
        create_dataset(copy, uuid.uuid4().hex)
    for name in ("schemas", "shards"):
        os.rename(made / name, copy / name)
    log = CommitLog.open(copy)
    _check_parents(log, reader, where)
    details = {"parents": [reader.snapshot.to_json()], "materialize": materialize}
    _go_on(log, written.live_shards(), written.read(0).sources, details)
    moved = {dataset_id: reader.source_reader(dataset_id).path for dataset_id in _sources(log)}
    return DatasetReader.open(copy, sources=moved)


def _go_on(
    log: CommitLog,
    entries: Sequence[ShardEntry],
    sources: Mapping[str, SourceEntry],
    details: Mapping[str, Any],
) -> None:
    """Commit the difference to what the log has, if there is one. No place of this machine is told."""
    head = log.head()
    live = {entry.shard_id for entry in log.live_shards()}
    wanted = {entry.shard_id for entry in entries}
    if head is not None and live == wanted:
        return
    commit = Commit(
        dataset_id=log.dataset_id,
        number=0 if head is None else head.number + 1,
        commit_id=uuid.uuid4().hex,
        base=head,
        parent_sha256=None if head is None else head.sha256,
        operation="push",
        added=tuple(entry for entry in entries if entry.shard_id not in live),
        removed=tuple(sorted(live - wanted)),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command="retold push",
        code_version=metadata.version("retold"),
        sources={
            dataset_id: SourceEntry(entry.snapshot, (f"{SOURCES_FOLDER}/{dataset_id}",))
            for dataset_id, entry in sources.items()
        },
        details=details,
    )
    publish_commit(log.path, commit)


def _check_parents(log: CommitLog, reader: DatasetReader, where: str) -> None:
    """See that what is on the Hub was made of this dataset, and of a snapshot that it has had."""
    for commit in log.commits():
        parents = [Snapshot.from_json(parent) for parent in commit.details.get("parents", ())]
        for parent in parents:
            if parent.dataset_id != reader.dataset_id:
                continue
            if parent.number > reader.snapshot.number or (
                reader.log.snapshot(parent.number).sha256 != parent.sha256
            ):
                raise DatasetError(
                    f"{reader.path} and {where}: what is there was made of another commit "
                    f"{parent.number} of this dataset, so that its copies went different ways. "
                    f"Join them with `retold merge OUTPUT --data {reader.path} --data {where}`."
                )
        if all(parent.dataset_id != reader.dataset_id for parent in parents):
            raise DatasetError(
                f"{where}: it holds dataset {log.dataset_id}, which was not made of {reader.path} "
                f"(its commit {commit.number} says so). Push to another repository."
            )


def _sources(log: CommitLog) -> set[str]:
    return {dataset_id for commit in log.commits() for dataset_id in commit.sources}
