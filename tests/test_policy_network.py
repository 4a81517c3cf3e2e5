"""Acting equals the parallel forward, and each gradient goes where it should."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from retold.policy.acting import PolicyActor
from retold.policy.architecture import ArchitectureConfig
from retold.policy.heads import Heads
from retold.policy.inputs import stack_windows
from retold.policy.network import Policy
from retold.policy.snapshot import encode_snapshot, load_snapshot
from retold.schemas.episode import EpisodeRecord, Window
from retold.schemas.errors import PolicyError
from retold.tasks.registry import task_schema
from retold.train.batch import make_batch
from retold.train.losses import actor_critic_losses, next_values
from retold.train.packed_batch import pack_batch
from retold.train.popart import PopArt
from retold.train.targets import step_returns
from retold.train.value_scale import ValueScale

SCHEMA = task_schema("maze", {"size": 7})
DISCOUNTS = (0.5, 0.9)
SUBSET = torch.tensor([[0, 1], [0, 1]])


def make_policy(window: int = 8) -> Policy:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    architecture = ArchitectureConfig(
        model_width=16, layers=2, heads=2, attention_window=window, head_width=8
    )
    return Policy(SCHEMA, architecture, DISCOUNTS, 0.9)


def make_scale() -> ValueScale:
    return ValueScale(PopArt(len(DISCOUNTS), 1e-3), None, is_normalised=True)


def heads_of(policy: Policy) -> Heads:
    assert isinstance(policy.heads, Heads)
    return policy.heads


def make_window(length: int, seed: int, *, terminated: bool = False) -> Window:
    rng = np.random.default_rng(seed)
    reward = (rng.random(length) < 0.2).astype(np.float32)
    reward[np.cumsum(reward) > 2] = 0
    flags = np.zeros(length, np.bool_)
    flags[-1] = terminated
    completed = tuple(np.flatnonzero(reward).tolist())
    record = EpisodeRecord(
        episode_id=f"{seed:032x}",
        task=0,
        length=length,
        episode_return=float(reward.sum()),
        terminated=terminated,
        truncated=not terminated,
        environment_terminated=terminated,
        instruction=(5, 9, 11),
        completed=completed,
    )
    return Window(
        record=record,
        dataset=0,
        start=0,
        observation={"observation": rng.random((length + 1, 7)).astype(np.float32)},
        action={"action": rng.integers(0, 5, length)},
        reward=reward,
        terminated=flags,
        truncated=~flags & (np.arange(length) == length - 1),
        reset=rng.random(length) < 0.1,
        progress=np.concatenate([[0], np.cumsum(reward)]).astype(np.uint32),
        previous_action=None,
        previous_reward=0.0,
        previous_reset=False,
    )


def test_acting_equals_the_parallel_forward_beyond_the_window() -> None:
    policy = make_policy(window=8)
    windows = [make_window(length, length) for length in (29, 17, 5)]
    with torch.no_grad():
        features = policy.encode(stack_windows(windows, policy.most_goals))
        expected = heads_of(policy).log_policy(features)[:, :, 1].exp()
    actor = PolicyActor(policy, 3, "test", 0)
    order = [2, 0, 1]
    places = {order[i]: (i, windows[i]) for i in range(3)}
    for slot in places:
        actor.begin(slot, (1, 2))  # a leftover of an earlier episode
        actor.act([slot], [{"observation": np.ones(7, np.float32)}], [0])
    # Staggered: the episode in slot s begins s steps late.
    step = {slot: -slot for slot in places}
    while any(step[slot] <= window.length for slot, (_, window) in places.items()):
        slots = [s for s, (_, w) in places.items() if 0 <= step[s] <= w.length]
        for slot in slots:
            if step[slot] == 0:
                actor.begin(slot, places[slot][1].record.instruction)
        chances = actor.act(
            slots,
            [{"observation": places[s][1].observation["observation"][step[s]]} for s in slots],
            [int(places[s][1].progress[step[s]]) for s in slots],
        )
        for row, slot in enumerate(slots):
            i, window = places[slot]
            t = step[slot]
            np.testing.assert_allclose(chances[row], expected[i, t].numpy(), atol=1e-5)
            if t < window.length:
                action = {"action": window.action["action"][t]}
                actor.record(slot, action, float(window.reward[t]), bool(window.reset[t]))
        for slot in places:
            step[slot] += 1


def losses_of(policy: Policy, windows: list[Window]) -> tuple[Tensor, Tensor, Tensor]:
    batch = pack_batch(make_batch(windows, most_goals=policy.most_goals, burn_in=0))
    scale = make_scale()
    features = policy.encode(batch.inputs)
    steps = step_returns(batch, torch.tensor(DISCOUNTS), steps=1, reward_scale=1.0)
    value = next_values(features[steps.rows], heads_of(policy), scale, SUBSET)
    losses = actor_critic_losses(
        features[batch.valid],
        batch.action[batch.valid],
        steps.returns + steps.factor * value,
        heads_of(policy),
        scale,
        count=torch.tensor(len(batch.valid)),
    )
    return losses.critic, losses.online, losses.cloning


def test_the_actor_loss_leaves_the_critics_alone_and_reaches_the_trunk() -> None:
    policy = make_policy()
    _, online, cloning = losses_of(policy, [make_window(9, 1), make_window(6, 2)])
    (online + cloning).backward()  # type: ignore[no-untyped-call]
    for name, parameter in policy.named_parameters():
        if "critic" in name:
            assert parameter.grad is None or not parameter.grad.any(), name
    for part in (policy.heads.actor, policy.trajectory_encoder, policy.timestep_encoder):
        assert any(p.grad is not None and bool(p.grad.any()) for p in part.parameters())


def test_the_critic_loss_reaches_the_trunk_but_not_the_actor() -> None:
    policy = make_policy()
    critic, _, _ = losses_of(policy, [make_window(9, 1)])
    critic.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in policy.heads.actor.parameters())
    assert any(
        p.grad is not None and bool(p.grad.any()) for p in policy.timestep_encoder.parameters()
    )


def test_the_online_gradient_matches_finite_differences() -> None:
    policy = make_policy().double()
    heads = heads_of(policy)
    features = torch.randn(4, 16, dtype=torch.float64)
    values = heads.values(features).detach().double().mean(0)
    weight = heads.actor[2].weight

    def objective() -> Tensor:
        hidden = heads.actor(features).view(4, 2, 5)
        return -(hidden.softmax(-1) * values).sum(-1).mean()

    losses = actor_critic_losses(
        features,
        torch.zeros(4, dtype=torch.int64),
        torch.zeros(4, 2),
        heads,
        make_scale(),
        count=torch.tensor(4),
    )
    losses.online.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    with torch.no_grad():
        for place in ((0, 0), (3, 5), (7, 2)):
            before = weight[place].item()
            weight[place] = before + 1e-5
            high = objective()
            weight[place] = before - 1e-5
            low = objective()
            weight[place] = before
            # The heads give float32, so agreement is to about 1e-4 of the value.
            assert float((high - low) / 2e-5) == pytest.approx(
                float(weight.grad[place]), rel=1e-3, abs=1e-6
            )


def test_neighbours_and_padding_change_nothing() -> None:
    policy = make_policy()
    alone = make_window(5, 7, terminated=True)
    with torch.no_grad():
        single = policy.encode(stack_windows([alone], policy.most_goals))
        many = policy.encode(stack_windows([make_window(23, 3), alone], policy.most_goals))
    torch.testing.assert_close(many[1, :6], single[0], atol=1e-5, rtol=1e-5)


def test_popart_changes_no_output() -> None:
    policy = make_policy()
    popart = PopArt(2, 0.1)
    features = torch.randn(2, 3, 16)
    with torch.no_grad():
        before = popart.denormalise(heads_of(policy).values(features))
        for scale in (3.0, 50.0):
            targets = scale * torch.randn(2, 3, 2) + scale
            popart.update(targets, torch.ones(2, 3, dtype=torch.bool), (policy.heads,))
        after = popart.denormalise(heads_of(policy).values(features))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


def test_popart_ignores_batches_without_a_valid_target() -> None:
    popart = PopArt(2, 0.1)
    popart.update(torch.full((1, 2, 2), 9.0), torch.zeros(1, 2, dtype=torch.bool), ())
    assert popart.mean.tolist() == [0.0, 0.0] and int(popart.count) == 0


def write_snapshot(folder: Path) -> Policy:
    policy = make_policy()
    folder.mkdir()
    for name, content in encode_snapshot(policy, update=3).items():
        (folder / name).write_bytes(content)
    return policy


def test_a_snapshot_returns_the_same_policy(tmp_path: Path) -> None:
    policy = write_snapshot(tmp_path / "policy")
    loaded, description = load_snapshot(tmp_path / "policy")
    assert description.update == 3 and loaded.schema == policy.schema
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_a_damaged_snapshot_names_its_file(tmp_path: Path, name: str) -> None:
    write_snapshot(tmp_path / "policy")
    path = tmp_path / "policy" / name
    content = bytearray(path.read_bytes())
    content[10] ^= 4
    path.write_bytes(content)
    with pytest.raises(PolicyError, match="policy"):
        load_snapshot(tmp_path / "policy")
