"""The loop's stages side by side against one after the other, on mazes, at equal environment steps.

A cell is one run of `retold loop` and the score of its last policy; it is kept in `--results`, so that
a benchmark which is interrupted goes on with the cells that are missing.

    python benchmarks/async_loop.py --json
    python benchmarks/async_loop.py --quick
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from provenance import describe_commit, describe_machine

from retold.dataset.reader import DatasetReader
from retold.evaluate.command import EvaluateConfig, evaluate

_FILE = """
[task]
name = "maze"
args = {{ size = 9, limit = 60, goals = 2 }}
[collect]
episodes = {episodes}
environments = 8
epsilon = 0.1
[relabel]
workers = 0
[train]
updates = {updates}
context_length = 60
learning_rate = 3e-4
publish_every = 25
checkpoint_every = 100
[loop]
iterations = {iterations}
"""
_SIZES = {"episodes": 200, "updates": 75, "iterations": 16}
_QUICK = {"episodes": 20, "updates": 5, "iterations": 3}
MODES = {"one after the other": 0, "side by side": 1}
"""By name, the loop's `--ahead`."""


def measure_cell(mode: str, seed: int, is_quick: bool) -> dict[str, Any]:
    """One run: its wall time from start to end, and the goals that its last policy completes."""
    sizes = _QUICK if is_quick else _SIZES
    with tempfile.TemporaryDirectory() as folder:
        config, run = Path(folder) / "loop.toml", Path(folder) / "run"
        config.write_text(_FILE.format(**sizes))
        flags = ["--run", run, "--seed", str(seed), "--ahead", str(MODES[mode])]
        started = time.perf_counter()
        subprocess.run(
            [Path(sys.executable).with_name("retold"), "loop", config, *flags],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        seconds = time.perf_counter() - started
        with DatasetReader.open(run / "raw") as reader:
            steps, dataset = int(reader.lengths.sum()), reader.dataset_id
        # On busy cores threads of one operation wait for each other: scoring took longer than the run.
        torch.set_num_threads(1)
        score = evaluate(EvaluateConfig(policy=run, episodes=20 if is_quick else 200, seed=1))
        lags = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "command": shlex.join(["python", "benchmarks/async_loop.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "dataset": dataset,
        "mode": mode,
        "seed": seed,
        "value": score.goals_completed,
        "unit": "goals of 2",
        "episodes": sizes["episodes"] * sizes["iterations"],
        "steps": steps,
        "updates": sizes["updates"] * sizes["iterations"],
        "seconds": seconds,
        "policy_lag": statistics.mean(row["policy_lag"] for row in lags if "policy_lag" in row),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a cell, then both medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="one small seed, within 60 s")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each mode")
    parser.add_argument("--results", type=Path, help="file of finished cells; others are added")
    given = parser.parse_args(arguments)
    path = given.results
    rows = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path and path.exists()
        else []
    )
    finished = {(row["mode"], row["seed"]) for row in rows}
    for seed in range(1 if given.quick else given.seeds):
        for mode in MODES:
            if (mode, seed) in finished:
                continue
            rows.append(measure_cell(mode, seed, given.quick))
            print(json.dumps(rows[-1]) if given.json else _describe(rows[-1]), flush=True)
            if path:
                with path.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    for mode in MODES:
        cells = [row for row in rows if row["mode"] == mode]
        goals, seconds = (
            statistics.median(r[name] for r in cells) for name in ("value", "seconds")
        )
        print(f"{mode}: median {goals:.2f} goals, {seconds:.0f} s", file=sys.stderr)


def _describe(row: dict[str, Any]) -> str:
    return (
        f"{row['mode']:20} seed {row['seed']}: {row['value']:.2f} goals, {row['steps']:,} steps, "
        f"{row['seconds']:.0f} s, policy lag {row['policy_lag']:.0f} updates"
    )


if __name__ == "__main__":
    main()
