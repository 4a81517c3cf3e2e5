"""Checkpoints of a run: whole or absent, and loaded without unpickling anything but tensors."""

import io
import json
import os
import pickle
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch

from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.errors import RunError
from retold.schemas.faults import reach


def write_checkpoint(
    run: Path, update: int, state: dict[str, Any], facts: dict[str, Any], *, keep: int = 2
) -> None:
    """Keep a learner's state under `checkpoints/<update>/`; the newest ones and the best stay.

    Args:
        run: the run's folder.
        update: updates behind the state.
        state: tensors and numbers.
        facts: JSON values beside it, e.g. the snapshots that the next draws come from.
        keep: newest checkpoints that stay; that of the update that `BEST` names stays besides.
    """
    folder = run / "checkpoints" / f"{update:08d}"
    reach("checkpoint-before")
    if not folder.exists():
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        aside.mkdir(parents=True)
        _write(aside / "learner.pt", content)
        reach("checkpoint-inside")
        _write(aside / "checkpoint.json", encode_json({**facts, "sha256": sha256_hex(content)}))
        _keep_names(aside)
        os.rename(aside, folder)
        _keep_names(folder.parent)
    reach("checkpoint-after")
    best = run / "BEST"
    kept = best.read_text().strip() if best.exists() else None
    for old in list_checkpoints(run)[:-keep]:
        if old.name != kept:
            shutil.rmtree(old)


def list_checkpoints(run: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(p for p in (run / "checkpoints").glob("*") if p.name.isdigit())


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint's state and facts.

    Raises:
        RunError: a file is damaged; it is named.
    """
    try:
        facts = json.loads((folder / "checkpoint.json").read_bytes())
        content = (folder / "learner.pt").read_bytes()
        if sha256_hex(content) != facts["sha256"]:
            raise RunError(
                f"{folder / 'learner.pt'}: it was changed (its hash differs). Remove {folder} to go "
                f"on from the checkpoint before it."
            )
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise RunError(
            f"{folder}: the checkpoint cannot be read: {error}. Remove it to go on from the one "
            f"before it."
        ) from error
    return state, facts


def _keep_names(folder: Path) -> None:
    """Let the names in a folder outlive a power failure."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
