"""How fast a policy acts: T-Maze of horizon 100, environment steps a second, all in one process.

The policy has the sizes of `update.py`: 3 blocks of 128 features, 8 heads. Every row plays whole
episodes, whose caches grow from nothing to 101 steps. `policy` asks the policy alone, of constant
observations; `environment` takes random actions through the same rollout, so the two and the whole
say where the time goes. The peer's figures are quoted, not run: AMAGO's rollouts with its cache of
the same model, 2 threads, on this kind of machine where the yardstick read 24,200 rows/s.

    python benchmarks/act.py --json
    python benchmarks/act.py --quick
"""

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from provenance import describe_commit, describe_machine
from update_case import DISCOUNTS, make_config
from yardstick import PEER_ROWS_PER_SECOND, ForeignLoad, read_yardstick

from retold.policy.acting import Actor, PolicyActor, RandomActor
from retold.policy.network import Policy
from retold.policy.rollout import ActionChoice, EpisodeAssignment, roll_out
from retold.schemas.exploration import NO_EXPLORATION
from retold.tasks.registry import make_task, task_schema

HORIZON = 100
PEER = {8: 1_730, 24: 3_630}
"""AMAGO's environment steps/s by environments, policy and environment included."""
_TASK_ARGS = {"corridor": HORIZON - 1}
_PARTS = ("whole", "policy", "environment")


def make_policy() -> Policy:
    """Untrained, and of the update benchmark's sizes."""
    torch.manual_seed(0)
    config = dataclasses.replace(make_config(HORIZON), discounts=DISCOUNTS)
    schema = task_schema("tmaze", _TASK_ARGS)
    return Policy(schema, config.architecture, DISCOUNTS, DISCOUNTS[-2]).eval()


def time_rollout(actor: Actor, environments: int, rounds: int) -> float:
    """Environment steps a second over `rounds` episodes of each environment."""
    made = [make_task("tmaze", _TASK_ARGS) for _ in range(environments)]
    choice = ActionChoice(run_seed=0, stage="collect", is_greedy=False, exploration=NO_EXPLORATION)
    assignments = (EpisodeAssignment(i, i) for i in range(rounds * environments))
    schema = task_schema("tmaze", _TASK_ARGS)
    started = time.perf_counter()
    played = roll_out(made, schema, assignments, choice, lambda: actor)
    steps = sum(len(episode.reward) for episode in played)
    return steps / (time.perf_counter() - started)


def time_policy(actor: PolicyActor, environments: int, rounds: int) -> float:
    """Steps a second of the policy alone."""
    observation = task_schema("tmaze", _TASK_ARGS).observation_leaves[0]
    environment = make_task("tmaze", _TASK_ARGS)
    seen = {observation.path: environment.reset(seed=0)[0]}
    slots = list(range(environments))
    action = {leaf.path: 0 for leaf in task_schema("tmaze", _TASK_ARGS).action_leaves}
    started = time.perf_counter()
    for _ in range(rounds):
        for slot in slots:
            actor.begin(slot, ())
        for _ in range(HORIZON):
            actor.act(slots, [seen] * environments, [0] * environments)
            for slot in slots:
                actor.record(slot, action, 0.0, reset=False)  # type: ignore[arg-type]
    return rounds * HORIZON * environments / (time.perf_counter() - started)


def measure(environments: int, threads: int, rounds: int, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each part, readings of the parts taken in turn."""
    torch.set_num_threads(threads)
    policy = make_policy()
    load = ForeignLoad()
    readings: dict[str, list[float]] = {part: [] for part in _PARTS}
    for number in range(repeats + 1):
        actor = PolicyActor(policy, environments, "benchmark", 0)
        found = (
            time_rollout(actor, environments, rounds),
            time_policy(actor, environments, rounds),
            time_rollout(RandomActor(), environments, rounds),
        )
        if number:  # the first warms up
            for part, rate in zip(_PARTS, found, strict=True):
                readings[part].append(rate)
    foreign = load.cores()
    speed = read_yardstick(5)
    for part, rates in readings.items():
        value = statistics.median(rates)
        yield {
            "command": shlex.join(["python", "benchmarks/act.py", *sys.argv[1:]]),
            "commit": describe_commit(),
            "machine": describe_machine(),
            "seed": 0,
            "part": part,
            "environments": environments,
            "threads": threads,
            "value": value,
            "least": min(rates),
            "most": max(rates),
            "unit": "steps/s",
            "foreign_cores": foreign,
            "yardstick": speed,
            "of_peer": value / PEER[environments] if part == "whole" else None,
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for every number of environments and of threads, and part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="one short reading of each")
    parser.add_argument("--repeats", type=int, default=7, help="readings that medians are taken of")
    given = parser.parse_args(arguments)
    rounds, repeats = (1, 1) if given.quick else (4, given.repeats)
    for environments in PEER:
        for threads in (1, 2):
            for row in measure(environments, threads, rounds, repeats):
                print(json.dumps(row) if given.json else _describe(row), flush=True)


def _describe(row: dict[str, Any]) -> str:
    text = (
        f"{row['environments']:3} environments, {row['threads']} threads, {row['part']:11} "
        f"{row['value']:9,.0f} steps/s ({row['least']:,.0f}-{row['most']:,.0f})"
    )
    if row["of_peer"] is None:
        return text
    at_same_speed = row["of_peer"] * PEER_ROWS_PER_SECOND / row["yardstick"]
    return (
        f"{text}, {row['of_peer']:.2f} of the peer ({at_same_speed:.2f} by the yardstick of "
        f"{row['yardstick']:,.0f}; {row['foreign_cores']:.2f} cores busy elsewhere)"
    )


if __name__ == "__main__":
    main()
