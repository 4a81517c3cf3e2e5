"""`retold info`: what a dataset holds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from retold.cli.printing import format_fields, format_table
from retold.dataset.paths import DatasetPath
from retold.dataset.sources import SourceFlag
from retold.schemas.errors import DatasetError

_BARS = " ▁▂▃▄▅▆▇█"
_LONGEST_ARGUMENT = 60


@dataclass(frozen=True, kw_only=True)
class InfoConfig(SourceFlag):
    """What `retold info` is asked."""

    dataset: DatasetPath
    """Dataset to read, or a snapshot (`DATASET@12`). It is never written to."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The summary of a dataset."""

    summary: Mapping[str, Any]
    """As `retold.dataset.summary` makes it, and what relabelling knows of its goals and variants."""

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
        if summary["lost_source"]:
            facts["lost_source"] = summary["lost_source"]
        blocks = {
            "": _describe_spreads(summary),
            "collected and retold": summary["coverage"],
            "goals, by the episodes that achieve them": _describe_goals(summary),
            "fields": _describe_fields(summary["fields"]),
            "made from": [_describe_ancestor(ancestor) for ancestor in summary["lineage"]],
            "commits, the newest first": summary["commits"][::-1],
        }
        page = [format_fields(facts)]
        for name, records in blocks.items():
            if records:
                header = list(records[0])
                table = format_table(header, (list(record.values()) for record in records))
                page.append(f"{name}\n{table}" if name else table)
        return "\n\n".join(page)


def describe_dataset(config: InfoConfig) -> DatasetInfo:
    """The summary of the dataset's newest snapshot, or of the one that is named."""
    from retold.dataset.reader import DatasetReader
    from retold.dataset.summary import measure_spread, summarize
    from retold.relabel.coverage import measure_coverage

    moved = config.moved(config.dataset)
    with DatasetReader.open(config.dataset, sources=moved) as reader:
        summary = summarize(reader, moved)
        found: dict[str, Any] = {"coverage": [], "goals": [], "variants_per_episode": {}}
        lost = None
        has_goals = reader.shards and reader.schema.tasks[0].vocabulary is not None
        if has_goals or summary["variants"]:
            try:
                coverage = measure_coverage(reader)
            except DatasetError as error:
                lost = str(error)  # the rows can be told of without their sources
                coverage = measure_coverage(reader, with_sources=False)
            found["goals"] = [asdict(goal) for goal in coverage.goals]
            if summary["variants"]:
                counts = np.repeat(np.arange(len(coverage.variants)), coverage.variants)
                found["coverage"] = [asdict(told) for told in coverage.tellings]
                found["variants_per_episode"] = measure_spread(counts)
    return DatasetInfo(summary={**summary, **found, "lost_source": lost})


_COUNTS = (
    *("episodes", "variants", "steps", "success", "shards", "bytes"),
    *("bytes_per_step", "bytes_per_variant"),
)


def _describe_task(task: Mapping[str, Any]) -> str:
    arguments = ", ".join(
        f"{name} {_shorten(json.dumps(value))}" for name, value in task["kwargs"].items()
    )
    return f"{task['name']} ({arguments})" if arguments else str(task["name"])


def _describe_spreads(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each number that every episode has, with its distribution drawn."""
    names = {"length": "length", "episode_return": "return", "variants_per_episode": "variants"}
    rows = []
    for key, name in names.items():
        if spread := summary[key]:
            numbers = {column: spread[column] for column in _SPREAD}
            bars = _draw_bars(spread["histogram"]["counts"])
            left_out = spread["not_finite"]
            note = f" and {left_out:,} not finite" if left_out else ""
            rows.append({"per_episode": name, **numbers, "distribution": f"|{bars}|{note}"})
    return rows


_SPREAD = ("mean", "minimum", "median", "maximum")


def _draw_bars(counts: Sequence[int]) -> str:
    """A bar for each count, the highest the tallest; what is not nothing is seen."""
    most = max(counts)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)


def _describe_goals(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The goals; without variants, what concerns them is left out."""
    if summary["variants"]:
        return list(summary["goals"])
    return [
        {
            "goal": goal["goal"],
            "achieved": goal["achieved"],
            "asked": goal["collected"],
            "met": goal["collected_met"],
        }
        for goal in summary["goals"]
    ]


def _describe_fields(fields: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "field": field["field"],
            "type": _describe_type(field["dtype"], field["shape"]),
            "bytes": field["bytes"],
            "bytes_per_step": field["bytes_per_step"],
            "compression": _times(field["compression"]),
        }
        for field in fields
    ]


def _describe_type(dtype: str | None, shape: Sequence[int] | None) -> str | None:
    return f"{dtype} {'×'.join(map(str, shape))}" if shape else dtype


def _times(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:,.1f}×"


def _describe_ancestor(ancestor: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (f"{number:,} {kind}" for kind, number in ancestor["operations"].items())
    why_not = "not found" if ancestor["relation"] == "source" else "place not recorded"
    name = ancestor["path"] or f"{ancestor['dataset_id']} ({why_not})"
    return {
        "dataset": "  " * (ancestor["generation"] - 1) + name,
        "as": ancestor["relation"],
        "snapshot": ancestor["snapshot"],
        "commits": ", ".join(kinds),
        "taken_by": _shorten(ancestor["used_by"]),
    }


def _shorten(text: str) -> str:
    """What imports keep of their source may be long; `--json` has all of it."""
    return text if len(text) <= _LONGEST_ARGUMENT else f"{text[: _LONGEST_ARGUMENT - 3]}..."
