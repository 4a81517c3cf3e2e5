"""Bare stepping: the environments of a collection, its seeds and actions, and nothing recorded."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from numpy.typing import NDArray

import retold.collect.play  # noqa: F401  a collecting worker imports it, so both are alike
from retold.collect.worker_process import WorkerProcess
from retold.tasks.registry import make_task

Script = tuple[int, NDArray[Any]]
"""An episode's seed and actions."""


@dataclass(frozen=True)
class BareTiming:
    """From when all processes had made their environments to the end of the last."""

    seconds: float
    reset_seconds: float
    """In resets; the mean over the processes."""


def step_bare(
    task: str, task_args: Any, scripts: Sequence[Script], environments: int, workers: int
) -> BareTiming:
    """Play all scripts, in this process if `workers` is 0."""
    if workers == 0:
        made = _make(task, task_args, environments)
        started = time.perf_counter()
        resets = _step(made, scripts)
        return BareTiming(time.perf_counter() - started, resets)
    # The longest first and in turn, so that the processes end at about the same time.
    longest = sorted(scripts, key=lambda script: -len(script[1]))
    processes = [
        WorkerProcess("collect_bare:work", task, task_args, longest[i::workers], share)
        for i, share in enumerate(_shares(environments, workers))
    ]
    for process in processes:
        process.connection.recv()
    started = time.perf_counter()
    for process in processes:
        process.connection.send("go")
    resets = sum(float(process.connection.recv()) for process in processes)
    seconds = time.perf_counter() - started
    for process in processes:
        process.wait()
    return BareTiming(seconds, resets / workers)


def work(
    connection: Any, heartbeat: Any, task: str, task_args: Any, scripts: Any, share: int
) -> None:
    """A process's side: ready, wait for the others, step, and say how long resets took."""
    made = _make(task, task_args, share)
    connection.send("ready")
    connection.recv()
    connection.send(_step(made, scripts))


def _make(task: str, task_args: Any, environments: int) -> list[gymnasium.Env[Any, Any]]:
    return [make_task(task, task_args) for _ in range(environments)]


def _step(made: Sequence[gymnasium.Env[Any, Any]], scripts: Sequence[Script]) -> float:
    """All environments in turn, one step each; the seconds spent in resets."""
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
