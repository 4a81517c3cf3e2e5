"""The one schema that all episodes of an imported source fit, found before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from retold.dataset.foreign_episode import ForeignEpisode
from retold.dataset.plain_values import pack
from retold.schemas.canonical import encode_json
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import (
    BoxSpace,
    DictSpace,
    Leaf,
    Space,
    TextSpace,
    TupleSpace,
    find_invalid,
    quote_key,
    space_leaves,
)

STORED_DTYPES = frozenset(
    ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
    + [f"float{bits}" for bits in (16, 32, 64)]
)
"""What an array of the format may hold."""

FLAG_LEAVES = tuple(
    Leaf(f"source/{name}", "bool", (), is_optional=True) for name in ("terminated", "truncated")
)
"""The source's own flags, kept where Retold's cannot say the same."""
REWARD_LEAF = Leaf("source/reward", "float64", (), is_optional=True)
"""The source's own rewards, kept where float32 cannot hold them."""


class SchemaScan:
    """Checks the episodes of a source one by one, and remembers what their schema must hold."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self._spaces = {"observation": observation_space, "action": action_space}
        self._leaves = {
            leaf.path: leaf
            for name, space in self._spaces.items()
            for leaf in space_leaves(space, name)
        }
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._optional: dict[str, Leaf] = {}
        self.episodes = 0
        self.longest = 1

    def add(self, episode: ForeignEpisode) -> None:
        """Check an episode.

        Raises:
            DatasetError: it cannot be kept without loss, or lacks something; says which and why.
        """
        where = episode.where
        _check_metadata(episode)
        _check_paths(episode, self._leaves)
        for path, rows in {**episode.observation, **episode.action}.items():
            count = episode.length + path.startswith("observation")
            self._check_leaf(where, self._leaves[path], rows, count)
        check_flags(episode)
        if is_reward_wide(episode):
            self._optional[REWARD_LEAF.path] = REWARD_LEAF
        if has_odd_flags(episode):
            self._optional |= {leaf.path: leaf for leaf in FLAG_LEAVES}
        for path, rows in episode.info.items():
            self._add_info(episode, path, rows)
        for path, rows in episode.columns.items():
            if len(rows) != episode.length:
                _refuse(where, f"{path!r} has {len(rows)} rows for {episode.length} transitions")
            self._add_optional(where, path, rows)
        self.episodes += 1
        self.longest = max(self.longest, episode.length)

    def schema(self, task: TaskDescription, known: Sequence[Leaf] = ()) -> DatasetSchema:
        """The schema of everything seen.

        Args:
            task: what the episodes are of.
            known: optional leaves that the dataset has already; they stay.
        """
        optional = {leaf.path: leaf for leaf in known}
        for path, leaf in self._optional.items():
            mine = replace(leaf, dtype=self._dtypes.get(path, np.dtype(leaf.dtype)).name)
            if optional.setdefault(path, mine) != mine:
                old = optional[path]
                raise DatasetError(
                    f"{path!r} is {mine.dtype}{list(mine.shape)} in the source, but "
                    f"{old.dtype}{list(old.shape)} in the dataset. Import into another dataset, or "
                    f"leave it out with --skip {path}."
                )
        spaces = {name: self._with_dtypes(space, name) for name, space in self._spaces.items()}
        return DatasetSchema(
            tasks=(task,),
            observation_space=spaces["observation"],
            action_space=spaces["action"],
            info_leaves=tuple(optional.values()),
        )

    def _add_info(self, episode: ForeignEpisode, path: str, rows: NDArray[Any]) -> None:
        extra = len(rows) - episode.length
        if extra not in (0, 1):
            _refuse(
                episode.where,
                f"{path!r} has {len(rows)} rows, but {episode.length} transitions ask for "
                f"{episode.length}, or one more with the reset's",
                path,
            )
        self._add_optional(episode.where, path, rows)
        if extra:
            initial = f"initial_{path}"
            self._optional[initial] = replace(self._optional[path], path=initial)
            self._dtypes[initial] = self._dtypes[path]

    def _add_optional(self, where: str, path: str, rows: NDArray[Any]) -> None:
        is_text = rows.dtype == object
        shape = () if is_text else rows.shape[1:]
        leaf = Leaf(path, "uint8" if is_text else rows.dtype.name, shape, is_text, None, True)
        known = self._optional.setdefault(path, leaf)
        if (known.shape, known.is_ragged) != (shape, is_text):
            _refuse(
                where, f"{path!r} has rows of shape {list(shape)}, others {list(known.shape)}", path
            )
        self._note_dtype(where, path, rows)

    def _check_leaf(self, where: str, leaf: Leaf, rows: NDArray[Any], count: int) -> None:
        if len(rows) != count:
            what = f"{leaf.path!r} has {len(rows)} rows, but {count} are needed"
            if leaf.path.startswith("observation"):
                what += " (one more than transitions, the final observation included)"
            _refuse(where, what)
        if (rows.dtype == object) != leaf.is_ragged:
            kind = "text" if leaf.is_ragged else "numbers"
            _refuse(where, f"{leaf.path!r} is {rows.dtype}, but its space asks for {kind}")
        if not leaf.is_ragged and rows.shape[1:] != leaf.shape:
            shapes = f"{list(rows.shape[1:])}, but its space {list(leaf.shape)}"
            _refuse(where, f"{leaf.path!r} has rows of shape {shapes}")
        is_box = isinstance(leaf.space, BoxSpace)
        if is_box or rows.dtype.kind in "iu":
            self._note_dtype(where, leaf.path, rows)
        if not is_box and not leaf.is_ragged:
            is_integer = rows.dtype.kind in "iu"
            whole = rows if is_integer else fit_dtype(where, leaf.path, rows, leaf.dtype)
            if (invalid := find_invalid(leaf, whole)) is not None:
                _refuse(where, invalid)

    def _note_dtype(self, where: str, path: str, rows: NDArray[Any]) -> None:
        if rows.dtype == object:
            self._dtypes[path] = np.dtype("uint8")
            return
        if rows.dtype.name not in STORED_DTYPES:
            _refuse(
                where, f"{path!r} is of dtype {rows.dtype}, which the format does not hold", path
            )
        native = rows.dtype.newbyteorder("=")
        known = self._dtypes.setdefault(path, native)
        common = np.promote_types(known, native)
        wide = {known, native} & {np.dtype("int64"), np.dtype("uint64")}
        if common.kind == "f" and wide:
            _refuse(where, f"{path!r} is {rows.dtype} here and {known} elsewhere", path)
        self._dtypes[path] = common

    def _with_dtypes(self, space: Space, path: str) -> Space:
        """The space with the dtypes that were found."""
        match space:
            case DictSpace():
                return DictSpace(
                    tuple(
                        (key, self._with_dtypes(item, f"{path}/{quote_key(key)}"))
                        for key, item in space.spaces
                    )
                )
            case TupleSpace():
                items = enumerate(space.spaces)
                return TupleSpace(
                    tuple(self._with_dtypes(item, f"{path}/{number}") for number, item in items)
                )
            case TextSpace():
                return space
            case _:
                dtype = self._dtypes.get(path, np.dtype(space.dtype))
                return replace(space, dtype=dtype.name)


def check_flags(episode: ForeignEpisode) -> None:
    """Refuse flags that are not flags, and rewards that are not numbers.

    Raises:
        DatasetError: names the first step that is off.
    """
    flags = {"terminated": episode.terminated, "truncated": episode.truncated}
    for name, rows in {**flags, "reward": episode.reward}.items():
        if rows.shape != (episode.length,) or rows.dtype.kind not in "biuf":
            shape = f"{rows.dtype}{list(rows.shape)}"
            _refuse(episode.where, f"{name!r} is {shape}, not {episode.length} numbers")
    for name, rows in flags.items():
        odd = np.flatnonzero((rows != 0) & (rows != 1))
        if len(odd):
            _refuse(
                episode.where,
                f"{name!r} is {rows[odd[0]]} at step {odd[0]}, neither true nor false",
            )
        early = np.flatnonzero(rows[:-1])
        if len(early):
            _refuse(episode.where, f"{name!r} is set at step {early[0]}, before the last")
    infinite = np.flatnonzero(~np.isfinite(episode.reward))
    if len(infinite):
        step = infinite[0]
        _refuse(episode.where, f"'reward' is {episode.reward[step]} at step {step}, not finite")
    if not np.isfinite(narrow_reward(episode.reward)).all():
        _refuse(episode.where, f"'reward' reaches {np.abs(episode.reward).max()}, beyond float32")


def narrow_reward(reward: NDArray[Any]) -> NDArray[np.float32]:
    """Rewards as Retold's field has them."""
    with np.errstate(over="ignore"):
        return reward.astype(np.float32)


def is_reward_wide(episode: ForeignEpisode) -> bool:
    """Whether float32 cannot hold the rewards exactly."""
    return bool((narrow_reward(episode.reward).astype(np.float64) != episode.reward).any())


def last_step_flags(episode: ForeignEpisode) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """`terminated` and `truncated` as Retold stores them: exactly one, at the last transition."""
    terminated = np.zeros(episode.length, np.bool_)
    truncated = terminated.copy()
    terminated[-1] = bool(episode.terminated[-1])
    truncated[-1] = not terminated[-1]
    return terminated, truncated


def has_odd_flags(episode: ForeignEpisode) -> bool:
    """Whether the source's flags say anything but that."""
    terminated, truncated = last_step_flags(episode)
    return bool((episode.terminated != terminated).any() or (episode.truncated != truncated).any())


def fit_dtype(where: str, path: str, rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Rows in a leaf's dtype.

    Raises:
        DatasetError: a value would change.
    """
    if rows.dtype == object or rows.dtype == np.dtype(dtype):
        return rows
    with np.errstate(invalid="ignore", over="ignore"):
        cast = rows.astype(dtype)
        is_equal = np.array_equal(cast.astype(rows.dtype), rows, equal_nan=rows.dtype.kind == "f")
    if not is_equal:
        _refuse(where, f"{path!r} is {rows.dtype}, whose values {dtype} cannot hold", path)
    return cast


def _check_metadata(episode: ForeignEpisode) -> None:
    try:
        for part in (episode.attributes, episode.options, episode.notes):
            encode_json(pack(part if part is None else dict(part)))
    except (TypeError, ValueError) as error:
        _refuse(episode.where, f"its attributes cannot be kept: {error}")


def _check_paths(episode: ForeignEpisode, leaves: Mapping[str, Leaf]) -> None:
    found = {**episode.observation, **episode.action}
    for path in leaves:
        if path not in found:
            _refuse(episode.where, f"{path!r} is missing")
    for path in found:
        if path not in leaves:
            _refuse(episode.where, f"{path!r} is there, but the space does not have it")


def _refuse(where: str, what: str, path: str | None = None) -> NoReturn:
    todo = "Correct the source and import again; nothing was written."
    if path is not None and path.split("/")[0] in ("info", "column"):
        todo = f"Correct the source, or leave it out with --skip {path}; nothing was written."
    raise DatasetError(f"{where}: {what}. {todo}")
