"""XLand-MiniGrid: rule sets that can be fulfilled, and what is refused without the package."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retold.schemas.errors import TaskError
from retold.tasks.registry import describe_task, find_task, make_task
from retold.tasks.xland_rules import draw_rule_set

NEEDS = {1: 1, **dict.fromkeys((3, 11, 12, 13, 14), 1), **dict.fromkeys((4, 7, 8, 9, 10), 2)}
"""Objects of each kind of goal."""
TAKES = {1: 1, **dict.fromkeys((2, 8, 9, 10, 11), 1), **dict.fromkeys((3, 4, 5, 6, 7), 2)}
"""Objects of each kind of rule, before the one that it makes."""


def tiles_of(row: np.ndarray) -> list[tuple[int, int]]:
    """Tiles of an encoding, or of a list of them."""
    pairs = row.reshape(-1, 2)
    return [(int(kind), int(color)) for kind, color in pairs if kind]


@given(seed=st.integers(0, 2**32), rules=st.integers(0, 6), spare=st.integers(0, 3))
def test_rules_make_what_the_goal_asks_for_and_nothing_is_left_but_distractors(
    seed: int, rules: int, spare: int
) -> None:
    drawn = draw_rule_set(np.random.default_rng(seed), rules, rules + spare, 2)
    asked = tiles_of(drawn.goal[1:])
    assert len(asked) == NEEDS[int(drawn.goal[0])]
    lying = tiles_of(drawn.tiles)
    assert len(set(lying)) == len(lying)
    real = drawn.rules[:rules]
    assert (real[:, 0] > 0).all() and not drawn.rules[rules:].any()
    for row in real[::-1]:  # the last rule's objects lie about
        *sources, product = tiles_of(row[1:])
        assert len(sources) == TAKES[int(row[0])]
        for source in sources:
            lying.remove(source)
        assert product not in lying
        lying.append(product)
    assert set(asked) <= set(lying) and len(lying) == len(asked) + 2


def test_rule_sets_depend_on_the_seed_alone() -> None:
    one, same, other = (draw_rule_set(np.random.default_rng(n), 2, 2, 2) for n in (0, 0, 1))
    assert np.array_equal(one.rules, same.rules) and not np.array_equal(one.rules, other.rules)


def test_a_grid_too_small_for_its_objects_is_refused() -> None:
    with pytest.raises(TaskError, match="room for 20"):
        make_task("xland/R1-9x9", {"rules": [0, 10], "distractors": 10})


def test_the_horizon_is_that_of_all_attempts_and_other_names_are_refused() -> None:
    assert describe_task("xland/R1-9x9", {}).horizon == 5 * 3 * 81
    assert describe_task("xland/R4-13x13", {"attempts": 2, "limit": 50}).horizon == 100
    with pytest.raises(TaskError, match="no task"):
        find_task("xland/nothing")
