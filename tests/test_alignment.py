"""No reward, flag or event is shifted by one anywhere between environment, disk, sampler and batch."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.dataset.writer import DatasetWriter
from retold.policy.acting import RandomActor
from retold.policy.rollout import ActionChoice, EpisodeAssignment, FinishedEpisode, roll_out
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.exploration import NO_EXPLORATION
from retold.schemas.spaces import BoxSpace, DiscreteSpace
from retold.schemas.vocabulary import GoalFamily, GoalVocabulary
from retold.train.batch import make_batch
from retold.train.batch_reader import BatchReader

VOCABULARY = GoalVocabulary((GoalFamily("occurrence", (("at",), tuple(map(str, range(30))))),))
SCHEMA = DatasetSchema(
    tasks=(
        TaskDescription(
            name="toy",
            kwargs={},
            code_version="1",
            limit_is="truncation",
            horizon=30,
            vocabulary=VOCABULARY,
            max_instruction_length=2,
        ),
    ),
    observation_space=BoxSpace((2,), "float32", -1e6, 1e6),
    action_space=DiscreteSpace(5),
)
INSTRUCTION = (3, 6)


def length_of(seed: int) -> int:
    return 4 + seed % 11


class Toy(gymnasium.Env[Any, Any]):
    """Observes (seed, step); everything else is a function of the two; the buffer is reused."""

    def __init__(self) -> None:
        self.buffer = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.buffer[:] = (seed, 0)
        return self.buffer, {"instruction": INSTRUCTION, "initial_goals": ()}

    def step(self, action: Any) -> Any:
        seed, t = int(self.buffer[0]), int(self.buffer[1])
        self.buffer[1] = t + 1
        is_last = t + 1 == length_of(seed)
        ended = is_last and seed % 2 == 0
        facts = {
            "events": (t,),
            "environment_terminated": ended,
            "reset": t % 4 == 2,
            "success": False,
        }
        return self.buffer, float(t in INSTRUCTION), ended, is_last and not ended, facts


def record_of(finished: FinishedEpisode) -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=f"{finished.assignment.index:032x}",
        task=0,
        length=len(finished.reward),
        episode_return=float(finished.reward.sum()),
        terminated=bool(finished.terminated[-1]),
        truncated=bool(finished.truncated[-1]),
        environment_terminated=bool(finished.environment_terminated[-1]),
        instruction=finished.instruction,
        completed=finished.completed,
        run_seed=0,
        index=finished.assignment.index,
        seed=finished.assignment.seed,
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alignment") / "toy"
    log = CommitLog.create(path)
    writer = DatasetWriter(log, SCHEMA, flush_rows=60)
    choice = ActionChoice(run_seed=0, stage="collect", is_greedy=False, exploration=NO_EXPLORATION)
    assignments = iter([EpisodeAssignment(i, 100 + 3 * i) for i in range(25)])
    environments = [Toy() for _ in range(4)]
    for finished in roll_out(environments, SCHEMA, assignments, choice, RandomActor):
        arrays = {
            name: getattr(finished, name)
            for name in Episode.__dataclass_fields__
            if name not in ("record", "info", "info_present")
        }
        writer.add(Episode(record=record_of(finished), **arrays))
        if writer.should_flush:
            writer.flush("collect", {})
    writer.flush("collect", {})
    return path


def test_every_stored_row_belongs_to_its_step(dataset: Path) -> None:
    with DatasetReader.open(dataset) as reader:
        assert len(reader) == 25 and len(reader.shards) > 2
        for row in range(25):
            episode = reader.read_episode(row)
            seed, length = episode.record.seed, episode.length
            assert seed is not None and length == length_of(seed)
            steps = np.arange(length)
            expected = np.stack([np.full(length + 1, seed), np.arange(length + 1)], 1)
            np.testing.assert_array_equal(episode.observation["observation"], expected)
            np.testing.assert_array_equal(episode.reward, np.isin(steps, INSTRUCTION))
            np.testing.assert_array_equal(episode.reset, steps % 4 == 2)
            np.testing.assert_array_equal(episode.event_step, steps)
            np.testing.assert_array_equal(episode.event_goal, steps)
            is_last = steps == length - 1
            np.testing.assert_array_equal(episode.terminated, is_last & (seed % 2 == 0))
            np.testing.assert_array_equal(episode.truncated, is_last & (seed % 2 == 1))


@pytest.mark.parametrize("window_length", [1, 3, 30])
def test_every_row_of_a_batch_belongs_to_its_step(dataset: Path, window_length: int) -> None:
    with DatasetReader.open(dataset) as reader:
        sampler = WindowSampler([reader], window_length=window_length, seed=1)
        actions = {r: reader.read_episode(r).action["action"] for r in range(len(reader))}
        for number in range(6):
            windows = sampler.draw(number, 8)
            batch = make_batch(windows, most_goals=2, burn_in=1)
            inputs = batch.inputs
            for i, window in enumerate(windows):
                taken = actions[reader.find(window.record.episode_id)]
                for j in range(window.length + 1):
                    t = window.start + j
                    seen = inputs.observation["observation"][i, j].tolist()
                    assert seen == [window.record.seed, t]
                    assert inputs.step[i, j] == t
                    assert bool(inputs.has_previous[i, j]) == (t > 0)
                    assert inputs.previous_reward[i, j] == float(t - 1 in INSTRUCTION)
                    assert bool(inputs.previous_reset[i, j]) == (t > 0 and (t - 1) % 4 == 2)
                    assert inputs.progress[i, j] == sum(goal < t for goal in INSTRUCTION)
                    before = taken[t - 1] if t else 0
                    assert inputs.previous_action["action"][i, j] == before
                    if j == window.length:
                        continue
                    assert batch.action[i, j] == taken[t]
                    assert batch.reward[i, j] == float(t in INSTRUCTION)
                    is_last = t + 1 == window.record.length
                    assert window.record.seed is not None
                    assert bool(batch.terminated[i, j]) == (is_last and window.record.seed % 2 == 0)
                    assert bool(batch.is_valid[i, j]) == (window.start == 0 or j >= 1)
                assert not batch.is_valid[i, window.length :].any()


def test_drawing_is_a_function_of_the_number(dataset: Path) -> None:
    with DatasetReader.open(dataset) as reader, DatasetReader.open(dataset) as other:
        first = WindowSampler([reader], window_length=5, seed=1)
        second = WindowSampler([other], window_length=5, seed=1)
        second.draw(0, 8)
        for one, two in zip(first.draw(3, 8), second.draw(3, 8), strict=True):
            assert (one.record, one.start, one.length) == (two.record, two.start, two.length)


@pytest.mark.parametrize("window_length", [3, 30])
def test_batches_read_at_once_equal_those_of_single_windows(
    dataset: Path, window_length: int
) -> None:
    with DatasetReader.open(dataset) as reader:
        sampler = WindowSampler([reader], window_length=window_length, seed=1)
        windows = sampler.make_batch(8)
        batches = BatchReader(sampler, [reader.columns], burn_in=1)
        for number in range(6):
            one = make_batch(sampler.draw(number, 8), most_goals=2, burn_in=1)
            other = batches.read(
                windows, sampler.choose(number, windows.size), range(windows.size), most_goals=2
            )
            for name in ("action", "reward", "terminated", "is_valid"):
                assert_same(getattr(one, name), getattr(other, name))
            for name, expected in vars(one.inputs).items():
                found = getattr(other.inputs, name)
                if isinstance(expected, dict):
                    assert expected.keys() == found.keys()
                    for path in expected:
                        assert_same(expected[path], found[path])
                elif isinstance(expected, Tensor):
                    assert_same(expected, found)
                else:
                    assert expected == found


def assert_same(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype and one.stride() == other.stride()
    assert torch.equal(one, other)
