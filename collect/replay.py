"""Replaying a stored episode in a fresh environment, from its seed and its actions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.dataset.reader import DatasetReader
from retold.schemas.dataset_schema import TaskDescription
from retold.schemas.episode import Episode
from retold.schemas.errors import EnvironmentFailure
from retold.schemas.findings import Finding
from retold.schemas.spaces import flatten_value, unflatten_value
from retold.tasks.registry import make_task, task_versions
from retold.tasks.spaces import from_gymnasium

UNKNOWN = "unknown"
"""Of a version that nobody noted."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where a replay first leaves what was stored."""

    step: int
    """Transition, or for an observation its row: 0 before the first transition."""
    field: str
    """As on disk, e.g. `reward` or `observation/position`; `events`, `initial_goals`, `error`."""
    stored: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"{self.field} of step {self.step} is {self.stored}, the replay gives {self.replayed}"
        )


def replay_episode(
    episode: Episode, task: TaskDescription, versions: Mapping[str, str] | None = None
) -> Finding | None:
    """The first difference between an episode and its replay as a finding, or None.

    Args:
        episode: with its seed, or for a variant its source's.
        task: what it was collected in.
        versions: of the packages that it was collected with, if they are known.
    """
    difference = find_difference(episode, task)
    if difference is None:
        return None
    return Finding(
        where=f"episode {episode.record.episode_id}",
        what=f"its replay differs: {difference} ({compare_versions(versions, task.name)})",
        todo=f"It was made by other code than this version of task {task.name}; collect it again.",
    )


def find_difference(episode: Episode, task: TaskDescription) -> Difference | None:
    """The first difference between an episode and its replay, or None.

    The world is made again from the stored seed and plays the stored actions; every observation,
    reward, flag and goal event must be equal bit for bit. A variant is played under its own
    instruction; where its source's data ends it is cut, which the world does not know.
    """
    environment = make_task(task.name, task.kwargs)
    try:
        return next(_differences(episode, environment), None)
    finally:
        environment.close()


def find_replayable(reader: DatasetReader, row: int) -> Episode | None:
    """An episode with the seed that it can be replayed from; None if there is no such seed.

    A variant gets its source's. Variants of goal-conditioned data show another goal than their
    world did, and imported or written-out episodes have no seed: those cannot be replayed.
    """
    episode = reader.read_episode(row)
    record = episode.record
    if record.seed is not None:
        return episode
    if record.source_dataset_id is None or record.source_episode_id is None:
        return None
    if record.goal_row is not None:
        return None
    source = reader.source_reader(record.source_dataset_id)
    seed = source.record(source.columns.row_of(record.source_episode_id)).seed
    if seed is None:
        return None
    return replace(episode, record=replace(record, seed=seed))


def find_versions(reader: DatasetReader, episode: Episode) -> Mapping[str, str] | None:
    """Versions of the packages that an episode was collected with, as its commit noted them."""
    record = episode.record
    if record.source_dataset_id is not None and record.source_episode_id is not None:
        source = reader.source_reader(record.source_dataset_id)
        record = source.record(source.columns.row_of(record.source_episode_id))
        reader = source
    for commit in reader.log.commits():
        if commit.operation != "collect" or record.index not in commit.details["episodes"]:
            continue
        if commit.details["identity"]["run_seed"] == record.run_seed:
            versions: Mapping[str, str] | None = commit.details.get("versions")
            return versions
    return None


def compare_versions(then: Mapping[str, str] | None, task_name: str) -> str:
    """The packages that a task's dynamics come from, then and now, in words."""
    now = task_versions(task_name)
    then = then or {}
    parts = []
    for name, version in now.items():
        before = then.get(name, UNKNOWN)
        parts.append(f"{name} {version}" if before == version else f"{name} {before} → {version}")
    return ", ".join(parts)


def step_actions(episode: Episode, environment: gymnasium.Env[Any, Any]) -> Iterator[Any]:
    """The stored actions, as the environment takes them."""
    space = from_gymnasium(environment.action_space)
    for step in range(episode.length):
        rows = {path: rows[step] for path, rows in episode.action.items()}
        yield unflatten_value(space, rows, "action")


def _differences(episode: Episode, environment: gymnasium.Env[Any, Any]) -> Iterator[Difference]:
    space = from_gymnasium(environment.observation_space)
    record = episode.record
    options = {"instruction": record.instruction}
    observation, facts = environment.reset(seed=record.seed, options=options)
    if tuple(facts["initial_goals"]) != record.initial_goals:
        yield Difference(
            step=0,
            field="initial_goals",
            stored=str(record.initial_goals),
            replayed=str(tuple(facts["initial_goals"])),
        )
    yield from _compare(episode, space, observation, 0)
    for step, action in enumerate(step_actions(episode, environment)):
        try:
            observation, reward, terminated, truncated, facts = _step(environment, action)
        except EnvironmentFailure as failure:
            yield Difference(step=step, field="error", stored="none", replayed=str(failure))
            return
        played = {
            "reward": np.float32(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "environment_terminated": bool(facts["environment_terminated"]),
            "reset": bool(facts["reset"]),
            "events": tuple(facts["events"]),
        }
        yield from _compare_transition(episode, step, played)
        yield from _compare(episode, space, observation, step + 1)


def _step(environment: gymnasium.Env[Any, Any], action: Any) -> Any:
    try:
        return environment.step(action)
    except Exception as error:
        raise EnvironmentFailure(f"{type(error).__name__}: {error}") from error


def _compare_transition(
    episode: Episode, step: int, played: Mapping[str, Any]
) -> Iterator[Difference]:
    is_cut = episode.record.is_variant and step == episode.length - 1
    for name, replayed in played.items():
        if name == "truncated" and is_cut:
            continue
        if name == "events":
            stored: Any = tuple(episode.event_goal[episode.event_step == step].tolist())
        else:
            stored = getattr(episode, name)[step]
        if replayed != stored:
            yield Difference(step=step, field=name, stored=str(stored), replayed=str(replayed))


def _compare(episode: Episode, space: Any, observation: Any, row: int) -> Iterator[Difference]:
    for path, leaf in flatten_value(space, observation, "observation").items():
        stored = episode.observation[path][row]
        is_float = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"
        if not np.array_equal(leaf, stored, equal_nan=is_float):
            old, new = _show(stored, leaf)
            yield Difference(step=row, field=path, stored=old, replayed=new)


def _show(stored: Any, replayed: Any) -> tuple[str, str]:
    """The first entries that differ, with their place."""
    if isinstance(stored, str) or np.shape(stored) != np.shape(replayed) or not np.shape(stored):
        return str(stored), str(replayed)
    one: NDArray[Any] = np.asarray(stored)
    other = np.asarray(replayed)
    place = tuple(int(i) for i in np.argwhere(one != other)[0])
    where = f"[{', '.join(map(str, place))}]"
    return f"{one[place]} at {where}", f"{other[place]}"
