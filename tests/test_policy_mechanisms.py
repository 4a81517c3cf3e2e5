"""Every encoder acts as it trains, packing changes nothing, and every kind of action learns."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from made_up_windows import make_config, make_schema, make_window

from retold.policy.acting import PolicyActor
from retold.policy.architecture import ArchitectureConfig
from retold.policy.inputs import pack_inputs, stack_windows
from retold.policy.network import Policy
from retold.policy.transformer import TransformerEncoder
from retold.policy.vector_heads import VectorHeads
from retold.schemas.spaces import BoxSpace, DiscreteSpace, MultiDiscreteSpace, Space
from retold.train.batch import make_batch
from retold.train.learner import Learner

PLAIN = {"normformer": False, "head_scaling": False, "sigma_reparam": False}


@pytest.mark.parametrize(
    "fields",
    [{}, PLAIN, {"positions": "none"}, {"encoder": "gru"}, {"encoder": "memoryless"}],
    ids=str,
)
def test_acting_equals_the_packed_forward_over_three_windows(fields: dict[str, Any]) -> None:
    schema = make_schema()
    architecture = ArchitectureConfig(model_width=16, heads=2, attention_window=7, **fields)
    torch.manual_seed(0)
    policy = Policy(schema, architecture, (0.9,), 0.9).eval()
    windows = [make_window(22, 1, schema), make_window(5, 2, schema)]
    inputs = pack_inputs(stack_windows(windows, 0), [23, 6])
    with torch.no_grad():
        expected = policy.acting_numbers(policy.encode(inputs)).double().numpy()
    actor = PolicyActor(policy, 2, "test", None)
    for slot, (window, first) in enumerate(zip(windows, (0, 23), strict=True)):
        actor.begin(slot, ())
        for step in range(window.length + 1):
            seen = {"observation": window.observation["observation"][step]}
            chances = actor.act([slot], [seen], [0])[0]
            np.testing.assert_allclose(chances, expected[first + step], atol=1e-5)
            if step < window.length:
                action = {"action": window.action["action"][step]}
                actor.record(slot, action, float(window.reward[step]), False)


@pytest.mark.parametrize(
    "space",
    [DiscreteSpace(3), MultiDiscreteSpace((3, 4)), BoxSpace((2,), "float32", -1.0, 1.0)],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize("cloning_filter", ["binary", "exponential", "soft", "none"])
def test_actors_leave_critics_alone_and_batches_add_up(space: Space, cloning_filter: Any) -> None:
    schema = make_schema(space)
    config = make_config(return_steps=3, cloning_filter=cloning_filter, critic_weight=0.0)
    windows = [make_window(4, 1, schema), make_window(9, 2, schema)]
    whole = make_batch(windows, most_goals=0, burn_in=0)
    parts = [make_batch([window], most_goals=0, burn_in=0) for window in windows]
    parts[1] = dataclasses.replace(parts[1], numbers=(1,))
    one, two = Learner(config, schema), Learner(config, schema)
    first, second = one.update(whole), two.update(*parts)
    for name, value in first.items():
        # Sums are taken in another order.
        assert second[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    for name, parameter in one.policy.heads.named_parameters():
        if "critic" in name:
            assert parameter.grad is None or not parameter.grad.any(), name
    reached = [p.grad for p in one.policy.trajectory_encoder.parameters()]
    assert any(grad is not None and bool(grad.any()) for grad in reached)
    assert isinstance(one.policy.heads, VectorHeads) == (not isinstance(space, DiscreteSpace))


@pytest.mark.parametrize("fields", [{}, PLAIN], ids=["stabilised", "plain"])
def test_weights_that_grow_drive_the_logits_of_the_plain_block_alone(
    fields: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(ArchitectureConfig(model_width=16, layers=1, heads=2, **fields))
    x, step = torch.randn(32, 16), torch.arange(32)

    def largest_logit() -> float:
        ((_, largest),) = encoder.attention_facts(x, step)
        return largest

    before = largest_logit()
    with torch.no_grad():
        encoder.blocks[0].query_key_value.weight.mul_(30.0)
    if fields:
        assert largest_logit() > 500 * before  # 900 times, but for the biases
    else:
        # Queries and keys are no longer than gain times the normalised row's sqrt(width).
        assert largest_logit() == pytest.approx(before, rel=1e-3)
        assert largest_logit() <= 16 / 8**0.5
