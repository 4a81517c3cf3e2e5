"""A loaded policy acts in a plain loop as it does in Retold's own rollouts."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import RunRetold

import retold.policy
from retold.collect.command import CollectConfig, collect
from retold.policy.acting import PolicyActor
from retold.policy.rollout import ActionChoice, EpisodeAssignment, FinishedEpisode, roll_out
from retold.policy.snapshot import load_snapshot
from retold.schemas.errors import PolicyError, UsageError
from retold.schemas.exploration import NO_EXPLORATION
from retold.tasks.registry import make_task
from retold.train.command import train
from retold.train.config import TrainConfig

TASK = {"size": 7, "limit": 30}
SEEDS = (2**30, 2**30 + 1, 2**30 + 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agent")
    collect(CollectConfig(task="maze", task_args=TASK, dataset=folder / "raw", episodes=6))
    sizes = {"model_width": 16, "layers": 1, "heads": 2, "head_width": 16, "batch_size": 4}
    train(
        TrainConfig(
            run=folder / "run", data=(folder / "raw",), updates=3, context_length=20, **sizes
        )
    )
    return folder / "run"


def play_by_rollout(run: Path) -> list[FinishedEpisode]:
    policy, description = load_snapshot(next(iter((run / "policies").glob("0*"))))
    actor = PolicyActor(policy, 1, description.policy_id, description.update)
    schema = description.schema
    choice = ActionChoice(run_seed=0, stage="evaluate", is_greedy=True, exploration=NO_EXPLORATION)
    assignments = [EpisodeAssignment(index, seed) for index, seed in enumerate(SEEDS)]
    environments = [make_task("maze", schema.tasks[0].kwargs)]
    return list(roll_out(environments, schema, iter(assignments), choice, lambda: actor))


def test_an_agent_acts_as_a_rollout_does(run: Path) -> None:
    played = play_by_rollout(run)
    agent = retold.policy.load(run, environments=2)
    environment = make_task("maze", TASK)
    for number, episode in enumerate(played):
        observation, info = environment.reset(seed=SEEDS[number])
        agent.begin(info["instruction"], environment=number % 2)
        actions, is_over = [], False
        while not is_over:
            action = agent.act(observation, is_greedy=True, environment=number % 2)
            observation, reward, terminated, truncated, info = environment.step(action)
            agent.see(reward, reset=info["reset"], environment=number % 2)
            actions.append(action)
            is_over = terminated or truncated
        np.testing.assert_array_equal(actions, episode.action["action"])


def test_several_environments_are_asked_at_once(run: Path) -> None:
    alone, both = retold.policy.load(run), retold.policy.load(run, environments=2)
    environment = make_task("maze", TASK)
    observation, info = environment.reset(seed=SEEDS[0])
    for agent, numbers in ((alone, (0,)), (both, (0, 1))):
        for number in numbers:
            agent.begin(info["instruction"], environment=number)
    for _ in range(5):
        action = alone.act(observation, is_greedy=True)
        assert both.act_in([0, 1], [observation] * 2, is_greedy=True) == [action, action]
        observation, reward, *_ = environment.step(action)
        for agent, numbers in ((alone, (0,)), (both, (0, 1))):
            for number in numbers:
                agent.see(reward, environment=number)


def test_what_an_agent_cannot_do_is_said(run: Path, tmp_path: Path) -> None:
    agent = retold.policy.load(run)
    with pytest.raises(UsageError, match="Call `act` before it"):
        agent.see(1.0)
    with pytest.raises(UsageError, match="goals, but the policy reads"):
        agent.begin(["cell 3 5"] * 40)
    with pytest.raises(UsageError, match="observation of environment 0 is"):
        agent.act(np.zeros(3, np.float32))
    with pytest.raises(PolicyError):
        retold.policy.load(tmp_path)


def test_policy_show_says_what_a_policy_is(run: Path, run_retold: RunRetold) -> None:
    page = json.loads(run_retold("policy", "show", run, "--json").stdout)
    policy, description = load_snapshot(Path(page["path"]))
    assert page["policy_id"] == description.policy_id and page["update"] == 3
    total = sum(weight.numel() for weight in policy.parameters())
    assert sum(page["parameters"].values()) == total
    text = run_retold("policy", "show", run).stdout
    assert f"{total:,}" in text and "trained on" in text and "goals" in text
    missing = run_retold("policy", "show", run / "nothing")
    assert missing.returncode == 1 and "Traceback" not in missing.stderr
