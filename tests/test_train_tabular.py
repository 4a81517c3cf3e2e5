"""On a small decision process every discount's critics find the values that dynamic programming finds."""

from typing import Any

import numpy as np
import pytest
import torch
from made_up_windows import make_config, make_schema, make_window
from numpy.typing import NDArray
from torch import Tensor

from retold.policy.heads import Heads
from retold.policy.inputs import stack_windows
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Window
from retold.schemas.spaces import DiscreteSpace, MultiDiscreteSpace, Space
from retold.train.batch import make_batch
from retold.train.learner import Learner
from retold.train.popart import target_moments

DISCOUNTS = (0.5, 0.8, 0.9)
END = -1
# By state and action: where it leads, and what it earns. Round and round pays as well as an end.
NEXT = np.array([[1, 0], [2, END], [0, 3], [END, 2]])
REWARD = np.array([[0.0, 0.1], [0.0, 0.5], [1.0, 0.0], [4.0, -0.5]])
LONGEST = 6
"""Where episodes are cut off; values reach far beyond it."""
Values = NDArray[np.float64]


def best_values() -> Values:
    """`[discounts, states, actions]`, by value iteration."""
    q = np.zeros((len(DISCOUNTS), *NEXT.shape))
    for _ in range(2_000):
        after = np.where(NEXT == END, 0.0, q.max(-1)[:, NEXT])
        q = REWARD + np.array(DISCOUNTS)[:, None, None] * after
    return q


def random_episode(rng: np.random.Generator, schema: DatasetSchema, seed: int) -> Window:
    """Uniform actions from any state to the end, or until it is cut off."""
    states, actions = [int(rng.integers(len(NEXT)))], []
    while states[-1] != END and len(actions) < LONGEST:
        actions.append(int(rng.integers(2)))
        states.append(int(NEXT[states[-1], actions[-1]]))
    seen = np.array(states)
    has_ended = states[-1] == END
    # A last observation that never counts.
    shown = np.where(seen == END, 0, seen)
    (leaf,) = schema.action_leaves
    return make_window(
        len(actions),
        seed,
        schema,
        terminated=has_ended,
        observation={"observation": shown},
        action={"action": np.array(actions).reshape(-1, *leaf.shape)},
        reward=REWARD[seen[:-1], actions].astype(np.float32),
    )


def learn_values(space: Space, **fields: Any) -> tuple[list[Window], Values]:
    """Random episodes, and `[episodes, steps, discounts, actions]`: what critics say on average."""
    torch.set_num_threads(1)
    schema = make_schema(space, DiscreteSpace(len(NEXT)), horizon=1_000)
    config = make_config(
        encoder="memoryless",
        model_width=32,
        head_width=64,
        discounts=DISCOUNTS,
        acting_discount=0.9,
        reward_scale=1.0,
        learning_rate=2e-3,
        target_rate=0.1,
        online_weight=10.0,
        **fields,
    )
    learner = Learner(config, schema)
    rng = np.random.default_rng(0)
    windows = [random_episode(rng, schema, seed) for seed in range(8 * 24)]
    batches = [make_batch(windows[first::8], most_goals=0, burn_in=0) for first in range(8)]
    for number in range(600):
        learner.update(batches[number % len(batches)])
    inputs = stack_windows(windows, 0)
    with torch.no_grad():
        features = learner.policy.encode(inputs)
        heads = learner.policy.heads
        if isinstance(heads, Heads):
            outputs = heads.values(features)
        else:
            flat = features.flatten(0, 1)
            both = [heads.values_at(flat, option.expand(len(flat), 2)) for option in torch.eye(2)]
            outputs = torch.stack(both, -1).unflatten(1, features.shape[:2])
        values = learner.objective.scale.denormalise(outputs).mean(0).double().numpy()
    return windows, values


def mean_values(windows: list[Window], values: Values, *, at_cuts: bool) -> Values:
    """`[discounts, states, actions]`: over steps where the episode was cut off, or over the others.

    Args:
        windows: random episodes.
        values: `[episodes, steps, discounts, actions]`.
        at_cuts: which steps.
    """
    q = np.zeros((len(DISCOUNTS), *NEXT.shape))
    for state in range(len(NEXT)):
        here = [
            values[i, : w.length][
                (w.observation["observation"][:-1] == state) & (w.truncated == at_cuts)
            ]
            for i, w in enumerate(windows)
        ]
        q[:, state] = np.concatenate(here).mean(0)
    return q


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        (DiscreteSpace(2), {}),
        (DiscreteSpace(2), {"popart": False}),
        (DiscreteSpace(2), {"critic": "two-hot"}),
        (MultiDiscreteSpace((2,)), {}),
    ],
    ids=["categorical", "without popart", "two-hot", "action as an input"],
)
def test_critics_of_every_discount_find_the_known_values(
    space: Space, fields: dict[str, Any]
) -> None:
    best = best_values()
    windows, values = learn_values(space, **fields)
    largest = np.abs(best).max((1, 2), keepdims=True)
    for at_cuts in (False, True):
        found = mean_values(windows, values, at_cuts=at_cuts)
        error = (np.abs(found - best) / largest).max((1, 2))
        assert (error < 0.02).all(), (at_cuts, error)


@pytest.mark.parametrize(
    "space", [DiscreteSpace(2), MultiDiscreteSpace((2,))], ids=["categorical", "action as an input"]
)
def test_new_statistics_alone_change_no_value(space: Space) -> None:
    learner = Learner(make_config(discounts=DISCOUNTS), make_schema(space))
    features = torch.randn(20, 16)
    action = torch.eye(2)[torch.arange(20) % 2]

    def outputs() -> list[Tensor]:
        found = []
        for heads in (learner.policy.heads, learner.objective.target_heads):
            with torch.no_grad():
                if isinstance(heads, Heads):
                    values = heads.values(features)
                else:
                    values = heads.values_at(features, action)[..., None]
                found.append(learner.objective.scale.denormalise(values))
        return found

    before = outputs()
    for number in range(20):
        targets = torch.randn(64, len(DISCOUNTS)) * (number + 1) - 3 * number
        moments = target_moments(targets)
        learner.objective.scale.take(
            moments, (learner.policy.heads, learner.objective.target_heads)
        )
    assert float(learner.objective.popart.spread.min()) > 5
    for one, other in zip(before, outputs(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
