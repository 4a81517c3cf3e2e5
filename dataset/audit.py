"""The structural audit: whether a dataset's bytes are what its log says. It never writes."""

import itertools
from collections.abc import Iterator, Mapping

from retold.dataset.array_audit import (
    find_array_faults,
    find_final_row_faults,
    find_reward_faults,
    reference_faults,
)
from retold.dataset.files import walk_files
from retold.dataset.folder_audit import audit_folders
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, split_snapshot
from retold.dataset.reader import DatasetReader
from retold.dataset.schema_file import read_schema
from retold.dataset.shard_files import ShardFiles, hold_in_turn
from retold.dataset.shard_reader import ShardReader
from retold.dataset.snapshot_names import find_snapshot
from retold.dataset.table import record_from_row
from retold.dataset.validation import find_faults
from retold.schemas.commit import ShardEntry, Snapshot
from retold.schemas.episode import EpisodeRecord
from retold.schemas.errors import RetoldError
from retold.schemas.findings import Finding

RESTORE = "Restore it from a copy of the dataset, or save what is sound with `retold repair`."


def audit_structure(
    path: DatasetPath, sources: Mapping[str, DatasetPath] | None = None
) -> list[Finding]:
    """Everything that is off with a dataset's files, at its head or the snapshot that is named.

    Args:
        path: the dataset, or a snapshot of it.
        sources: where datasets that variants refer to have moved, by dataset id.
    """
    folder, name = split_snapshot(path)
    try:
        log = CommitLog.open(folder, from_checkpoint=False)
        snapshot = log.head() if name is None else find_snapshot(log, name)
    except RetoldError as error:
        return [_finding(folder, error)]
    if snapshot is None:
        return list(audit_folders(log))
    return [*_audit_shards(log, snapshot, sources or {}), *audit_folders(log)]


def _audit_shards(
    log: CommitLog, snapshot: Snapshot, sources: Mapping[str, DatasetPath]
) -> Iterator[Finding]:
    try:
        entries = log.live_shards(snapshot.number)
    except RetoldError as error:
        yield _finding(log.path, error)
        return
    damaged: set[str] = set()
    for schema in dict.fromkeys(entry.schema for entry in entries):
        try:
            read_schema(log.path, schema)
        except RetoldError as error:
            damaged.add(schema)
            yield _finding(log.path, error)
    sound: list[ShardEntry] = []
    for files in hold_in_turn([ShardFiles(log.path, entry) for entry in entries]):
        findings = list(_audit_files(files))
        yield from findings
        if not findings and files.entry.schema not in damaged:
            sound.append(files.entry)
    with DatasetReader(log, snapshot, sources, shards=sound) as reader:
        yield from _audit_ids(reader)
        for shard in hold_in_turn([reader.shard_reader(entry.shard_id) for entry in sound]):
            try:
                yield from _audit_episodes(reader, shard)
            except RetoldError as error:
                yield _finding(shard.path, error)


def _audit_files(shard: ShardFiles) -> Iterator[Finding]:
    """Every file against its hash, and the counts of commit, manifest and table against each other."""
    try:
        stored = walk_files(shard.path)
        damaged = list(shard.damaged_files(stored))
        for name, what in damaged:
            yield Finding(where=str(shard.path / name), what=what, todo=RESTORE)
        for name in sorted(stored.keys() - {"manifest.json", *shard.files}):
            yield Finding(
                where=str(shard.path / name),
                what="the manifest does not name this file",
                todo="Delete it; nothing reads it.",
            )
        if damaged:
            return
        entry, manifest, table = shard.entry, shard.manifest, shard.table
        size = sum(file.bytes for file in manifest.files)
        size += stored["manifest.json"]
        steps = sum(table["length"].to_pylist())
        rows = 0 if table["offset"].null_count else steps + table.num_rows
        counts = {
            "episodes": (entry.episodes, table.num_rows),
            "steps": (entry.steps, steps),
            "bytes": (entry.bytes, size),
            "episodes of the manifest": (manifest.episodes, table.num_rows),
            "rows of the manifest": (manifest.rows, rows),
        }
        for name, (said, found) in counts.items():
            if said != found:
                yield Finding(
                    where=str(shard.path), what=f"{name}: {said} said, {found} found", todo=RESTORE
                )
    except RetoldError as error:
        yield _finding(shard.path, error)


def _audit_ids(reader: DatasetReader) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for entry in reader.shards:
        shard = reader.shard_reader(entry.shard_id)
        for episode_id in shard.table["episode_id"].to_pylist():
            if episode_id in seen:
                yield Finding(
                    where=f"{shard.path}: episode {episode_id}",
                    what=f"it is live twice, also in shard {seen[episode_id]}",
                    todo="Evict one of the two shards.",
                )
            seen[episode_id] = entry.shard_id


def _audit_episodes(reader: DatasetReader, shard: ShardReader) -> Iterator[Finding]:
    if shard.entry.kind == "variant":
        yield from _audit_variants(reader, shard)
        return
    for fault in find_array_faults(shard):
        yield Finding(where=str(shard.path), what=fault, todo=RESTORE)
    next_row, next_event = 0, 0
    for row in reader.shard_rows(shard.entry.shard_id):
        record = reader.record(row)
        where = f"{shard.path}: episode {record.episode_id} (row {row})"
        faults = list(_record_faults(record, shard))
        try:
            episode = reader.read_episode(row)
            faults += find_faults(episode, shard.schema)
            number = row - reader.shard_rows(shard.entry.shard_id).start
            if shard.offsets[number] != next_row:
                faults.append(f"it starts at row {shard.offsets[number]}, not {next_row}")
            if shard.event_ranges[number, 0] != next_event:
                faults.append(f"its events start at {shard.event_ranges[number, 0]}")
            next_row += record.length + 1
            next_event += len(episode.event_step)
            faults += find_final_row_faults(shard, next_row - 1)
        except RetoldError as error:
            faults.append(str(error).rstrip("."))
        for fault in faults:
            yield Finding(where=where, what=fault, todo=RESTORE)


def _audit_variants(reader: DatasetReader, shard: ShardReader) -> Iterator[Finding]:
    """Rows of variants. Their arrays are their sources': what they earn is the reward audit's."""
    next_row = 0
    for number, values in enumerate(shard.table.to_pylist()):
        record = record_from_row(values)
        faults = list(_record_faults(record, shard))
        if record.goal_row is not None:
            if values["offset"] != next_row:
                faults.append(f"it starts at row {values['offset']}, not {next_row}")
            next_row += record.length + 1
        try:
            faults += reference_faults(reader, record)
        except RetoldError as error:
            faults.append(str(error).rstrip("."))
        row = reader.shard_rows(shard.entry.shard_id).start + number
        for fault in faults:
            where = f"{shard.path}: episode {record.episode_id} (row {row})"
            yield Finding(where=where, what=fault, todo=RESTORE)
    if next_row:
        for fault in find_reward_faults(shard):
            yield Finding(where=str(shard.path), what=fault, todo=RESTORE)


def _record_faults(record: EpisodeRecord, shard: ShardReader) -> Iterator[str]:
    if record.task >= len(shard.schema.tasks):
        yield f"its task is number {record.task} of {len(shard.schema.tasks)}"
    if record.is_variant != (shard.entry.kind == "variant"):
        yield f"it refers to {record.source_dataset_id}, but its shard is {shard.entry.kind}"
    steps = record.completed
    if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        yield f"its goals were completed at {list(steps)}, which does not rise"
    if len(steps) > len(record.instruction) or any(step >= record.length for step in steps):
        yield (
            f"its goals were completed at {list(steps)}, but it has {len(record.instruction)} "
            f"goals and {record.length} transitions"
        )


def _finding(where: DatasetPath, error: RetoldError) -> Finding:
    return Finding(where=str(where), what=str(error).rstrip("."), todo=RESTORE)
