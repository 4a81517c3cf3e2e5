"""Pins: notes in a dataset that say who still needs which snapshot."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from retold.dataset.files import list_names, make_folder, replace_atomically
from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath, path_inside, split_snapshot
from retold.dataset.reader import DatasetReader
from retold.dataset.snapshot_names import refuse_dropped
from retold.dataset.sources import find_source
from retold.schemas.canonical import is_sealed, require_hex, seal_json
from retold.schemas.commit import Snapshot
from retold.schemas.errors import FormatError, RetoldError

logger = logging.getLogger(__name__)

_LIFETIME = timedelta(days=7)


@dataclass(frozen=True)
class Pin:
    """Somebody needs a snapshot, until some time."""

    path: DatasetPath
    holder: str
    snapshot: Snapshot
    expires: datetime


@contextmanager
def pin(dataset: DatasetPath, pin_id: str, holder: str, snapshot: Snapshot) -> Iterator[None]:
    """Keep a snapshot's files for as long as the block runs, where the dataset can be written.

    The datasets that its variants refer to are pinned as they are now, too. A killed holder leaves
    its pins, which expire after seven days; so a name that is the same on every run (`pin_id`) is
    replaced rather than piled up.
    """
    folder, _ = split_snapshot(dataset)
    with ExitStack() as stack:
        stack.enter_context(_pin_one(folder, pin_id, holder, snapshot))
        for path, head in _find_sources(folder, snapshot):
            # Its own name: the holder may pin that dataset itself, at another snapshot.
            name = f"{pin_id}-{snapshot.dataset_id[:8]}"
            stack.enter_context(_pin_one(path, name, holder, head))
        yield


@contextmanager
def pin_reader(reader: DatasetReader, pin_id: str, holder: str) -> Iterator[None]:
    """Keep what a reader reads for as long as the block runs, where that can be written.

    The datasets that its variants refer to are opened first, and pinned as they were then: what is
    evicted from them in the meantime is still read.

    Raises:
        DatasetError: `gc` was quicker, and took what is needed.
    """
    sources = list(_open_sources(reader))
    with ExitStack() as stack:
        stack.enter_context(_pin_one(reader.path, pin_id, holder, reader.snapshot))
        for source in sources:
            name = f"{pin_id}-{reader.dataset_id[:8]}"
            stack.enter_context(_pin_one(source.path, name, holder, source.snapshot))
        for pinned in (reader, *sources):
            refuse_dropped(pinned.log, pinned.snapshot)
        yield


def _open_sources(reader: DatasetReader) -> Iterator[DatasetReader]:
    ids = pc.unique(reader.table["source_dataset_id"]).drop_null().to_pylist()
    for dataset_id in sorted(set(ids) - {reader.dataset_id}):
        with suppress(RetoldError):  # whoever reads a variant of it is told
            yield reader.source_reader(dataset_id)


def read_pins(dataset: DatasetPath) -> list[Pin]:
    """Every pin of a dataset, expired ones included.

    Raises:
        FormatError: one is damaged, so that nobody knows what it needs.
    """
    folder = path_inside(dataset, "pins")
    names = [name for name in list_names(folder) if name.endswith(".json")]
    return [read_pin(path_inside(folder, name)) for name in names]


def read_pin(path: DatasetPath) -> Pin:
    """One pin.

    Raises:
        FormatError: it is damaged.
    """
    try:
        encoded = path.read_bytes()
        content = json.loads(encoded)
        if not _is_whole(encoded, content):
            raise ValueError("its seal is broken")
        expires = datetime.fromisoformat(content["expires"])
        if expires.tzinfo is None:
            raise ValueError("it has no time zone")
        return Pin(path, str(content["holder"]), Snapshot.from_json(content["snapshot"]), expires)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path}: this pin is damaged, so that nobody knows which snapshot it keeps. Delete it "
            f"once no training or relabelling runs."
        ) from error


def _is_whole(encoded: bytes, content: Mapping[str, Any]) -> bool:
    """Whether a pin is what was written; the first pins had no seal, and just these fields."""
    if "content_sha256" in content:
        return is_sealed(encoded, require_hex(content["content_sha256"], 64))
    return content.keys() == {"holder", "snapshot", "expires"}


def _find_sources(
    dataset: DatasetPath, snapshot: Snapshot
) -> Iterator[tuple[DatasetPath, Snapshot]]:
    """Datasets that a snapshot's variants refer to, where they are found, with their heads."""
    log = CommitLog.open(dataset)
    if all(entry.kind == "raw" for entry in log.live_shards(snapshot.number)):
        return
    ids = {source for commit in log.commits(snapshot.number) for source in commit.sources}
    for dataset_id in sorted(ids):
        try:
            path = find_source(log, snapshot.number, dataset_id, None)
            head = CommitLog.open(path).head()
        except RetoldError:  # whoever reads a variant of it is told
            continue
        if head is not None:
            yield path, head


@contextmanager
def _pin_one(dataset: DatasetPath, pin_id: str, holder: str, snapshot: Snapshot) -> Iterator[None]:
    path = path_inside(dataset, "pins", f"{pin_id}.json")
    content = {
        "holder": holder,
        "snapshot": snapshot.to_json(),
        "expires": (datetime.now(UTC) + _LIFETIME).isoformat(timespec="seconds"),
    }
    is_pinned = _write_pin(dataset, path, seal_json(content))
    try:
        yield
    finally:
        if is_pinned:
            with suppress(OSError):  # it expires
                path.unlink()


def _write_pin(dataset: DatasetPath, path: DatasetPath, content: bytes) -> bool:
    """Whether a pin was written: a dataset that is only read needs none from us."""
    if isinstance(dataset, Path) and not os.access(dataset, os.W_OK):
        return False
    try:
        make_folder(path.parent)
        replace_atomically(path, content)
    except OSError as error:
        if isinstance(dataset, Path):
            raise
        logger.debug("%s: not pinned: %s", dataset, error)
        return False
    return True
