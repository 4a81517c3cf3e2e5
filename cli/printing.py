"""Results as readable tables, or as plain values for `--json`."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_ROWS = 12
"""Rows of a table for people."""


def describe_result(result: Any) -> str:
    """A result for people: its own description where it has one, otherwise a line a field."""
    if hasattr(result, "describe"):
        return str(result.describe())
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return format_fields(fields)


def json_values(result: Any) -> Any:
    """A result as values that JSON can hold."""
    if hasattr(result, "to_json"):
        return result.to_json()
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        return json_values(fields)
    if isinstance(result, Mapping):
        return {str(key): json_values(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [json_values(value) for value in result]
    if isinstance(result, Path):
        return str(result)
    return result.item() if hasattr(result, "item") else result


def format_fields(fields: Mapping[str, Any]) -> str:
    """One line for each plain field; nested ones follow as blocks of their own."""
    plain = {name: value for name, value in fields.items() if not is_nested(value)}
    width = max((len(name) for name in plain), default=0)
    blocks = [
        "\n".join(
            f"{_label(name):<{width}}  {format_cell(value, name)}" for name, value in plain.items()
        )
    ]
    for name, value in fields.items():
        if is_nested(value) and value:
            blocks.append(f"{_label(name)}\n{_indent(_format_nested(value))}")
    return "\n\n".join(block for block in blocks if block)


def is_nested(value: Any) -> bool:
    """Whether a field needs a block of its own: a mapping, or a sequence of records."""
    if isinstance(value, list | tuple):
        return any(_is_record(item) for item in value)
    return _is_record(value)


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[Any]], most_rows: int = MOST_ROWS
) -> str:
    """Columns aligned by width, numbers to the right; the rows beyond `most_rows` are counted."""
    cells = [
        [format_cell(value, name) for name, value in zip(header, row, strict=True)] for row in rows
    ]
    hidden = len(cells) - most_rows
    cells = cells[:most_rows] if hidden > 1 else cells
    labels = [_label(name) for name in header]
    columns = list(zip(labels, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_text = [not all(map(_is_number, column[1:])) for column in columns]
    lines = [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in (labels, *cells)
    ]
    if hidden > 1:
        lines.append(f"... and {hidden:,} more; --json has all of them")
    return "\n".join(lines)


def format_cell(value: Any, name: str = "") -> str:
    """One value for people. A field whose name says bytes is shown as kB, MB or GB."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and "bytes" in name:
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**12 and not name.endswith("seed") else str(value)
    if isinstance(value, Mapping):
        return json.dumps(json_values(value))
    if isinstance(value, list | tuple):
        return ", ".join(format_cell(item, name) for item in value) or "-"
    return " ".join(str(value).split()) or "-"


def format_bytes(size: float) -> str:
    """E.g. `12.3 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if float(size).is_integer() else f"{size:.1f} {unit}"


def _format_nested(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return format_fields(_record_fields(value))
    records = [_record_fields(item) for item in value]
    header = list(records[0])
    return format_table(header, ([record.get(name) for name in header] for record in records))


def _record_fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _is_record(value: Any) -> bool:
    return isinstance(value, Mapping) or dataclasses.is_dataclass(value)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"-|-?[\d,]+(\.\d+)?( [kMG]?B)?", cell) is not None
