"""`retold push`: a dataset to the Hub, with a card that tells of its goals and variants, too."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from retold.dataset.hub_card import Retelling
from retold.dataset.hub_push import PushConfig, PushResult, push_dataset
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import UsageError

if TYPE_CHECKING:
    from retold.relabel.coverage import Coverage


def push(config: PushConfig) -> PushResult:
    """Push a dataset, or plan to."""
    return push_dataset(config, measure_retelling)


def measure_retelling(reader: DatasetReader, repository: str) -> Retelling:
    """What a card says of goals and variants."""
    from retold.relabel.coverage import measure_coverage

    has_goals = reader.schema.tasks[0].vocabulary is not None
    if not has_goals and all(entry.kind == "raw" for entry in reader.shards):
        return Retelling()
    coverage = replace(measure_coverage(reader), dataset=repository)
    return Retelling(
        tellings=_records(coverage.tellings),
        goals=_records(coverage.goals),
        figure=_draw(coverage)
        if any(telling.told == "retold" for telling in coverage.tellings)
        else None,
    )


def _records(items: Sequence[object]) -> list[dict[str, object]]:
    return [asdict(item) for item in items]  # type: ignore[call-overload]


def _draw(coverage: "Coverage") -> bytes | None:
    """The figure as PNG; None where nothing can draw."""
    from retold.relabel.coverage_figure import draw_coverage

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "coverage.png")
        try:
            draw_coverage(coverage, path)
        except UsageError:
            return None
        return path.read_bytes()
