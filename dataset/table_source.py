"""A stranger's table of steps or episodes, read by a mapping of its columns.

The observation after an episode's last transition is a row of its own whose reward is null, one more
item of a list, or the last row's `next_observation`. Where there is none, the last transition is left
out, as with every other format.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.column_mapping import ColumnMapping, nearest_name, read_mapping
from retold.dataset.foreign_episode import ForeignEpisode
from retold.dataset.foreign_files import reading
from retold.dataset.parquet_export import SCHEMA_KEY
from retold.dataset.parquet_spaces import LeafRange
from retold.dataset.table_columns import (
    IncompleteError,
    column_type,
    decode_leaf,
    is_list,
    is_nested_type,
    take_leaves,
)
from retold.dataset.table_episode import EpisodeRows, Part, is_of, read_episodes
from retold.dataset.table_rows import TableRows, open_rows
from retold.schemas.canonical import sha256_hex
from retold.schemas.dataset_schema import IMPORTED, DatasetSchema, TaskDescription
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import DictSpace, Space, space_leaves, unquote_key

logger = logging.getLogger(__name__)

_STEPS_AT_ONCE = 1024
_EPISODES_AT_ONCE = 16
_TOLD = 5
"""Episodes that are let go, of which each is told."""


def open_table(source: Path, mapping: Path) -> "TableSource":
    """The reader of a table.

    Raises:
        DatasetError: there is none, or it lacks a column.
        UsageError: the mapping makes no sense.
    """
    columns = read_mapping(mapping)
    return TableSource(source, open_rows(source, columns.config, columns.split), columns)


class TableSource:
    """A table and what its columns mean."""

    def __init__(self, path: Path, rows: TableRows, mapping: ColumnMapping) -> None:
        self.path = path
        self._rows = rows
        self._mapping = mapping
        self._columns = {
            name: (columns,) if isinstance(columns, str) else columns
            for name, columns in mapping.leaves().items()
        }
        self._needed = [c for columns in self._columns.values() for c in columns]
        self._top = list(dict.fromkeys(self._find(name) for name in self._needed))
        self.left_out = tuple(name for name in rows.schema.names if name not in self._top)
        is_nested = is_list(column_type(rows.schema, mapping.reward))
        self._is_steps = not is_nested if mapping.rows is None else mapping.rows == "steps"
        if not self._is_steps and not is_nested:
            raise DatasetError(
                f"{rows.where}: a row is to be an episode, but {mapping.reward!r} is no list. Say "
                f'rows = "steps" in the mapping.'
            )
        if self._is_steps and not {"episode", "terminated", "truncated"} & set(self._columns):
            raise DatasetError(
                f"{rows.where}: a row is a step, and nothing says where an episode ends. Name the "
                f'column that numbers episodes (episode = "…"), or those of the flags.'
            )
        if mapping.episode is not None and is_nested_type(
            column_type(rows.schema, mapping.episode)
        ):
            raise DatasetError(
                f"{rows.where}: {mapping.episode!r} is to number episodes, but holds no numbers or "
                f"text. Correct the mapping."
            )
        self._told: set[str] = set()

    @property
    def sha256(self) -> str:
        """Of the rows and the mapping, which together make the episodes."""
        return sha256_hex(self._rows.sha256.encode() + self._mapping.encoded)

    @cached_property
    def spaces(self) -> tuple[Space, Space]:
        """Those that the mapping gives, those of an export, or the narrowest."""
        given = {
            "observation": self._mapping.observation_space,
            "action": self._mapping.action_space,
        }
        exported = self._exported
        if exported is not None:
            given["observation"] = given["observation"] or exported.observation_space
            given["action"] = given["action"] or exported.action_space
        unknown = [name for name, space in given.items() if space is None]
        found = self._infer(unknown) if unknown else {}
        observation, action = (given[name] or found[name] for name in given)
        return observation, action

    def task(self, horizon: int) -> TaskDescription:
        """What the episodes are of, as far as the mapping says."""
        return TaskDescription(
            name=self._mapping.task or self._rows.name,
            kwargs={"format": "hf-dataset"},
            code_version=IMPORTED,
            limit_is="truncation",
            horizon=horizon,
        )

    def episodes(self) -> Iterator[ForeignEpisode | None]:
        """The episodes in order; None for one without a whole transition, or one that is let go."""
        for rows in self._step_rows() if self._is_steps else self._episode_rows():
            try:
                with reading(rows.where, "columns of the mapping"):
                    found = list(read_episodes(rows, self._mapping, is_steps=self._is_steps))
                    for episode in found:
                        self._check_shapes(episode)
            except IncompleteError as problem:
                if self._mapping.incomplete == "refuse":
                    raise DatasetError(
                        f"{rows.where}: {problem}. Correct the table, or let such episodes go with "
                        f'incomplete = "drop" in the mapping; nothing was written.'
                    ) from None
                self._tell(rows.where, str(problem))
                found = [None]
            yield from found

    @property
    def _exported(self) -> DatasetSchema | None:
        """The schema that an export of Retold's left, where the mapping reads all of its leaves."""
        about: Mapping[bytes, bytes] = self._rows.schema.metadata or {}
        mine = (self._mapping.observation, self._mapping.action)
        if SCHEMA_KEY not in about or mine != ("observation", "action"):
            return None
        with reading(self._rows.where, "the schema in its metadata"):
            return DatasetSchema.from_json(json.loads(about[SCHEMA_KEY]))

    def _find(self, name: str) -> str:
        """The column of the table that a name is, or begins with."""
        names = self._rows.schema.names
        if names.count(name.split(".")[0]) > 1 or names.count(name) > 1:
            raise DatasetError(
                f"{self._rows.where}: column {name!r} is there twice. Give them different names."
            )
        if column_type(self._rows.schema, name) is not None:
            return name if name in names else name.split(".")[0]
        raise DatasetError(
            f"{self._rows.where}: column {name!r} is missing.{nearest_name(name, names)} There are "
            f"{', '.join(map(repr, names))}. Correct the mapping."
        )

    def _check_shapes(self, episode: ForeignEpisode | None) -> None:
        leaves = {} if episode is None else {**episode.observation, **episode.action}
        for path, rows in leaves.items():
            shape = self._shapes.get(path, rows.shape[1:])
            if rows.shape[1:] != shape:
                raise IncompleteError(
                    f"{path!r} has rows of shape {list(rows.shape[1:])}, others {list(shape)}"
                )

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes that the spaces ask for, by the path of the leaf."""
        named = zip(("observation", "action"), self.spaces, strict=True)
        leaves = [leaf for name, space in named for leaf in space_leaves(space, name)]
        return {leaf.path: leaf.shape for leaf in leaves}

    def _tell(self, where: str, reason: str) -> None:
        if where not in self._told and len(self._told) < _TOLD:
            logger.warning("%s: it is let go: %s.", where, reason)
            self._told.add(where)

    def _extract(self, table: pa.Table, *, row: int | None = None) -> dict[str, tuple[Any, ...]]:
        """The columns of a batch of steps, or of one episode; structs become leaves."""
        return {
            leaf: arrays
            for path, columns in self._columns.items()
            for leaf, arrays in take_leaves(table, path, columns, row=row).items()
        }

    def _step_rows(self) -> Iterator[EpisodeRows]:
        """Runs of rows of one episode."""
        pieces: list[Part] = []
        seen: set[Any] = set()
        known: Any = None
        has_ended = True
        first = 0
        for table in self._rows.batches(self._top, _STEPS_AT_ONCE):
            part = self._extract(table)
            ids = self._episode_ids(part, first)
            ends = None if ids is not None else self._ends(part)
            start = 0
            for stop in _find_stops(ids, ends, len(table)):
                is_new = has_ended if ids is None else ids[start] != known
                if is_new:
                    if pieces:
                        yield _join(self._where(known, len(seen)), pieces)
                        pieces = []
                    known = first + start if ids is None else ids[start]
                    if known in seen:
                        raise DatasetError(
                            f"{self._rows.where}: episode {known!r} goes on in row {first + start:,}, "
                            f"after others. Sort the table by {self._mapping.episode!r}; nothing was "
                            f"written."
                        )
                    seen.add(known)
                pieces.append(_slice(part, start, stop))
                has_ended = ends is not None and bool(ends[stop - 1])
                start = stop
            first += len(table)
        if pieces:
            yield _join(self._where(known, len(seen)), pieces)

    def _episode_rows(self) -> Iterator[EpisodeRows]:
        number = 0
        for table in self._rows.batches(self._top, _EPISODES_AT_ONCE):
            for row in range(len(table)):
                where = f"{self._rows.where}: row {number:,}"
                with reading(where, "columns of the mapping"):
                    yield EpisodeRows(where, self._extract(table, row=row))
                number += 1

    def _where(self, known: Any, number: int) -> str:
        if self._mapping.episode is None:
            return f"{self._rows.where}: episode {number - 1} (from row {known:,} on)"
        return f"{self._rows.where}: episode {known!r}"

    def _episode_ids(self, part: Part, first: int) -> list[Any] | None:
        if "episode" not in part:
            return None
        ids: list[Any] = part["episode"][0].to_pylist()
        for number, known in enumerate(ids):
            if known is None or (isinstance(known, float) and math.isnan(known)):
                raise DatasetError(
                    f"{self._rows.where}: {self._mapping.episode!r} is {known or 'null'} in row "
                    f"{first + number:,}, which then belongs to no episode. Correct the table; "
                    f"nothing was written."
                )
        return ids

    def _ends(self, part: Part) -> NDArray[np.bool_]:
        """`[rows]`: where a flag is set."""
        ends = np.zeros(len(part["reward"][0]), np.bool_)
        for name in ("terminated", "truncated"):
            if name in part:
                ends |= decode_leaf(part[name])[0].reshape(len(ends)).astype(np.bool_)
        return ends

    def _infer(self, names: list[str]) -> dict[str, Space]:
        """The narrowest spaces of observations and actions, looking no further than needed."""
        columns = {p: c for p, c in self._columns.items() if is_of(p, *names)}
        top = list(dict.fromkeys(self._find(name) for c in columns.values() for name in c))
        ranges: dict[str, LeafRange] = {}
        size = _STEPS_AT_ONCE if self._is_steps else _EPISODES_AT_ONCE
        for table in self._rows.batches(top, size):
            for row in [None] if self._is_steps else range(len(table)):
                for path, of in columns.items():
                    for leaf, parts in take_leaves(table, path, of, row=row).items():
                        for found in self._values(leaf, parts):
                            ranges.setdefault(leaf, LeafRange()).add(found)
            if ranges and not any(
                r.is_open(is_action=is_of(p, "action")) for p, r in ranges.items()
            ):
                break
        if any(not any(is_of(path, name) for path in ranges) for name in names):
            raise DatasetError(
                f"{self._rows.where}: there is no row with a value. Give another table."
            )
        return {name: _nest(ranges, name) for name in names}

    def _values(self, path: str, arrays: tuple[Any, ...]) -> Iterator[NDArray[Any]]:
        """The values of a leaf; where something may be let go, those that can be read."""
        try:
            found, present = decode_leaf(arrays)
            if present.any():
                yield found[present]
        except IncompleteError as problem:
            if self._mapping.incomplete == "refuse":
                raise DatasetError(
                    f"{self._rows.where}: {path!r}: {problem}. Correct the table, or let such "
                    f'episodes go with incomplete = "drop" in the mapping; nothing was written.'
                ) from None
            count = len(arrays[0])
            for row in range(count) if count > 1 else ():
                yield from self._values(path, tuple(array.slice(row, 1) for array in arrays))


def _nest(ranges: Mapping[str, LeafRange], path: str) -> Space:
    if path in ranges:
        return ranges[path].space(is_action=is_of(path, "action"))
    keys = dict.fromkeys(
        name[len(path) + 1 :].split("/")[0] for name in ranges if name.startswith(f"{path}/")
    )
    return DictSpace(tuple((unquote_key(key), _nest(ranges, f"{path}/{key}")) for key in keys))


def _find_stops(ids: list[Any] | None, ends: NDArray[np.bool_] | None, count: int) -> list[int]:
    if ids is not None:
        stops = [n for n in range(1, count) if ids[n] != ids[n - 1]]
    else:
        assert ends is not None
        stops = [int(n) + 1 for n in np.flatnonzero(ends) if n + 1 < count]
    return [*stops, count] if count else []


def _slice(part: Part, start: int, stop: int) -> Part:
    return {p: tuple(a.slice(start, stop - start) for a in arrays) for p, arrays in part.items()}


def _join(where: str, pieces: list[Part]) -> EpisodeRows:
    with reading(where, "columns of the mapping"):
        joined = {
            path: tuple(
                pa.concat_arrays(list(parts))
                for parts in zip(*(p[path] for p in pieces), strict=True)
            )
            for path in pieces[0]
        }
    return EpisodeRows(where, joined)
