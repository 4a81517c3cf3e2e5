"""The ways to store episodes that `sample.py` compares, each with a function that reads one batch."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.dataset.writer import DatasetWriter
from retold.dataset.zarr_codec import Profile
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode

BATCH = 24
WINDOW = 128
FIELDS = ("observation", "action", "reward", "terminated", "truncated")
ReadBatch = Callable[[int], object]
"""Reads the batch of a number; its cost is all there is to measure."""


class Windows:
    """Uniform windows inside long enough episodes, chosen the same way for every layout."""

    def __init__(self, episodes: Sequence[Episode], seed: int) -> None:
        lengths = np.array([episode.length for episode in episodes])
        self.offsets = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
        self._eligible = np.flatnonzero(lengths >= WINDOW)
        self._ends = np.cumsum(lengths[self._eligible])
        self._places = lengths[self._eligible] - WINDOW + 1
        self._seed = seed

    def draw(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`[batch]` each: episodes and starts."""
        chance = np.random.default_rng([self._seed, number]).random((2, BATCH))
        picked = np.searchsorted(self._ends, chance[0] * self._ends[-1], side="right")
        return self._eligible[picked], (chance[1] * self._places[picked]).astype(np.int64)


def columns_of(episode: Episode) -> dict[str, NDArray[Any]]:
    """The five fields, per-transition ones with a zero row at the end."""
    rows = {"observation": episode.observation["observation"]}
    transition = {"action": episode.action["action"]}
    transition |= {name: getattr(episode, name) for name in FIELDS[2:]}
    for name, column in transition.items():
        rows[name] = np.concatenate([column, np.zeros(1, column.dtype)])
    return rows


def read_memmap(folder: Path, episodes: Sequence[Episode], windows: Windows) -> ReadBatch:
    """Raw `.npy` files, mapped, copied into arrays that are used again."""
    folder.mkdir(exist_ok=True)
    parts = [columns_of(episode) for episode in episodes]
    for name in FIELDS:
        np.save(folder / f"{name}.npy", np.concatenate([part[name] for part in parts]))
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in FIELDS}
    output = {
        name: np.empty((BATCH, WINDOW + (name == "observation"), *column.shape[1:]), column.dtype)
        for name, column in columns.items()
    }

    def read(number: int) -> object:
        episode, start = windows.draw(number)
        first = (windows.offsets[episode] + start).tolist()
        for name, column in columns.items():
            out = output[name]
            count = out.shape[1]
            for place, row in enumerate(first):
                out[place] = column[row : row + count]
        return output

    return read


def write_retold(
    folder: Path, episodes: Iterable[Episode], schema: DatasetSchema, profile: Profile
) -> None:
    """Through the writer that `collect` uses, flushes and syncs included."""
    writer = DatasetWriter(CommitLog.create(folder), schema, profile=profile, flush_rows=500_000)
    for episode in episodes:
        writer.add(episode)
        if writer.should_flush:
            writer.flush("benchmark", {})
    writer.flush("benchmark", {})


def read_retold(
    folder: Path, seed: int, *, threads: int, cache_bytes: int = 0, cache: Path | None = None
) -> ReadBatch:
    """A sampler over the dataset, and one batch that is filled again and again."""
    sampler = WindowSampler(
        [DatasetReader.open(folder, cache=cache)],
        window_length=WINDOW,
        seed=seed,
        cut="drop",
        start_share=0.0,
        threads=threads,
        cache_bytes=cache_bytes,
    )
    batch = sampler.make_batch(BATCH)
    return lambda number: sampler.sample_into(batch, number)


def read_npz(folder: Path, episodes: Sequence[Episode], windows: Windows) -> ReadBatch:
    """One compressed `.npz` an episode."""
    folder.mkdir(exist_ok=True)
    for index, episode in enumerate(episodes):
        np.savez_compressed(folder / f"{index}.npz", **columns_of(episode))

    def read(number: int) -> object:
        batch = []
        for episode, start in zip(*(part.tolist() for part in windows.draw(number)), strict=True):
            with np.load(folder / f"{episode}.npz") as file:
                batch.append({name: file[name][start : start + WINDOW] for name in FIELDS})
        return {name: np.stack([window[name] for window in batch]) for name in FIELDS}

    return read


def read_minari(folder: Path, episodes: Sequence[Episode], windows: Windows) -> ReadBatch:
    """Minari's HDF5, lossless, read through its public `MinariDataset`."""
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    example = episodes[0].observation["observation"]
    is_image = example.dtype == np.uint8
    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        folder / "data",
        gymnasium.spaces.Box(0, 255, example.shape[1:], np.uint8)
        if is_image
        else gymnasium.spaces.Box(-np.inf, np.inf, example.shape[1:], np.float32),
        gymnasium.spaces.Discrete(32),
        data_format="hdf5",
        jpeg_encoding=False,
    )
    storage.update_metadata(
        {"dataset_id": "retold/sample-v0", "minari_version": minari.__version__}
    )
    storage.update_episodes(
        EpisodeBuffer(
            observations=episode.observation["observation"],
            actions=episode.action["action"],
            rewards=episode.reward,
            terminations=episode.terminated,
            truncations=episode.truncated,
        )
        for episode in episodes
    )
    dataset = minari.MinariDataset(storage)

    def read(number: int) -> object:
        batch = []
        for index, start in zip(*(part.tolist() for part in windows.draw(number)), strict=True):
            episode = dataset[index]
            stop = start + WINDOW
            batch.append(
                (
                    episode.observations[start : stop + 1],
                    episode.actions[start:stop],
                    episode.rewards[start:stop],
                    episode.terminations[start:stop],
                    episode.truncations[start:stop],
                )
            )
        return [np.stack(column) for column in zip(*batch, strict=True)]

    return read


def read_torchrl(folder: Path, episodes: Sequence[Episode], seed: int) -> ReadBatch:
    """TorchRL's replay buffer over TensorDict memmaps, slices by its own sampler."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, SliceSampler, TensorDictReplayBuffer

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    steps = sum(episode.length + 1 for episode in episodes)
    buffer = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(steps, scratch_dir=folder),
        sampler=SliceSampler(slice_len=WINDOW, traj_key="episode", cache_values=True),
        batch_size=BATCH * WINDOW,
    )
    for index, episode in enumerate(episodes):
        rows = {name: torch.from_numpy(column) for name, column in columns_of(episode).items()}
        rows["episode"] = torch.full((episode.length + 1,), index)
        buffer.extend(TensorDict(rows, [episode.length + 1]))
    return lambda number: buffer.sample()
