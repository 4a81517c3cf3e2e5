"""Minigrid and BabyAI: missions in words, observations as the package gives them."""

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.schemas.errors import TaskError
from retold.tasks.minigrid import WORDS, member_ids, read_mission
from retold.tasks.registry import describe_task, find_task, make_task, task_schema

LOCAL = "minigrid/BabyAI-PutNextLocal-v0"


def spell(numbers: Iterator[int]) -> str:
    return " ".join(WORDS[number] for number in numbers if number)


def test_observations_are_the_package_s_and_the_mission_is_spelled_in_words() -> None:
    ours, theirs = make_task(LOCAL, {}), gymnasium.make("BabyAI-PutNextLocal-v0")
    rng = np.random.default_rng(0)
    for seed in range(3):
        seen, known = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
        for _ in range(20):
            assert ours.observation_space.contains(seen)
            assert np.array_equal(seen["image"], known["image"])
            assert spell(iter(seen["mission"])) == known["mission"].replace(",", "")
            action = int(rng.integers(7))
            seen, known = ours.step(action)[0], theirs.step(action)[0]


def test_a_mission_may_be_kept_as_text() -> None:
    environment = make_task(LOCAL, {"mission": "text"})
    mission = environment.reset(seed=0)[0]["mission"]
    assert mission.startswith("put ") and environment.observation_space["mission"].contains(mission)  # type: ignore[index]


def test_an_unknown_word_and_a_mission_too_long_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown words"):
        read_mission("go to the moon", 8)
    with pytest.raises(ValueError, match="more than 2"):
        read_mission("open the door", 2)


def test_reaching_the_goal_is_a_success_and_the_reward_is_the_package_s() -> None:
    environment = make_task("minigrid/MiniGrid-Empty-5x5-v0", {})
    environment.reset(seed=0)
    for action in (2, 2, 1, 2, 2):
        _, reward, terminated, _, facts = environment.step(action)
    assert terminated and facts["success"] and reward == pytest.approx(1 - 0.9 * 5 / 100)


def test_horizons_bound_the_package_s_own_limits() -> None:
    for name in ("BabyAI-GoToLocal-v0", "BabyAI-PutNextLocal-v0", "BabyAI-SynthSeq-v0"):
        horizon = describe_task(f"minigrid/{name}", {}).horizon
        environment = make_task(f"minigrid/{name}", {})
        for seed in range(4):
            environment.reset(seed=seed)
            assert 0 < environment.unwrapped.max_steps <= horizon  # type: ignore[attr-defined]


def test_a_limit_cuts_an_episode() -> None:
    environment = make_task(LOCAL, {"limit": 3})
    environment.reset(seed=0)
    assert [environment.step(6)[3] for _ in range(3)] == [False, False, True]


def test_a_policy_reads_the_words() -> None:
    Policy(task_schema(LOCAL, {}), ArchitectureConfig(model_width=16, heads=2), (0.9,), 0.9)


def test_an_id_that_is_none_is_refused_with_the_nearest() -> None:
    assert len(member_ids()) > 100
    with pytest.raises(TaskError, match="BabyAI-GoToLocal-v0"):
        find_task("minigrid/BabyAI-GotoLocal-v0")
