"""The episodes that `sample.py` and `sample_large.py` store: synthetic vectors and real Crafter frames."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retold.collect.command import CollectConfig, collect
from retold.dataset.reader import DatasetReader
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.spaces import BoxSpace, DiscreteSpace

FEATURES = 32
ACTIONS = 6
VECTOR_BYTES = 4 * FEATURES + 8 + 4 + 2
"""Of a step: observation, action as int64, reward and two flags."""
FRAME_BYTES = 64 * 64 * 3 + 8 + 4 + 2

VECTOR_SCHEMA = DatasetSchema(
    tasks=(
        TaskDescription(
            name="benchmark", kwargs={}, code_version="1", limit_is="truncation", horizon=1000
        ),
    ),
    observation_space=BoxSpace((FEATURES,), "float32", float("-inf"), float("inf")),
    action_space=DiscreteSpace(ACTIONS),
)


def make_vector_episodes(
    count: int, seed: int, *, shortest: int = 50, longest: int = 1000
) -> Iterator[Episode]:
    """Ragged episodes: drifting sinusoids, four quantised features and four constant ones."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        length = int(rng.integers(shortest, longest + 1))
        time = np.arange(length + 1)[:, None]
        speed, phase = 0.1 * rng.random(FEATURES), 6 * rng.random(FEATURES)
        wave = np.sin(time * speed + phase) + time * rng.normal(0, 0.002, FEATURES)
        wave[:, 24:28] = np.round(4 * wave[:, 24:28]) / 4
        wave[:, 28:] = wave[0, 28:]
        reward = (rng.random(length) < 0.02).astype(np.float32)
        action = np.repeat(rng.integers(0, ACTIONS, length // 4 + 1), 4)[:length]
        yield _make_episode(index, wave.astype(np.float32), action, reward)


def make_frame_episodes(folder: Path, frames: int) -> list[Episode]:
    """Real Crafter episodes of random actions, at least `frames` steps; kept in `folder`."""
    episodes: list[Episode] = []
    steps, wanted = 0, 0
    while steps < frames:
        wanted += 50
        collect(
            CollectConfig(
                task="crafter",
                task_args={"observation": "pixels"},
                dataset=folder,
                episodes=wanted,
            )
        )
        with DatasetReader.open(folder) as reader:
            episodes += [reader.read_episode(row) for row in range(len(episodes), len(reader))]
        steps = sum(episode.length for episode in episodes)
    return episodes


def _make_episode(
    index: int,
    observation: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    action: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    reward: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> Episode:
    length = len(reward)
    flags = np.zeros(length, np.bool_)
    truncated = flags.copy()
    truncated[-1] = True
    nothing = np.zeros(0, np.uint32)
    return Episode(
        record=EpisodeRecord(
            episode_id=f"{index:032x}",
            task=0,
            length=length,
            episode_return=float(reward.sum()),
            terminated=False,
            truncated=True,
            environment_terminated=False,
            run_seed=0,
            index=index,
            seed=index,
        ),
        observation={"observation": observation},
        action={"action": action},
        reward=reward,
        terminated=flags,
        truncated=truncated,
        environment_terminated=flags,
        reset=flags,
        event_step=nothing,
        event_goal=nothing,
    )
