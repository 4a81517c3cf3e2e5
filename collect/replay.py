"""Replaying a stored episode in its environment."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from retold.schemas.dataset_schema import TaskDescription
from retold.schemas.episode import Episode
from retold.schemas.findings import Finding
from retold.schemas.spaces import flatten_value
from retold.tasks.registry import make_task
from retold.tasks.spaces import from_gymnasium


def replay_episode(episode: Episode, task: TaskDescription) -> Finding | None:
    """The first difference between an episode and its replay, or None.

    The world is made again from the stored seed and plays the stored actions; every observation,
    reward, flag and goal event must be equal bit for bit. A variant has no seed of its own: only
    its source can be replayed.
    """
    record = episode.record
    if record.seed is None:
        return None
    where = f"episode {record.episode_id}"
    fault = next(_differences(episode, task), None)
    if fault is None:
        return None
    return Finding(
        where=where,
        what=f"its replay differs: {fault}",
        todo=f"It was made by other code than this version of task {task.name}; collect it again.",
    )


def _differences(episode: Episode, task: TaskDescription) -> Iterator[str]:
    environment = make_task(task.name, task.kwargs)
    space = from_gymnasium(environment.observation_space)
    options = {"instruction": episode.record.instruction}
    observation, facts = environment.reset(seed=episode.record.seed, options=options)
    if tuple(facts["initial_goals"]) != episode.record.initial_goals:
        yield "other goals are true at the start"
    yield from _compare(episode, space, observation, 0)
    (actions,) = episode.action.values()
    for step in range(episode.length):
        observation, reward, terminated, truncated, facts = environment.step(actions[step])
        stored = {
            "reward": (np.float32(reward), episode.reward[step]),
            "terminated": (terminated, episode.terminated[step]),
            "truncated": (truncated, episode.truncated[step]),
            "environment_terminated": (
                facts["environment_terminated"],
                episode.environment_terminated[step],
            ),
            "reset": (facts["reset"], episode.reset[step]),
            "events": (
                tuple(facts["events"]),
                tuple(episode.event_goal[episode.event_step == step].tolist()),
            ),
        }
        for name, (replayed, known) in stored.items():
            if replayed != known:
                yield f"{name} of step {step} is {known}, the replay gives {replayed}"
        yield from _compare(episode, space, observation, step + 1)


def _compare(episode: Episode, space: Any, observation: Any, row: int) -> Iterator[str]:
    for path, leaf in flatten_value(space, observation, "observation").items():
        if not np.array_equal(
            leaf, episode.observation[path][row], equal_nan=leaf.dtype.kind == "f"
        ):
            yield f"{path} before step {row} is another"
