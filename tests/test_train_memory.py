"""Memory that an update freed is used again by the next."""

import subprocess
import sys

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
