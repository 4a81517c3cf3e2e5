"""Where each loss's gradient goes, against finite differences, and that packing adds nothing to it."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from made_up_windows import make_config, make_schema, make_window
from torch import Tensor

from retold.policy.distributions import sample
from retold.policy.heads import Heads
from retold.policy.inputs import stack_windows
from retold.policy.vector_heads import VectorHeads
from retold.schemas.episode import Window
from retold.schemas.spaces import (
    BoxSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
)
from retold.train.batch import Batch, make_batch
from retold.train.learner import Learner
from retold.train.packed_batch import PackedBatch, pack_batch

DISCRETE, AMOUNTS = DiscreteSpace(3), BoxSpace((2,), "float32", -1.0, 1.0)
SPACES = [DISCRETE, AMOUNTS, MultiDiscreteSpace((3, 4)), MultiBinarySpace((3,))]
PARTS = ["heads.actor", "trajectory_encoder", "timestep_encoder"]


@pytest.fixture
def in_doubles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same code in double precision, where differences over a small step are exact enough."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def name_of(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Space) else str(value)


def make_batch_of(*windows: Window, first: int = 0) -> Batch:
    batch = make_batch(windows, most_goals=0, burn_in=0)
    return dataclasses.replace(batch, numbers=tuple(range(first, first + len(windows))))


def windows_of(space: Space) -> list[Window]:
    schema = make_schema(space)
    return [make_window(5, 1, schema, terminated=True), make_window(9, 2, schema)]


def make_learner(space: Space, **fields: Any) -> Learner:
    """A learner with values in units that are not those of its outputs."""
    learner = Learner(make_config(**fields), make_schema(space))
    moments = torch.tensor([8.0, -4.0, 40.0, 20.0, 4.0], dtype=torch.float64)
    learner.objective.scale.take(moments, (learner.policy.heads, learner.objective.target_heads))
    if learner.policy.architecture.critic == "two-hot":
        # All bins are as likely at first, and then no action is better than another.
        torch.nn.init.normal_(learner.policy.heads.get_parameter("critic_output"))
    return learner


def loss_parts(learner: Learner, batch: Batch) -> tuple[Any, PackedBatch, Tensor]:
    """The learner's losses of one batch, before anything of it has moved."""
    packed = pack_batch(batch)
    features = learner.policy.encode(packed.inputs)
    with torch.no_grad():
        targets = learner.objective._targets(packed, features, learner.objective._draw_subset(0), 0)
    count = torch.tensor(float(len(packed.valid)))
    return learner.objective._losses(packed, features, targets, count, 0), packed, targets


def online_objective(learner: Learner, packed: PackedBatch) -> Callable[[], Tensor]:
    """The online loss written out anew: what critics say is worked out once, and stays."""
    heads, batch = learner.policy.heads, packed
    with torch.no_grad():
        seen = learner.policy.encode(batch.inputs)[batch.valid]
    if isinstance(heads, Heads):
        constant = heads.values(seen).detach().mean(0)

        def of_choices() -> Tensor:
            features = learner.policy.encode(batch.inputs)[batch.valid]
            return -(heads.log_policy(features).exp() * constant).sum(-1).mean()

        return of_choices
    noise = learner.objective._noise("actor actions", batch, 0)

    def of_amounts() -> Tensor:
        assert isinstance(heads, VectorHeads)
        features = learner.policy.encode(batch.inputs)[batch.valid]
        drawn = sample(heads.codec, heads.distribution(features), noise)
        return -heads.values_at(seen, drawn).mean(0).mean()

    return of_amounts


@pytest.mark.usefixtures("in_doubles")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("space", [DISCRETE, AMOUNTS], ids=name_of)
def test_the_actors_gradient_is_that_of_finite_differences(space: Space, part: str) -> None:
    learner = make_learner(space)
    losses, packed, _ = loss_parts(learner, make_batch_of(*windows_of(space)))
    losses.online.backward()
    objective = online_objective(learner, packed)
    parameters = list(learner.policy.get_submodule(part).parameters())
    generator = torch.Generator().manual_seed(0)
    reached = [p for p in parameters if p.grad is not None and bool(p.grad.any())]
    assert reached, part
    for _ in range(3):
        ways = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in reached]
        expected = sum(float((p.grad * way).sum()) for p, way in zip(reached, ways, strict=True))
        step, values = 1e-6, []
        with torch.no_grad():
            for sign in (1, -2):
                for p, way in zip(reached, ways, strict=True):
                    p.add_(way, alpha=sign * step)
                values.append(float(objective()))
            for p, way in zip(reached, ways, strict=True):
                p.add_(way, alpha=step)
        found = (values[0] - values[1]) / (2 * step)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-8)
        assert abs(expected) > 5e-3, "a derivative of nothing shows nothing"


@pytest.mark.parametrize(
    ("space", "fields"),
    [*((space, {}) for space in SPACES), (DISCRETE, {"critic": "two-hot"})],
    ids=name_of,
)
def test_the_actors_losses_leave_every_critic_weight_alone(
    space: Space, fields: dict[str, Any]
) -> None:
    learner = make_learner(space, **fields)
    losses, _, _ = loss_parts(learner, make_batch_of(*windows_of(space)))
    (losses.online + losses.cloning).backward()
    critics = {n: p for n, p in learner.policy.heads.named_parameters() if n.startswith("critic")}
    assert len(critics) >= 4
    for name, parameter in critics.items():
        assert parameter.grad is None or not parameter.grad.any(), name
    for part in PARTS:
        grads = [p.grad for p in learner.policy.get_submodule(part).parameters()]
        assert any(grad is not None and bool(grad.any()) for grad in grads), part


@pytest.mark.parametrize("space", SPACES, ids=name_of)
def test_the_critics_loss_reaches_the_encoders_but_neither_actor_nor_targets(space: Space) -> None:
    learner = make_learner(space)
    losses, _, targets = loss_parts(learner, make_batch_of(*windows_of(space)))
    losses.critic.backward()
    assert not targets.requires_grad
    for part in ("trajectory_encoder", "timestep_encoder"):
        grads = [p.grad for p in learner.policy.get_submodule(part).parameters()]
        assert any(grad is not None and bool(grad.any()) for grad in grads), part
    for name, parameter in learner.policy.heads.named_parameters():
        is_critic = name.startswith("critic")
        has_gradient = parameter.grad is not None and bool(parameter.grad.any())
        assert has_gradient == is_critic, name
    for name, parameter in learner.objective.target_heads.named_parameters():
        assert parameter.grad is None, name


def gradients(learner: Learner, batch: Batch, count: int) -> dict[str, Tensor]:
    learner.policy.zero_grad(set_to_none=True)
    packed = pack_batch(batch)
    features = learner.policy.encode(packed.inputs)
    targets = learner.objective._targets(packed, features, learner.objective._draw_subset(0), 0)
    learner.objective._weigh(
        learner.objective._losses(packed, features, targets, torch.tensor(float(count)), 0)
    ).backward()  # type: ignore[no-untyped-call]
    return {
        name: parameter.grad.clone()
        for name, parameter in learner.policy.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.usefixtures("in_doubles")
@pytest.mark.parametrize("encoder", ["transformer", "gru", "memoryless"])
@pytest.mark.parametrize("space", [DISCRETE, AMOUNTS], ids=name_of)
def test_a_packed_batch_is_the_sum_of_its_sequences(space: Space, encoder: str) -> None:
    learner = make_learner(space, encoder=encoder, attention_window=4)
    schema = make_schema(space)
    # Equal lengths side by side and apart, shorter and longer than the attention window.
    windows = [make_window(n, i, schema) for i, n in enumerate((3, 9, 9, 1, 6, 9))]
    count = sum(window.length for window in windows)
    with torch.no_grad():
        packed = learner.policy.encode(pack_batch(make_batch_of(*windows)).inputs)
        alone = [learner.policy.encode(stack_windows([window], 0))[0] for window in windows]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=1e-10, atol=1e-12)
    whole = gradients(learner, make_batch_of(*windows), count)
    parts = [
        gradients(learner, make_batch_of(window, first=number), count)
        for number, window in enumerate(windows)
    ]
    for name, gradient in whole.items():
        total = sum(part[name] for part in parts)
        torch.testing.assert_close(gradient, total, msg=name, rtol=1e-9, atol=1e-11)
