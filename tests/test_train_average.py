"""The running mean of the weights that may be published: what it is, and that a run goes on with it."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from made_up_windows import make_config, make_schema, make_window

from retold.policy.heads import Heads
from retold.policy.linear import scaled_layers
from retold.policy.network import Policy
from retold.schemas.errors import UsageError
from retold.train.actor_critic import ActorCritic
from retold.train.batch import Batch, make_batch
from retold.train.learner import Learner

SCHEMA = make_schema()
CONFIG = make_config(average_rate=0.25)


def draw(seed: int) -> Batch:
    windows = [make_window(4, seed, SCHEMA), make_window(7, seed + 1, SCHEMA)]
    return make_batch(windows, most_goals=0, burn_in=0)


def parameters(policy: Policy, *, of_critics: bool = False) -> dict[str, torch.Tensor]:
    """Copies; those of critics move with PopArt's statistics besides."""
    return {
        name: value.detach().clone()
        for name, value in policy.named_parameters()
        if ("critic" in name) == of_critics
    }


def test_published_weights_are_the_mean_of_those_after_each_update() -> None:
    learner = Learner(CONFIG, SCHEMA)
    expected = parameters(learner.policy)
    for update in range(1, 31):
        learner.update(draw(update))
        rate = max(0.25, 9 / (10 + update))  # 9/11 of the first, and a quarter from the 26th on
        for name, value in parameters(learner.policy).items():
            expected[name] += rate * (value - expected[name])
    for name, value in parameters(learner.published).items():
        torch.testing.assert_close(value, expected[name], msg=name)
    assert learner.published is not learner.policy
    one, other = parameters(learner.policy), parameters(learner.published)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_statistics_of_inputs_are_the_newest() -> None:
    learner = Learner(CONFIG, SCHEMA)
    for seed in range(3):
        learner.update(draw(seed))
    newest, published = (
        policy.timestep_encoder.norm.state_dict()  # type: ignore[union-attr]
        for policy in (learner.policy, learner.published)
    )
    assert newest["count"] == 3
    assert all(torch.equal(newest[name], published[name]) for name in newest)


def test_norms_are_those_of_the_averaged_weights() -> None:
    learner = Learner(dataclasses.replace(CONFIG, learning_rate=1e-2), SCHEMA)
    for seed in range(30):
        learner.update(draw(seed))
    layers = scaled_layers(learner.published)
    assert layers
    for layer in layers:
        norm = torch.linalg.matrix_norm(layer.scaled_weight, 2)
        torch.testing.assert_close(norm, layer.gain.abs(), rtol=0.05, atol=0.0)


def test_averaged_critics_keep_their_values_when_the_statistics_move() -> None:
    learner = Learner(CONFIG, SCHEMA)
    learner.update(draw(0))
    objective, heads = learner.objective, learner.published.heads
    assert isinstance(objective, ActorCritic) and isinstance(heads, Heads)
    features = torch.randn(5, CONFIG.model_width)
    before = objective.popart.denormalise(heads.values(features))
    objective.popart.update(100 * torch.randn(9, 2), torch.ones(9, dtype=torch.bool), ())
    assert not torch.allclose(objective.popart.denormalise(heads.values(features)), before)
    restored = Learner(CONFIG, SCHEMA)
    restored.update(draw(0))
    other = restored.objective
    assert isinstance(other, ActorCritic) and isinstance(restored.published.heads, Heads)
    other.popart.update(100 * torch.randn(9, 2), torch.ones(9, dtype=torch.bool), other._rescaled)
    after = other.popart.denormalise(restored.published.heads.values(features))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_a_restored_learner_goes_on_with_its_mean() -> None:
    learner = Learner(CONFIG, SCHEMA)
    for seed in range(3):
        learner.update(draw(seed))
    restored = Learner(CONFIG, SCHEMA)
    restored.update(draw(7))
    restored.load_state(copy.deepcopy(learner.state()))
    for one in (learner, restored):
        one.update(draw(9))
    whole, parts = learner.published.state_dict(), restored.published.state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_without_a_rate_the_weights_themselves_are_published() -> None:
    learner = Learner(dataclasses.replace(CONFIG, average_rate=None), SCHEMA)
    assert learner.published is learner.policy
    assert "average" not in learner.state()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match=r"--average-rate is .*, but lies above 0"):
        dataclasses.replace(CONFIG, average_rate=rate)


def test_imitation_averages_too(tmp_path: Path) -> None:
    config = make_config(average_rate=0.25, objective="bc", discounts=(0.9,), run=tmp_path)
    learner = Learner(config, SCHEMA)
    learner.update(draw(0))
    one, other = parameters(learner.policy), parameters(learner.published)
    assert any(not torch.equal(one[name], other[name]) for name in one)
