"""Bare stepping: the environments of a collection, its seeds and actions, and nothing recorded."""

import time
from collections.abc import Sequence
from typing import Any

import gymnasium
from numpy.typing import NDArray

import retold.collect.play  # noqa: F401  a collecting worker imports it, so both start alike
from retold.collect.worker_process import WorkerProcess
from retold.tasks.registry import make_task

Script = tuple[int, NDArray[Any]]
"""An episode's seed and actions."""


def step_bare(
    task: str, task_args: Any, scripts: Sequence[Script], environments: int, workers: int
) -> float:
    """Play all scripts, in this process if `workers` is 0; mean seconds in resets of a process."""
    if workers == 0:
        return step_here(task, task_args, scripts, environments)
    processes = [
        WorkerProcess("collect_bare:work", task, task_args, scripts[i::workers], share)
        for i, share in enumerate(_shares(environments, workers))
    ]
    spent = [float(process.connection.recv()) for process in processes]
    for process in processes:
        process.wait()
    return sum(spent) / workers


def work(
    connection: Any, heartbeat: Any, task: str, task_args: Any, scripts: Any, share: int
) -> None:
    connection.send(step_here(task, task_args, scripts, share))


def step_here(task: str, task_args: Any, scripts: Sequence[Script], environments: int) -> float:
    """All environments in turn, one step each; the seconds spent in resets."""
    made = [make_task(task, task_args) for _ in range(min(environments, len(scripts)))]
    left, reset_seconds = list(scripts), 0.0
    running: list[tuple[gymnasium.Env[Any, Any], Any]] = []
    idle = list(made)
    while left or running:
        while left and idle:
            seed, actions = left.pop()
            started = time.perf_counter()
            idle[-1].reset(seed=seed)
            reset_seconds += time.perf_counter() - started
            running.append((idle.pop(), iter(actions)))
        for slot in list(running):
            environment, actions = slot
            _, _, terminated, truncated, _ = environment.step(next(actions))
            if terminated or truncated:
                running.remove(slot)
                idle.append(environment)
    for environment in made:
        environment.close()
    return reset_seconds


def _shares(environments: int, workers: int) -> list[int]:
    return [environments // workers + (i < environments % workers) for i in range(workers)]
