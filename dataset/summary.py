"""What `retold info` says of a dataset."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.field_sizes import measure_fields
from retold.dataset.lineage import trace_lineage
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader

_MOST_BARS = 12


def summarize(reader: DatasetReader, moved: Mapping[str, DatasetPath]) -> dict[str, Any]:
    """A snapshot's counts, statistics, sizes and lineage, as plain JSON values.

    Args:
        reader: of the snapshot.
        moved: where sources have moved, by dataset id.
    """
    lengths = reader.lengths
    raw = [entry for entry in reader.shards if entry.kind == "raw"]
    variants = [entry for entry in reader.shards if entry.kind == "variant"]
    commits = list(reader.log.commits(reader.snapshot.number))
    return {
        "path": str(reader.path),
        "dataset_id": reader.dataset_id,
        "snapshot": reader.snapshot.to_json(),
        "tasks": [
            {"name": task.name, "kwargs": dict(task.kwargs)}
            for task in (reader.schema.tasks if reader.shards else ())
        ],
        "shards": len(reader.shards),
        "episodes": len(reader),
        "variants": sum(entry.episodes for entry in variants),
        "steps": int(lengths.sum()),
        "bytes": sum(entry.bytes for entry in reader.shards),
        "bytes_per_step": _ratio(
            sum(entry.bytes for entry in raw), sum(entry.steps for entry in raw)
        ),
        "bytes_per_variant": _ratio(
            sum(entry.bytes for entry in variants), sum(entry.episodes for entry in variants)
        ),
        "length": measure_spread(lengths),
        "episode_return": measure_spread(reader.table["episode_return"].to_numpy()),
        "success": _success(reader),
        "fields": [asdict(field) for field in measure_fields(reader)],
        "commits": [
            {
                "number": commit.number,
                "time": commit.time,
                "operation": commit.operation,
                "episodes": sum(entry.episodes for entry in commit.added),
                "removed": len(commit.removed),
            }
            for commit in commits
        ],
        "lineage": [
            asdict(ancestor)
            for ancestor in trace_lineage(reader.log, reader.snapshot.number, moved)
        ],
    }


def measure_spread(values: NDArray[Any]) -> dict[str, Any]:
    """Where numbers lie: mean, minimum, median, maximum, and a histogram; empty if there are none.

    The histogram has `edges` (one more than counts) and `counts`; whole numbers of a small range
    have a bar each. What is not finite is left out and counted as `not_finite`.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {}
    lowest, highest = finite.min(), finite.max()
    is_whole = bool((finite == np.floor(finite)).all()) and highest - lowest < _MOST_BARS
    edges: NDArray[Any] = (
        np.arange(lowest, highest + 2) if is_whole else np.linspace(lowest, highest, _MOST_BARS + 1)
    )
    counts, _ = np.histogram(finite, edges)
    return {
        "mean": float(np.mean(finite, dtype=np.float64)),
        "minimum": float(lowest),
        "median": float(np.median(finite)),
        "maximum": float(highest),
        "not_finite": len(values) - len(finite),
        "histogram": {"edges": edges.astype(float).tolist(), "counts": counts.tolist()},
    }


def _ratio(total: int, count: int) -> float | None:
    return total / count if count else None


def _success(reader: DatasetReader) -> float | None:
    verdicts = [v for v in reader.table["success"].to_pylist() if v is not None]
    return float(np.mean(verdicts)) if verdicts else None
