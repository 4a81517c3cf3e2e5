"""Tasks: spaces, seeds, replay in other processes, instructions that never touch the world."""

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retold.schemas.errors import TaskError
from retold.tasks.registry import complete_arguments, describe_task, make_task

SHORT: list[tuple[str, dict[str, Any]]] = [
    ("tmaze", {"corridor": 5}),
    ("tmaze", {"corridor": 5, "slack": 6}),
    ("maze", {"size": 7, "limit": 40, "shuffle_actions": True}),
    ("crafter", {"limit": 60}),
    ("crafter", {"limit": 20, "observation": "pixels", "preset": "full"}),
]


def play(name: str, kwargs: dict[str, Any], seed: int, options: Any = None) -> list[Any]:
    """Everything an episode of random actions shows."""
    environment = make_task(name, kwargs)
    rng = np.random.default_rng(seed)
    observation, facts = environment.reset(seed=seed, options=options)
    shown: list[Any] = [(observation, facts["initial_goals"])]
    while True:
        assert environment.observation_space.contains(observation), observation
        action = rng.integers(environment.action_space.n)  # type: ignore[attr-defined]
        observation, reward, terminated, truncated, facts = environment.step(action)
        assert not (terminated and truncated)
        shown.append((observation, reward, terminated, truncated, facts))
        if terminated or truncated:
            return shown


def digest(name: str, kwargs: dict[str, Any], seed: int) -> str:
    return hashlib.sha256(repr(play(name, kwargs, seed)).encode()).hexdigest()


@pytest.mark.parametrize(("name", "kwargs"), SHORT)
def test_an_episode_stays_in_its_spaces_and_horizon(name: str, kwargs: dict[str, Any]) -> None:
    shown = play(name, kwargs, 3)
    description = describe_task(name, kwargs)
    assert len(shown) - 1 <= description.horizon
    if len(shown) - 1 == description.horizon and not shown[-1][4]["success"]:
        assert shown[-1][2] == (description.limit_is == "termination")


def test_episodes_are_equal_in_processes_with_other_hash_seeds() -> None:
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_tasks as t\n"
    )
    code += "for name, kwargs in t.SHORT: print(t.digest(name, kwargs, 11))"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("0", "12345")
    ]
    assert outputs[0] == outputs[1] == [digest(name, kwargs, 11) for name, kwargs in SHORT]


GOALS = [("maze", {"size": 7, "limit": 30}, 49), ("crafter", {"limit": 40}, 24)]


@pytest.mark.parametrize(("name", "kwargs", "goals"), GOALS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**30 - 1), draw=st.integers(0, 2**30))
def test_the_instruction_never_touches_the_world(
    name: str, kwargs: dict[str, Any], goals: int, seed: int, draw: int
) -> None:
    rng = np.random.default_rng(draw)
    first, second = (
        play(name, kwargs, seed, {"instruction": tuple(rng.integers(0, goals, 2).tolist())})
        for _ in range(2)
    )
    np.testing.assert_equal(first[0], second[0])
    for one, two in zip(first[1:], second[1:], strict=False):
        np.testing.assert_equal(one[0], two[0])
        assert one[4]["events"] == two[4]["events"]
        assert one[4]["environment_terminated"] == two[4]["environment_terminated"]


def test_crafter_makes_the_worlds_of_the_package() -> None:
    import crafter

    from retold.tasks.crafter_world import CrafterGame

    stock = crafter.Env(seed=0)
    game = CrafterGame()
    stock.reset()
    seed = hash((0, 1)) % (2**31 - 1)
    game.start(seed)
    assert np.array_equal(stock._world._mat_map, game._world._mat_map)
    assert np.array_equal(stock._world._obj_map, game._world._obj_map)
    ours, theirs = game._world.random.get_state(), stock._world.random.get_state()
    assert np.array_equal(ours[1], theirs[1]) and ours[2] == theirs[2]


def test_pixels_of_a_symbols_episode_can_be_drawn_later() -> None:
    from retold.tasks.crafter import render_episode

    environment = make_task("crafter", {"observation": "pixels", "limit": 15})
    actions = np.random.default_rng(0).integers(0, 17, 15)
    frames = [environment.reset(seed=5, options={"instruction": ()})[0]]
    frames += [environment.step(action)[0] for action in actions]
    np.testing.assert_array_equal(render_episode(5, actions), np.stack(frames))


def test_crafter_counts_an_achievement_each_time() -> None:
    environment = make_task("crafter", {"limit": 60})
    world = environment.unwrapped
    environment.reset(seed=1)
    goal = world.vocabulary.goal_id(("collect", "wood"))  # type: ignore[attr-defined]
    game = world._game  # type: ignore[attr-defined]
    x, y = game.position
    found = []
    for _ in range(3):
        game._player.facing = (0, 1)
        game._world._mat_map[x, y + 1] = game._world._mat_ids["tree"]
        game._world._obj_map[x, y + 1] = 0
        found.append(goal in environment.step(5)[4]["events"])
    assert found == [True, True, True]


def test_crafter_death_terminates() -> None:
    environment = make_task("crafter", {"limit": 60})
    environment.reset(seed=1)
    environment.unwrapped._game._player.health = 0  # type: ignore[attr-defined]
    _, _, terminated, truncated, facts = environment.step(0)
    assert terminated and not truncated and facts["environment_terminated"]


def test_tmaze_pays_the_arm_that_the_cue_named() -> None:
    environment = make_task("tmaze", {"corridor": 6})
    for seed in range(6):
        observation, _ = environment.reset(seed=seed)
        cue = observation[1]
        rewards = [environment.step(0)[1] for _ in range(6)]
        assert rewards == [0.0] * 6
        _, reward, terminated, _, facts = environment.step(1 if cue > 0 else 3)
        assert (reward, terminated, facts["success"]) == (1.0, True, True)


def test_tmaze_random_return_is_near_its_reference() -> None:
    returns = [sum(step[1] for step in play("tmaze", {}, seed)[1:]) for seed in range(200)]
    assert -0.79 < float(np.mean(returns)) < -0.71  # -0.75 * (1 - chance of success)


def test_every_maze_goal_can_be_reached() -> None:
    from retold.tasks.maze import Maze, reachable_cells

    world = Maze(11, (1, 3), 10, False)
    for seed in range(20):
        world.reset(seed=seed)
        cells = {11 * i + j for i, j in reachable_cells(world._walls, (9, 5))}
        instruction = world.draw_instruction(np.random.default_rng(seed))
        assert set(instruction) <= cells and len(set(instruction)) == len(instruction)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("mazes", {}, "maze"),
        ("maze", {"sise": 3}, "size"),
        ("maze", {"size": 8}, "odd"),
        ("maze", {"goals": [3, 1]}, "smaller"),
        ("crafter", {"preset": "hard"}, "easy"),
        ("tmaze", {"corridor": True}, "whole number"),
    ],
)
def test_a_wrong_argument_is_named(name: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        complete_arguments(name, kwargs)
