"""Goal-conditioned data: HER over Gymnasium's GoalEnv observations, by reference."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_robotics
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from retold.cli.__main__ import main
from retold.dataset.audit import audit_structure
from retold.dataset.compact import CompactConfig, compact
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.import_command import ImportConfig, import_dataset
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.repair import RepairConfig, repair
from retold.dataset.sampler import WindowSampler
from retold.relabel.audit import audit_rewards
from retold.relabel.command import RelabelConfig, relabel
from retold.relabel.draws import episode_keys
from retold.relabel.goal_retelling import draw_goal_rows, judge_goal
from retold.relabel.goal_reward import make_goal_reward
from retold.schemas.dataset_schema import ACHIEVED_GOAL, DESIRED_GOAL, TaskDescription
from retold.schemas.errors import RelabelError, UsageError

TASK = TaskDescription(name="t", kwargs={}, code_version="1", limit_is="truncation", horizon=9)


def play_point_maze(seed: int, steps: int) -> tuple[EpisodeBuffer, gymnasium.Env[Any, Any]]:
    """One episode of PointMaze under an agent that pushes one way for a while, then another."""
    gymnasium.register_envs(gymnasium_robotics)
    environment = gymnasium.make("PointMaze_UMaze-v3", max_episode_steps=steps)
    rng = np.random.default_rng(seed)
    observation, _ = environment.reset(seed=seed)
    rows: dict[str, list[Any]] = {key: [value] for key, value in observation.items()}
    actions, rewards, flags = [], [], []
    push = rng.uniform(-1, 1, 2).astype(np.float32)
    is_over = False
    while not is_over:
        if rng.random() < 0.1:
            push = rng.uniform(-1, 1, 2).astype(np.float32)
        observation, reward, terminated, truncated, _ = environment.step(push)
        for key, value in observation.items():
            rows[key].append(value)
        actions.append(push)
        rewards.append(reward)
        flags.append((terminated, truncated))
        is_over = terminated or truncated
    buffer = EpisodeBuffer(
        id=seed,
        seed=seed,
        observations={key: np.array(values) for key, values in rows.items()},
        actions=np.array(actions),
        rewards=rewards,
        terminations=[one for one, _ in flags],
        truncations=[other for _, other in flags],
        infos=None,
    )
    return buffer, environment


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PointMaze dataset in Minari's own format, imported in two shards."""
    folder = tmp_path_factory.mktemp("point-maze")
    played = [play_point_maze(seed, 40 + 10 * seed) for seed in range(8)]
    environment = played[0][1]
    (folder / "point-v0").mkdir()
    storage = MinariStorage.new(
        folder / "point-v0" / "data",
        observation_space=environment.observation_space,
        action_space=environment.action_space,
        env_spec=environment.spec,
        data_format="hdf5",
        jpeg_encoding=False,
    )
    storage.update_metadata({"dataset_id": "test/point-v0", "minari_version": minari.__version__})
    storage.update_episodes([buffer for buffer, _ in played])
    path = folder / "raw"
    import_dataset(ImportConfig(format="minari", source=folder / "point-v0", dataset=path))
    return path


def retell(source: Path, target: Path, **changed: Any) -> Path:
    settings = {"strategy": "future", "goal_reward": "within:0.45", "workers": 0, **changed}
    relabel(RelabelConfig(source=source, target=target, **settings))
    return target


def test_the_environments_reward_is_the_named_one_and_the_recorded_one(source: Path) -> None:
    with DatasetReader.open(source) as reader:
        task = reader.schema.tasks[0]
        environment, named = (make_goal_reward(n, task) for n in ("environment", "within:0.45"))
        for row in range(len(reader)):
            episode = reader.read_episode(row)
            pair = (episode.observation[ACHIEVED_GOAL][1:], episode.observation[DESIRED_GOAL][1:])
            assert environment(*pair).tobytes() == named(*pair).tobytes()
            # PointMaze may draw a new goal after a reward, and then shows it at once.
            same = (pair[1] == episode.observation[DESIRED_GOAL][:-1]).all(1)
            assert np.array_equal(named(*pair)[same], episode.reward[same])


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"strategy": "final", "goal_reward": "environment"},
        {"strategy": "episode", "goal_reward": "exp-distance"},
        {"goal_terminates": True},
        {"goal_reward": "penalty:0.2", "workers": 1},
    ],
)
def test_point_maze_is_retold_and_audited(
    source: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    target = retell(source, tmp_path / "told", **changed)
    assert audit_structure(target) == [] and audit_rewards(target) == []
    reward = (
        make_goal_reward(changed.get("goal_reward", "within:0.45"), TASK)
        if (changed.get("goal_reward") != "environment")
        else make_goal_reward("within:0.45", TASK)
    )
    with DatasetReader.open(source) as raw, DatasetReader.open(target) as told:
        assert len(told) >= 6
        for row in range(len(told)):
            variant = told.read_episode(row)
            record = variant.record
            original = raw.read_episode(raw.find(str(record.source_episode_id)))
            assert record.goal_row is not None and 1 <= record.goal_row <= original.length
            goal = original.observation[ACHIEVED_GOAL][record.goal_row]
            length = record.length
            assert (variant.observation[DESIRED_GOAL] == goal).all()
            for path in set(original.observation) - {DESIRED_GOAL}:
                expected = original.observation[path][: length + 1]
                assert variant.observation[path].tobytes() == expected.tobytes()
            achieved = original.observation[ACHIEVED_GOAL][1 : length + 1]
            wanted = np.broadcast_to(goal, achieved.shape)
            assert variant.reward.tobytes() == reward(achieved, wanted).tobytes()
            assert record.terminated == variant.terminated[-1] != variant.truncated[-1]
            if changed.get("goal_terminates"):
                assert record.success and record.terminated and variant.reward[-1] == 1
                assert not variant.reward[:-1].any()
            else:
                assert length == original.length


def test_windows_and_batches_carry_the_new_goal(source: Path, tmp_path: Path) -> None:
    target = retell(source, tmp_path / "told")
    with DatasetReader.open(target) as reader:
        sampler = WindowSampler([reader], window_length=17, seed=3)
        batch = sampler.make_batch(12)
        for number in range(6):
            sampler.sample_into(batch, number)
            for member, window in enumerate(sampler.draw(number, 12)):
                length = window.length
                for path, rows in window.observation.items():
                    assert np.array_equal(batch.observation[path][member, : length + 1], rows)
                rewards = batch.previous_reward[member]
                assert rewards[0] == window.previous_reward
                assert np.array_equal(rewards[1 : length + 1], window.reward)
                assert not rewards[length + 1 :].any()
                assert batch.terminated[member, length - 1] == window.terminated[-1]
                episode = reader.read_episode(int(batch.row[member]))
                part = slice(window.start, window.start + length)
                assert np.array_equal(episode.reward[part], window.reward)


def test_a_variant_costs_its_row_and_its_rewards(source: Path, tmp_path: Path) -> None:
    target = retell(source, tmp_path / "told", variants=32)
    (entry,) = CommitLog.open(target).live_shards()
    files = [file.name for file in target.glob("shards/*/*/arrays/*") if file.is_dir()]
    assert files == ["reward"]
    assert entry.bytes / entry.episodes < 300
    again = retell(source, tmp_path / "again", variants=32)
    assert CommitLog.open(again).live_shards() == (entry,)


def test_a_changed_reward_is_found(source: Path, tmp_path: Path) -> None:
    from retold.dataset.shard_writer import write_variant_shard
    from retold.schemas.commit import SourceEntry

    target = retell(source, tmp_path / "told")
    with DatasetReader.open(target) as reader:
        shard = reader.shard_reader(reader.shards[0].shard_id)
        rewards = shard.read_rows("reward", 0, shard.manifest.rows)
        rewards[0] += 1.0
        log = CommitLog.create(tmp_path / "bad")
        entry = write_variant_shard(log.path, shard.table, shard.schema, reward=rewards)
    head = CommitLog.open(source).head()
    assert head is not None
    log.append(
        operation="relabel",
        added=[entry],
        sources={head.dataset_id: SourceEntry(head, (str(source),))},
    )
    found = [finding.what for finding in audit_rewards(log.path)]
    assert found == ["its stored reward is not what its goal earns"]


def test_future_goals_lie_after_a_uniform_transition() -> None:
    (key,) = episode_keys(0, "x", ["0" * 32])
    numbers = np.arange(60_000)
    rows = draw_goal_rows("future", 4, key, numbers, 0)
    chances = [sum(1 / 4 / (4 - t) for t in range(row)) for row in range(1, 5)]
    counts = np.bincount(rows, minlength=5)[1:]
    expected = np.array(chances) * len(numbers)
    assert sum(chances) == pytest.approx(1)
    # Chi-square with 3 degrees of freedom, 0.1 % level.
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3
    assert set(draw_goal_rows("final", 4, key, numbers[:9], 0).tolist()) == {4}
    assert set(draw_goal_rows("episode", 4, key, numbers[:99], 0).tolist()) == {1, 2, 3, 4}


def test_reaching_the_goal_ends_a_variant_only_where_that_is_asked() -> None:
    achieved = np.array([[0.0], [0.0], [1.0], [1.1], [2.0]])
    reward = make_goal_reward("within:0.15", TASK)
    rewards, is_reached = judge_goal(achieved, 3, reward, None)
    assert rewards.tolist() == [0, 1, 1, 0] and not is_reached
    rewards, is_reached = judge_goal(achieved, 3, reward, 0.15)
    assert rewards.tolist() == [0, 1] and is_reached


def test_settings_that_do_not_fit_are_refused_in_a_sentence(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for changed, message in (
        ({"strategy": "some"}, "final, future, episode"),
        ({"goal_reward": None}, "say how a reward follows"),
        ({"length_weights": (1.0,)}, "Leave them out"),
    ):
        with pytest.raises(UsageError, match=message):
            retell(source, tmp_path / "told", **changed)
    for name in ("near", "within", "within:far", "no_module:reward"):
        with pytest.raises(UsageError, match="--goal-reward"):
            retell(source, tmp_path / "told", goal_reward=name)
    with pytest.raises(UsageError, match="--goal-terminates"):
        retell(source, tmp_path / "told", goal_reward="exp-distance", goal_terminates=True)
    assert not (tmp_path / "told").exists()
    assert main(["relabel", str(source), str(tmp_path / "told"), "--workers", "0"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_variants_written_out_evicted_and_repaired_stay_what_they_are(
    source: Path, tmp_path: Path
) -> None:
    target = retell(source, tmp_path / "told", goal_terminates=True)
    with DatasetReader.open(target) as reader:
        expected = [reader.read_episode(row) for row in range(len(reader))]
    whole = tmp_path / "whole"
    compact(CompactConfig(dataset=target, output=whole, materialize=True))
    evict(EvictConfig(dataset=target, episodes=5))
    # The shard that eviction cut is still on disk, beside the live one.
    name = CommitLog.open(target).live_shards()[-1].shard_id
    (shard,) = (p for p in target.glob(f"shards/*/{name}/arrays/reward/c/*") if p.is_file())
    for path, episodes in ((whole, expected), (target, expected[-5:])):
        assert audit_structure(path) == [] or {f.severity for f in audit_structure(path)} == {
            "warning"
        }
        assert audit_rewards(path) == []
        with DatasetReader.open(path) as reader:
            for row, episode in enumerate(episodes):
                found = reader.read_episode(row)
                assert found.reward.tobytes() == episode.reward.tobytes()
                assert found.record.episode_id == episode.record.episode_id
                for name, values in episode.observation.items():
                    assert found.observation[name].tobytes() == values.tobytes()
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    assert any(str(shard) in finding.where for finding in audit_structure(target))
    result = repair(RepairConfig(dataset=target, new=tmp_path / "mended"))
    assert audit_rewards(tmp_path / "mended") == [] and result is not None


def test_nothing_that_a_dataset_names_is_imported_or_called(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile.py").write_text(
        "import pathlib\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "def reward(achieved, goal, info):\n"
        "    return achieved[:, 0] * 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    target = retell(source, tmp_path / "told", goal_reward="hostile:reward")
    (tmp_path / "ran").unlink()  # the user named it there
    monkeypatch.delitem(sys.modules, "hostile")
    (finding,) = audit_rewards(target)
    assert finding.severity == "warning" and "unverifiable" in finding.what
    for specification in (
        {"id": "hostile:Env-v0"},
        {"id": "Env-v0", "entry_point": "hostile:reward"},
        {},
    ):
        task = replace(TASK, kwargs={"minari": {"env_spec": json.dumps(specification)}})
        with pytest.raises(RelabelError):
            make_goal_reward("environment", task, is_ours=False)
    assert not (tmp_path / "ran").exists()


def test_rewards_that_are_no_numbers_are_refused_before_anything_is_written() -> None:
    achieved = np.array([[0.0], [np.nan], [1.0]])
    for name in ("exp-distance", "negative-distance"):
        with pytest.raises(RelabelError, match="not finite"):
            judge_goal(achieved, 2, make_goal_reward(name, TASK), None)
