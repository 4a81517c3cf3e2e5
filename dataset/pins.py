"""Pins: notes in a dataset that say who still needs which snapshot."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from retold.dataset.files import write_durably
from retold.schemas.canonical import encode_json
from retold.schemas.commit import Snapshot

_LIFETIME = timedelta(days=7)


@contextmanager
def pin(dataset: Path, pin_id: str, holder: str, snapshot: Snapshot) -> Iterator[None]:
    """Keep a snapshot's files for as long as the block runs, where the dataset can be written.

    A killed holder leaves its pin, which expires after seven days; so a name that is the same on
    every run (`pin_id`) is replaced rather than piled up.
    """
    path = dataset / "pins" / f"{pin_id}.json"
    is_writable = os.access(dataset, os.W_OK)
    if is_writable:
        path.parent.mkdir(exist_ok=True)
        content = {
            "holder": holder,
            "snapshot": snapshot.to_json(),
            "expires": (datetime.now(UTC) + _LIFETIME).isoformat(timespec="seconds"),
        }
        temporary = path.with_suffix(f".{os.getpid()}")
        write_durably(temporary, encode_json(content))
        temporary.replace(path)
    try:
        yield
    finally:
        if is_writable:
            path.unlink(missing_ok=True)


def read_pins(dataset: Path) -> list[dict[str, Any]]:
    """Every pin of a dataset, expired ones included."""
    return [json.loads(path.read_bytes()) for path in sorted(dataset.glob("pins/*.json"))]
