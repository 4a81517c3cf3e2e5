"""Checking a task's arguments: each wrong one is named, with what to give instead."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

from retold.schemas.errors import TaskError
from retold.tasks.definition import Argument, Arguments, Task


def complete(task: Task, given: Arguments) -> dict[str, Any]:
    """A task's arguments, defaults filled in and each one checked.

    Raises:
        TaskError: an argument does not exist, or a value is out of range.
    """
    for key in given:
        if key not in task.arguments:
            raise TaskError(
                f"Task {task.name} has no argument {key!r}. {suggest(key, task.arguments)}"
            )
    return {
        key: _check(task.name, key, argument, given.get(key, argument.default))
        for key, argument in task.arguments.items()
    }


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest name there is, or all of them."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    if nearest:
        return f"Did you mean {nearest[0]!r}?"
    return f"There are: {', '.join(names)}." if names else "There are none."


def _check(name: str, key: str, argument: Argument, value: Any) -> Any:
    where = f"Task {name}: argument {key!r} is {value!r}"
    if argument.choices:
        if value not in argument.choices:
            raise TaskError(f"{where}. Choose one of: {', '.join(argument.choices)}.")
        return value
    if isinstance(argument.default, bool):
        if not isinstance(value, bool):
            raise TaskError(f"{where}. Give true or false.")
        return value
    if isinstance(argument.default, dict):
        if not isinstance(value, dict):
            raise TaskError(f"{where}. Give a JSON object.")
        return value
    if argument.is_range:
        return _check_range(where, argument, value)
    if isinstance(argument.default, float):
        if not _is_number(value) or value < argument.minimum:
            raise TaskError(f"{where}. Give a number of at least {argument.minimum:g}.")
        return float(value)
    if not _is_int(value) or value < argument.minimum or (argument.is_odd and value % 2 == 0):
        kind = "an odd number" if argument.is_odd else "a whole number"
        raise TaskError(f"{where}. Give {kind} of at least {argument.minimum:g}.")
    return value


def _check_range(where: str, argument: Argument, value: Any) -> list[int]:
    bounds = [value, value] if isinstance(value, int) else value
    is_pair = isinstance(bounds, list | tuple) and len(bounds) == 2
    if not is_pair or not all(_is_int(b) and b >= argument.minimum for b in bounds):
        raise TaskError(f"{where}. Give a whole number of at least {argument.minimum:g}, or two.")
    if bounds[0] > bounds[1]:
        raise TaskError(f"{where}. Give the smaller number first.")
    return list(bounds)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
