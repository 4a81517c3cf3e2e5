"""`retold info`: what a dataset holds."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from retold.cli.printing import format_fields, format_table
from retold.dataset.paths import DatasetPath
from retold.schemas.errors import DatasetError


@dataclass(frozen=True, kw_only=True)
class InfoConfig:
    """What `retold info` is asked."""

    dataset: DatasetPath
    """Dataset to read, or a snapshot (`DATASET@12`). It is never written to."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The summary of a dataset."""

    summary: Mapping[str, Any]
    """As `retold.dataset.summary` makes it, and what relabelling added if there are variants."""

    def to_json(self) -> Mapping[str, Any]:
        """The summary alone."""
        return self.summary

    def describe(self) -> str:
        """The summary as a page."""
        summary = self.summary
        facts = {
            "dataset": summary["path"],
            "dataset_id": summary["dataset_id"],
            "snapshot": summary["snapshot"]["number"],
            "task": "; ".join(map(_describe_task, summary["tasks"])),
        }
        facts |= {name: summary[name] for name in _COUNTS if summary[name] is not None}
        if summary["sources"]:
            facts["made_from"] = ", ".join(summary["sources"])
        if summary["lost_source"]:
            facts["lost_source"] = summary["lost_source"]
        spreads = [
            {"per_episode": name.replace("_", " "), **summary[name]}
            for name in ("length", "episode_return")
            if summary[name]
        ]
        blocks = {
            "": spreads,
            "collected and retold": summary["coverage"],
            "goals": summary["goals"],
            "commits": summary["commits"],
        }
        page = [format_fields(facts)]
        for name, records in blocks.items():
            if records:
                header = list(records[0])
                table = format_table(header, (list(record.values()) for record in records))
                page.append(f"{name}\n{table}" if name else table)
        return "\n\n".join(page)


def describe_dataset(config: InfoConfig) -> DatasetInfo:
    """The summary of the dataset's newest snapshot."""
    from retold.dataset.reader import DatasetReader
    from retold.dataset.summary import summarize
    from retold.relabel.coverage import describe_tellings, split_tables

    summary = summarize(config.dataset)
    coverage: list[dict[str, Any]] = []
    lost = None
    if summary["variants"]:
        with DatasetReader.open(config.dataset) as reader:
            try:
                coverage = [asdict(told) for told in describe_tellings(*split_tables(reader))]
            except DatasetError as error:
                lost = str(error)  # the rows can be told of without their sources
    return DatasetInfo(summary={**summary, "coverage": coverage, "lost_source": lost})


_COUNTS = (
    *("episodes", "variants", "steps", "success", "shards", "bytes"),
    *("bytes_per_step", "bytes_per_variant"),
)


_LONGEST_ARGUMENT = 60


def _describe_task(task: Mapping[str, Any]) -> str:
    arguments = ", ".join(
        f"{name} {_shorten(json.dumps(value))}" for name, value in task["kwargs"].items()
    )
    return f"{task['name']} ({arguments})"


def _shorten(text: str) -> str:
    """What imports keep of their source may be long; `--json` has all of it."""
    return text if len(text) <= _LONGEST_ARGUMENT else f"{text[: _LONGEST_ARGUMENT - 3]}..."
