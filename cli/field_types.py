"""Values of configuration fields, read from a flag's text or from a TOML value."""

import functools
import json
import math
import operator
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from retold.cli.nearest import suggest_nearest
from retold.dataset.paths import DatasetPath, dataset_path

FieldType = Any
"""A resolved annotation: str, int, float, bool, Path, DatasetPath, Literal, `X | None`, `tuple[X, ...]`, Mapping."""


def optional_inner(kind: FieldType) -> FieldType | None:
    """`X` for `X | None`, and None for every other type."""
    items = typing.get_args(kind) if _origin(kind) in (types.UnionType, typing.Union) else ()
    if type(None) not in items:
        return None
    return functools.reduce(operator.or_, (item for item in items if item is not type(None)))


def tuple_item(kind: FieldType) -> FieldType | None:
    """`X` for `tuple[X, ...]` (also when optional), and None for every other type."""
    kind = optional_inner(kind) or kind
    if _origin(kind) is tuple:
        item, dots = typing.get_args(kind)
        assert dots is Ellipsis, f"a flag cannot be a tuple of fixed length: {kind}"
        return item
    return None


def is_mapping(kind: FieldType) -> bool:
    """Whether the value is a JSON object (or a TOML table)."""
    kind = optional_inner(kind) or kind
    return _origin(kind) in (dict, Mapping)


def parse_text(kind: FieldType, text: str) -> Any:
    """The value that one flag's text stands for.

    Raises:
        ValueError: says what is wrong, e.g. `is 'x', which is not an integer`.
    """
    inner = optional_inner(kind)
    if inner is not None:
        is_none = text.lower() == "none" and inner not in (str, Path, DatasetPath)
        return None if is_none else parse_text(inner, text)
    if _origin(kind) is Literal:
        return check_choice(kind, text)
    if is_mapping(kind):
        return _parse_object(text)
    if kind is int:
        return _parse_number(int, text, "an integer")
    if kind is float:
        return _parse_number(float, text, "a number")
    assert kind in (str, Path, DatasetPath), kind
    if not text:
        raise ValueError("is empty")
    return dataset_path(text) if kind == DatasetPath else kind(text)


def parse_toml(kind: FieldType, value: Any) -> Any:
    """The value that a TOML value stands for.

    Raises:
        ValueError: says what is wrong, e.g. `is 'x', which is not an integer`.
    """
    inner = optional_inner(kind)
    if inner is not None:
        return (
            None
            if value == "none" and inner not in (str, Path, DatasetPath)
            else parse_toml(inner, value)
        )
    item = tuple_item(kind)
    if item is not None:
        values = value if isinstance(value, list) else [value]
        return tuple(parse_toml(item, each) for each in values)
    if _origin(kind) is Literal:
        return check_choice(kind, value)
    if is_mapping(kind):
        return _expect(value, dict, "a table")
    if kind is bool:
        return _expect(value, bool, "true or false")
    if kind is int:
        return _expect(value, int, "an integer")
    if kind is float:
        return float(_expect(value, (int, float), "a number"))
    return parse_text(kind, _expect(value, str, "a string"))


def check_choice(kind: FieldType, value: Any) -> Any:
    """The value, if it is one of the literal's.

    Raises:
        ValueError: it is not; names the choices and the nearest one.
    """
    choices = {str(choice): choice for choice in typing.get_args(kind)}
    if str(value) not in choices:
        nearest = suggest_nearest(str(value), choices)
        raise ValueError(f"is {value!r}, which is none of {', '.join(choices)}.{nearest}")
    return choices[str(value)]


def describe_type(kind: FieldType) -> str:
    """The word that stands for a value in help, e.g. `INTEGER`."""
    kind = tuple_item(kind) or optional_inner(kind) or kind
    if _origin(kind) is Literal:
        return "|".join(str(choice) for choice in typing.get_args(kind))
    if is_mapping(kind):
        return "JSON"
    words: dict[FieldType, str] = {
        int: "INTEGER",
        float: "NUMBER",
        Path: "PATH",
        DatasetPath: "PATH",
        str: "TEXT",
    }
    return words[kind]


def describe_value(value: Any) -> str:
    """A default as help shows it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(describe_value(item) for item in value)
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return str(value)


def _origin(kind: FieldType) -> Any:
    return typing.get_origin(kind)


def _parse_number(kind: type[int] | type[float], text: str, name: str) -> int | float:
    try:
        number = kind(text)
    except ValueError:
        raise ValueError(f"is {text!r}, which is not {name}") from None
    if not math.isfinite(number):
        raise ValueError(f"is {text!r}, which is not finite")
    return number


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"is {text!r}, which is not JSON ({error.msg.lower()} at character {error.pos}). "
            f"""Write e.g. '{{"size": 5}}', quotes included"""
        ) from None
    if isinstance(value, dict):
        return value
    raise ValueError(f"""is {text!r}, which is not a JSON object such as '{{"size": 5}}'""")


def _expect(value: Any, kind: type | tuple[type, ...], name: str) -> Any:
    is_number_by_accident = isinstance(value, bool) and kind is not bool
    if not isinstance(value, kind) or is_number_by_accident:
        raise ValueError(f"is {value!r}, which is not {name}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"is {value!r}, which is not finite")
    return value
