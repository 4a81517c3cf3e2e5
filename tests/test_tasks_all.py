"""What holds for every task: spaces, seeds, facts of transitions, trials, tasks of other packages."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import RunRetold

from retold.schemas.errors import TaskError
from retold.schemas.spaces import find_invalid, flatten_value, space_leaves
from retold.tasks.drawing import draw_frame, draw_text
from retold.tasks.registry import (
    describe_task,
    find_declaration,
    find_task,
    make_task,
    task_names,
    task_schema,
)
from retold.tasks.spaces import from_gymnasium

FAMILIES = ("gym", "minigrid", "popgym", "xland")
OWN = tuple(name for name in task_names() if name not in FAMILIES)
MINIGRID = (
    ("minigrid/MiniGrid-MemoryS7-v0", "minigrid/BabyAI-GoToLocal-v0")
    if find_spec("minigrid")
    else ()
)
"""Where the extra is installed."""
XLAND = ("xland/R1-9x9",) if find_spec("xminigrid") else ()
"""The same."""
ALL: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OWN),
    ("frozen-lake", {"hard": True}),
    ("key-to-door", {"light": True, "shuffle_actions": True}),
    ("wind", {"actions": "discrete"}),
    ("gym/CartPole-v1", {}),
    ("gym/Blackjack-v1", {"limit": 20}),
    ("gym/Taxi-v4", {}),
    ("trial/tmaze", {"corridor": 4, "attempts": 3}),
    ("trial/maze", {"size": 7, "limit": 15, "attempts": 3}),
    ("trial/gym/CartPole-v1", {"attempts": 2}),
    *((name, {}) for name in (*MINIGRID, *XLAND)),
    *((f"popgym/{m}", {}) for m in find_declaration("popgym").members()),  # type: ignore[union-attr]
]
STEPS = 1000


def walk(name: str, arguments: dict[str, Any], steps: int, seed: int) -> Any:
    """Every observation, reward, flags and facts of random steps, episode after episode."""
    environment = make_task(name, arguments)
    environment.action_space.seed(seed)
    is_over = True
    for _ in range(steps):
        if is_over:
            seed += 1
            observation, facts = environment.reset(seed=seed)
            yield observation, None, None, None, facts
        observation, reward, terminated, truncated, facts = environment.step(
            environment.action_space.sample()
        )
        yield observation, reward, terminated, truncated, facts
        is_over = terminated or truncated
    environment.close()


def digest(name: str, arguments: dict[str, Any], steps: int = 200) -> str:
    found = hashlib.sha256()
    space = task_schema(name, arguments).observation_space
    for observation, *rest in walk(name, arguments, steps, 5):
        for path, leaf in flatten_value(space, observation, "observation").items():
            found.update(path.encode() + leaf.tobytes())
        found.update(repr(rest).encode())
    return found.hexdigest()


@pytest.mark.parametrize(("name", "arguments"), ALL)
def test_a_thousand_random_steps_stay_in_their_spaces(name: str, arguments: dict[str, Any]) -> None:
    schema = task_schema(name, arguments)
    leaves = space_leaves(schema.observation_space, "observation")
    rows: dict[str, list[Any]] = {leaf.path: [] for leaf in leaves}
    length = 0
    for observation, reward, terminated, truncated, facts in walk(name, arguments, STEPS, 0):
        for path, leaf in flatten_value(
            schema.observation_space, observation, "observation"
        ).items():
            rows[path].append(leaf)
        if reward is None:
            length = 0
            assert set(facts) >= {"instruction", "initial_goals"}
            continue
        length += 1
        assert np.isfinite(reward) and np.ndim(reward) == 0
        assert not (terminated and truncated)
        assert set(facts) >= {"events", "environment_terminated", "reset", "success"}
        assert length <= schema.tasks[0].horizon
        assert terminated or not facts["environment_terminated"]
    for leaf in leaves:
        values = np.stack(rows[leaf.path])
        assert values.shape[1:] == leaf.shape
        assert find_invalid(leaf, values) is None


def test_seeded_runs_are_equal_in_processes_with_other_hash_seeds() -> None:
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import test_tasks_all as t\n"
        "for name, arguments in t.ALL: print(t.digest(name, arguments))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("0", "777")
    ]
    assert outputs[0] == outputs[1] == [digest(name, arguments) for name, arguments in ALL]
    assert len(set(outputs[0])) > 0.9 * len(ALL)


@pytest.mark.parametrize("name", [*OWN, "popgym/RepeatFirstEasy", "trial/maze"])
def test_every_task_is_shown_and_most_are_drawn(name: str, run_retold: RunRetold) -> None:
    shown = run_retold("tasks", "show", name, "--json")
    assert shown.returncode == 0, shown.stderr
    page = json.loads(shown.stdout)
    assert page["facts"]["task"] == name and page["sentence"] and page["frame"]
    if not name.startswith("popgym"):
        assert all(argument["says"] for argument in page["arguments"])
        environment = make_task(name, {})
        environment.reset(seed=0)
        frame = draw_frame(environment)
        assert frame.dtype == np.uint8 and frame.ndim == 3 and len(np.unique(frame)) > 2
        assert "cheetah" in name or draw_text(environment)


def test_tasks_are_listed_and_a_frame_is_written(run_retold: RunRetold, tmp_path: Path) -> None:
    rows = json.loads(run_retold("tasks", "--json").stdout)["tasks"]
    assert {row["task"] for row in rows} >= {*OWN, "popgym/NAME", "gym/NAME", "trial/TASK"}
    known = next(row for row in rows if row["task"] == "tmaze")
    assert (known["horizon"], known["random"], known["best"]) == (21, -0.75, 1.0)
    assert len(json.loads(run_retold("tasks", "list", "popgym", "--json").stdout)["tasks"]) == 48
    path = tmp_path / "maze.png"
    page = run_retold("tasks", "show", "maze", "--png", path)
    assert page.returncode == 0 and path.read_bytes().startswith(b"\x89PNG")
    assert "###" in page.stdout and "shuffle_actions" in page.stdout
    wrong = run_retold("tasks", "show", "mase")
    assert wrong.returncode == 2 and "Did you mean 'maze'?" in wrong.stderr


PLUGIN = '''
import gymnasium
from retold.tasks.definition import Argument, Task


class Count(gymnasium.Env):
    """Counts to five."""

    observation_space = gymnasium.spaces.Discrete(6)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        return self.count, float(action), self.count == 5, False, {"is_success": True}


COUNT = Task(
    name="count",
    sentence="Count to five.",
    arguments={"unused": Argument(1, help="Nothing.")},
    limit_is="termination",
    horizon=lambda arguments: 5,
    make=lambda arguments: Count(),
)
WRONG = 3
'''


def install_plugin(folder: Path, entries: str) -> dict[str, str]:
    """A distribution on the path, as pip would leave it; the environment of a process that sees it."""
    (folder / "counting.py").write_text(PLUGIN)
    facts = folder / "counting-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[retold.tasks]\n{entries}\n")
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def run_with_plugin(environment: dict[str, str], *arguments: str) -> Any:
    command = [Path(sys.executable).with_name("retold"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_another_package_adds_a_task(tmp_path: Path) -> None:
    environment = install_plugin(tmp_path, "count = counting:COUNT")
    assert "count" in run_with_plugin(environment, "tasks").stdout
    raw = str(tmp_path / "raw")
    result = run_with_plugin(environment, "collect", "count", raw, "--episodes", "3", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["episodes"], found["steps"], found["success"]) == (3, 15, 1.0)
    audit = run_with_plugin(environment, "audit", raw, "--replay", "all")
    assert audit.returncode == 0, audit.stdout


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("count = counting:WRONG", "no Task"),
        ("count = counting:NOWHERE", "cannot be imported"),
        ("maze = counting:COUNT", "Retold itself"),
    ],
)
def test_a_package_with_a_wrong_task_is_named(tmp_path: Path, entries: str, words: str) -> None:
    environment = install_plugin(tmp_path, entries)
    result = run_with_plugin(environment, "tasks", "show", "count")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "counting" in result.stderr and words in result.stderr


def test_a_trial_goes_back_to_the_same_start(seed: int = 3) -> None:
    environment = make_task("trial/key-to-door", {"attempts": 3, "horizon": 7, "size": 5})
    first, _ = environment.reset(seed=seed)
    resets, length, is_over = [], 0, False
    while not is_over:
        observation, reward, is_over, truncated, facts = environment.step(length % 5)
        assert not truncated
        if facts["reset"]:
            resets.append(length)
            np.testing.assert_array_equal(observation, first)
            assert reward == 0.0
        length += 1
    assert resets == [7, 15] and length == 23
    assert describe_task("trial/key-to-door", {"attempts": 3, "horizon": 7}).horizon == 23


def test_goals_of_a_trial_go_on_where_the_last_attempt_left_them() -> None:
    environment = make_task("trial/maze", {"size": 7, "limit": 4, "attempts": 3})
    goals = environment.unwrapped.vocabulary  # type: ignore[attr-defined]
    _, facts = environment.reset(seed=1)
    (start,) = facts["initial_goals"]
    up = goals.goal_id(("cell", "4", "3"))
    environment.reset(seed=1, options={"instruction": (up, start)})
    north, stay = 1, 4
    assert environment.step(north)[1] == 1.0
    assert [environment.step(stay)[1] for _ in range(3)] == [0.0] * 3
    _, reward, terminated, _, facts = environment.step(stay)
    assert facts["reset"] and facts["events"] == (start,)
    assert (reward, terminated, facts["environment_terminated"]) == (1.0, True, False)


def test_a_soft_reset_of_key_to_door_follows_the_attempt() -> None:
    environment = make_task("key-to-door", {"attempt_steps": 4, "horizon": 10})
    environment.reset(seed=0)
    facts = [environment.step(4) for _ in range(10)]
    assert [row[4]["reset"] for row in facts] == [False] * 4 + [True] + [False] * 4 + [True]
    assert [row[2] for row in facts] == [False] * 9 + [True]


def test_a_delivery_anywhere_is_an_event_and_the_next_destination_pays() -> None:
    environment = make_task("package-delivery", {})
    world = environment.unwrapped
    _, facts = environment.reset(seed=2)
    vocabulary = world.vocabulary  # type: ignore[attr-defined]
    place = next(i for i in range(1, 30) if i not in world._turns)  # type: ignore[attr-defined]
    assert place - 1 not in facts["instruction"]
    while world._position != place:  # type: ignore[attr-defined]
        turn = world._turns.get(world._position, 0)  # type: ignore[attr-defined]
        environment.step(turn)
    _, reward, _, _, facts = environment.step(world._drop)  # type: ignore[attr-defined]
    assert facts["events"] == (vocabulary.goal_id(("deliver", str(place))),) and reward == 0.0
    player = find_task("package-delivery").player
    assert player is not None
    total, is_over, play = 0.0, False, player(environment)
    while not is_over:
        _, reward, is_over, _, facts = environment.step(play(None))
        total += reward
    assert total == len(world.destinations) and facts["success"]  # type: ignore[attr-defined]


def test_both_flags_at_once_mean_that_the_world_ended() -> None:
    from retold.tasks.facts_wrapper import FactsWrapper

    class Both(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def step(self, action: Any) -> Any:
            return 0, 1, True, True, {"success": np.True_}

    _, reward, terminated, truncated, facts = FactsWrapper(Both()).step(0)
    assert (reward, terminated, truncated) == (1, True, False)
    assert facts["environment_terminated"] and facts["success"] is True


def test_a_gym_task_needs_a_limit_and_names_what_is_wrong() -> None:
    with pytest.raises(TaskError, match="step limit"):
        describe_task("gym/Blackjack-v1", {})
    with pytest.raises(TaskError, match="cannot make it"):
        make_task("gym/CartPole-v1", {"make": {"nonsense": 1}})
    assert describe_task("gym/CartPole-v1", {}).horizon == 500
    assert describe_task("gym/CartPole-v1", {"limit": 7}).horizon == 7


def test_labyrinths_leave_the_global_generators_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1]  # type: ignore[index]
    make_task("popgym/LabyrinthEscapeEasy", {}).reset(seed=0)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]


def test_spaces_of_every_kind_are_described(run_retold: RunRetold) -> None:
    page = json.loads(run_retold("tasks", "show", "popgym/BattleshipEasy", "--json").stdout)
    assert page["facts"]["action"] == "MultiDiscrete[2] of 8"
    assert from_gymnasium(make_task("popgym/AutoencodeEasy", {}).observation_space) is not None
