"""A small TOML file that says which columns of a stranger's table mean what.

`observation = "obs"` names a column (`a.b` a field of a struct), a list of columns makes one vector of
them, and a table of columns a Dict space.
"""

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retold.schemas.canonical import encode_json
from retold.schemas.errors import FormatError, UsageError
from retold.schemas.spaces import (
    DiscreteSpace,
    Space,
    find_invalid,
    quote_key,
    space_from_json,
    space_leaves,
)

_NONSENSE = (ValueError, KeyError, TypeError, AttributeError, IndexError)
Columns = str | tuple[str, ...] | Mapping[str, "Columns"]


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """Which columns mean what."""

    observation: Columns
    action: Columns
    reward: str
    terminated: str | bool
    """A column, or one value for every step."""
    truncated: str | bool = False
    episode: str | None = None
    """Rows of one episode have one value here; None: the flags say where an episode ends."""
    step: str | None = None
    """Number of a row in its episode; rows of an episode are put in its order."""
    next_observation: Columns | None = None
    """What followed a row's action."""
    info: Mapping[str, Columns] = field(default_factory=dict)
    """Other columns to keep, by name."""
    rows: Literal["steps", "episodes"] | None = None
    """What a row is; None: an episode if the reward is a list."""
    incomplete: Literal["refuse", "drop"] = "refuse"
    """What is done with an episode of which something is missing."""
    task: str | None = None
    """Name of what was played; None: that of the source."""
    config: str | None = None
    """Of a dataset on the Hub."""
    split: str = "train"
    """Of a dataset on the Hub."""
    observation_space: Space | None = None
    """None: inferred from the columns."""
    action_space: Space | None = None
    content: Mapping[str, Any] = field(default_factory=dict)
    """What the file says, as it says it."""

    @property
    def encoded(self) -> bytes:
        """Equal for mappings that say the same."""
        return encode_json(dict(self.content))

    def leaves(self) -> dict[str, str | tuple[str, ...]]:
        """Columns of everything that has a row a step, by the path that it gets."""
        found = {
            **dict(_flatten("observation", self.observation)),
            **dict(_flatten("action", self.action)),
            "reward": self.reward,
        }
        if self.next_observation is not None:
            found |= dict(_flatten("next", self.next_observation))
        if self.info:
            found |= dict(_flatten("info", self.info))
        for name in ("terminated", "truncated", "episode", "step"):
            column = getattr(self, name)
            if isinstance(column, str):
                found[name] = column
        return found


def read_mapping(path: Path) -> ColumnMapping:
    """What a mapping file says.

    Raises:
        UsageError: it cannot be read, or something in it makes no sense.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: the mapping cannot be read ({reason}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the mapping is not TOML: {error}.") from None
    known = {item.name for item in fields(ColumnMapping)} - {"content"}
    for name in content:
        if name not in known:
            raise UsageError(
                f"{path}: nothing is called {name!r}.{nearest_name(name, known)} What there is: "
                f"{', '.join(sorted(known))}."
            )
    for name in ("observation", "action", "reward", "terminated"):
        if name not in content:
            more = " It may be true or false for every step." if name == "terminated" else ""
            raise UsageError(
                f"{path}: {name!r} is missing. Name the column that holds it, e.g. "
                f'{name} = "{name}".{more}'
            )
    values = {name: _parse(path, name, value) for name, value in content.items()}
    return ColumnMapping(**values, content=content)


def _parse(path: Path, name: str, value: Any) -> Any:
    where = f"{path}: {name}"
    if name in ("observation", "action", "next_observation", "info"):
        if name == "info" and not isinstance(value, dict):
            raise UsageError(f"{where} is {value!r}, but must be a table of columns by name.")
        return _parse_columns(where, value)
    if name in ("observation_space", "action_space"):
        return _parse_space(where, value)
    if name in ("terminated", "truncated") and isinstance(value, bool):
        return value
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where} is {value!r}, but must be a name in quotes.")
    choices = {
        "rows": ("steps", "episodes"),
        "incomplete": ("refuse", "drop"),
    }.get(name)
    if choices is not None and value not in choices:
        raise UsageError(f"{where} is {value!r}, but is one of {' and '.join(choices)}.")
    return value


def _parse_columns(where: str, value: Any) -> Columns:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    if isinstance(value, dict) and value:
        return {key: _parse_columns(f"{where}.{key}", item) for key, item in value.items()}
    raise UsageError(
        f"{where} is {value!r}, but must be a column's name, a list of names, or a table of them."
    )


def _parse_space(where: str, value: Any) -> Space:
    try:
        space = space_from_json(value)
        for leaf in space_leaves(space, ""):
            find_invalid(leaf, np.zeros((0, *leaf.shape), leaf.dtype))
            if isinstance(leaf.space, DiscreteSpace):
                np.array(leaf.space.start + leaf.space.n - 1, leaf.dtype)
    except (FormatError, ArithmeticError, *_NONSENSE) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"{where} is no space ({reason.rstrip('.')}). Write e.g. "
            f'{{ type = "discrete", n = 3, start = 0, dtype = "int64" }}.'
        ) from error
    return space


def _flatten(path: str, columns: Columns) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    if isinstance(columns, Mapping):
        for key, item in columns.items():
            yield from _flatten(f"{path}/{quote_key(key)}", item)
    else:
        yield path, columns


def nearest_name(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` where a known name is near, otherwise nothing."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
