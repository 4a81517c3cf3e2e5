"""Strategies: cases worked out by hand, the traps of the field, and their distributions."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retold.relabel.draws import Draws, episode_keys
from retold.relabel.history import GoalHistory
from retold.relabel.plan import Plan
from retold.relabel.retelling import Variants, retell_batch
from retold.relabel.statistics import GoalCounts, count_goals
from retold.relabel.strategies import STRATEGIES, find_strategy
from retold.schemas.errors import RelabelError, UsageError
from retold.schemas.event_index import EventIndex
from retold.schemas.instruction import find_completed

Events = Sequence[tuple[int, int]]
DRAWS = 100_000


def make_history(
    *episodes: tuple[Events, Sequence[int], int],
    goals: int = 20,
    states: bool = False,
    initial: Sequence[int] = (),
) -> GoalHistory:
    """A batch from (events, instruction, length) of each episode; what is met follows."""
    tables = [np.array(sorted(set(events)), np.int64).reshape(-1, 2) for events, _, _ in episodes]
    offset = np.cumsum([0, *map(len, tables)])
    table = np.concatenate(tables)
    index = EventIndex(offset=offset, step=table[:, 0], goal=table[:, 1], goals=goals)
    width = max(len(told) for _, told, _ in episodes)
    instruction = np.array([[*told, *[-1] * (width - len(told))] for _, told, _ in episodes])
    return GoalHistory(
        index=index,
        length=np.array([length for _, _, length in episodes]),
        instruction=instruction,
        completed=index.find_completed(np.arange(len(episodes)), instruction),
        is_state=np.full(goals, states),
        initial_episode=np.zeros(len(initial), np.int64),
        initial_goal=np.array(initial, np.int64),
    )


def tell(
    history: GoalHistory, name: str, plans: int, *, goals: int | None = None
) -> list[tuple[int, ...]]:
    """Plain draws for the first episode, as they come: duplicates are not drawn again."""
    asked = int(history.goals_asked[0]) if goals is None else goals
    numbers = np.arange(plans)
    draws = Draws(np.repeat(episode_keys(0, name, ["0" * 32]), plans), numbers, 0)
    plan = Plan(episode=np.zeros(plans, np.int64), goals=np.full(plans, asked), draws=draws)
    return [
        tuple(goal for goal in row if goal >= 0) for row in STRATEGIES[name](history, plan).tolist()
    ]


def retell(history: GoalHistory, name: str, variants: int, **options: object) -> Variants:
    ids = [f"{number:032x}" for number in range(history.episodes)]
    return retell_batch(
        history,
        episode_keys(3, name, ids),
        STRATEGIES[name],
        variants=variants,
        most_goals=history.instruction.shape[1],
        **options,  # type: ignore[arg-type]
    )


def is_likely(counts: Sequence[int], chances: Sequence[float]) -> bool:
    """Chi-square against the stated chances, at the 0.01 % level (Wilson and Hilferty's normal form)."""
    expected = np.asarray(chances) * sum(counts)
    statistic = float(((np.asarray(counts) - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 3.72


def test_some_draws_a_uniform_number_of_alternatives_at_uniform_transitions() -> None:
    # Goal 1 of (1, 2, 3) is met at step 3, where goal 12 began too; six transitions are left.
    events = [(1, 10), (3, 1), (3, 12), (6, 13), (7, 14), (8, 15), (9, 16), (11, 17)]
    history = make_history((events, (1, 2, 3), 20))
    told = tell(history, "some", DRAWS)
    alternatives = [tuple(goal for goal in row if goal >= 10) for row in told]
    assert is_likely(list(Counter(map(len, alternatives)).values()), [1 / 3] * 3)
    pairs = Counter(goals for goals in alternatives if len(goals) == 2)
    assert len(pairs) == 15 and is_likely(list(pairs.values()), [1 / 15] * 15)
    for row, chosen in zip(told, alternatives, strict=True):
        assert len(row) == 3 and 12 not in row  # at step 3 a kept goal was met
        before = tuple(goal for goal in chosen if goal == 10)
        assert row == (*before, 1, *chosen[len(before) :], *(2, 3)[: 2 - len(chosen)])


def test_transitions_are_drawn_before_their_goals() -> None:
    events = [(2, 10), (5, 11), (5, 12), (5, 13)]
    told = Counter(tell(make_history((events, (1,), 9)), "all", DRAWS))
    order = [(10,), (11,), (12,), (13,)]
    assert is_likely([told[row] for row in order], [1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_all_or_nothing_replaces_everything_four_times_in_five() -> None:
    events = [(step, 10 + step) for step in range(5)]
    told = tell(make_history((events, (1, 2), 9)), "all-or-nothing", DRAWS)
    counts = Counter(sum(goal >= 10 for goal in row) for row in told)
    assert set(counts) == {0, 2} and is_likely([counts[0], counts[2]], [0.2, 0.8])


def test_rare_goals_are_drawn_by_inverse_frequency() -> None:
    common = [[(step, 10) for step in range(6)], [(7, 11), (8, 12), (8, 13)]]
    history = make_history(([*common[0], *common[1]], (1,), 9))
    statistics = count_goals(history, with_order=False).statistics()
    assert statistics.goal_weight[[10, 11, 12]].tolist() == [round(4096 / 6), 4096, 4096]
    weighed = GoalHistory(**{**vars_of(history), "goal_weight": statistics.goal_weight})
    told = Counter(row for row in tell(weighed, "rare", DRAWS) if row != (1,))
    total = 683 * 6 + 4096 * 3
    chances = [683 * 6 / total, *[4096 / total] * 3]
    assert is_likely([told[(goal,)] for goal in (10, 11, 12, 13)], chances)
    in_episode = Counter(row for row in tell(history, "rare-in-episode", DRAWS) if row != (1,))
    total = 4096 // 6 * 6 + 4096 * 3
    chances = [4096 // 6 * 6 / total, *[4096 / total] * 3]
    assert is_likely([in_episode[(goal,)] for goal in (10, 11, 12, 13)], chances)


def test_rare_goals_stay_rare_however_large_the_dataset() -> None:
    onsets = np.array([5_000, 10_000, 0, 50_000_000])
    counts = GoalCounts(onsets=onsets, episodes=onsets, before=None)
    assert counts.statistics().goal_weight.tolist() == [4096, 2048, 4096, 1]


def test_weighted_draws_without_replacement_take_each_transition_once() -> None:
    history = make_history(([(step, 10 + step % 4) for step in range(8)], (1, 2, 3), 9))
    weights = np.arange(1, 21) * 37 % 4096 + 1
    weighed = GoalHistory(**{**vars_of(history), "goal_weight": weights})
    for row in tell(weighed, "rare", 5_000):
        chosen = [goal for goal in row if goal >= 10]
        assert max(Counter(chosen).values(), default=0) <= 2  # each goal began twice


def test_her_draws_the_last_goal_or_one_from_a_random_step_on_or_any() -> None:
    events = [(1, 10), (4, 11), (7, 12)]
    history = make_history((events, (1, 2), 10))
    assert set(tell(history, "final", 50)) == {(12,)}
    anywhere = Counter(tell(history, "episode", DRAWS))
    assert is_likely([anywhere[(goal,)] for goal in (10, 11, 12)], [1 / 3] * 3)
    # From steps 0 and 1 all three are ahead, from 2 to 4 two, from 5 to 7 one; from 8 and 9 none
    # is, and any is taken.
    later = Counter(tell(history, "future", DRAWS))
    chances = [0.4 / 3, 0.4 / 3 + 0.3 / 2, 0.4 / 3 + 0.3 / 2 + 0.3]
    assert is_likely([later[(goal,)] for goal in (10, 11, 12)], chances)


def test_chain_puts_what_the_episode_needed_before_its_target() -> None:
    # In every episode 10 comes before 11, and 11 before 12; 13 comes anywhere.
    episodes: list[tuple[Events, Sequence[int], int]] = []
    for number in range(20):
        stray = 1 + number * 2 % 12
        episodes.append(([(2, 10), (5, 11), (9, 12), (stray, 13)], (1, 2, 3), 15))
    history = make_history(*episodes)
    statistics = count_goals(history, with_order=True).statistics()
    needs = {goal: set(row[row >= 0].tolist()) for goal, row in enumerate(statistics.prerequisites)}
    assert needs[11] == {10} and needs[12] == {10, 11} and needs[10] == needs[13] == set()
    chained = GoalHistory(**{**vars_of(history), "prerequisites": statistics.prerequisites})
    told = Counter(tell(chained, "chain", 20_000))
    assert set(told) == {(10,), (13,), (10, 11), (10, 11, 12)}
    assert told[(10, 11, 12)] > told[(10, 11)] > told[(10,)]


def test_wanted_lengths_follow_their_weights() -> None:
    events = [(step, 4 + step) for step in range(12)]
    history = make_history(*[(events, (1, 2, 3), 20)] * 400)
    variants = retell(history, "all", 50, length_weights=np.array([1.0, 2.0, 5.0]))
    # One goal of twelve: 12 instructions of length 1 are soon all taken, so compare 2 with 3.
    lengths = Counter((variants.instruction >= 0).sum(1).tolist())
    assert lengths[3] > 2 * lengths[2] > 2 * lengths[1] > 0
    draws = Draws(np.repeat(episode_keys(0, "x", ["0" * 32]), DRAWS), np.arange(DRAWS), 0)
    chosen = np.searchsorted(np.cumsum([1, 2, 5]) / 8, draws.random(), side="right")
    assert is_likely(np.bincount(chosen).tolist(), [1 / 8, 2 / 8, 5 / 8])


def test_a_goal_stands_in_no_more_variants_than_allowed() -> None:
    events = [(step, 10 + step % 5) for step in range(10)]
    history = make_history((events, (1, 2), 12), (events, (10, 3), 12))
    variants = retell(history, "some", 12, goal_limit=2)
    for episode, own in ((0, {1, 2}), (1, {10, 3})):
        rows = variants.instruction[variants.episode == episode]
        counts = Counter(goal for row in rows.tolist() for goal in set(row) - own - {-1})
        assert counts and max(counts.values()) <= 2


def test_onsets_are_where_a_goal_begins_to_hold() -> None:
    # Goal 0 is an occurrence; 1 and 2 are states, and 1 is true from the start.
    history = make_history(([(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (4, 1)], (0,), 5), initial=[1])
    history = GoalHistory(**{**vars_of(history), "is_state": np.arange(20) > 0})
    onsets = list(zip(history.onset_step.tolist(), history.onset_goal.tolist(), strict=True))
    assert onsets == [(0, 0), (1, 0), (2, 2), (4, 1)]


def test_an_agent_that_returns_to_its_start_is_not_there_before_it_acts() -> None:
    # The cell 5 is true from the start, left at step 2 and entered again at step 4.
    events = [(0, 5), (1, 5), (2, 6), (3, 7), (4, 5)]
    history = make_history((events, (1,), 5), states=True, initial=[5])
    onsets = list(zip(history.onset_step.tolist(), history.onset_goal.tolist(), strict=True))
    assert onsets == [(2, 6), (3, 7), (4, 5)]
    variants = retell(history, "all", 10)
    met = {
        int(row[0]): step.tolist()
        for row, step in zip(variants.instruction, variants.completed, strict=True)
    }
    # Told to reach its start cell, it was there at once: the reward function says so, at step 0.
    assert met == {6: [2], 7: [3], 5: [0]}
    assert (variants.length >= 1).all() and (variants.completed >= 0).all()


def test_a_goal_that_was_achieved_before_it_was_chosen_is_met_there() -> None:
    history = make_history(([(1, 10), (6, 10), (8, 11)], (1,), 9))
    variants = retell(history, "all", 6)
    for row, step in zip(variants.instruction.tolist(), variants.completed.tolist(), strict=True):
        assert step == ([1] if row == [10] else [8])


def test_two_equal_goals_in_a_row_need_two_transitions() -> None:
    history = make_history(([(1, 10), (4, 10)], (1, 2), 9))
    variants = retell(history, "all", 4)
    assert variants.instruction.tolist() == [[10, 10]]
    assert variants.completed.tolist() == [[1, 4]] and variants.length.tolist() == [5]


def test_an_instruction_completed_on_the_last_step_ends_there() -> None:
    history = make_history(([(8, 10)], (1,), 9))
    (variant,) = [retell(history, "all", 3)]
    assert variant.is_complete.tolist() == [True] and variant.length.tolist() == [9]


def test_episodes_without_events_and_with_too_few_give_what_they_can() -> None:
    history = make_history(([], (1, 2, 3), 9), ([(4, 10)], (1, 2, 3), 9))
    for name in set(STRATEGIES) - {"chain"}:
        variants = retell(history, name, 4)
        assert (variants.episode == 1).all()
        assert len(variants.episode) <= 1
    variants = retell(history, "all", 4)
    assert variants.instruction.tolist() == [[10, 1, 2]]


def test_original_is_never_stored() -> None:
    history = make_history(([(1, 2), (3, 4)], (2, 4), 9), ([], (1, 2), 9))
    assert tell(history, "original", 2) == [(2, 4)] * 2
    assert len(retell(history, "original", 4).episode) == 0


@st.composite
def histories(draw: st.DrawFn) -> GoalHistory:
    def one_episode() -> tuple[Events, Sequence[int], int]:
        length = draw(st.integers(1, 12))
        pair = st.tuples(st.integers(0, length - 1), st.integers(0, 5))
        told = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
        return draw(st.lists(pair, max_size=10)), told, length

    count = draw(st.integers(1, 4))
    return make_history(*(one_episode() for _ in range(count)), goals=6, states=draw(st.booleans()))


@settings(max_examples=150, deadline=None)
@given(histories(), st.sampled_from(sorted(set(STRATEGIES))), st.integers(1, 6))
def test_variants_are_new_valid_and_met_as_the_reward_function_says(
    history: GoalHistory, name: str, count: int
) -> None:
    statistics = GoalCounts.sum([count_goals(history, with_order=True)]).statistics()
    history = GoalHistory(
        **{
            **vars_of(history),
            "goal_weight": statistics.goal_weight,
            "prerequisites": statistics.prerequisites,
        }
    )
    variants = retell(history, name, count)
    seen = {(e, tuple(row)) for e, row in enumerate(history.instruction.tolist())}
    offset = history.index.offset
    onsets = set(zip(history.onset_episode.tolist(), history.onset_goal.tolist(), strict=True))
    for place, episode in enumerate(variants.episode.tolist()):
        row = variants.instruction[place].tolist()
        assert (episode, tuple(row)) not in seen
        seen.add((episode, tuple(row)))
        told = [goal for goal in row if goal >= 0]
        own = history.instruction[episode].tolist()
        assert told and all(g in own or (episode, g) in onsets for g in told)
        part = slice(offset[episode], offset[episode + 1])
        expected = find_completed(
            told,
            history.index.step[part].astype(np.uint32),
            history.index.goal[part].astype(np.uint32),
        ).tolist()
        met = [step for step in variants.completed[place].tolist() if step >= 0]
        assert met == expected
        is_complete = len(met) == len(told)
        assert variants.length[place] == (met[-1] + 1 if is_complete else history.length[episode])


@settings(max_examples=60, deadline=None)
@given(histories(), st.sampled_from(["some", "rare-in-episode", "future"]))
def test_an_episode_is_retold_the_same_in_any_company(history: GoalHistory, name: str) -> None:
    together = retell(history, name, 4)
    ids = [f"{number:032x}" for number in range(history.episodes)]
    for episode in range(history.episodes):
        part = slice(history.index.offset[episode], history.index.offset[episode + 1])
        events = list(zip(history.index.step[part], history.index.goal[part], strict=True))
        told = [goal for goal in history.instruction[episode].tolist() if goal >= 0]
        alone = make_history(
            (events, told, int(history.length[episode])), goals=6, states=bool(history.is_state[0])
        )
        variants = retell_batch(
            alone,
            episode_keys(3, name, [ids[episode]]),
            STRATEGIES[name],
            variants=4,
            most_goals=history.instruction.shape[1],
        )
        assert rows_of(variants, 0) == rows_of(together, episode)


def test_a_broken_strategy_is_refused_in_a_sentence() -> None:
    history = make_history(([(1, 2)], (1,), 9))
    keys = episode_keys(0, "x", ["0" * 32])
    for found in (
        np.zeros((2, 1)),
        np.full((2, 1), 99),
        np.zeros((1, 1), np.int64),
        np.full((2, 1), -2),
        None,
    ):
        with pytest.raises(RelabelError, match="Return"):
            retell_batch(history, keys, lambda h, p, found=found: found, variants=2, most_goals=1)
    with pytest.raises(UsageError, match="all-or-nothing"):
        find_strategy("al")
    with pytest.raises(UsageError, match="cannot be imported"):
        find_strategy("no_such_module:strategy")


def test_draws_are_uniform_and_independent_of_what_else_is_drawn() -> None:
    key = np.repeat(episode_keys(5, "x", ["ab" * 16]), DRAWS)
    draws = Draws(key, np.arange(DRAWS), 0)
    first, second = draws.integers(7), draws.integers(7)
    assert is_likely(np.bincount(first).tolist(), [1 / 7] * 7)
    assert is_likely(np.bincount(first * 7 + second).tolist(), [1 / 49] * 49)
    again = Draws(key[:10], np.arange(10), 0)
    assert again.integers(7).tolist() == first[:10].tolist()
    assert (Draws(key, np.arange(DRAWS), 1).integers(7) != first).mean() > 0.8


def rows_of(variants: Variants, episode: int) -> list[list[int]]:
    mine = variants.episode == episode
    return np.column_stack([variants.number, variants.instruction, variants.completed])[
        mine
    ].tolist()


def vars_of(history: GoalHistory) -> dict[str, NDArray[np.int64]]:
    return {name: getattr(history, name) for name in GoalHistory.__dataclass_fields__}
