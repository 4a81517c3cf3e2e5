"""One update: what moves, what follows slowly, and what stops a run."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from made_up_windows import make_config, make_schema, make_window

from retold.policy.heads import Heads
from retold.schemas.errors import RunError, UsageError
from retold.train.batch import Batch, make_batch
from retold.train.config import changed_fields
from retold.train.learner import Learner
from retold.train.popart import PopArt

SCHEMA = make_schema()
CONFIG = make_config()


def make_learner_batch(seed: int = 0) -> Batch:
    windows = [make_window(4, seed, SCHEMA), make_window(7, seed + 1, SCHEMA)]
    return make_batch(windows, most_goals=0, burn_in=0)


def test_target_heads_get_no_gradient_and_follow_slowly() -> None:
    config = dataclasses.replace(CONFIG, target_rate=0.25)
    learner = Learner(config, SCHEMA)
    learner.update(make_learner_batch(0))
    # From here on PopArt is as good as still, so that only the average moves the target heads.
    learner.objective.popart._rate = 0.0
    learner.objective.popart.count.fill_(10**9)
    before = copy.deepcopy(learner.objective.target_heads.state_dict())
    learner.update(make_learner_batch(1))
    online = learner.policy.heads.state_dict()
    for name, slow in learner.objective.target_heads.state_dict().items():
        expected = before[name] + 0.25 * (online[name] - before[name])
        torch.testing.assert_close(slow, expected, msg=name, rtol=1e-4, atol=1e-6)
    for name, parameter in learner.objective.target_heads.named_parameters():
        assert parameter.grad is None and not parameter.requires_grad, name


def test_slow_heads_keep_their_values_when_the_statistics_move() -> None:
    learner = Learner(dataclasses.replace(CONFIG, target_rate=0.0), SCHEMA)
    features = torch.randn(5, CONFIG.model_width)
    spread = learner.objective.popart.spread

    def values() -> torch.Tensor:
        return learner.objective.popart.denormalise(learner.objective.target_heads.values(features))

    before = values()
    learner.update(make_learner_batch())
    assert (learner.objective.popart.spread / spread - 1).abs().amax() > 0.1
    torch.testing.assert_close(values(), before, rtol=1e-4, atol=1e-4)


def test_every_weight_learns() -> None:
    learner = Learner(CONFIG, SCHEMA)
    before = copy.deepcopy(dict(learner.policy.named_parameters()))
    learner.update(make_learner_batch())
    for name, parameter in learner.policy.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def test_one_seed_gives_one_learner_whatever_was_drawn_before() -> None:
    one = Learner(CONFIG, SCHEMA)
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    other = Learner(CONFIG, SCHEMA)
    assert torch.equal(torch.random.get_rng_state(), state)
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_metrics_name_every_discount_and_the_norm_before_clipping() -> None:
    config = dataclasses.replace(CONFIG, gradient_clip=1e-3)
    metrics = Learner(config, SCHEMA).update(make_learner_batch())
    assert {"loss", "entropy", "gradient_norm", "value_0.5", "value_0.9"} <= metrics.keys()
    assert metrics["gradient_norm"] > 1e-2
    assert 0 < metrics["entropy"] <= np.log(3) + 1e-6


def test_values_are_told_in_units_of_unscaled_reward() -> None:
    told = []
    for scale in (1.0, 10.0):  # at first, the same outputs stand for values ten times as large
        learner = Learner(dataclasses.replace(CONFIG, reward_scale=scale), SCHEMA)
        told.append(learner.update(make_learner_batch())["value_0.9"])
    assert told[0] == pytest.approx(10 * told[1], rel=1e-2) and told[0] != 0


def test_attention_is_looked_at_now_and_then() -> None:
    learner = Learner(CONFIG, SCHEMA)
    first, second = (learner.update(make_learner_batch(number)) for number in range(2))
    assert 0 < first["attention_entropy_0"] <= np.log(5)
    assert np.isfinite(first["attention_logit_0"])
    assert "attention_logit_0" not in second


def test_a_loss_that_is_not_finite_names_the_update() -> None:
    learner = Learner(CONFIG, SCHEMA)
    learner.update(make_learner_batch())
    batch = make_learner_batch()
    batch.reward[0, 1] = float("nan")
    with pytest.raises(RunError, match=r"run: update 2: the loss is nan"):
        learner.update(batch)
    assert learner.update_count == 1


def test_the_learning_rate_warms_up() -> None:
    learner = Learner(dataclasses.replace(CONFIG, warmup_updates=4), SCHEMA)
    rates = []
    for number in range(6):
        learner.update(make_learner_batch(number))
        rates.append(learner.optimiser.param_groups[0]["lr"] / CONFIG.learning_rate)
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_the_learning_rate_falls_with_the_root_of_the_updates() -> None:
    learner = Learner(dataclasses.replace(CONFIG, warmup_updates=2, decay_after=3), SCHEMA)
    rates = []
    for number in range(12):
        learner.update(make_learner_batch(number))
        rates.append(learner.optimiser.param_groups[0]["lr"] / CONFIG.learning_rate)
    assert rates[:4] == pytest.approx([0.5, 1, 1, 0.75**0.5])
    assert rates[11] == pytest.approx(0.5)


def test_a_decay_that_begins_before_the_rate_has_risen_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--decay-after is 3, .* --warmup-updates, 4"):
        dataclasses.replace(CONFIG, warmup_updates=4, decay_after=3)


def test_popart_takes_mean_and_spread_of_valid_targets_by_discount() -> None:
    popart = PopArt(2, 1.0)
    targets = torch.tensor([[[1.0, 10.0], [3.0, 30.0], [99.0, 99.0]]])
    popart.update(targets, torch.tensor([[True, True, False]]), ())
    assert popart.mean.tolist() == [2.0, 20.0]
    assert popart.spread.tolist() == pytest.approx([1.0, 10.0])
    torch.testing.assert_close(popart.normalise(targets)[0, :2, 0], torch.tensor([-1.0, 1.0]))


def test_popart_leaves_online_and_target_outputs_as_they_were() -> None:
    torch.manual_seed(0)
    popart = PopArt(2, 0.5)
    heads = (Heads(8, 16, 3, 2, 4), Heads(8, 16, 3, 2, 4))
    features = torch.randn(5, 8)
    with torch.no_grad():
        before = [popart.denormalise(head.values(features)) for head in heads]
        for scale in (100.0, 3.0):
            targets = scale * torch.randn(2, 6, 2) + scale
            popart.update(targets, torch.ones(2, 6, dtype=torch.bool), heads)
        after = [popart.denormalise(head.values(features)) for head in heads]
    for one, other in zip(before, after, strict=True):
        # Two rescalings of values of the order of 100, in float32.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"updates": 0}, "--updates is 0"),
        ({"data": ()}, "--data DATASET"),
        ({"weight": (1.0, 2.0)}, "2 weights for 1 datasets"),
        ({"discounts": (0.5, 1.0)}, r"each lies in \[0, 1\)"),
        ({"discounts": ()}, "--discounts"),
        ({"acting_discount": 0.7}, "--acting-discount is 0.7"),
        ({"burn_in": 512}, "--burn-in is 512"),
        ({"critics": 1}, "--critics is 1"),
        ({"model_width": 20, "heads": 4}, "--model-width is 20"),
    ],
)
def test_values_out_of_range_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(CONFIG, **change)  # type: ignore[arg-type]


def test_a_resumed_run_may_change_how_long_it_is_but_not_what_it_learns() -> None:
    stored = CONFIG.to_json()
    longer = dataclasses.replace(CONFIG, updates=9, resume=True, publish_every=3, threads=2)
    assert changed_fields(stored, longer) == []
    other = dataclasses.replace(CONFIG, learning_rate=1.0, seed=3)
    assert changed_fields(stored, other) == ["learning_rate", "seed"]
