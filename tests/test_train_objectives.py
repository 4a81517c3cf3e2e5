"""Objectives without values: what they hold, what they learn from, and that they learn."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up_windows import make_config, make_schema, make_window

from retold.cli.policy import PolicyConfig, show_policy
from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.dataset.shard_writer import write_raw_shard
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.acting import PolicyActor
from retold.policy.architecture import ArchitectureConfig
from retold.policy.snapshot import load_snapshot
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import DatasetError, UsageError
from retold.schemas.spaces import BoxSpace, DiscreteSpace
from retold.train.batch import make_batch
from retold.train.batch_reader import BatchReader, steps_to_goals
from retold.train.checkpoint import list_checkpoints, read_checkpoint
from retold.train.command import train
from retold.train.config import TrainConfig
from retold.train.learner import Learner

MAZE = {"size": 5, "limit": 12}


def small(run: Path, data: Path, updates: int, **fields: Any) -> TrainConfig:
    values = {
        "model_width": 32,
        "layers": 1,
        "heads": 2,
        "head_width": 32,
        "batch_size": 16,
        "context_length": 16,
        "learning_rate": 3e-3,
        "warmup_updates": 10,
        **fields,
    }
    return TrainConfig(run=run, data=(data,), updates=updates, **values)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maze")
    collect(CollectConfig(task="maze", task_args=MAZE, dataset=folder / "raw", episodes=200))
    relabel(RelabelConfig(source=folder / "raw", target=folder / "retold", variants=4))
    return folder


# A scripted player presses the button of the lamp that shines, which earns 1; a poor one the next
# button, which earns nothing.
LAMPS = DatasetSchema(
    tasks=(
        TaskDescription(
            name="lamps", kwargs={}, code_version="1", limit_is="termination", horizon=6
        ),
    ),
    observation_space=BoxSpace((4,), "float32", 0.0, 1.0),
    action_space=DiscreteSpace(4),
)


def play_lamps(number: int, *, is_poor: bool) -> Episode:
    rng = np.random.default_rng(number)
    lamp = rng.integers(4, size=7)
    action = (lamp[:6] + is_poor) % 4
    reward = np.full(6, float(not is_poor), np.float32)
    ends = np.arange(6) == 5
    return Episode(
        record=EpisodeRecord(
            episode_id=f"{number:032x}",
            task=0,
            length=6,
            episode_return=float(reward.sum()),
            terminated=True,
            truncated=False,
            environment_terminated=True,
        ),
        observation={"observation": np.eye(4, dtype=np.float32)[lamp]},
        action={"action": action},
        reward=reward,
        terminated=ends,
        truncated=np.zeros(6, np.bool_),
        environment_terminated=ends,
        reset=np.zeros(6, np.bool_),
        event_step=np.zeros(0, np.uint32),
        event_goal=np.zeros(0, np.uint32),
    )


@pytest.fixture
def lamps(tmp_path: Path) -> Path:
    """A dataset of the player's episodes alone, and beside it one in which half are the poor one's."""
    for name, poor in (("lamps", 0), ("mixed", 2)):
        log = CommitLog.create(tmp_path / name)
        episodes = [play_lamps(n, is_poor=n % 4 < poor) for n in range(64)]
        shard = write_raw_shard(tmp_path / name, episodes, LAMPS)
        log.append(operation="collect", added=[shard])
    return tmp_path / "lamps"


def right_presses(run: Path, target_return: float | None = None) -> float:
    """Share of steps at which the button of the lamp that shines is the likeliest."""
    policy, description = load_snapshot(run / "policies" / (run / "LATEST").read_text().strip())
    actor = PolicyActor(policy, 1, description.policy_id, 0, target_return=target_return)
    rng = np.random.default_rng(99)
    right = 0
    for _ in range(10):
        actor.begin(0, ())
        for _ in range(6):
            lamp = int(rng.integers(4))
            (numbers,) = actor.act([0], [{"observation": np.eye(4, dtype=np.float32)[lamp]}], [0])
            chosen = int(numbers.argmax())
            right += chosen == lamp
            actor.record(0, {"action": np.int64(chosen)}, float(chosen == lamp), False)
    return right / 60


def test_behaviour_cloning_does_what_the_player_did(lamps: Path, tmp_path: Path) -> None:
    train(small(tmp_path / "run", lamps, 60, objective="bc"))
    assert right_presses(tmp_path / "run") >= 0.95


def test_a_decision_transformer_earns_what_it_is_asked_for(lamps: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small(run, lamps.with_name("mixed"), 120, objective="dt"))
    assert right_presses(run) >= 0.9, "unless told otherwise it asks for the best"
    assert right_presses(run, 6.0) >= 0.9
    assert right_presses(run, 0.0) <= 0.1
    policy, _ = load_snapshot(run / "policies" / "00000120")
    assert float(policy.target_return) == 6.0


def test_goal_conditioned_learning_reaches_more_goals_than_chance(
    maze: Path, tmp_path: Path
) -> None:
    train(small(tmp_path / "run", maze / "retold", 200, objective="gcsl", batch_size=32))
    settings = {"episodes": 60, "environments": 30}
    score = evaluate(EvaluateConfig(policy=tmp_path / "run", **settings))
    chance = evaluate(
        EvaluateConfig(policy=Path("random"), task="maze", task_args=MAZE, **settings)
    )
    assert score.mean_return > 1.5 * chance.mean_return, (score.mean_return, chance.mean_return)


@pytest.mark.parametrize("objective", ["bc", "dt", "gcsl"])
def test_no_values_are_held_where_none_are_learned(
    objective: str, maze: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(small(run, maze / "retold", 2, objective=objective))
    state, _ = read_checkpoint(list_checkpoints(run)[-1])
    assert state.keys() == {"policy", "optimiser", "update_count"}
    assert not [name for name in state["policy"] if "critic" in name]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert not [name for name in rows[0] if "critic" in name or "value" in name]
    page = show_policy(PolicyConfig(action="show", policy=run))
    assert page.objective == objective
    assert page.discounts == () and page.acting_discount is None
    assert (page.target_return is not None) == (objective == "dt")
    facts = page.describe().split("architecture")[0]
    assert objective in facts and "discount" not in facts


def test_supervised_runs_go_on_exactly_where_they_were(maze: Path, tmp_path: Path) -> None:
    for objective in ("dt", "gcsl"):
        whole = small(tmp_path / f"{objective}-whole", maze / "retold", 6, objective=objective)
        parts = dataclasses.replace(whole, run=tmp_path / f"{objective}-parts")
        train(whole)
        train(dataclasses.replace(parts, updates=3))
        train(dataclasses.replace(parts, resume=True))
        one, other = (
            read_checkpoint(list_checkpoints(config.run)[-1])[0]["policy"]
            for config in (whole, parts)
        )
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["raw", "retold"])
@pytest.mark.parametrize("length", [4, 40])
def test_a_return_to_go_is_what_the_episode_still_earned(
    name: str, length: int, maze: Path
) -> None:
    with DatasetReader.open(maze / name) as reader:
        sampler = WindowSampler([reader], window_length=length, seed=1)
        batches = BatchReader(sampler, [reader.columns], burn_in=0, objective="dt")
        draw = sampler.choose(0, 16)
        batch = batches.read(sampler.make_batch(16), draw, range(16), most_goals=3)
        assert batch.inputs.return_to_go is not None
        for number, row in enumerate(draw.row.tolist()):
            reward = reader.read_episode(row).reward
            left = np.append(np.cumsum(reward[::-1])[::-1], 0)
            start, size = int(draw.start[number]), int(draw.length[number])
            found = batch.inputs.return_to_go[number, : size + 1].numpy()
            np.testing.assert_allclose(found, left[start : start + size + 1])


def test_goal_conditioned_learning_imitates_what_led_to_goals_alone(maze: Path) -> None:
    with DatasetReader.open(maze / "raw") as reader:
        sampler = WindowSampler([reader], window_length=8, seed=1)
        batches = BatchReader(sampler, [reader.columns], burn_in=0, objective="gcsl")
        draw = sampler.choose(0, 32)
        batch = batches.read(sampler.make_batch(32), draw, range(32), most_goals=3)
        seen = set()
        for number, row in enumerate(draw.row.tolist()):
            episode = reader.read_window(row, 0, int(reader.columns.length[row]))
            reached = len(episode.record.completed)
            start, size = int(draw.start[number]), int(draw.length[number])
            expected = episode.progress[start : start + size] < reached
            np.testing.assert_array_equal(batch.is_valid[number, :size].numpy(), expected)
            seen |= set(expected.tolist())
        assert seen == {False, True}
        assert int(steps_to_goals(reader.columns).max()) > 0


def test_an_update_without_a_row_to_imitate_changes_little_and_stays_finite() -> None:
    learner = Learner(make_config(objective="gcsl"), make_schema())
    batch = make_batch([make_window(4, 0, make_schema())], most_goals=0, burn_in=0)
    metrics = learner.update(
        dataclasses.replace(batch, is_valid=torch.zeros(1, 4, dtype=torch.bool))
    )
    assert metrics["loss"] == 0 and metrics["gradient_norm"] == 0


def test_data_without_goals_is_refused_for_goal_conditioned_learning(
    lamps: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="the data has no goals"):
        train(small(tmp_path / "run", lamps, 1, objective="gcsl"))
    assert not (tmp_path / "run").exists()


def test_a_target_return_is_asked_of_decision_transformers_alone(
    maze: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(small(run, maze / "retold", 1, objective="bc"))
    with pytest.raises(UsageError, match="objective is bc"):
        evaluate(EvaluateConfig(policy=run, episodes=1, target_return=1.0))
    wanted = CollectConfig(
        task="maze", task_args=MAZE, dataset=tmp_path / "new", policy=str(run), target_return=1.0
    )
    with pytest.raises(UsageError, match="objective is bc"):
        collect(wanted)
    assert not (tmp_path / "new").exists()
    with pytest.raises(UsageError, match="--target-return"):
        dataclasses.replace(wanted, policy="random")


def test_one_seed_is_collected_with_one_target_return(maze: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small(run, maze / "raw", 1, objective="dt"))
    config = CollectConfig(
        task="maze", task_args=MAZE, dataset=tmp_path / "new", policy=str(run), episodes=1
    )
    collect(dataclasses.replace(config, target_return=2.0))
    with pytest.raises(DatasetError, match="target_return 2.0, but now it is None"):
        collect(dataclasses.replace(config, episodes=2))


def test_an_instruction_bounds_what_is_asked_for_by_default(maze: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small(run, maze / "retold", 1, objective="dt"))
    policy, _ = load_snapshot(run / "policies" / "00000001")
    with DatasetReader.open(maze / "retold") as reader:
        returns = np.sort(reader.columns.episode_return)
    best = returns[-round(len(returns) / 20) :].mean()
    assert float(policy.target_return) == pytest.approx(best) and 1 < best <= 3
    for target, goals, expected in ((None, (3,), 1), (None, (3, 4, 5), best), (5.0, (3,), 5)):
        actor = PolicyActor(policy, 1, "p", 0, target_return=target)
        actor.begin(0, goals)
        actor.act([0], [{"observation": np.zeros_like(reader_row(maze))}], [0])
        assert actor._rows.return_to_go[0] == pytest.approx(expected)
        actor.record(0, {"action": np.int64(0)}, 1.0, False)
        assert actor._rows.return_to_go[0] == pytest.approx(expected - 1)


def reader_row(maze: Path) -> Any:
    with DatasetReader.open(maze / "raw") as reader:
        return reader.read_episode(0).observation["observation"][0]


def test_an_objective_is_part_of_the_policy() -> None:
    config = ArchitectureConfig(objective="dt")
    assert ArchitectureConfig.from_json(config.to_json()) == config
    old = {name: value for name, value in config.to_json().items() if name != "objective"}
    assert ArchitectureConfig.from_json(old).objective == "actor-critic"
