"""Learning on other devices than the CPU, and with fewer digits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from made_up_windows import make_config, make_schema, make_window

from retold.schemas.errors import UsageError
from retold.schemas.spaces import BoxSpace, DiscreteSpace, MultiDiscreteSpace, Space
from retold.train.batch import make_batch
from retold.train.command import train
from retold.train.device import autocast, choose_device, move
from retold.train.learner import Learner
from retold.train.packed_batch import PackedBatch, pack_batch
from retold.train.value_scale import ValueScale

ACTIONS: dict[str, Space] = {
    "choice": DiscreteSpace(3),
    "choices": MultiDiscreteSpace((2, 2)),
    "amounts": BoxSpace((2,), "float32", -1.0, 1.0),
}


def make_packed(action: Space) -> PackedBatch:
    schema = make_schema(action)
    windows = [make_window(5, 1, schema), make_window(9, 2, schema, start=3)]
    return pack_batch(make_batch(windows, most_goals=0, burn_in=1))


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("choice", {}),
        ("choice", {"critic": "two-hot", "value_bins": 9}),
        ("choice", {"attention_window": 4, "return_steps": 3}),
        ("choice", {"encoder": "memoryless", "cloning_filter": "exponential"}),
        ("choice", {"objective": "bc"}),
        ("choices", {}),
        ("amounts", {"popart": False}),
    ],
)
def test_all_of_an_update_follows_the_device(
    action: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Meta tensors have no numbers, but refuse to meet those of another device. What looks at numbers
    # to decide is left out: the statistics of targets.
    monkeypatch.setattr(ValueScale, "take", lambda *_: None)
    device = torch.device("meta")
    config = make_config(**fields)
    learner = Learner(config, make_schema(ACTIONS[action]), device)
    packed = move(make_packed(ACTIONS[action]), device)
    found = learner.objective.backward([packed], torch.tensor(8.0, device=device), 0)
    learner.objective.follow()
    gradients = [p.grad for p in learner.policy.parameters() if p.grad is not None]
    assert gradients
    assert {x.device.type for x in [*gradients, *found.values()]} == {"meta"}


def test_a_batch_that_stays_is_not_copied() -> None:
    packed = make_packed(ACTIONS["choice"])
    assert move(packed, torch.device("cpu")) is packed


def test_bfloat16_learns_nearly_the_same_and_keeps_weights_in_float32() -> None:
    schema = make_schema()
    batch = make_batch([make_window(40, 3, schema)], most_goals=0, burn_in=0)
    losses = {}
    for precision in ("float32", "bfloat16"):
        learner = Learner(make_config(precision=precision, device="cpu"), schema)
        losses[precision] = [learner.update(batch)["loss"] for _ in range(5)]
        assert {p.dtype for p in learner.policy.parameters()} == {torch.float32}
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["bfloat16"] != losses["float32"]


def test_auto_takes_float32_on_the_cpu() -> None:
    with autocast(torch.device("cpu"), "auto"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with autocast(torch.device("cpu"), "bfloat16"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_a_gpu_that_is_not_there_is_refused_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="torch finds no GPU"):
        train(make_config(run=tmp_path / "run", device="cuda"))
    assert not (tmp_path / "run").exists()
    assert choose_device("auto") == torch.device("cpu")


def test_processes_of_torchrun_take_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")
