"""What an episode must satisfy before it may be written."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.paths import DatasetPath, is_plain_path
from retold.schemas.dataset_schema import TRANSITION_LEAVES, DatasetSchema
from retold.schemas.episode import Episode
from retold.schemas.errors import DatasetError, FormatError
from retold.schemas.spaces import BoxSpace, Leaf, find_invalid


def check_field_paths(where: str, schema: DatasetSchema) -> None:
    """Refuse a schema whose fields would lie outside their shard: they are paths in it.

    Raises:
        FormatError: a field's name leads elsewhere.
    """
    for leaf in schema.leaves:
        if not is_plain_path(leaf.path):
            raise FormatError(
                f"{where}: it names a field {leaf.path!r}, which leads elsewhere. Give it another "
                f"name; do not use a dataset that others made so."
            )


def check_episodes(
    dataset: DatasetPath, episodes: Sequence[Episode], schema: DatasetSchema
) -> None:
    """Refuse episodes that break the format, naming the first fault.

    Raises:
        DatasetError: nothing has been written.
    """
    check_field_paths(str(dataset), schema)
    if not episodes:
        raise DatasetError(f"{dataset}: a shard needs at least one episode. Collect some first.")
    for number, episode in enumerate(episodes):
        fault = next(find_faults(episode, schema), None)
        if fault is not None:
            raise DatasetError(
                f"{dataset}: episode {number} ({episode.record.episode_id}): {fault}. "
                f"Nothing was written; correct what made the episode."
            )


def find_faults(episode: Episode, schema: DatasetSchema) -> Iterator[str]:
    """Everything that is wrong with an episode in memory, in words."""
    length = episode.record.length
    if length < 1:
        yield f"its length is {length}, but an episode has at least one transition"
        return
    is_imported = any(task.is_imported for task in schema.tasks)
    for leaf in schema.observation_leaves:
        rows = episode.observation.get(leaf.path)
        yield from _leaf_faults(leaf, rows, length + 1, is_imported)
    for leaf in schema.action_leaves:
        yield from _leaf_faults(leaf, episode.action.get(leaf.path), length, is_imported)
    for leaf in TRANSITION_LEAVES:
        yield from _leaf_faults(leaf, getattr(episode, leaf.path), length)
    for leaf in schema.info_leaves:
        if leaf.path in episode.info:
            yield from _leaf_faults(leaf, episode.info[leaf.path], length)
            if len(episode.info_present.get(leaf.path, ())) != length:
                yield f"{leaf.path!r} has no mask of {length} steps"
    if unknown := set(episode.info) - {leaf.path for leaf in schema.info_leaves}:
        yield f"{min(unknown)!r} is not declared in the schema"
    if len(episode.reward) == length and not np.isfinite(episode.reward).all():
        yield f"'reward' is not finite at step {int(np.argmin(np.isfinite(episode.reward)))}"
    yield from _flag_faults(episode)
    yield from _event_faults(episode, schema)


def _leaf_faults(
    leaf: Leaf, rows: NDArray[Any] | None, count: int, is_imported: bool = False
) -> Iterator[str]:
    """Imported boxes may hold anything, NaN included: other formats never checked their bounds."""
    if rows is None:
        yield f"{leaf.path!r} is missing"
    elif len(rows) != count:
        yield f"{leaf.path!r} has {len(rows)} rows, but the episode's length asks for {count}"
    elif not leaf.is_ragged:
        if rows.dtype != np.dtype(leaf.dtype) or rows.shape[1:] != leaf.shape:
            yield (
                f"{leaf.path!r} has rows of {rows.dtype}{list(rows.shape[1:])}, but the schema "
                f"says {leaf.dtype}{list(leaf.shape)}"
            )
        elif is_imported and isinstance(leaf.space, BoxSpace):
            return
        elif (invalid := find_invalid(leaf, rows)) is not None:
            yield invalid


def _flag_faults(episode: Episode) -> Iterator[str]:
    record = episode.record
    for name in ("terminated", "truncated", "environment_terminated"):
        flags = getattr(episode, name)
        if flags[:-1].any():
            yield f"{name!r} is set at step {int(np.argmax(flags))}, before the last"
        if len(flags) and bool(flags[-1]) != getattr(record, name):
            yield f"{name!r} ends with {bool(flags[-1])}, but its row says otherwise"
    if record.terminated == record.truncated:
        yield "exactly one of 'terminated' and 'truncated' must be set at the last step"
    if record.environment_terminated and not record.terminated:
        yield "'environment_terminated' is set without 'terminated'"


def _event_faults(episode: Episode, schema: DatasetSchema) -> Iterator[str]:
    step, goal = episode.event_step, episode.event_goal
    if episode.record.task >= len(schema.tasks):
        yield f"its task is number {episode.record.task} of {len(schema.tasks)}"
        return
    vocabulary = schema.tasks[episode.record.task].vocabulary
    size = 0 if vocabulary is None else vocabulary.size
    if len(step) != len(goal):
        yield f"{len(step)} event steps, but {len(goal)} event goals"
        return
    if len(step) and int(step.max()) >= episode.record.length:
        yield f"a goal event at step {int(step.max())}, after the episode's end"
    named = [int(goal.max(initial=0)), *episode.record.instruction, *episode.record.initial_goals]
    if (len(goal) or len(named) > 1) and max(named) >= size:
        yield f"goal id {max(named)} is not in the vocabulary of {size} goals"
    key = step.astype(np.uint64) << np.uint64(32) | goal
    if (key[1:] <= key[:-1]).any():
        yield "goal events are not sorted by (step, goal), or one is there twice"
