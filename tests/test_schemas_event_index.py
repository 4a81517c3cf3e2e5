"""The vectorised instruction reward function equals the scalar one on any events."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retold.schemas.event_index import NO_GOAL, NOT_MET, EventIndex
from retold.schemas.instruction import find_completed


def compare(
    rng: np.random.Generator, *, episodes: int, steps: int, goals: int, most: int, queries: int
) -> int:
    """Put random instructions to random episodes; returns how many goals were met."""
    table = np.unique(
        np.stack(
            [
                rng.integers(0, episodes, episodes * most),
                rng.integers(0, steps, episodes * most),
                rng.integers(0, goals, episodes * most),
            ],
            axis=1,
        ),
        axis=0,
    )
    offset = np.searchsorted(table[:, 0], np.arange(episodes + 1))
    index = EventIndex(offset=offset, step=table[:, 1], goal=table[:, 2], goals=goals)
    episode = rng.integers(0, episodes, queries)
    instruction = rng.integers(0, goals, (queries, 4))
    instruction[np.arange(4) >= rng.integers(0, 5, queries)[:, None]] = NO_GOAL
    found = index.find_completed(episode, instruction)
    step, goal = table[:, 1].astype(np.uint32), table[:, 2].astype(np.uint32)
    parts = [(step[a:b], goal[a:b]) for a, b in itertools.pairwise(offset)]
    for row, number in enumerate(episode.tolist()):
        told = [goal for goal in instruction[row].tolist() if goal >= 0]
        expected = find_completed(told, *parts[number]).tolist()
        assert found[row].tolist() == expected + [NOT_MET] * (4 - len(expected)), (row, told)
    return int((found >= 0).sum())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_many_instructions_are_met_where_each_is(
    seed: int, episodes: int, steps: int, goals: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    compare(rng, episodes=episodes, steps=steps, goals=goals, most=most, queries=2_000)


@pytest.mark.long
def test_millions_of_instructions_are_met_where_each_is() -> None:
    rng = np.random.default_rng(7)
    met = 0
    for _ in range(300):
        sizes = {"steps": int(rng.integers(1, 12)), "goals": int(rng.integers(1, 7))}
        met += compare(rng, episodes=500, most=int(rng.integers(1, 9)), queries=10_000, **sizes)
    assert met > 1_000_000


def test_a_batch_without_events_meets_nothing() -> None:
    empty = np.zeros(0, np.int64)
    index = EventIndex(offset=np.zeros(3, np.int64), step=empty, goal=empty, goals=5)
    found = index.find_completed(np.array([0, 1]), np.array([[1, 2], [3, NO_GOAL]]))
    assert (found == NOT_MET).all()
