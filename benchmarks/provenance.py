"""Where a figure comes from: commit, machine, CPU time."""

import os
import platform
import resource
import subprocess
from pathlib import Path


def describe_commit() -> str:
    """What is checked out; `unknown` outside a repository."""
    output = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return output.stdout.strip() or "unknown"


def describe_machine() -> str:
    """The processor's name and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def cpu_seconds() -> float:
    """CPU time of this process and of every child that has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
