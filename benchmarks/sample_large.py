"""Opening and sampling a dataset of 10 million steps in 100,000 episodes, against a hundredth of it.

python benchmarks/sample_large.py --json
python benchmarks/sample_large.py --quick
"""

import argparse
import gc
import json
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from provenance import describe_commit, describe_machine
from sample_data import VECTOR_SCHEMA, make_vector_episodes
from sample_layouts import BATCH, WINDOW, write_retold

from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.dataset.window_batch import WindowBatch

_SHORTEST, _LONGEST = 50, 150
_BATCHES = 300


def write_dataset(folder: Path, episodes: int, seed: int) -> None:
    """Written a thousand episodes at a time; never all in memory."""
    made = make_vector_episodes(episodes, seed, shortest=_SHORTEST, longest=_LONGEST)
    write_retold(folder, made, VECTOR_SCHEMA, "fast")


def measure_opening(folder: Path, seed: int) -> dict[str, float]:
    """Seconds and resident bytes of a child process that does nothing else."""
    gc.collect()
    before, started = _anonymous_bytes(), time.perf_counter()
    with DatasetReader.open(folder) as reader:
        sampler = WindowSampler([reader], window_length=WINDOW, seed=seed, threads=1)
        opened = time.perf_counter() - started
        batch = sampler.make_batch(BATCH)
        sampler.sample_into(batch, 0)
        first = time.perf_counter() - started
        for number in range(1, _BATCHES):
            sampler.sample_into(batch, number)
        return {
            "open": opened,
            "open and first batch": first,
            "memory": (_anonymous_bytes() - before) / 1e6,
            "episodes": float(len(reader)),
            "steps": float(reader.columns.length.sum()),
        }


def measure_rates(folders: Sequence[Path], seed: int) -> list[float]:
    """Batches per CPU-second of each dataset, read in turns; medians of seven."""
    samplers = [
        WindowSampler([DatasetReader.open(folder)], window_length=WINDOW, seed=seed, threads=1)
        for folder in folders
    ]
    batches = [sampler.make_batch(BATCH) for sampler in samplers]
    rates: list[list[float]] = [[] for _ in folders]
    for repeat in range(8):
        for place, (sampler, batch) in enumerate(zip(samplers, batches, strict=True)):
            rate = _rate(sampler, batch, repeat)
            if repeat:  # the first maps files and decodes resident columns
                rates[place].append(rate)
    return [statistics.median(values) for values in rates]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the size")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    episodes = 5_000 if given.quick else 100_000
    with tempfile.TemporaryDirectory(prefix="retold-large-") as name:
        large, small = Path(name) / "large", Path(name) / "small"
        write_dataset(large, episodes, given.seed)
        write_dataset(small, episodes // 100, given.seed)
        figures = measure_opening(large, given.seed)
        rates = measure_rates((large, small), given.seed)
        dataset = CommitLog.open(large).dataset_id
    units = {"open": "s", "open and first batch": "s", "memory": "MB beyond start"}
    figures["sample, to a hundredth of the size"] = rates[0] / rates[1]
    figures["sample, CPU"] = rates[0] * BATCH * WINDOW
    figures["most memory of the process"] = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    )
    facts = {
        "command": shlex.join(["python", "benchmarks/sample_large.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "dataset": dataset,
        "seed": given.seed,
    }
    for measure, value in figures.items():
        unit = units.get(measure, "")
        row = {**facts, "measure": measure, "value": value, "unit": unit}
        print(json.dumps(row) if given.json else f"{measure:36} {value:14,.3f} {unit}")


def _rate(sampler: WindowSampler, batch: WindowBatch, repeat: int) -> float:
    started = time.process_time()
    for number in range(repeat * _BATCHES, (repeat + 1) * _BATCHES):
        sampler.sample_into(batch, number)
    return _BATCHES / (time.process_time() - started)


def _anonymous_bytes() -> int:
    """Resident memory that is not the files' own pages, which the system may take back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
