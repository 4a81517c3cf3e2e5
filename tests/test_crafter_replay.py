"""Crafter episodes that last into the night replay exactly in other processes, symbols and pixels."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from retold.schemas.spaces import flatten_value
from retold.tasks.crafter_goals import ACHIEVEMENTS
from retold.tasks.crafter_script import Survivor
from retold.tasks.registry import make_task
from retold.tasks.spaces import from_gymnasium

NIGHT = 250
"""Night begins near step 148; an episode beyond this step has lived through much of it."""
INSTRUCTION = tuple(
    ACHIEVEMENTS[name]
    for name in ("collect_wood", "place_table", "make_wood_sword", "collect_diamond")
)
"""Three goals that the script meets, and one that it never does, so that nothing ends early."""


def survive(seed: int) -> list[int]:
    """The actions of a scripted episode, played in symbols."""
    environment = make_task("crafter", {"limit": 500, "goals": 4})
    observation, _ = environment.reset(seed=seed, options={"instruction": INSTRUCTION})
    script, actions, is_over = Survivor(np.random.default_rng(seed)), [], False
    while not is_over:
        actions.append(script.act(observation))
        observation, _, terminated, truncated, _ = environment.step(actions[-1])
        is_over = terminated or truncated
    return actions


def replay(mode: str, seed: int, actions: list[int]) -> tuple[str, float, int]:
    """Hash of every observation, reward, flag and event; the return; how many actions were played."""
    environment = make_task("crafter", {"limit": 500, "goals": 4, "observation": mode})
    space = from_gymnasium(environment.observation_space)
    digest, total, played = hashlib.sha256(), 0.0, 0

    def take(observation: Any, *facts: Any) -> None:
        for path, leaf in flatten_value(space, observation, "observation").items():
            digest.update(path.encode() + leaf.tobytes())
        digest.update(repr(facts).encode())

    take(environment.reset(seed=seed, options={"instruction": INSTRUCTION})[0])
    for action in actions:
        observation, reward, terminated, truncated, facts = environment.step(action)
        take(observation, reward, terminated, truncated, facts["events"])
        total += reward
        played += 1
        if terminated or truncated:
            break
    return digest.hexdigest(), total, played


def replay_elsewhere(episodes: dict[int, list[int]], hash_seed: str) -> list[Any]:
    """`replay` of every episode and mode in a process of its own."""
    code = (
        f"import json, sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import test_crafter_replay as t\n"
        "print(json.dumps([t.replay(mode, int(seed), actions) for seed, actions in "
        "json.load(sys.stdin).items() for mode in ('symbols', 'pixels')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(episodes),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def check(seeds: range, hash_seeds: Sequence[str]) -> list[int]:
    """Play, replay here and in a process for each hash seed, compare; the episodes' lengths."""
    episodes = {seed: survive(seed) for seed in seeds}
    here = [
        list(replay(mode, seed, actions))
        for seed, actions in episodes.items()
        for mode in ("symbols", "pixels")
    ]
    assert [row[2] for row in here[::2]] == [len(actions) for actions in episodes.values()]
    for hash_seed in hash_seeds:
        assert here == replay_elsewhere(episodes, hash_seed)
    assert any(row[1] > 0 for row in here)
    return [len(actions) for actions in episodes.values()]


def test_nights_replay_in_another_process() -> None:
    assert max(check(range(3), ["12345"])) > NIGHT


@pytest.mark.long
def test_twenty_episodes_replay_and_eight_live_into_the_night() -> None:
    lengths = check(range(20), ["12345", "0"])
    print("lengths:", sorted(lengths))
    assert sum(length > NIGHT for length in lengths) >= 8
