"""`retold coverage`: what relabelling adds to what was collected."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retold.cli.printing import format_fields, format_table
from retold.dataset.paths import DatasetPath
from retold.dataset.sources import SourceFlag

if TYPE_CHECKING:
    from retold.relabel.coverage import Coverage


@dataclass(frozen=True, kw_only=True)
class CoverageConfig(SourceFlag):
    """What `retold coverage` is asked."""

    dataset: DatasetPath
    """Dataset of variants, or of collected episodes. It is never written to."""
    figure: Path | None = None
    """File to draw the report into: .png, .svg or .pdf."""


@dataclass(frozen=True, kw_only=True)
class CoverageReport:
    """The coverage, and where it was drawn."""

    coverage: "Coverage"
    figure: str | None

    def to_json(self) -> dict[str, Any]:
        """The coverage as plain values."""
        return {**asdict(self.coverage), "figure": self.figure}

    def describe(self) -> str:
        """The report as a page."""
        coverage = self.coverage
        facts = {"dataset": coverage.dataset}
        if coverage.variants_per_episode:
            facts["variants_per_episode"] = f"{coverage.variants_per_episode:.2f}"
        if self.figure:
            facts["figure"] = self.figure
        blocks: dict[str, Sequence[Any]] = {
            "": coverage.tellings,
            "goals, by the episodes that achieve them": coverage.goals,
            "episodes by goals completed in order (return)": coverage.returns,
            "episodes by goals commanded": coverage.instruction_lengths,
        }
        page = [format_fields(facts)]
        for title, records in blocks.items():
            if records:
                rows = [asdict(record) for record in records]
                table = format_table(list(rows[0]), [list(row.values()) for row in rows])
                page.append(f"{title}\n{table}" if title else table)
        return "\n\n".join(page)


def report_coverage(config: CoverageConfig) -> CoverageReport:
    """Measure the coverage, and draw it if asked."""
    from retold.dataset.reader import DatasetReader
    from retold.relabel.coverage import measure_coverage
    from retold.relabel.coverage_figure import draw_coverage

    moved = config.moved(config.dataset)
    with DatasetReader.open(config.dataset, sources=moved) as reader:
        coverage = measure_coverage(reader)
    if config.figure is not None:
        draw_coverage(coverage, config.figure)
    return CoverageReport(
        coverage=coverage, figure=None if config.figure is None else str(config.figure)
    )
