"""`retold filter`: a new dataset of the episodes that meet a condition."""

from dataclasses import dataclass

from retold.dataset.derive import Selection, refuse_existing, write_dataset
from retold.dataset.expression import parse_condition
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import SourceFlag
from retold.dataset.table import TABLE_SCHEMA
from retold.schemas.errors import DatasetError

_PLACEMENT = ("offset", "event_offset", "event_count")
COLUMNS = tuple(name for name in TABLE_SCHEMA.names if name not in _PLACEMENT)
"""Columns of the episode table that a condition may name."""


@dataclass(frozen=True, kw_only=True)
class FilterConfig(SourceFlag):
    """What `retold filter` is asked."""

    dataset: DatasetPath
    """Dataset to take episodes from, or a snapshot (`DATASET@12`). It is never written to."""
    output: DatasetPath
    """Dataset to make; must not exist."""
    where: str
    """Condition on the columns of the episode table (docs/format.md lists them)."""


@dataclass(frozen=True, kw_only=True)
class FilterResult:
    """What was taken."""

    output: str
    episodes: int
    """Episodes that meet the condition."""
    left_out: int
    steps: int
    """Transitions of the episodes taken."""


def filter_dataset(config: FilterConfig) -> FilterResult:
    """Copy the episodes that meet a condition into a new dataset, where they keep their ids.

    Raises:
        DatasetError: no episode meets the condition, or the output exists.
    """
    meets = parse_condition(config.where, COLUMNS)
    refuse_existing(config.output)
    with DatasetReader.open(config.dataset, sources=config.moved(config.dataset)) as reader:
        table = reader.table.select(list(COLUMNS)).to_pylist()
        rows = tuple(row for row, values in enumerate(table) if meets(values))
        if not rows:
            raise DatasetError(
                f"{config.dataset}: none of {len(reader)} episodes meets {config.where!r}. Nothing "
                f"was made; ask for less."
            )
        write_dataset(
            config.output,
            [Selection(reader, rows)],
            operation="filter",
            details={"where": config.where},
        )
        return FilterResult(
            output=str(config.output),
            episodes=len(rows),
            left_out=len(reader) - len(rows),
            steps=int(reader.lengths[list(rows)].sum()),
        )
