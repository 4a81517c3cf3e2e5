"""Memory and time of an update as windows grow: linear in tokens where the attention window stays.

Every figure is of a process of its own: the most memory that it held after some updates, less what it
held before the first (the model, the batch and all libraries), and its quickest update. Growth in time is
told from CPU seconds, which other jobs disturb less; take it with one thread. `span` attends to all 10,000
steps of four T-Maze episodes, whose scores alone would fill 12 GB a layer.

    python benchmarks/update_memory.py --json
    python benchmarks/update_memory.py --quick
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from provenance import describe_commit, describe_machine
from update_case import make_batches, make_config, make_schema
from yardstick import ForeignLoad

from retold.schemas.episode import EpisodeRecord, Window
from retold.tasks.registry import make_task, task_schema
from retold.train.batch import Batch, make_batch
from retold.train.learner import Learner
from retold.train.memory import keep_freed_memory

_SMALL = {
    "model_width": 64,
    "layers": 2,
    "heads": 4,
    "feedforward_width": 256,
    "timestep_widths": (128,),
    "head_width": 64,
    "head_layers": 1,
}
_SPAN_LIMIT_BYTES = 24 * 2**30
_RIGHT = 0
Row = dict[str, Any]


def measure_growth(lengths: Sequence[int], window: int) -> Iterator[Row]:
    """Two windows of each length, ever the same attention window, a small model."""
    first: Row | None = None
    for length in lengths:
        row = _in_a_child("growth", length, window)
        first = first or row
        yield row | {
            "bytes_a_token": row["value"] / row["tokens"],
            "bytes_a_token_to_first": row["value"]
            / row["tokens"]
            * first["tokens"]
            / first["value"],
            "seconds_a_token_to_first": row["cpu_seconds"]
            / row["tokens"]
            * first["tokens"]
            / first["cpu_seconds"],
        }


def measure_span(length: int) -> Iterator[Row]:
    """Four whole T-Maze episodes at full span, the model of the update's figures."""
    row = _in_a_child("span", length, length + 1)
    yield row | {"of_24_GiB": row["process_bytes"] / _SPAN_LIMIT_BYTES}


def run_child(part: str, length: int, window: int, updates: int) -> Row:
    """The figures of this process: of updates of one batch."""
    keep_freed_memory()
    if part == "growth":
        schema = make_schema(length)
        config = make_config(length, attention_window=window, **_SMALL)
        (batch,) = make_batches(length, 2, 1, is_ragged=False)
    else:
        arguments = {"corridor": length - 1}
        schema = task_schema("tmaze", arguments)
        config = make_config(length, attention_window=window)
        batch = _play(make_task("tmaze", arguments), 4)
    learner = Learner(config, schema)
    before = _peak_bytes()
    load = ForeignLoad()
    times = [_time_update(learner, batch) for _ in range(updates)]
    return {
        "value": _peak_bytes() - before,
        "process_bytes": _peak_bytes(),
        "seconds": min(wall for wall, _ in times),
        "cpu_seconds": min(cpu for _, cpu in times),
        "tokens": sum(batch.lengths),
        "window": window,
        "parameters": sum(p.numel() for p in learner.policy.parameters()),
        "foreign_cores": load.cores(),
    }


def _play(task: gymnasium.Env[Any, Any], episodes: int) -> Batch:
    """A batch of whole episodes that walk right to the end."""
    return make_batch([_walk(task, seed) for seed in range(episodes)], most_goals=0, burn_in=0)


def _walk(task: gymnasium.Env[Any, Any], seed: int) -> Window:
    seen, _ = task.reset(seed=seed)
    observations, rewards, ends = [seen], [], []
    while not ends or not any(ends[-1]):
        seen, reward, terminated, truncated, _ = task.step(_RIGHT)
        observations.append(seen)
        rewards.append(float(reward))
        ends.append((terminated, truncated))
    length = len(rewards)
    terminated, truncated = np.array(ends).T
    record = EpisodeRecord(
        episode_id=f"{seed:032x}",
        task=0,
        length=length,
        episode_return=sum(rewards),
        terminated=bool(terminated[-1]),
        truncated=bool(truncated[-1]),
        environment_terminated=bool(terminated[-1]),
    )
    return Window(
        record=record,
        dataset=0,
        start=0,
        observation={"observation": np.stack(observations)},
        action={"action": np.full(length, _RIGHT)},
        reward=np.array(rewards, np.float32),
        terminated=terminated,
        truncated=truncated,
        reset=np.zeros(length, np.bool_),
        progress=np.zeros(length + 1, np.uint32),
        previous_action=None,
        previous_reward=0.0,
        previous_reset=False,
    )


def _time_update(learner: Learner, batch: Batch) -> tuple[float, float]:
    """Seconds, and CPU seconds of all threads."""
    started, cpu_started = time.perf_counter(), time.process_time()
    learner.update(batch)
    return time.perf_counter() - started, time.process_time() - cpu_started


def _peak_bytes() -> int:
    """The most that this process has held so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _in_a_child(part: str, length: int, window: int) -> Row:
    threads = str(torch.get_num_threads())
    case = [part, str(length), str(window), "3" if part == "growth" else "1"]
    command = [sys.executable, __file__, "--threads", threads, "--child", *case]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        "command": shlex.join(["python", "benchmarks/update_memory.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "dataset": "made up" if part == "growth" else "T-Maze, walked to the right",
        "seed": 0,
        "threads": torch.get_num_threads(),
        "part": part,
        "case": f"L = {length:,}, window {window:,}",
        "unit": "bytes",
        **json.loads(done.stdout.splitlines()[-1]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="shorter windows, in 60 s")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--part", action="append", choices=("growth", "span"), help="both")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    if given.child:
        part, *numbers = given.child
        print(json.dumps(run_child(part, *map(int, numbers))))
        return
    lengths = (256, 512, 1024, 2048) if given.quick else (512, 1024, 2048, 4096, 8192)
    parts = {
        "growth": lambda: measure_growth(lengths, 64 if given.quick else 128),
        "span": lambda: measure_span(500 if given.quick else 10_000),
    }
    for name in given.part or parts:
        for row in parts[name]():
            print(json.dumps(row) if given.json else _describe(row), flush=True)


def _describe(row: Row) -> str:
    shown = {name: value for name, value in row.items() if isinstance(value, float)}
    facts = ", ".join(f"{name} {value:,.3g}" for name, value in shown.items())
    size = f"{row['value'] / 2**20:,.0f} MiB"
    return f"{row['part']:7} {row['case']:28} {row['tokens']:7,} tokens {size:>10}; {facts}"


if __name__ == "__main__":
    main()
