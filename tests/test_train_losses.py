"""Targets against hand-worked numbers, and batches in which padding weighs nothing."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.heads import Heads
from retold.policy.inputs import PolicyInputs
from retold.policy.network import Policy
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import EpisodeRecord, Window
from retold.schemas.spaces import BoxSpace, DiscreteSpace
from retold.train.batch import Batch, make_batch
from retold.train.losses import Losses, actor_critic_losses, next_values
from retold.train.packed_batch import PackedBatch, pack_batch
from retold.train.popart import PopArt
from retold.train.targets import step_returns
from retold.train.value_scale import ValueScale

DISCOUNTS = torch.tensor([0.5, 0.9])
FIRST_TWO = torch.tensor([[0, 1], [0, 1]])
SCHEMA = DatasetSchema(
    tasks=(
        TaskDescription(
            name="made-up", kwargs={}, code_version="1", limit_is="truncation", horizon=50
        ),
    ),
    observation_space=BoxSpace((2,), "float32", -1.0, 1.0),
    action_space=DiscreteSpace(3),
)


def make_heads(actions: int = 3, critics: int = 4) -> Heads:
    torch.manual_seed(0)
    return Heads(8, 16, actions, len(DISCOUNTS), critics)


def constant_heads(logits: list[float], values: list[list[float]]) -> Heads:
    """Heads whose outputs are the same at every step and discount: `values` is a row a critic."""
    heads = make_heads(len(logits), len(values))
    last = heads.actor[2]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(logits).repeat(2))
        heads.critic_output.zero_()
        heads.critic_output_bias.copy_(torch.tensor(values).repeat(1, 2)[:, None])
    return heads


def make_window(length: int, seed: int, *, start: int = 0, terminated: bool = False) -> Window:
    rng = np.random.default_rng(seed)
    ends = np.arange(length) == length - 1
    return Window(
        record=EpisodeRecord(
            episode_id=f"{seed:032x}",
            task=0,
            length=start + length,
            episode_return=0.0,
            terminated=terminated,
            truncated=not terminated,
            environment_terminated=terminated,
        ),
        dataset=0,
        start=start,
        observation={"observation": rng.uniform(-1, 1, (length + 1, 2)).astype(np.float32)},
        action={"action": rng.integers(0, 3, length)},
        reward=rng.standard_normal(length).astype(np.float32),
        terminated=ends & terminated,
        truncated=ends & (not terminated),
        reset=np.zeros(length, np.bool_),
        progress=np.zeros(length + 1, np.uint32),
        previous_action={"action": np.int64(1)} if start else None,
        previous_reward=0.5 if start else 0.0,
        previous_reset=False,
    )


def make_policy() -> Policy:
    torch.manual_seed(0)
    architecture = ArchitectureConfig(model_width=16, layers=2, heads=2, head_width=8)
    return Policy(SCHEMA, architecture, tuple(DISCOUNTS.tolist()), float(DISCOUNTS[1]))


def batch_of(windows: list[Window], burn_in: int = 0) -> Batch:
    return make_batch(windows, most_goals=0, burn_in=burn_in)


def make_scale(popart: PopArt | None = None) -> ValueScale:
    return ValueScale(popart or PopArt(2, 1e-3), None, is_normalised=True)


def heads_of(policy: Policy) -> Heads:
    assert isinstance(policy.heads, Heads)
    return policy.heads


def losses_of(policy: Policy, batch: Batch) -> Losses:
    packed = pack_batch(batch)
    features = policy.encode(packed.inputs)
    steps = step_returns(packed, DISCOUNTS, steps=1, reward_scale=1.0)
    value = next_values(features[steps.rows], heads_of(policy), make_scale(), FIRST_TWO)
    return actor_critic_losses(
        features[packed.valid],
        packed.action[packed.valid],
        steps.returns + steps.factor * value,
        heads_of(policy),
        make_scale(),
        count=torch.tensor(float(len(packed.valid))).clamp_min(1),
    )


def pack_rewards(reward: Tensor, terminated: Tensor) -> PackedBatch:
    """A batch that holds nothing but `[batch, time]` rewards and ends."""
    batch, time = reward.shape
    steps = torch.zeros(batch, time + 1, dtype=torch.int64)
    inputs = PolicyInputs(
        observation={},
        previous_action={},
        has_previous=steps > 0,
        previous_reward=steps.float(),
        previous_reset=steps > 0,
        step=steps,
        instruction=steps[:, :1],
        progress=steps,
    )
    return pack_batch(
        Batch(
            inputs=inputs,
            lengths=(time,) * batch,
            action=torch.zeros_like(reward),
            reward=reward,
            terminated=terminated,
            is_valid=torch.ones_like(terminated),
        )
    )


def td_targets(
    features: Tensor,
    reward: Tensor,
    terminated: Tensor,
    heads: Heads,
    *,
    popart: PopArt | None = None,
    subset: Tensor | None = None,
    steps: int = 1,
) -> Tensor:
    """`[batch, time, discounts]` from `[batch, time + 1, features]`."""
    batch = pack_rewards(reward, terminated)
    found = step_returns(batch, DISCOUNTS, steps=steps, reward_scale=1.0)
    after = features.flatten(0, 1)[found.rows]
    value = next_values(after, heads, make_scale(popart), FIRST_TWO if subset is None else subset)
    return (found.returns + found.factor * value).view(*reward.shape, len(DISCOUNTS))


def test_targets_are_those_worked_out_by_hand() -> None:
    # Both actions as likely: critic 0 expects 3, critic 1 expects 2, critic 2 (unused) expects -9.
    heads = constant_heads([0.0, 0.0], [[2.0, 4.0], [0.0, 4.0], [-9.0, -9.0]])
    targets = td_targets(
        torch.randn(1, 3, 8),
        torch.tensor([[1.0, 5.0]]),
        torch.tensor([[False, True]]),
        heads,
    )
    expected = torch.tensor([[[1 + 0.5 * 2, 1 + 0.9 * 2], [5.0, 5.0]]])
    torch.testing.assert_close(targets, expected)


def test_the_next_value_is_expected_under_the_target_actor() -> None:
    heads = constant_heads([np.log(3.0), 0.0], [[4.0, 8.0], [4.0, 8.0]])
    targets = td_targets(
        torch.randn(1, 2, 8),
        torch.zeros(1, 1),
        torch.zeros(1, 1, dtype=torch.bool),
        heads,
    )
    # 3/4 * 4 + 1/4 * 8 = 5, discounted.
    torch.testing.assert_close(targets[0, 0], DISCOUNTS * 5)


def test_the_minimum_is_taken_in_units_of_reward() -> None:
    heads = constant_heads([0.0, 0.0], [[1.0, 1.0], [-1.0, -1.0]])
    popart = PopArt(2, 1.0)
    # Targets 10 and 30 in every discount: mean 20, spread 10.
    popart.update(
        torch.tensor([10.0, 30.0]).view(1, 2, 1).expand(1, 2, 2),
        torch.ones(1, 2, dtype=torch.bool),
        (),
    )
    targets = td_targets(
        torch.randn(1, 2, 8),
        torch.zeros(1, 1),
        torch.zeros(1, 1, dtype=torch.bool),
        heads,
        popart=popart,
    )
    torch.testing.assert_close(targets[0, 0], DISCOUNTS * (20 - 10))


def test_each_transition_bootstraps_from_the_row_after_it() -> None:
    heads = make_heads()
    features, reward = torch.randn(1, 5, 8), torch.randn(1, 4)
    targets = td_targets(
        features,
        reward,
        torch.zeros(1, 4, dtype=torch.bool),
        heads,
        subset=torch.tensor([[2, 0], [2, 0]]),
    )
    for t in range(4):
        after = features[0, t + 1]
        with torch.no_grad():
            value = (heads.values(after)[[2, 0]] * heads.log_policy(after).exp()).sum(-1).amin(0)
        torch.testing.assert_close(targets[0, t], reward[0, t] + DISCOUNTS * value)


def test_the_targets_of_a_window_are_those_of_its_episode() -> None:
    heads = make_heads()
    features, reward = torch.randn(1, 13, 8), torch.randn(1, 12)
    terminated = torch.zeros(1, 12, dtype=torch.bool)
    terminated[0, -1] = True

    def targets(first: int, last: int) -> Tensor:
        return td_targets(
            features[:, first : last + 1],
            reward[:, first:last],
            terminated[:, first:last],
            heads,
        )

    whole = targets(0, 12)
    for first, last in ((0, 12), (0, 5), (3, 9), (7, 12), (11, 12)):
        torch.testing.assert_close(targets(first, last), whole[:, first:last])


def test_only_termination_stops_bootstrapping() -> None:
    cut_off = batch_of([make_window(6, 1, terminated=False)])
    ended = batch_of([make_window(6, 1, terminated=True)])
    assert not cut_off.terminated.any()
    assert ended.terminated[0].tolist() == [False] * 5 + [True]
    assert torch.equal(cut_off.is_valid, ended.is_valid)


def test_targets_and_values_carry_no_gradient_to_slow_heads_or_features() -> None:
    heads = make_heads()
    features = torch.randn(1, 4, 8, requires_grad=True)
    targets = td_targets(
        features,
        torch.zeros(1, 3),
        torch.zeros(1, 3, dtype=torch.bool),
        heads,
    )
    assert not targets.requires_grad


def test_the_actor_loss_treats_the_critics_view_of_the_trunk_as_constant() -> None:
    heads = make_heads()
    features = torch.randn(6, 8, requires_grad=True)
    losses = actor_critic_losses(
        features,
        torch.zeros(6, dtype=torch.int64),
        torch.zeros(6, 2),
        heads,
        make_scale(),
        count=torch.tensor(6),
    )
    (through_losses,) = torch.autograd.grad(losses.online, features, retain_graph=True)
    value = heads.values(features).detach().mean(0)
    by_hand = -(heads.log_policy(features).exp() * value).sum(-1).mean()
    (expected,) = torch.autograd.grad(by_hand, features)
    torch.testing.assert_close(through_losses, expected)
    assert expected.abs().amax() > 0
    unused = torch.autograd.grad(
        losses.online,
        [heads.critic_input, heads.critic_output, heads.critic_output_bias],
        allow_unused=True,
    )
    assert unused == (None, None, None)


def test_only_better_actions_are_cloned() -> None:
    heads = constant_heads([0.0, 0.0], [[0.0, 2.0], [0.0, 2.0]])
    for action, is_cloned in ((0, False), (1, True)):
        losses = actor_critic_losses(
            torch.randn(1, 8),
            torch.tensor([action]),
            torch.zeros(1, 2),
            heads,
            make_scale(),
            count=torch.tensor(1),
        )
        expected = float(np.log(2)) if is_cloned else 0.0
        assert losses.cloning.item() == pytest.approx(expected, abs=1e-6)


def test_burn_in_is_for_cut_windows_alone() -> None:
    batch = batch_of([make_window(6, 1), make_window(6, 2, start=4)], burn_in=2)
    assert batch.is_valid.tolist() == [[True] * 6, [False, False, True, True, True, True]]


def test_a_batch_is_as_long_as_its_longest_window() -> None:
    batch = batch_of([make_window(2, 1), make_window(5, 2)])
    assert batch.inputs.step.shape == (2, 6)
    assert batch.action.shape == batch.reward.shape == batch.is_valid.shape == (2, 5)
    assert batch.is_valid.tolist() == [[True, True, False, False, False], [True] * 5]


def with_junk(batch: Batch, lengths: list[int]) -> Batch:
    """The batch with other values wherever it is padded."""
    generator = torch.Generator().manual_seed(1)

    def spoil(rows: Tensor, extra: int) -> Tensor:
        spoilt = rows.clone()
        for row, length in zip(spoilt, lengths, strict=True):
            tail = row[length + extra :]
            junk = torch.randint(0, 2, tail.shape, generator=generator)
            tail.copy_(3 * junk if tail.is_floating_point() else junk)
        return spoilt

    inputs = batch.inputs
    spoilt_inputs = PolicyInputs(
        observation={path: spoil(rows, 1) for path, rows in inputs.observation.items()},
        previous_action={path: spoil(rows, 1) for path, rows in inputs.previous_action.items()},
        has_previous=spoil(inputs.has_previous, 1),
        previous_reward=spoil(inputs.previous_reward, 1),
        previous_reset=spoil(inputs.previous_reset, 1),
        step=spoil(inputs.step, 1),
        instruction=inputs.instruction,
        progress=spoil(inputs.progress, 1),
    )
    return dataclasses.replace(
        batch,
        inputs=spoilt_inputs,
        action=spoil(batch.action, 0),
        reward=spoil(batch.reward, 0),
        terminated=spoil(batch.terminated, 0),
    )


def gradients(policy: Policy, batch: Batch) -> dict[str, Tensor]:
    policy.zero_grad(set_to_none=True)
    losses = losses_of(policy, batch)
    (losses.critic + losses.online + losses.cloning).backward()  # type: ignore[no-untyped-call]
    return {
        name: parameter.grad.clone()
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None
    }


def test_what_stands_in_the_padding_changes_no_loss_and_no_gradient() -> None:
    policy = make_policy()
    lengths = [3, 9, 6]
    batch = batch_of([make_window(length, length) for length in lengths])
    junk = with_junk(batch, lengths)
    assert not torch.equal(junk.reward, batch.reward)
    clean, spoilt = losses_of(policy, batch), losses_of(policy, junk)
    for field in dataclasses.fields(Losses):
        assert torch.equal(getattr(clean, field.name), getattr(spoilt, field.name)), field.name
    one, other = gradients(policy, batch), gradients(policy, junk)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=name, rtol=1e-5, atol=1e-7)


def test_every_valid_transition_weighs_the_same() -> None:
    policy = make_policy()
    short, long = make_window(3, 1), make_window(9, 2)
    together = gradients(policy, batch_of([short, long]))
    apart = [gradients(policy, batch_of([window])) for window in (short, long)]
    for name in together:
        weighted = (3 * apart[0][name] + 9 * apart[1][name]) / 12
        # Sums are taken in another order.
        torch.testing.assert_close(together[name], weighted, msg=name, rtol=1e-3, atol=1e-6)


def test_a_batch_without_a_valid_transition_has_no_loss() -> None:
    batch = batch_of([make_window(4, 1, start=3)], burn_in=4)
    losses = losses_of(make_policy(), batch)
    assert [losses.critic.item(), losses.online.item(), losses.cloning.item()] == [0, 0, 0]
