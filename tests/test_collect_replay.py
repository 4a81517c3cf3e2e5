"""Replays of stored episodes: equal where nothing changed, and a change is named."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import RunRetold

from retold.collect.command import CollectConfig, collect
from retold.collect.replay import (
    compare_versions,
    find_difference,
    find_replayable,
    find_versions,
)
from retold.collect.replay_audit import replay_dataset
from retold.collect.video import draw_episode
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.writer import DatasetWriter
from retold.relabel.command import relabel
from retold.relabel.config import RelabelConfig
from retold.schemas.episode import Episode

TASK_ARGS = {"size": 7, "limit": 25}
EXACT = {
    "bandit": {},
    "cheetah-velocity": {"limit": 30},
    "cheetah-wind": {"limit": 30},
    "crafter": {"limit": 40},
    "dark-room": {},
    "frozen-lake": {"hard": True},
    "gym/CartPole-v1": {},
    "gym/Taxi-v4": {},
    "key-to-door": {"shuffle_actions": True, "horizon": 80},
    "package-delivery": {},
    "popgym/AutoencodeEasy": {},
    "popgym/BattleshipEasy": {},
    "popgym/LabyrinthEscapeEasy": {},
    "popgym/NoisyPositionOnlyPendulumEasy": {},
    "popgym/PositionOnlyCartPoleEasy": {},
    "tmaze-active": {},
    "trial/maze": {"size": 7, "limit": 20, "attempts": 3},
    "wind": {},
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "raw"
    collect(CollectConfig(task="maze", task_args=TASK_ARGS, dataset=path, episodes=12))
    return path


@pytest.fixture(scope="module")
def retold(raw: Path) -> Path:
    relabel(RelabelConfig(source=raw, target=raw.with_name("retold"), variants=3))
    return raw.with_name("retold")


def read(path: Path, row: int) -> Episode:
    with DatasetReader.open(path) as reader:
        return reader.read_episode(row)


def copy_changed(raw: Path, path: Path, row: int, change: object) -> Path:
    """A dataset of the same episodes, one of them changed."""
    with DatasetReader.open(raw) as reader:
        episodes = [reader.read_episode(i) for i in range(len(reader))]
        schema = reader.schema
    episodes[row] = change(episodes[row])  # type: ignore[operator]
    writer = DatasetWriter(CommitLog.create(path), schema)
    for episode in episodes:
        writer.add(episode)
    writer.flush("collect", {"identity": {"run_seed": 0}, "episodes": list(range(len(episodes)))})
    return path


@pytest.mark.parametrize("name", EXACT)
def test_episodes_of_every_kind_of_task_replay_exactly(name: str, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    collect(CollectConfig(task=name, task_args=EXACT[name], dataset=path, episodes=3))
    outcomes = list(replay_dataset(path, None, 0))
    assert [(o.is_replayable, o.finding) for o in outcomes] == [(True, None)] * 3


def test_variants_replay_under_their_own_instruction(retold: Path) -> None:
    outcomes = list(replay_dataset(retold, None, 0))
    assert len(outcomes) > 12
    assert all(outcome.is_replayable and outcome.finding is None for outcome in outcomes)


@pytest.mark.parametrize("field", ["reward", "observation", "action", "events"])
def test_the_first_differing_step_and_field_are_named(
    raw: Path, tmp_path: Path, run_retold: RunRetold, field: str
) -> None:
    step = 9

    def change(episode: Episode) -> Episode:
        if field == "reward":
            reward = episode.reward.copy()
            reward[step] += 1
            return replace(episode, reward=reward)
        if field == "events":
            return replace(episode, event_goal=(episode.event_goal + 1).astype(np.uint32))
        leaves = dict(episode.observation if field == "observation" else episode.action)
        leaves[field] = leaves[field].copy()
        if field == "observation":
            leaves[field][step, 2] = 0.123
            return replace(episode, observation=leaves)
        # From the step on, every action is another.
        leaves[field][step:] = (leaves[field][step:] + 2) % 5
        return replace(episode, action=leaves)

    path = copy_changed(raw, tmp_path / "changed", 4, change)
    result = json.loads(run_retold("replay", path, "4", "--json").stdout)
    difference = result["difference"]
    if field == "action":
        assert difference["step"] >= step and difference["field"] in ("observation", "events")
    else:
        assert difference["field"] == field
        assert difference["step"] == (0 if field == "events" else step)
    shown = run_retold("replay", path, "4")
    assert shown.returncode == 1 and f"{difference['field']} of step" in shown.stdout
    assert "numpy unknown →" in shown.stdout
    equal = run_retold("replay", path, "5")
    assert equal.returncode == 0 and "equal" in equal.stdout


def test_an_audit_in_two_processes_finds_what_one_finds(raw: Path, tmp_path: Path) -> None:
    def change(episode: Episode) -> Episode:
        return replace(episode, reward=episode.reward + np.float32(1))

    path = copy_changed(raw, tmp_path / "changed", 7, change)
    found = [
        sorted(replay_dataset(path, None, workers), key=lambda outcome: outcome.row)
        for workers in (0, 2)
    ]
    assert found[0] == found[1]
    assert [o.row for o in found[0] if o.finding] == [7]
    assert [outcome.row for outcome in replay_dataset(path, 3, 0)] == [0, 6, 11]


def test_an_audit_counts_what_it_replayed(raw: Path, run_retold: RunRetold) -> None:
    some = run_retold("audit", raw, "--replay", "5")
    assert some.returncode == 0 and "5 of them replayed" in some.stdout
    assert run_retold("audit", raw, "--replay", "0").returncode == 2
    assert run_retold("audit", raw, "--workers", "-1").returncode == 2


def test_versions_are_noted_when_collecting_and_compared(raw: Path) -> None:
    with DatasetReader.open(raw) as reader:
        versions = find_versions(reader, reader.read_episode(0))
    assert versions is not None and versions["numpy"] == np.__version__
    assert "→" not in compare_versions(versions, "maze")
    text = compare_versions({"crafter": "1.7.0"}, "crafter")
    assert "crafter 1.7.0 → 1.8.3" in text and "numpy unknown →" in text


def test_an_environment_that_raises_is_a_difference(raw: Path) -> None:
    episode = read(raw, 0)
    with DatasetReader.open(raw) as reader:
        task = reader.schema.tasks[0]
    broken = replace(episode, action={"action": np.full_like(episode.action["action"], 77)})
    difference = find_difference(broken, task)
    assert difference is not None and difference.field == "error" and difference.step == 0


def test_frames_show_instruction_and_progress(retold: Path) -> None:
    with DatasetReader.open(retold) as reader:
        task = reader.array_schema(0).tasks[0]
        row = int(np.argmax([reader.record(i).length for i in range(len(reader))]))
        episode = find_replayable(reader, row)
    assert episode is not None
    frames = list(draw_episode(episode, task))
    assert len(frames) == episode.length + 1
    assert len({frame.shape for frame in frames}) == 1
    assert frames[0].shape[0] % 2 == frames[0].shape[1] % 2 == 0
    assert any((one != two).any() for one, two in itertools.pairwise(frames))


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_video_is_written_once(
    raw: Path, tmp_path: Path, run_retold: RunRetold, suffix: str
) -> None:
    import imageio.v3 as imageio

    path = tmp_path / f"episode{suffix}"
    result = run_retold("replay", raw, "0", "--video", path)
    assert result.returncode == 0, result.stderr
    frames = imageio.imread(path, index=None) if suffix == ".gif" else imageio.imread(path)
    assert len(frames) >= 2 and list(tmp_path.iterdir()) == [path]
    again = run_retold("replay", raw, "0", "--video", path)
    assert again.returncode == 2 and "there is such a file" in again.stderr
    wrong = run_retold("replay", raw, "0", "--video", tmp_path / "a.avi")
    assert wrong.returncode == 2 and ".mp4" in wrong.stderr
