"""How fast the machine is right now: a fixed workload, whose reading stands beside every figure.

Forward and backward of eight blocks (norm, 128 to 512, leaky ReLU, 512 to 128) on 3,072 rows, float32.
Figures of the peer were taken at a reading of 24,200 rows/s.
"""

import os
import statistics
import time
from pathlib import Path

import torch
from provenance import cpu_seconds
from torch import nn

PEER_ROWS_PER_SECOND = 24_200
"""Read where the peer's figures were taken, with 2 threads."""
_ROWS, _WIDTH, _HIDDEN, _BLOCKS = 3072, 128, 512, 8


class ForeignLoad:
    """Cores that other processes kept busy meanwhile; a figure taken above 0.1 is to be taken again."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._machine, self._own = _busy_seconds(), cpu_seconds()

    def cores(self) -> float:
        """Mean since the start."""
        wall = time.perf_counter() - self._started
        foreign = (_busy_seconds() - self._machine) - (cpu_seconds() - self._own)
        return max(0.0, foreign / wall)


def read_yardstick(readings: int = 20) -> float:
    """Median rows a second, with the threads that torch has now."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        blocks = [
            nn.Sequential(
                nn.LayerNorm(_WIDTH),
                nn.Linear(_WIDTH, _HIDDEN),
                nn.LeakyReLU(),
                nn.Linear(_HIDDEN, _WIDTH),
            )
            for _ in range(_BLOCKS)
        ]
        model, rows = nn.Sequential(*blocks), torch.randn(_ROWS, _WIDTH)
    rates = []
    for number in range(5 + readings * 3):
        started = time.perf_counter()
        model(rows).square().mean().backward()
        if number >= 5:
            rates.append(_ROWS / (time.perf_counter() - started))
    return statistics.median(rates)


def _busy_seconds() -> float:
    """CPU seconds of all processes; 0 where the system does not say."""
    try:
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    except OSError:
        return 0.0
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
