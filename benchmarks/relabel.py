"""How fast episodes are retold, in memory and from disk to a committed dataset, and what a variant takes.

In memory, one thread: goal events of random walks (an event a step, as in the maze), 3 goals asked, 16
variants an episode, building the index included. Beside it, in the same run, stands what the field's
relabellers do: one walk in Python over the transitions for each variant, here by the scalar reward
function. From disk: raw shards are read, retold by Dask workers and committed; then all is audited.

    python benchmarks/relabel.py --json
    python benchmarks/relabel.py --quick
"""

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from provenance import describe_commit, describe_machine

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.dataset.shard_writer import write_raw_shard
from retold.relabel.audit import audit_rewards
from retold.relabel.command import RelabelConfig, relabel
from retold.relabel.draws import episode_keys
from retold.relabel.history import GoalHistory
from retold.relabel.retelling import retell_batch
from retold.relabel.strategies import STRATEGIES
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.event_index import EventIndex
from retold.schemas.instruction import find_completed, retell
from retold.tasks.registry import task_schema

_SIZE = 15
_GOALS = 3
_VARIANTS = 16
_BATCH_EPISODES, _BATCH_EVENTS = 1024, 262_144
"""What is indexed together, as where shards are read."""


def random_walks(rng: np.random.Generator, episodes: int, steps: int) -> NDArray[np.int64]:
    """`[episodes, steps]`: the cell an aimless agent stands on after each transition."""
    cells = np.full((episodes, 2), _SIZE // 2)
    walk = np.empty((episodes, steps), np.int64)
    moves = np.array([(0, -1), (-1, 0), (0, 1), (1, 0), (0, 0)])
    for step in range(steps):
        cells = np.clip(cells + moves[rng.integers(0, 5, episodes)], 1, _SIZE - 2)
        walk[:, step] = cells[:, 0] * _SIZE + cells[:, 1]
    return walk


def make_instructions(rng: np.random.Generator, episodes: int) -> NDArray[np.int64]:
    """`[episodes, goals]`: distinct cells anywhere, so that most are missed."""
    inside = np.array([r * _SIZE + c for r in range(1, _SIZE - 1) for c in range(1, _SIZE - 1)])
    return inside[np.argsort(rng.random((episodes, len(inside))), axis=1)[:, :_GOALS]]


def retell_in_memory(strategy: str, steps: int, episodes: int) -> Callable[[], int]:
    """A run over some episodes that returns the number of variants made."""
    rng = np.random.default_rng(steps)
    walk, instruction = random_walks(rng, episodes, steps), make_instructions(rng, episodes)
    every = np.arange(episodes)
    offset = np.arange(episodes + 1) * steps
    step, goal = np.tile(np.arange(steps), episodes), walk.ravel()
    whole = EventIndex(offset=offset, step=step, goal=goal, goals=_SIZE * _SIZE)
    completed = whole.find_completed(every, instruction)
    ids = [f"{number:032x}" for number in range(episodes)]

    def run() -> int:
        keys, made = episode_keys(0, f"relabel {strategy}", ids), 0
        size = min(_BATCH_EPISODES, _BATCH_EVENTS // steps)
        for first in range(0, episodes, size):
            part = slice(first, first + size)
            events = slice(first * steps, (first + size) * steps)
            count = len(every[part])
            history = GoalHistory(
                index=EventIndex(
                    offset=offset[: count + 1],
                    step=step[events],
                    goal=goal[events],
                    goals=_SIZE * _SIZE,
                ),
                length=np.full(count, steps),
                instruction=instruction[part],
                completed=completed[part],
                is_state=np.ones(_SIZE * _SIZE, np.bool_),
                initial_episode=np.arange(count),
                initial_goal=np.full(count, _SIZE // 2 * (_SIZE + 1)),
            )
            variants = retell_batch(
                history, keys[part], STRATEGIES[strategy], variants=_VARIANTS, most_goals=_GOALS
            )
            made += len(variants.episode)
        return made

    return run


def retell_step_by_step(steps: int, episodes: int) -> Callable[[], int]:
    """The same work by one Python walk over the transitions of each variant (strategy `all`)."""
    rng = np.random.default_rng(steps)
    walk, instruction = random_walks(rng, episodes, steps), make_instructions(rng, episodes)
    step = np.arange(steps, dtype=np.uint32)

    def run() -> int:
        for episode in range(episodes):
            goal = walk[episode].astype(np.uint32)
            kept = find_completed(instruction[episode].tolist(), step, goal).tolist()
            for _ in range(_VARIANTS):
                chosen = rng.choice(steps, _GOALS - len(kept), replace=False)
                told = [(at, int(instruction[episode, n])) for n, at in enumerate(kept)]
                told = sorted([*told, *((int(at), int(goal[at])) for at in chosen)])
                retell(
                    tuple(goal for _, goal in told),
                    step,
                    goal,
                    source_length=steps,
                    environment_terminated=False,
                )
        return episodes * _VARIANTS

    return run


def measure_rate(run: Callable[[], int], repeats: int) -> float:
    """Median of variants a second of CPU time: one thread, which others may keep waiting."""
    run()
    rates = []
    for _ in range(repeats):
        started = time.process_time()
        made = run()
        rates.append(made / (time.process_time() - started))
    return statistics.median(rates)


def write_source(path: Path, episodes: int, steps: int, shards: int) -> str:
    """A raw maze dataset of random walks."""
    rng = np.random.default_rng(0)
    task_args = {"size": _SIZE, "goals": _GOALS, "limit": steps}
    schema = task_schema("maze", task_args)
    log = CommitLog.create(path)
    for shard in range(shards):
        count = episodes // shards
        walk, instruction = random_walks(rng, count, steps), make_instructions(rng, count)
        made = [
            _episode(f"{shard * count + n:032x}", walk[n], instruction[n]) for n in range(count)
        ]
        log.append(operation="collect", added=[write_raw_shard(path, made, schema)])
    return log.dataset_id


def _episode(name: str, walk: NDArray[np.int64], instruction: NDArray[np.int64]) -> Episode:
    step, goal = np.arange(len(walk), dtype=np.uint32), walk.astype(np.uint32)
    outcome = retell(
        instruction.tolist(), step, goal, source_length=len(walk), environment_terminated=False
    )
    length = outcome.length
    record = EpisodeRecord(
        episode_id=name,
        task=0,
        length=length,
        episode_return=float(outcome.reward.sum()),
        terminated=bool(outcome.terminated[-1]),
        truncated=bool(outcome.truncated[-1]),
        environment_terminated=False,
        success=len(outcome.completed) == _GOALS,
        instruction=tuple(instruction.tolist()),
        completed=tuple(outcome.completed.tolist()),
        initial_goals=(_SIZE // 2 * (_SIZE + 1),),
    )
    return Episode(
        record=record,
        observation={"observation": np.zeros((length + 1, 7), np.float32)},
        action={"action": np.zeros(length, np.int64)},
        reward=outcome.reward,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        environment_terminated=np.zeros(length, np.bool_),
        reset=np.zeros(length, np.bool_),
        event_step=step[:length],
        event_goal=goal[:length],
    )


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """One row a measured value."""
    repeats = 3 if quick else 7
    for steps in (250, 1000):
        slow = measure_rate(retell_step_by_step(steps, 4 if quick else 20), repeats)
        yield _row("step by step", f"T={steps}, all", slow, "variants/s")
        for strategy in ("all", "some"):
            fast = measure_rate(retell_in_memory(strategy, steps, 512 if quick else 2048), repeats)
            yield _row("in memory", f"T={steps}, {strategy}", fast, "variants/s")
            yield _row("over step by step", f"T={steps}, {strategy}", fast / slow, "ratio")
    with tempfile.TemporaryDirectory(prefix="relabel-") as folder:
        yield from _measure_disk(Path(folder), quick)
        yield from _measure_bytes(Path(folder), quick)


def _measure_disk(folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    episodes = 2_000 if quick else 40_000
    source = write_source(folder / "raw", episodes, 100, shards=4 if quick else 20)
    target = folder / "retold"
    started = time.perf_counter()
    result = relabel(
        RelabelConfig(source=folder / "raw", target=target, variants=_VARIANTS, workers=2)
    )
    seconds = time.perf_counter() - started
    about = f"{episodes} maze episodes of up to 100 steps, 2 workers"
    yield _row("disk to commit", about, result.variants / seconds, "variants/s", source)
    assert result.bytes_per_variant is not None
    yield _row("bytes", about, result.bytes_per_variant, "bytes/variant", source)
    started = time.perf_counter()
    findings = audit_rewards(target)
    seconds = time.perf_counter() - started
    assert not findings, findings[0]
    yield _row("reward audit", f"{result.variants} variants", seconds, "s", source)


def _measure_bytes(folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    raw, target = folder / "crafter", folder / "crafter-retold"
    collect(
        CollectConfig(
            task="crafter",
            task_args={"observation": "pixels", "limit": 500},
            dataset=raw,
            episodes=4 if quick else 64,
        )
    )
    result = relabel(RelabelConfig(source=raw, target=target, variants=_VARIANTS, workers=0))
    assert result.bytes_per_variant is not None
    about = f"{result.episodes} Crafter pixel episodes, {result.variants} variants"
    yield _row("bytes", about, result.bytes_per_variant, "bytes/variant")


def _row(
    measure: str, what: str, value: float, unit: str, dataset: str | None = None
) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "benchmarks/relabel.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "dataset": dataset,
        "seed": 0,
        "measure": measure,
        "what": what,
        "value": value,
        "unit": unit,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="rows of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, within 60 s")
    given = parser.parse_args(arguments)
    for row in measure(given.quick):
        if given.json:
            print(json.dumps(row), flush=True)
        else:
            print(
                f"{row['measure']:18} {row['what']:52} {row['value']:>14,.1f} {row['unit']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
