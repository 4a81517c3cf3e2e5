"""Histories: episodes of one task in the order of training, learned from and acted in end to end."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retold.collect.command import CollectConfig, collect
from retold.dataset.episode_histories import EpisodeHistories
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_writer import write_raw_shard
from retold.dataset.window_draws import Draw
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.acting import PolicyActor
from retold.policy.snapshot import load_snapshot
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import DatasetError, UsageError
from retold.schemas.spaces import BoxSpace, DiscreteSpace
from retold.train.checkpoint import list_checkpoints, read_checkpoint
from retold.train.command import train
from retold.train.config import TrainConfig
from retold.train.data import TrainingData
from retold.train.learner import Learner
from retold.train.packed_batch import pack_batch

STEPS, EPISODES = 4, 6
LAMPS = DatasetSchema(
    tasks=(
        TaskDescription(
            name="lamps", kwargs={}, code_version="1", limit_is="termination", horizon=STEPS
        ),
    ),
    observation_space=BoxSpace((4,), "float32", 0.0, 1.0),
    action_space=DiscreteSpace(4),
)


def play_lamps(seed: int, index: int, length: int = STEPS, **fields: Any) -> Episode:
    """Episode `index` of a player who becomes better: in the last ones it presses what shines."""
    rng = np.random.default_rng([seed, index])
    lamp = rng.integers(4, size=length + 1)
    is_right = index >= EPISODES // 2
    action = lamp[:length] if is_right else (lamp[:length] + 1) % 4
    reward = (action == lamp[:length]).astype(np.float32)
    ends = np.arange(length) == length - 1
    record = EpisodeRecord(
        episode_id=f"{seed + 1:016x}{index:016x}",
        task=0,
        length=length,
        episode_return=float(reward.sum()),
        terminated=True,
        truncated=False,
        environment_terminated=True,
        run_seed=seed,
        index=index,
        policy="p",
        policy_update=10 * index,
    )
    return Episode(
        record=dataclasses.replace(record, **fields),
        observation={"observation": np.eye(4, dtype=np.float32)[lamp]},
        action={"action": action},
        reward=reward,
        terminated=ends,
        truncated=np.zeros(length, np.bool_),
        environment_terminated=ends,
        reset=np.zeros(length, np.bool_),
        event_step=np.zeros(0, np.uint32),
        event_goal=np.zeros(0, np.uint32),
    )


def write(path: Path, episodes: list[Episode]) -> Path:
    log = CommitLog.create(path)
    log.append(operation="collect", added=[write_raw_shard(path, episodes, LAMPS)])
    return path


@pytest.fixture
def lamps(tmp_path: Path) -> Path:
    """Four histories, their episodes of several lengths and stored in no order."""
    episodes = [play_lamps(s, i, STEPS + (s + i) % 2) for s in range(4) for i in range(EPISODES)]
    order = np.random.default_rng(0).permutation(len(episodes))
    return write(tmp_path / "lamps", [episodes[number] for number in order])


def small(run: Path, data: Path, updates: int, **fields: Any) -> TrainConfig:
    values = {
        "objective": "bc",
        "context": "history",
        "model_width": 32,
        "layers": 1,
        "heads": 2,
        "head_width": 32,
        "batch_size": 8,
        "context_length": 40,
        "burn_in": 0,
        "learning_rate": 3e-3,
        "warmup_updates": 10,
        **fields,
    }
    return TrainConfig(run=run, data=(data,), updates=updates, **values)


def test_a_history_is_a_run_seeds_episodes_in_the_order_of_training(lamps: Path) -> None:
    with DatasetReader.open(lamps) as reader:
        histories = EpisodeHistories([reader])
        (lengths,) = histories.lengths
        assert len(lengths) == 4
        seeds = set()
        for number in range(4):
            records = [reader.record(int(row)) for row in histories.rows(0, number)]
            assert [record.policy_update for record in records] == list(range(0, 60, 10))
            seeds |= {record.run_seed for record in records}
            assert len({record.run_seed for record in records}) == 1
            assert lengths[number] == sum(record.length for record in records)
        assert seeds == {0, 1, 2, 3}


def test_random_episodes_come_before_the_first_policy(tmp_path: Path) -> None:
    episodes = [play_lamps(0, 2), play_lamps(0, 1)]
    episodes += [play_lamps(0, 5, policy="random", policy_update=None)]
    with DatasetReader.open(write(tmp_path / "lamps", episodes)) as reader:
        rows = EpisodeHistories([reader]).rows(0, 0)
        assert [reader.record(int(row)).index for row in rows] == [5, 1, 2]


def test_windows_of_a_history_are_cut_at_the_ends_of_its_episodes(tmp_path: Path) -> None:
    episodes = [play_lamps(0, index, length) for index, length in enumerate((3, 5, 4))]
    with DatasetReader.open(write(tmp_path / "lamps", episodes)) as reader:
        histories = EpisodeHistories([reader])

        def draw(start: int, length: int) -> Draw:
            zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
            return Draw(dataset=zero, row=zero, start=start * one, length=length * one)

        parts = histories.split(draw(2, 9))
        assert parts.counts == (3,)
        found = [parts.draw.row, parts.draw.start, parts.draw.length, parts.position, parts.before]
        assert [part.tolist() for part in found] == [
            [0, 1, 2],
            [2, 0, 0],
            [1, 5, 3],
            [2, 3, 8],
            [0, 1, 6],
        ]
        # A window that ends where an episode does would end with a row that acting never sees.
        assert histories.trim(draw(1, 7)).length.tolist() == [6]
        assert histories.trim(draw(1, 6)).length.tolist() == [6]
        assert histories.trim(draw(4, 8)).length.tolist() == [8], "none follows the last one"


@pytest.mark.parametrize("context_length", [6, 40])
def test_acting_goes_on_over_episodes_as_the_parallel_forward_does(
    lamps: Path, tmp_path: Path, context_length: int
) -> None:
    config = small(tmp_path / "run", lamps, 1, context_length=context_length, objective="dt")
    config = dataclasses.replace(config, attention_window=7, batch_size=1)
    with TrainingData(config, {}, is_pinned=False) as data:
        policy = Learner(config, data.schema).policy.eval()
        draws = (number for number in range(99) if not data._chooser._choose(number, 1).start.any())
        data.next_draw = next(draws)
        (batch,) = data.draw(0, policy.most_goals)
        parts = data._episode_windows()
        episodes = [data.readers[0].read_episode(row) for row in parts.row.tolist()]
        lengths = parts.length.tolist()
    packed = pack_batch(batch)
    with torch.no_grad():
        outputs = policy.acting_numbers(policy.encode(packed.inputs)[packed.valid])
    actor = PolicyActor(policy, 2, "p", 0)
    acted = []
    for episode, length in zip(episodes, lengths, strict=True):
        actor.begin(1, ())
        actor._rows.return_to_go[1] = episode.record.episode_return
        for step in range(length):
            seen = {path: rows[step] for path, rows in episode.observation.items()}
            acted.append(actor.act([1], [seen], [0])[0])
            action = {"action": episode.action["action"][step]}
            actor.record(1, action, float(episode.reward[step]), False)
    assert len(episodes) > 1
    np.testing.assert_allclose(acted, outputs.numpy(), atol=1e-5)


def test_only_the_end_of_a_history_ends_it(lamps: Path, tmp_path: Path) -> None:
    config = small(tmp_path / "run", lamps, 1, objective="actor-critic", batch_size=1)
    with TrainingData(config, {}, is_pinned=False) as data:
        (batch,) = data.draw(0, 0)
    packed = pack_batch(batch)
    length = sum(batch.lengths)
    assert len(packed.valid) == length and packed.inputs.lengths == (length + 1,)
    assert packed.terminated.nonzero().flatten().tolist() == [length - 1]
    resets = np.cumsum(batch.lengths)[:-1].tolist()
    assert packed.inputs.previous_reset.nonzero().flatten().tolist() == resets
    assert packed.inputs.place.tolist() == list(range(length + 1))
    assert packed.inputs.step[resets].tolist() == [0] * len(resets)
    assert packed.inputs.has_previous.tolist() == [False] + [True] * length
    assert packed.last.tolist() == [length] * length


def test_burn_in_counts_from_the_start_of_a_cut_window(lamps: Path, tmp_path: Path) -> None:
    config = small(tmp_path / "run", lamps, 1, context_length=12, burn_in=7)
    with TrainingData(config, {}, is_pinned=False) as data:
        (batch,) = data.draw(0, 0)
        windows = data._chosen.draw
    packed = pack_batch(batch)
    first = 0
    for start, rows in zip(windows.start.tolist(), packed.inputs.lengths, strict=True):
        valid = packed.valid[(packed.valid >= first) & (packed.valid < first + rows)] - first
        assert valid.tolist() == list(range(7 if start else 0, rows - 1))
        first += rows


def test_a_history_of_learning_is_lived_through_while_acting(tmp_path: Path) -> None:
    episodes = [play_lamps(seed, index) for seed in range(12) for index in range(EPISODES)]
    run = tmp_path / "run"
    train(small(run, write(tmp_path / "lamps", episodes), 150))
    policy, _ = load_snapshot(run / "policies" / "00000150")
    actor = PolicyActor(policy, 1, "p", 0)
    rng = np.random.default_rng(7)
    right = np.zeros(EPISODES)
    for episode in range(EPISODES):
        actor.begin(0, ())
        for _ in range(STEPS):
            lamp = int(rng.integers(4))
            (numbers,) = actor.act([0], [{"observation": np.eye(4, dtype=np.float32)[lamp]}], [0])
            chosen = int(numbers.argmax())
            right[episode] += (chosen == lamp) / STEPS
            actor.record(0, {"action": np.int64(chosen)}, float(chosen == lamp), False)
    # The player did badly in the first half of its episodes, and well in the second.
    assert right[:2].mean() <= 0.25 and right[-2:].mean() >= 0.75, right


def test_a_run_over_histories_goes_on_exactly_where_it_was(lamps: Path, tmp_path: Path) -> None:
    whole = small(tmp_path / "whole", lamps, 6, objective="actor-critic", context_length=9)
    parts = dataclasses.replace(whole, run=tmp_path / "parts")
    train(whole)
    train(dataclasses.replace(parts, updates=3))
    train(dataclasses.replace(parts, resume=True))
    one, other = (
        read_checkpoint(list_checkpoints(config.run)[-1])[0]["policy"] for config in (whole, parts)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_data_that_does_not_say_which_policy_acted_is_refused(tmp_path: Path) -> None:
    unknown = write(tmp_path / "unknown", [play_lamps(0, 0), play_lamps(0, 1, policy_update=None)])
    with pytest.raises(DatasetError, match=f"{play_lamps(0, 1).record.episode_id} does not say"):
        train(small(tmp_path / "run", unknown, 1))
    random = [play_lamps(0, n, policy="random", policy_update=None) for n in range(2)]
    with pytest.raises(DatasetError, match="random actions made every episode"):
        train(small(tmp_path / "run", write(tmp_path / "random", random), 1))
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="--max-policy-lag"):
        small(tmp_path / "run", unknown, 1, max_policy_lag=3)


def test_variants_stand_where_their_sources_do(tmp_path: Path) -> None:
    maze = {"size": 5, "limit": 12}
    raw, retold, run = tmp_path / "raw", tmp_path / "retold", tmp_path / "run"
    config = CollectConfig(task="maze", task_args=maze, dataset=raw, episodes=6)
    collect(config)
    first = small(run, raw, 2, context="episode", publish_every=1)
    train(dataclasses.replace(first, updates=1))
    collect(dataclasses.replace(config, policy=str(run), seed=1, episodes=3))
    train(dataclasses.replace(first, resume=True))
    collect(dataclasses.replace(config, policy=str(run), seed=1, episodes=6))
    relabel(RelabelConfig(source=raw, target=retold, variants=2))
    with DatasetReader.open(retold) as reader, DatasetReader.open(raw) as source:
        histories = EpisodeHistories([reader])
        for number in range(len(histories.lengths[0])):
            records = [reader.record(int(row)) for row in histories.rows(0, number)]
            assert len({record.variant for record in records}) == 1
            origins = [source.record(source.find(str(r.source_episode_id))) for r in records]
            assert len({origin.run_seed for origin in origins}) == 1
            updates = [-1 if o.policy_update is None else o.policy_update for o in origins]
            assert updates == sorted(updates)
    train(small(tmp_path / "history", retold, 3))
    settings = {"policy": tmp_path / "history", "episodes": 6, "environments": 2}
    score = evaluate(EvaluateConfig(**settings))
    assert [row["episode"] for row in score.history] == list(range(1, len(score.history) + 1))
    assert sum(int(row["environments"]) for row in score.history) == 6
    assert evaluate(EvaluateConfig(**{**settings, "policy": run})).history == ()
