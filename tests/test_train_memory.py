"""Memory that an update freed is used again by the next."""

import os
import subprocess
import sys
from pathlib import Path

_COUNT_FAULTS = """
import resource, sys, torch
from retold.train.memory import keep_freed_memory
torch.set_num_threads(1)
print(keep_freed_memory() if sys.argv[1:] else False)
for turn in range(16):
    if turn == 6:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(12_000_000).add_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_large_tensors_touch_no_new_pages_once_the_first_was_freed() -> None:
    def count_faults(*arguments: str) -> tuple[str, int]:
        command = [sys.executable, "-c", _COUNT_FAULTS, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        kept, faults = done.stdout.split()
        return kept, int(faults)

    _, without = count_faults()
    kept, faults = count_faults("keep")
    # Where the C library is not glibc, nothing is promised and nothing is changed.
    assert faults < without / 10 if kept == "True" else faults <= 2 * without


_MEASURE_UPDATE = """
import pathlib, sys, torch
from made_up_windows import make_config, make_schema, make_window
from retold.train.batch import make_batch
from retold.train.learner import Learner
torch.set_num_threads(1)

def most_held():
    # Of this process alone: what a child's resource usage says begins with its parent's.
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

length, window = map(int, sys.argv[1:])
schema = make_schema(horizon=length)
learner = Learner(make_config(attention_window=window, critics=2), schema)
batch = make_batch([make_window(length, 0, schema)], most_goals=0, burn_in=0)
learner.update(make_batch([make_window(20, 0, schema)], most_goals=0, burn_in=0))
before = most_held()
learner.update(batch)
print(most_held() - before)
"""


def peak_bytes(length: int, window: int) -> int:
    """What one update of one window adds to the most that a process ever held."""
    command = [sys.executable, "-c", _MEASURE_UPDATE, str(length), str(window)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


def test_an_updates_memory_grows_no_faster_than_its_tokens() -> None:
    short, long = peak_bytes(2_000, 64), peak_bytes(8_000, 64)
    # Scores that are kept up to a limit, and what an update of any size takes, weigh on the short one.
    assert long < 4.5 * short


def test_an_update_at_full_span_holds_no_pair_of_all_its_steps() -> None:
    length, heads = 5_000, 2
    # Scores of one layer, as few as one byte each.
    assert peak_bytes(length, length + 1) < heads * length**2
