"""How fast windows come out of a dataset, and what a step takes on disk, against other layouts.

Every reading of a layout stands between two readings of a raw memmap with reused output, in the same
process; ratios are medians over such triples. 24 windows of 128 steps are a batch.

    python benchmarks/sample.py --json
    python benchmarks/sample.py --quick
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import describe_commit, describe_machine
from sample_data import (
    FRAME_BYTES,
    VECTOR_BYTES,
    VECTOR_SCHEMA,
    make_frame_episodes,
    make_vector_episodes,
)
from sample_layouts import (
    BATCH,
    WINDOW,
    ReadBatch,
    Windows,
    read_memmap,
    read_minari,
    read_npz,
    read_retold,
    read_torchrl,
    write_retold,
)

from retold.dataset.cache_command import CacheConfig, cache_dataset
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Episode
from retold.tasks.registry import task_schema

_REPEATS = 7
_STEPS = BATCH * WINDOW


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value."""

    data: str
    """`vectors` or `frames`."""
    layout: str
    measure: str
    value: float
    unit: str
    dataset: str = ""


def measure_data(
    folder: Path,
    data: str,
    episodes: Sequence[Episode],
    schema: DatasetSchema,
    arguments: argparse.Namespace,
) -> Iterator[Figure]:
    """Every layout over the same episodes."""
    seed: int = arguments.seed
    steps = sum(episode.length for episode in episodes)
    windows = Windows(episodes, seed)
    memmap = read_memmap(folder / "memmap", episodes, windows)
    raw = VECTOR_BYTES if data == "vectors" else FRAME_BYTES
    yield Figure(data=data, layout="memmap", measure="size", value=raw, unit="bytes/step")
    # What the writer imports at its first shard is no part of its rate.
    write_retold(folder / "first", episodes[:1], schema, "fast")
    for profile in ("fast", "small"):
        path = folder / profile
        wall, cpu = _clock(lambda p=path, f=profile: write_retold(p, episodes, schema, f))  # type: ignore[misc]
        dataset = CommitLog.open(path).dataset_id
        sizes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for name, value, unit in (
            ("write", steps / wall, "steps/s"),
            ("write, CPU", steps / cpu, "steps/CPU-s"),
            ("size", sizes / steps, "bytes/step"),
        ):
            yield Figure(
                data=data, layout=profile, measure=name, value=value, unit=unit, dataset=dataset
            )
        for threads in (1,) if data == "vectors" else (1, 2):
            yield from _compare(
                data,
                f"{profile}, {threads} thread{'s' * (threads > 1)}",
                read_retold(path, seed, threads=threads),
                memmap,
                dataset,
            )
    yield from _measure_cache(folder, data, memmap, seed)
    if not arguments.no_peers:
        yield from _measure_peers(folder, data, episodes, windows, memmap, seed)


def _measure_cache(folder: Path, data: str, memmap: ReadBatch, seed: int) -> Iterator[Figure]:
    """The `small` dataset with all of its arrays kept decoded."""
    path = folder / "small"
    dataset = CommitLog.open(path).dataset_id
    config = CacheConfig(dataset=path, folder=folder / "cache", bytes=100_000_000_000)
    wall, _ = _clock(lambda: cache_dataset(config))
    read = read_retold(path, seed, threads=1, cache=config.folder)
    opening, _ = _clock(lambda: read(0))
    for name, value in (("fill", wall), ("first batch, hashes checked", opening)):
        yield Figure(
            data=data, layout="cache", measure=name, value=value, unit="s", dataset=dataset
        )
    yield from _compare(data, "cache", read, memmap, dataset)


def _measure_peers(
    folder: Path,
    data: str,
    episodes: Sequence[Episode],
    windows: Windows,
    memmap: ReadBatch,
    seed: int,
) -> Iterator[Figure]:
    peers: dict[str, Callable[[], ReadBatch]] = {
        "Minari HDF5": lambda: read_minari(folder / "minari", episodes, windows),
        "TorchRL memmap": lambda: read_torchrl(folder / "torchrl", episodes, seed),
        "npz an episode": lambda: read_npz(folder / "npz", episodes, windows),
    }
    for name, make in peers.items():
        try:
            read = make()
        except ImportError as error:
            print(f"{name} is left out: {error}. Install retold[benchmark].", file=sys.stderr)
            continue
        yield from _compare(data, name, read, memmap, "")


def _compare(
    data: str, layout: str, read: ReadBatch, memmap: ReadBatch, dataset: str
) -> Iterator[Figure]:
    """Rates, and ratios to the memmap readings just before and just after."""
    read(0)
    wall, _ = _clock(lambda: read(1))
    batches = max(3, min(300, int(0.3 / wall)))
    _rate(memmap, 0, 50)
    rates, ratios, cpu_ratios = [], [], []
    for repeat in range(_REPEATS):
        first = 1000 * (repeat + 1)
        before = _rate(memmap, first, 100)
        wall_rate, cpu_rate = _rate(read, first, batches)
        after = _rate(memmap, first + 100, 100)
        rates.append(wall_rate)
        ratios.append(2 * wall_rate / (before[0] + after[0]))
        cpu_ratios.append(2 * cpu_rate / (before[1] + after[1]))
    for measure, values, unit in (
        ("sample", rates, "steps/s"),
        ("sample to memmap", ratios, "ratio"),
        ("sample to memmap, CPU", cpu_ratios, "ratio"),
    ):
        value = statistics.median(values)
        yield Figure(
            data=data, layout=layout, measure=measure, value=value, unit=unit, dataset=dataset
        )


def measure_opening(folder: Path, shards: int, seed: int) -> Iterator[Figure]:
    """Opening a dataset of many shards, its pages dropped from the system's cache before."""
    episodes = list(make_vector_episodes(shards, seed, shortest=50, longest=60))
    path = folder / "shards"
    from retold.dataset.shard_writer import write_raw_shard

    log = CommitLog.create(path)
    entries = [write_raw_shard(path, [episode], VECTOR_SCHEMA) for episode in episodes]
    for first in range(0, shards, 10):
        log.append(operation="benchmark", added=entries[first : first + 10])
    times = []
    for _ in range(3):
        for file in path.rglob("*"):
            if file.is_file():
                descriptor = os.open(file, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

        def open_dataset() -> None:
            with DatasetReader.open(path) as reader:
                sampler = WindowSampler([reader], window_length=32, seed=seed, threads=1)
                sampler.sample_into(sampler.make_batch(BATCH), 0)

        times.append(_clock(open_dataset)[0])
    yield Figure(
        data="vectors",
        layout=f"{shards} shards",
        measure="cold open and first batch",
        value=statistics.median(times),
        unit="s",
        dataset=log.dataset_id,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="small data, within 60 s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", choices=("vectors", "frames", "opening", "all"), default="all")
    parser.add_argument("--no-peers", action="store_true", help="retold and memmap alone")
    parser.add_argument("--frames", type=Path, help="folder in which Crafter episodes are kept")
    given = parser.parse_args(arguments)
    facts = {
        "command": shlex.join(["python", "benchmarks/sample.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "seed": given.seed,
    }
    with tempfile.TemporaryDirectory(prefix="retold-sample-") as name:
        for figure in _figures(Path(name), given):
            row = {**facts, **vars(figure)}
            text = f"{figure.data:8} {figure.layout:18} {figure.measure:26} {figure.value:12,.3f}"
            print(json.dumps(row) if given.json else f"{text} {figure.unit}", flush=True)


def _figures(folder: Path, given: argparse.Namespace) -> Iterator[Figure]:
    if given.data in ("vectors", "all"):
        (folder / "vectors").mkdir()
        episodes = list(make_vector_episodes(100 if given.quick else 2000, given.seed))
        yield from measure_data(folder / "vectors", "vectors", episodes, VECTOR_SCHEMA, given)
    if given.data in ("frames", "all"):
        (folder / "frames").mkdir()
        kept = given.frames or folder / "crafter"
        episodes = make_frame_episodes(kept, 2_000 if given.quick else 50_000)
        schema = task_schema("crafter", {"observation": "pixels"})
        yield from measure_data(folder / "frames", "frames", episodes, schema, given)
    if given.data in ("opening", "all"):
        yield from measure_opening(folder, 50 if given.quick else 1000, given.seed)


def _rate(read: ReadBatch, first: int, batches: int) -> tuple[float, float]:
    """Steps a second, of the clock and of CPU time."""

    def run() -> None:
        for number in range(first, first + batches):
            read(number)

    wall, cpu = _clock(run)
    return batches * _STEPS / wall, batches * _STEPS / cpu


def _clock(work: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
