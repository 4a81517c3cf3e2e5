"""Named points at which a test can kill the process, to prove that nothing half done remains.

`RETOLD_KILL_AT=commit-inside:2` sends SIGKILL to the whole process group the second time that the
point is reached in one process. Without the variable a point costs one dictionary look-up.
"""

import os
import signal

KILL_POINTS = (
    "shard-before",
    "shard-inside",
    "shard-after",
    "rename-before",
    "rename-inside",
    "rename-after",
    "commit-before",
    "commit-inside",
    "commit-after",
    "checkpoint-before",
    "checkpoint-inside",
    "checkpoint-after",
    "publish-before",
    "publish-inside",
    "publish-after",
)
"""Before, inside and after the steps that make something durable."""

_reached: dict[str, int] = {}


def reach(point: str) -> None:
    """Die here if the test asked for it; otherwise do nothing."""
    wanted = os.environ.get("RETOLD_KILL_AT")
    if wanted is None:
        return
    assert point in KILL_POINTS, point
    name, _, count = wanted.partition(":")
    _reached[point] = _reached.get(point, 0) + 1
    if name == point and _reached[point] == int(count or 1):
        os.killpg(os.getpgrp(), signal.SIGKILL)
