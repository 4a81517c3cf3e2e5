"""New datasets made of the episodes of others: whole shards copied, parts of shards written again."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from retold.dataset.files import list_names, sync_folder
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.remote_path import RemotePath
from retold.dataset.rewrite import rewrite_rows, stored_profile
from retold.dataset.shard_files import fetch_whole
from retold.dataset.shard_place import build_aside, place_shard
from retold.dataset.shard_reader import ShardReader
from retold.dataset.shard_writer import keep_schema
from retold.dataset.sources import source_locations
from retold.dataset.zarr_codec import Profile
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import ShardEntry, Snapshot, SourceEntry
from retold.schemas.episode import EpisodeRecord
from retold.schemas.errors import DatasetError


@dataclass(frozen=True)
class Selection:
    """Some episodes of a snapshot."""

    reader: DatasetReader
    rows: tuple[int, ...]
    """Rising."""


def write_dataset(
    output: DatasetPath,
    selections: Sequence[Selection],
    *,
    operation: str,
    details: Mapping[str, Any],
    profile: Profile | None = None,
    materialize: bool = False,
) -> Snapshot:
    """Make a dataset of selected episodes, which keep their ids; it appears when it is whole.

    Episodes are copied, never shared, so that neither dataset depends on what becomes of the other.
    Variants whose source is selected, too, refer to it in the new dataset; others as they did.

    Args:
        output: a path that does not exist.
        selections: what to take, in order; no episode twice.
        operation: what its first commit says.
        details: what that commit remembers, besides the parents.
        profile: codecs of arrays that are written again; None: those they have.
        materialize: give variants arrays of their own.

    Raises:
        DatasetError: the output exists, or something cannot be read or written.
    """
    refuse_existing(output)

    def fill(place: DatasetPath) -> None:
        log = CommitLog.create(place)
        maker = _Maker(log, output, selections, profile, materialize)
        added = [entry for selection in selections for entry in maker.write(selection)]
        parents = [selection.reader.snapshot.to_json() for selection in selections]
        log.append(
            operation=operation,
            added=added,
            sources=maker.sources,
            details={**details, "parents": parents},
        )

    try:
        if isinstance(output, Path):
            _fill_aside(output, fill)
        else:
            fill(output)  # nothing moves on a store: the dataset is empty until the commit
    except OSError as error:
        raise DatasetError(
            f"{output}: the dataset cannot be written: {error.strerror}. Nothing was made; free "
            f"space or choose another place."
        ) from error
    head = CommitLog.open(output).head()
    assert head is not None
    return head


def _fill_aside(output: Path, fill: Callable[[DatasetPath], None]) -> None:
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex}")
    try:
        fill(part)
        refuse_existing(output)
        os.rename(part, output)
        sync_folder(output.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def refuse_existing(output: DatasetPath) -> None:
    """Refuse to write over something, or to a name that would be read as a snapshot's.

    On a store, what an interrupted command left there is filled; it has no commit.

    Raises:
        DatasetError: the path exists, or has an `@`.
    """
    is_there = list_names(output / "commits") if isinstance(output, RemotePath) else output.exists()
    if is_there or output.is_symlink():
        raise DatasetError(f"{output}: this exists already. Give a path that does not exist yet.")
    if "@" in output.name:
        raise DatasetError(
            f"{output}: what follows '@' names a snapshot. Give the new dataset a name without it."
        )


def remove_dataset(dataset: DatasetPath) -> None:
    """Delete a dataset that was made just now and that nobody knows yet."""
    if isinstance(dataset, Path):
        shutil.rmtree(dataset)
        return
    for name in dataset.list_files():
        (dataset / name).unlink()


def copy_shard(shard: ShardReader, target: DatasetPath) -> ShardEntry:
    """Copy a whole shard into another dataset, every file checked on the way.

    Raises:
        FormatError: a file is damaged.
    """
    keep_schema(target, shard.schema)
    with build_aside(target) as folder, fetch_whole([shard]):
        for name in shard.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(shard.read_checked(name))
        content = shard.manifest.encoded
        if sha256_hex(content) != shard.entry.sha256:  # written by another hand, in another form
            content = (shard.path / "manifest.json").read_bytes()
        (folder / "manifest.json").write_bytes(content)
        place_shard(folder, target, shard.entry.shard_id)
    return shard.entry


class _Maker:
    """Writes selections into one new dataset and gathers the sources that it depends on."""

    def __init__(
        self,
        log: CommitLog,
        output: DatasetPath,
        selections: Sequence[Selection],
        profile: Profile | None,
        materialize: bool,
    ) -> None:
        self.sources: dict[str, SourceEntry] = {}
        self._log = log
        self._output = output
        self._profile: Profile | None = profile
        self._materialize = materialize
        self._ids = {
            str(episode_id)
            for selection in selections
            for episode_id in selection.reader.table["episode_id"]
            .take(pa.array(selection.rows, "int64"))
            .to_pylist()
        }

    def write(self, selection: Selection) -> Iterator[ShardEntry]:
        """Write a selection's episodes; the entries of the shards that hold them."""
        reader = selection.reader
        chosen = set(selection.rows)
        for entry in reader.shards:
            rows = [row for row in reader.shard_rows(entry.shard_id) if row in chosen]
            if rows:
                yield from self._write_shard(reader, entry, rows)

    def _write_shard(
        self, reader: DatasetReader, entry: ShardEntry, rows: Sequence[int]
    ) -> Iterator[ShardEntry]:
        shard = reader.shard_reader(entry.shard_id)
        is_raw = entry.kind == "raw"
        is_changed = not is_raw and (self._materialize or self._note_sources(reader, rows))
        stored = stored_profile(reader, entry.shard_id)
        has_other_profile = is_raw and self._profile not in (None, stored)
        if len(rows) == entry.episodes and not is_changed and not has_other_profile:
            yield copy_shard(shard, self._log.path)
            return
        yield from rewrite_rows(
            reader,
            rows,
            self._log.path,
            profile=self._profile or (stored if is_raw else "fast"),
            change=lambda record: record if self._materialize else self._rehome(record),
            materialize=self._materialize,
        )

    def _note_sources(self, reader: DatasetReader, rows: Sequence[int]) -> bool:
        """Remember what the variants refer to; whether some source comes along."""
        comes_along = False
        for row in rows:
            record = reader.record(row)
            if self._rehome(record) is not record:
                comes_along = True
            elif record.source_dataset_id not in (None, *self.sources):
                assert record.source_dataset_id is not None
                source = reader.source_reader(record.source_dataset_id)
                self.sources[source.dataset_id] = SourceEntry(
                    source.snapshot, source_locations(source.path, self._output)
                )
        return comes_along

    def _rehome(self, record: EpisodeRecord) -> EpisodeRecord:
        if record.is_variant and record.source_episode_id in self._ids:
            return replace(record, source_dataset_id=self._log.dataset_id)
        return record
