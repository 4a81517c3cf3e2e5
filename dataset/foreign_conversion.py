"""Between episodes of another format and Retold's, exactly: what one side cannot say is kept aside.

Retold's reward is float32 and its flags stand at the last transition alone. Where a source says more,
its own are kept as `source/…` leaves, and other columns of its as `column/…`; dtypes, reset options and attributes go into the
episode's metadata. `to_foreign` gives all of it back.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.foreign_episode import ForeignEpisode
from retold.dataset.foreign_schema import (
    FLAG_LEAVES,
    REWARD_LEAF,
    fit_dtype,
    has_odd_flags,
    is_reward_wide,
    last_step_flags,
    narrow_reward,
)
from retold.dataset.plain_values import pack, unpack
from retold.schemas.canonical import encode_json
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode, EpisodeRecord, Leaves
from retold.schemas.identity import make_import_id

_INT64 = range(-(2**63), 2**63)


def to_episode(
    foreign: ForeignEpisode,
    schema: DatasetSchema,
    *,
    dataset_id: str,
    source_sha256: str,
    index: int,
) -> Episode:
    """A foreign episode as Retold stores it.

    Args:
        foreign: checked by a `SchemaScan`.
        schema: that the scan made.
        dataset_id: where the episode will live.
        source_sha256: hash of the source's content.
        index: number of the episode in the source.
    """
    terminated, truncated = last_step_flags(foreign)
    info, present, dtypes = _optional_leaves(foreign, schema)
    fields: dict[str, Leaves] = {"observation": {}, "action": {}}
    leaves = {leaf.path: leaf for leaf in schema.leaves}
    for path, rows in {**foreign.observation, **foreign.action}.items():
        name = path.split("/")[0]
        fields[name][path] = fit_dtype(foreign.where, path, rows, leaves[path].dtype)
        _note_dtype(dtypes, path, rows, leaves[path].dtype)
    for name, stored in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        _note_dtype(dtypes, name, getattr(foreign, name), stored)
    return Episode(
        record=_make_record(
            foreign, make_import_id(dataset_id, source_sha256, index), index, dtypes
        ),
        observation=fields["observation"],
        action=fields["action"],
        reward=narrow_reward(foreign.reward),
        terminated=terminated,
        truncated=truncated,
        environment_terminated=terminated,
        reset=np.zeros(foreign.length, np.bool_),
        event_step=np.zeros(0, np.uint32),
        event_goal=np.zeros(0, np.uint32),
        info=info,
        info_present=present,
    )


def to_foreign(episode: Episode, where: str) -> ForeignEpisode:
    """An episode of Retold's for an exporter; an imported one exactly as its source had it."""
    record = episode.record
    metadata: dict[str, Any] = {}
    if record.metadata is not None and not record.is_variant:
        metadata = unpack(json.loads(record.metadata))
    notes = dict(metadata.get("source", {}))
    dtypes: Mapping[str, str] = notes.pop("dtypes", {})
    seed = notes.pop("seed", record.seed)
    own = {} if record.is_variant else _full_columns(episode)
    reward = own.pop(REWARD_LEAF.path, episode.reward)
    terminated = own.pop(FLAG_LEAVES[0].path, episode.terminated)
    truncated = own.pop(FLAG_LEAVES[1].path, episode.truncated)

    def restore(path: str, rows: NDArray[Any]) -> NDArray[Any]:
        return rows.astype(dtypes[path]) if path in dtypes else rows

    return ForeignEpisode(
        where=where,
        observation={path: restore(path, rows) for path, rows in episode.observation.items()},
        action={path: restore(path, rows) for path, rows in episode.action.items()},
        reward=restore("reward", reward),
        terminated=restore("terminated", terminated),
        truncated=restore("truncated", truncated),
        info={path: restore(path, rows) for path, rows in _join_infos(episode).items()},
        columns={path: restore(path, rows) for path, rows in own.items()},
        has_infos=notes.pop("has_infos", True),
        seed=seed,
        options=metadata.get("options"),
        attributes=metadata.get("attributes", {}),
        notes=notes,
    )


def _make_record(
    foreign: ForeignEpisode, episode_id: str, index: int, dtypes: Mapping[str, str]
) -> EpisodeRecord:
    terminated = bool(foreign.terminated[-1])
    has_seed = foreign.seed is not None and foreign.seed in _INT64
    return EpisodeRecord(
        episode_id=episode_id,
        task=0,
        length=foreign.length,
        episode_return=float(narrow_reward(foreign.reward).sum(dtype=np.float64)),
        terminated=terminated,
        truncated=not terminated,
        environment_terminated=terminated,
        index=index,
        seed=foreign.seed if has_seed else None,
        metadata=_encode_metadata(foreign, dtypes),
    )


def _optional_leaves(
    foreign: ForeignEpisode, schema: DatasetSchema
) -> tuple[Leaves, Leaves, dict[str, str]]:
    """Values, masks and dtypes of infos, the reset's infos, and the source's own columns."""
    values: Leaves = dict(foreign.columns)
    initial: Leaves = {}
    for path, rows in foreign.info.items():
        if len(rows) > foreign.length:
            initial[f"initial_{path}"] = rows[:1]
            rows = rows[1:]
        values[path] = rows
    if is_reward_wide(foreign):
        values[REWARD_LEAF.path] = foreign.reward
    if has_odd_flags(foreign):
        values |= {
            leaf.path: rows
            for leaf, rows in zip(FLAG_LEAVES, (foreign.terminated, foreign.truncated), strict=True)
        }
    info: Leaves = {}
    present: Leaves = {}
    dtypes: dict[str, str] = {}
    for leaf in schema.info_leaves:
        if leaf.path not in values and leaf.path not in initial:
            continue
        rows = values[leaf.path] if leaf.path in values else initial[leaf.path]
        fitted = fit_dtype(foreign.where, leaf.path, rows, leaf.dtype)
        mask = np.arange(foreign.length) < len(fitted)
        padding = np.full(
            (foreign.length - len(fitted), *fitted.shape[1:]), "" if leaf.is_ragged else 0
        )
        info[leaf.path] = np.concatenate([fitted, padding.astype(fitted.dtype)])
        present[leaf.path] = mask
        if leaf.path not in (REWARD_LEAF.path, *(flag.path for flag in FLAG_LEAVES)):
            _note_dtype(dtypes, leaf.path, rows, leaf.dtype)
    return info, present, dtypes


def _full_columns(episode: Episode) -> Leaves:
    """The source's own columns, where they are there at every transition."""
    return {
        path: rows
        for path, rows in episode.info.items()
        if path.startswith(("source/", "column/")) and episode.info_present[path].all()
    }


def _join_infos(episode: Episode) -> Leaves:
    """Infos of transitions behind those of the reset; a mask beside those that have gaps.

    The mask is named as Gymnasium's vector environments name it: `_speed` for `speed`.
    """
    joined: Leaves = {}
    for path, rows in episode.info.items():
        present = episode.info_present[path]
        if not path.startswith("info/") or not present.any():
            continue
        initial = f"initial_{path}"
        if initial in episode.info and episode.info_present[initial][0]:
            rows = np.concatenate([episode.info[initial][:1], rows])
            present = np.concatenate([np.ones(1, np.bool_), present])
        joined[path] = rows
        if not present.all():
            parents, _, name = path.rpartition("/")
            joined.setdefault(f"{parents}/_{name}", present)
    return joined


def _note_dtype(dtypes: dict[str, str], path: str, rows: NDArray[Any], stored: str) -> None:
    if rows.dtype != object and rows.dtype.str != np.dtype(stored).str:
        dtypes[path] = rows.dtype.str


def _encode_metadata(foreign: ForeignEpisode, dtypes: Mapping[str, str]) -> str | None:
    source: dict[str, Any] = dict(foreign.notes)
    if dtypes:
        source["dtypes"] = dict(dtypes)
    if not foreign.has_infos:
        source["has_infos"] = False
    if foreign.seed is not None and foreign.seed not in _INT64:
        source["seed"] = foreign.seed
    metadata: dict[str, Any] = {}
    if foreign.attributes:
        metadata["attributes"] = dict(foreign.attributes)
    if foreign.options is not None:
        metadata["options"] = dict(foreign.options)
    if source:
        metadata["source"] = source
    return encode_json(pack(metadata)).decode().strip() if metadata else None
