"""Several processes, and several batches to an update, learn what one process learns from one."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retold.collect.command import CollectConfig, collect
from retold.policy.registry import PolicyRegistry
from retold.policy.snapshot import load_snapshot
from retold.schemas.errors import RunError, UsageError
from retold.train.checkpoint import list_checkpoints, read_checkpoint
from retold.train.command import train
from retold.train.config import TrainConfig
from retold.train.update_windows import windows_of_rank

FLAGS = [
    *("--model-width", "16", "--layers", "1", "--heads", "2", "--head-width", "16"),
    *("--batch-size", "5", "--context-length", "12", "--burn-in", "2", "--warmup-updates", "1"),
]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "raw"
    task_args = {"corridor": 3, "slack": 8}
    collect(CollectConfig(task="tmaze", task_args=task_args, dataset=path, episodes=40))
    return path


@pytest.fixture(scope="module")
def amounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "pendulum"
    collect(CollectConfig(task="gym/Pendulum-v1", dataset=path, episodes=2))
    return path


def small(run: Path, data: Path, updates: int, **fields: Any) -> TrainConfig:
    values = {
        "model_width": 16,
        "layers": 1,
        "heads": 2,
        "head_width": 16,
        "batch_size": 5,
        "context_length": 12,
        "burn_in": 2,
        "warmup_updates": 1,
        **fields,
    }
    return TrainConfig(run=run, data=(data,), updates=updates, **values)


def torchrun(
    run: Path, data: Path, updates: int, *flags: str
) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    program += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = ["-m", "retold.cli", "train", str(run), "--data", str(data), *FLAGS, *flags]
    return subprocess.run(
        [*program, *command, "--updates", str(updates)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def weights(run: Path) -> dict[str, torch.Tensor]:
    latest = PolicyRegistry.open(run).latest()
    assert latest is not None
    state: dict[str, torch.Tensor] = load_snapshot(latest)[0].state_dict()
    return state


def metric_rows(run: Path) -> list[dict[str, float]]:
    """Without the rate, and without attention's facts, which are of one window of a process."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if k != "updates_per_second" and "attention" not in k}
        for row in rows
    ]


def assert_alike(one: Path, other: Path, rel: float = 1e-3) -> None:
    for a, b in zip(metric_rows(one), metric_rows(other), strict=True):
        assert a == pytest.approx(b, rel=rel, abs=1e-4)
    # Adam's first steps are as long for a tiny gradient as for a large one.
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-2, atol=2e-4)


def test_two_processes_learn_what_one_learns(tmp_path: Path, raw: Path) -> None:
    train(small(tmp_path / "one", raw, 4))
    # Stopped after two updates, and gone on with: by both processes, from one checkpoint.
    assert torchrun(tmp_path / "two", raw, 2).returncode == 0
    done = torchrun(tmp_path / "two", raw, 4, "--resume")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("updates now") == 1
    assert_alike(tmp_path / "one", tmp_path / "two")
    assert not list(raw.glob("pins/*"))


def test_two_processes_draw_the_actions_that_one_draws(tmp_path: Path, amounts: Path) -> None:
    train(small(tmp_path / "one", amounts, 2))
    done = torchrun(tmp_path / "two", amounts, 2)
    assert done.returncode == 0, done.stderr
    assert_alike(tmp_path / "one", tmp_path / "two")


def test_a_mistake_is_said_once(tmp_path: Path, raw: Path) -> None:
    done = torchrun(tmp_path / "run", tmp_path / "nothing", 2)
    assert done.returncode != 0
    assert done.stderr.count("there is no dataset") == 1
    assert not (tmp_path / "run").exists()


def test_a_budget_of_tokens_adds_batches_up(tmp_path: Path, raw: Path) -> None:
    budget = {"tokens_per_update": 150}
    train(small(tmp_path / "parts", raw, 4, batch_size=4, **budget))
    rows = metric_rows(tmp_path / "parts")
    # Windows have at most 12 transitions, and the last one taken reaches the budget.
    assert all(150 <= row["tokens"] < 150 + 12 for row in rows)
    config = small(tmp_path / "resumed", raw, 2, batch_size=4, **budget)
    train(config)
    train(dataclasses.replace(config, updates=4, resume=True))
    assert metric_rows(tmp_path / "resumed") == rows
    one, other = weights(tmp_path / "parts"), weights(tmp_path / "resumed")
    assert all(torch.equal(one[name], other[name]) for name in one)
    facts = read_checkpoint(list_checkpoints(tmp_path / "parts")[-1])[1]
    assert facts["next_draw"] > 4


def test_windows_of_old_policies_are_skipped_or_rarer_and_counted(
    tmp_path: Path, raw: Path
) -> None:
    run, newer = tmp_path / "run", tmp_path / "newer"
    train(small(run, raw, 3))
    task_args = {"corridor": 3, "slack": 8}
    collect(
        CollectConfig(
            task="tmaze", task_args=task_args, dataset=newer, policy=str(run), episodes=10
        )
    )
    config = dataclasses.replace(
        small(tmp_path / "bound", raw, 8), data=(raw, newer), weight=(1.0, 1.0), max_policy_lag=2
    )
    train(config)
    rows = metric_rows(tmp_path / "bound")
    # Policy 3 is older than two updates once five were made; random actions have no age.
    assert all(row["old_windows"] == 0 for row in rows[:6])
    assert all(row["old_windows"] > 0 for row in rows[6:])
    assert all("policy_lag" not in row for row in rows[6:])
    rarer = dataclasses.replace(config, run=tmp_path / "rarer", old_windows="down-weight")
    train(rarer)
    counted = sum(row["old_windows"] for row in metric_rows(tmp_path / "rarer"))
    assert 0 < counted < sum(row["old_windows"] for row in rows)
    alone = small(tmp_path / "alone", newer, 8, max_policy_lag=2)
    with pytest.raises(RunError, match=r"update 7: no window is younger than --max-policy-lag 2"):
        train(alone)


def test_windows_are_dealt_out_so_that_processes_have_as_many_steps() -> None:
    lengths = np.array([3, 50, 20, 21, 4, 49, 1])
    shares = [windows_of_rank(lengths, rank, 3) for rank in range(3)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(7))
    assert max(len(share) for share in shares) - min(len(share) for share in shares) <= 1
    assert max(lengths[share].sum() for share in shares) == 54


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens_per_update": 0}, "--tokens-per-update is 0"),
        ({"max_policy_lag": -1}, "--max-policy-lag is -1"),
        ({"keep_checkpoints": 0}, "--keep-checkpoints is 0"),
    ],
)
def test_values_out_of_range_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        small(Path("run"), Path("raw"), 1, **change)


def test_as_many_checkpoints_stay_as_are_wanted(tmp_path: Path, raw: Path) -> None:
    train(small(tmp_path / "run", raw, 4, checkpoint_every=1, keep_checkpoints=3))
    names = [path.name for path in list_checkpoints(tmp_path / "run")]
    assert names == ["00000002", "00000003", "00000004"]


def test_a_run_of_the_first_policy_version_says_what_it_was(tmp_path: Path, raw: Path) -> None:
    config = small(tmp_path / "run", raw, 1)
    train(config)
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    del stored["encoder"]
    path.write_text(json.dumps(stored))
    with pytest.raises(RunError, match=r"made before policy_version 2, by a plain Transformer"):
        train(dataclasses.replace(config, updates=2, resume=True))
