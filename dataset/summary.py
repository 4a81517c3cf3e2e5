"""What `retold info` says of a dataset."""

from typing import Any

import numpy as np

from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.schemas.vocabulary import GoalVocabulary


def summarize(path: DatasetPath) -> dict[str, Any]:
    """A dataset's counts, statistics and lineage, as plain JSON values."""
    with DatasetReader.open(path) as reader:
        lengths = reader.lengths
        returns = reader.table["episode_return"].to_numpy()
        steps = int(lengths.sum())
        raw = [entry for entry in reader.shards if entry.kind == "raw"]
        variants = [entry for entry in reader.shards if entry.kind == "variant"]
        return {
            "path": str(path),
            "dataset_id": reader.dataset_id,
            "snapshot": reader.snapshot.to_json(),
            "tasks": [
                {"name": task.name, "kwargs": dict(task.kwargs)} for task in reader.schema.tasks
            ],
            "shards": len(reader.shards),
            "episodes": len(reader),
            "variants": sum(entry.episodes for entry in variants),
            "steps": steps,
            "bytes": sum(entry.bytes for entry in reader.shards),
            "bytes_per_step": _ratio(
                sum(entry.bytes for entry in raw), sum(entry.steps for entry in raw)
            ),
            "bytes_per_variant": _ratio(
                sum(entry.bytes for entry in variants), sum(entry.episodes for entry in variants)
            ),
            "length": _spread(lengths),
            "episode_return": _spread(returns),
            "success": _success(reader),
            "goals": _goals(reader),
            "commits": [
                {
                    "number": commit.number,
                    "time": commit.time,
                    "operation": commit.operation,
                    "episodes": sum(entry.episodes for entry in commit.added),
                    "removed": len(commit.removed),
                }
                for commit in reader.log.commits(reader.snapshot.number)
            ],
            "sources": sorted(
                {
                    dataset_id
                    for commit in reader.log.commits(reader.snapshot.number)
                    for dataset_id in commit.sources
                }
            ),
        }


def _spread(values: Any) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        "mean": float(np.mean(values)),
        "minimum": float(np.min(values)),
        "median": float(np.median(values)),
        "maximum": float(np.max(values)),
    }


def _ratio(total: int, count: int) -> float | None:
    return total / count if count else None


def _success(reader: DatasetReader) -> float | None:
    verdicts = [v for v in reader.table["success"].to_pylist() if v is not None]
    return float(np.mean(verdicts)) if verdicts else None


def _goals(reader: DatasetReader) -> list[dict[str, str | int]]:
    """For each goal: in how many episodes' instructions it stands, and how often it was completed."""
    vocabulary: GoalVocabulary | None = reader.schema.tasks[0].vocabulary
    if vocabulary is None:
        return []
    asked = np.zeros(vocabulary.size, np.int64)
    completed = np.zeros(vocabulary.size, np.int64)
    columns = (reader.table["instruction"].to_pylist(), reader.table["completed"].to_pylist())
    for instruction, steps in zip(*columns, strict=True):
        for number, goal in enumerate(instruction):
            asked[goal] += 1
            completed[goal] += number < len(steps)
    return [
        {
            "goal": vocabulary.describe(goal),
            "asked": int(asked[goal]),
            "completed": int(completed[goal]),
        }
        for goal in np.argsort(-asked, kind="stable").tolist()
        if asked[goal]
    ]
