"""Random actions by the block: the same numbers as one by one, kept as one by one."""

from itertools import islice

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from retold.policy.action_draws import random_action, random_blocks
from retold.policy.actions import make_action_codec
from retold.policy.observation_columns import ArrayColumn
from retold.tasks.registry import task_schema


@pytest.mark.parametrize("task", ["tmaze", "cheetah-velocity"])
def test_blocks_of_random_actions_are_those_drawn_one_by_one(task: str) -> None:
    codec = make_action_codec(task_schema(task, {}))
    blocks = list(islice(random_blocks(codec, np.random.default_rng(3)), 3))
    rng = np.random.default_rng(3)
    singly = np.array([random_action(codec, rng) for _ in range(sum(map(len, blocks)))])
    assert_array_equal(np.concatenate(blocks), singly, strict=True)


def test_a_column_that_is_extended_and_cut_holds_the_first_rows() -> None:
    column = ArrayColumn("action", "float32", (2,))
    rows = np.arange(300, dtype=np.float32).reshape(150, 2)
    column.append(rows[0])
    column.extend(rows[1:])
    assert_array_equal(column.stacked(), rows, strict=True)
    column.cut(70)
    assert_array_equal(column.stacked(), rows[:70], strict=True)
    column.cut(100)
    assert len(column.stacked()) == 70
