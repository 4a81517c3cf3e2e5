"""One episode of a stranger's table, from the Arrow arrays of its rows."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.column_mapping import ColumnMapping
from retold.dataset.foreign_episode import ForeignEpisode
from retold.dataset.foreign_schema import check_flags
from retold.dataset.table_columns import IncompleteError, decode_leaf, decode_whole
from retold.schemas.episode import Leaves
from retold.schemas.errors import DatasetError

Part = Mapping[str, tuple[Any, ...]]
"""Arrow arrays of one row a step by the path of their leaf; several are made one vector."""


@dataclass(frozen=True)
class EpisodeRows:
    """One episode's columns, or several episodes' between which only observations jump."""

    where: str
    part: Part


def read_episodes(
    rows: EpisodeRows, mapping: ColumnMapping, *, is_steps: bool
) -> Iterator[ForeignEpisode | None]:
    """The episodes of a run of rows: one, unless only jumps of the observation part them.

    Args:
        rows: of it.
        mapping: of its columns.
        is_steps: whether rows are steps of a table; False: items of one row's lists.

    Raises:
        IncompleteError: something is missing or cannot be read.
    """
    part = rows.part if not is_steps or "step" not in rows.part else _in_order(rows.part)
    reward = _read_reward(part)
    length = len(reward)
    observation, following = _read_observations(part, length)
    has_final = not following and all(len(leaf) > length for leaf in observation.values())
    fields = {p: decode_whole(p, part[p], length) for p in part if is_of(p, "action", "info")}
    flags = {
        name: _read_flags(part, name, mapping, length, is_steps=is_steps)
        for name in ("terminated", "truncated")
    }
    jumps = _find_jumps(observation, following, length)
    if len(jumps) and mapping.episode is not None:
        raise IncompleteError(
            f"next_observation of step {jumps[0]} is not the observation of step {jumps[0] + 1}, "
            f"so that something is missing between them"
        )
    bounds = [0, *(int(jump) + 1 for jump in jumps), length]
    for start, stop in itertools.pairwise(bounds):
        yield _make_episode(
            rows.where,
            {
                p: leaf[start : stop + (has_final and stop == length)]
                for p, leaf in observation.items()
            },
            {p: leaf[stop - 1 : stop] for p, leaf in following.items()},
            {p: leaf[start:stop] for p, leaf in fields.items()},
            reward[start:stop],
            {name: leaf[start:stop] for name, leaf in flags.items()},
            is_jump=stop < length,
        )


def _read_reward(part: Part) -> NDArray[Any]:
    """`[length]`: one for each transition."""
    reward, present = decode_leaf(part["reward"])
    length = int(present.sum())
    if not present[:length].all():
        step = int(np.argmin(present))
        raise IncompleteError(
            f"the reward of step {step} is null, which only the last row's may be"
        )
    return _one_number(reward[:length], "reward")


def _read_observations(part: Part, length: int) -> tuple[Leaves, Leaves]:
    """`[length]` or `[length + 1]` each, and what followed each step where that must be known."""
    paths = [path for path in part if is_of(path, "observation")]
    count = max((len(part[path][0]) for path in paths), default=0)
    if count not in (length, length + 1):
        raise IncompleteError(f"there are {count} observations for {length} rewards")
    observation = {path: decode_whole(path, part[path], count) for path in paths}
    if count > length:
        return observation, {}
    return observation, {
        path.replace("next", "observation", 1): decode_whole(path, part[path], length)
        for path in part
        if is_of(path, "next")
    }


def _in_order(part: Part) -> Part:
    """The rows by their number, of which none may be missing or be there twice."""
    numbers = _one_number(decode_whole("step", part["step"], len(part["step"][0])), "step")
    order = np.argsort(numbers, kind="stable")
    gaps = np.flatnonzero(np.diff(numbers[order]) != 1)
    if len(gaps):
        before, after = numbers[order][gaps[0]], numbers[order][gaps[0] + 1]
        what = "is there twice" if before == after else f"is followed by step {after}"
        raise IncompleteError(f"step {before} {what}")
    if (order == np.arange(len(order))).all():
        return part
    index = pa.array(order)
    return {path: tuple(a.take(index) for a in arrays) for path, arrays in part.items()}


def _read_flags(
    part: Part, name: str, mapping: ColumnMapping, length: int, *, is_steps: bool
) -> NDArray[Any]:
    """`[length]`: a flag's column, or its one value at the last transition."""
    value = getattr(mapping, name)
    if isinstance(value, bool):
        return np.asarray((np.arange(length) == length - 1) & value)
    if not is_steps and len(part[name][0]) == 1:
        (last,) = decode_whole(name, part[name], 1)
        return np.asarray((np.arange(length) == length - 1) & bool(last))
    return _one_number(decode_whole(name, part[name], length), name)


def is_of(path: str, *names: str) -> bool:
    """Whether a leaf lies below one of some fields."""
    return path.split("/")[0] in names


def _one_number(rows: NDArray[Any], name: str) -> NDArray[Any]:
    """`[rows]`, of `[rows]` or `[rows, 1]`."""
    if rows.size != len(rows) or rows.dtype.kind not in "biuf":
        raise IncompleteError(
            f"{name!r} is {rows.dtype}{list(rows.shape[1:])} a step, not one number"
        )
    return rows.reshape(len(rows))


def _find_jumps(observation: Leaves, following: Leaves, length: int) -> NDArray[np.int64]:
    """Steps whose next observation is not what the row below saw."""
    jumps = np.zeros(max(0, length - 1), np.bool_)
    for path, rows in following.items():
        if path not in observation:
            raise IncompleteError(f"next_observation has {path!r}, but observation has not")
        one, two = rows[:-1], observation[path][1:length]
        if one.shape != two.shape:
            raise IncompleteError(
                f"next_observation is of another shape than observation ({path!r})"
            )
        same = one == two
        if one.dtype.kind == "f":
            same |= np.isnan(one) & np.isnan(two)
        jumps |= ~np.asarray(same, np.bool_).all(axis=tuple(range(1, one.ndim)))
    if following and (odd := set(observation) - set(following)):
        raise IncompleteError(f"observation has {min(odd)!r}, but next_observation has not")
    return np.flatnonzero(jumps)


def _make_episode(
    where: str,
    observation: Leaves,
    final: Leaves,
    fields: Leaves,
    reward: NDArray[Any],
    flags: Mapping[str, NDArray[Any]],
    *,
    is_jump: bool,
) -> ForeignEpisode | None:
    """One episode; None if there is no whole transition."""
    length = len(reward)
    notes: dict[str, Any] = {"jump": True} if is_jump else {}
    if final:
        observation = {
            path: np.concatenate([rows, final[path].astype(rows.dtype)])
            for path, rows in observation.items()
        }
    elif len(next(iter(observation.values()))) == length:
        length -= 1
        notes["last"] = {}
    if length < 1:
        return None
    terminated, truncated = (flags[name][:length] for name in ("terminated", "truncated"))
    if "last" in notes or is_jump:
        truncated = truncated.copy()
        truncated[-1] = not terminated[-1]
    episode = ForeignEpisode(
        where=where,
        observation=observation,
        action={p: rows[:length] for p, rows in fields.items() if is_of(p, "action")},
        reward=reward[:length],
        terminated=terminated,
        truncated=truncated,
        info={p: rows[:length] for p, rows in fields.items() if is_of(p, "info")},
        notes=notes,
    )
    try:
        check_flags(episode)
    except DatasetError as error:
        reason = str(error).removeprefix(f"{where}: ").partition(". ")[0]
        raise IncompleteError(reason) from error
    return episode
