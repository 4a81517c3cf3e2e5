"""The instruction reward function, worked out by hand and against what any episode must satisfy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from retold.schemas.canonical import encode_json
from retold.schemas.exploration import ExplorationPhase, ExplorationSchedule
from retold.schemas.identity import EVALUATION_SEED_START, random_stream, world_seed
from retold.schemas.instruction import Outcome, advance, retell
from retold.schemas.vocabulary import GoalFamily, GoalVocabulary

Events = list[tuple[int, int]]


def columns(events: Events) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    table = np.array(sorted(set(events)), np.uint32).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def tell(
    instruction: tuple[int, ...], events: Events, length: int, *, died: bool = False
) -> Outcome:
    return retell(instruction, *columns(events), source_length=length, environment_terminated=died)


def test_goals_are_rewarded_in_order_and_the_episode_is_cut_on_completion() -> None:
    outcome = tell((2, 1), [(0, 1), (1, 2), (3, 1), (4, 2)], 6)
    assert outcome.reward.tolist() == [0, 1, 0, 1]
    assert outcome.terminated.tolist() == [False, False, False, True]
    assert outcome.progress.tolist() == [0, 0, 1, 1, 2]


def test_one_transition_completes_one_goal() -> None:
    outcome = tell((1, 2), [(2, 1), (2, 2)], 4)
    assert outcome.completed.tolist() == [2] and outcome.truncated.tolist()[-1]


def test_two_equal_goals_need_two_transitions() -> None:
    assert tell((1, 1), [(0, 1), (2, 1)], 4).completed.tolist() == [0, 2]


def test_an_event_on_the_death_transition_counts() -> None:
    outcome = tell((1, 2), [(3, 1)], 4, died=True)
    assert outcome.reward.tolist() == [0, 0, 0, 1] and outcome.terminated[-1]


def test_completing_on_the_last_step_of_a_truncated_episode_terminates() -> None:
    outcome = tell((1,), [(3, 1)], 4)
    assert outcome.terminated[-1] and not outcome.truncated[-1]


def test_completing_before_death_is_cut_before_it() -> None:
    outcome = tell((1,), [(1, 1)], 4, died=True)
    assert outcome.length == 2 and outcome.terminated.tolist() == [False, True]


def test_an_episode_without_events_is_truncated() -> None:
    outcome = tell((1, 2, 3), [], 3)
    assert not outcome.reward.any() and outcome.truncated.tolist() == [False, False, True]


@given(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 3)), max_size=40),
    st.booleans(),
)
def test_the_whole_episode_equals_the_step_by_step_walk(
    instruction: list[int], events: Events, died: bool
) -> None:
    outcome = tell(tuple(instruction), events, 20, died=died)
    progress, rewards = 0, []
    for t in range(20):
        after = advance(instruction, progress, {g for s, g in events if s == t})
        rewards.append(after - progress)
        progress = after
        if 0 < len(instruction) == progress:
            break
    assert outcome.reward.tolist() == rewards
    assert int(outcome.progress[-1]) == progress == len(outcome.completed)
    assert outcome.terminated[-1] != outcome.truncated[-1]
    assert not outcome.terminated[:-1].any() and not outcome.truncated[:-1].any()


def test_a_vocabulary_is_a_bijection() -> None:
    vocabulary = GoalVocabulary(
        (
            GoalFamily("occurrence", (("make",), ("wood", "stone"), ("sword", "axe"))),
            GoalFamily("state", (("travel",), ("0", "5", "10"), ("0", "5"))),
        )
    )
    assert vocabulary.size == 10
    assert [vocabulary.goal_id(words) for words in vocabulary.goals] == list(range(10))
    assert vocabulary.is_state.tolist() == [False] * 4 + [True] * 6
    assert GoalVocabulary.from_json(vocabulary.to_json()) == vocabulary
    assert vocabulary.word_ids.shape == (10, 3)


def test_json_is_canonical_and_holds_no_bare_nan() -> None:
    encoded = encode_json({"b": [float("nan"), float("-inf")], "a": 1})
    assert encoded == b'{"a":1,"b":["NaN","-Infinity"]}\n'


def test_training_and_evaluation_worlds_never_meet() -> None:
    assert all(world_seed(3, i) < EVALUATION_SEED_START for i in range(100))
    assert all(world_seed(3, i, evaluation=True) >= EVALUATION_SEED_START for i in range(100))


def test_streams_are_named() -> None:
    draws = {random_stream(1, name, i).random() for name in "ab" for i in (0, 1)}
    assert len(draws) == 4 and random_stream(1, "a", 0).random() in draws


@pytest.mark.parametrize(
    ("step", "index", "epsilon"), [(0, 0, 0.5), (0, 5, 0.25), (0, 99, 0.0), (4, 0, 1.0)]
)
def test_exploration_depends_on_step_and_episode(step: int, index: int, epsilon: float) -> None:
    schedule = ExplorationSchedule(
        (ExplorationPhase(0, 0.5, 0.0), ExplorationPhase(3, 1.0, 1.0)), 10
    )
    assert schedule.epsilon(step, index) == epsilon
    assert ExplorationSchedule.from_json(schedule.to_json()) == schedule
