"""Attention in blocks equals attention with a whole mask, and torch's own, to the last gradient."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from retold.policy.attention import (
    attend,
    plan_attention,
    plan_pieces,
    rotary_angles,
    turned,
)
from retold.policy.block_attention import Rotation
from retold.policy.varlen_attention import find_kernel, plan_varlen

CPU = torch.device("cpu")
HEADS, FEATURES = 2, 4


def draw(lengths: Sequence[int], scale: float = 1.0) -> tuple[Tensor, Rotation]:
    """Projections, and the rotation of windows that begin anywhere in their episodes."""
    generator = torch.Generator().manual_seed(0)
    shape = (sum(lengths), 3, HEADS, FEATURES)
    projected = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    step = torch.cat([torch.arange(n) + 7 * place for place, n in enumerate(lengths)])
    return projected.requires_grad_(), rotary_angles(step, FEATURES, torch.float64)


def attend_by_a_whole_mask(
    projected: Tensor, rotation: Rotation | None, lengths: Sequence[int], window: int
) -> Tensor:
    query, key, value = turned(projected, rotation)
    row = torch.arange(len(projected))
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    age = row[:, None] - row
    seen = (age >= 0) & (age < window) & (sequence[:, None] == sequence)
    scores = torch.einsum("qhf,khf->hqk", query, key) * FEATURES**-0.5
    chances = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khf->qhf", chances, value)


@pytest.mark.parametrize("kept", [0, 1 << 22], ids=["scores anew", "scores kept"])
@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["small logits", "logits of thousands"])
@pytest.mark.parametrize("is_turned", [True, False], ids=["rotary", "plain"])
@pytest.mark.parametrize("window", [1, 3, 26, 40, 1000])
@pytest.mark.parametrize("lengths", [(5, 130, 1, 5, 67, 27, 26), (100, 100), (270, 44)], ids=str)
def test_attention_equals_a_whole_mask(
    lengths: tuple[int, ...],
    window: int,
    is_turned: bool,
    scale: float,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retold.policy.block_attention._KEPT_SCORES", kept)
    projected, angles = draw(lengths, scale)
    rotation = angles if is_turned else None
    expected = attend_by_a_whole_mask(projected, rotation, lengths, window)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).double()
    (wanted,) = torch.autograd.grad((expected * weight).sum(), projected)
    for plan in (
        plan_attention(lengths, window, rotation, CPU),
        plan_pieces(lengths, window, rotation, CPU),
    ):
        found = attend(projected, plan)
        torch.testing.assert_close(found, expected)
        (gradient,) = torch.autograd.grad((found * weight).sum(), projected)
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("window", [4, 1000])
def test_the_gradient_of_blocks_is_that_of_finite_differences(window: int) -> None:
    lengths = (3, 37)
    projected, rotation = draw(lengths)
    plan = plan_attention(lengths, window, rotation, CPU)
    assert torch.autograd.gradcheck(lambda x: attend(x, plan), projected, fast_mode=True)


def test_blocks_agree_with_torchs_own_attention_in_single_precision() -> None:
    lengths = (70, 129, 129)
    projected, rotation = draw(lengths)
    single = projected.detach().float().requires_grad_()
    angles = rotation[0].float(), rotation[1].float()
    found = []
    for plan in (plan_attention(lengths, 64, angles, CPU), plan_pieces(lengths, 64, angles, CPU)):
        attended = attend(single, plan)
        found.append((attended, *torch.autograd.grad(attended.square().sum(), single)))
    # Sums of 64 products of numbers about 1.
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_autocast", [True, False])
def test_blocks_add_up_in_single_precision_whatever_is_given(is_autocast: bool) -> None:
    projected, rotation = draw((40,))
    angles = rotation[0].float(), rotation[1].float()
    half = projected.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        attended = attend(half, plan_attention((40,), 8, angles, CPU))
    attended.float().sum().backward()
    assert attended.dtype == half.dtype and half.grad is not None
    expected = attend_by_a_whole_mask(half.double(), rotation, (40,), 8)
    torch.testing.assert_close(attended.double(), expected, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(attended, expected.to(half.dtype))


def reference_kernel(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, window: int
) -> Tensor:
    """What the kernels of a GPU compute, sequence by sequence."""
    bounds = starts.tolist()
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    assert max(lengths) == longest and starts.dtype == torch.int32
    projected = torch.stack([query, key, value], 1)
    parts = torch.split(projected, lengths)
    return torch.cat([attend_by_a_whole_mask(x, None, (len(x),), window) for x in parts])


@pytest.mark.parametrize("window", [3, 1000])
def test_kernels_of_a_gpu_are_asked_for_the_same_attention(window: int) -> None:
    lengths = (5, 20, 1, 12)
    projected, rotation = draw(lengths)
    plan = plan_varlen(lengths, window, rotation, CPU, reference_kernel)
    expected = attend_by_a_whole_mask(projected, rotation, lengths, window)
    torch.testing.assert_close(attend(projected, plan), expected)


def test_the_cpu_has_no_kernel_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    find_kernel.cache_clear()
    assert find_kernel() is None
    find_kernel.cache_clear()
