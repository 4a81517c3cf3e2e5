"""`retold train --dry-run`: what it tells, what it refuses, and that it changes nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retold.cli.policy import PolicyConfig, show_policy
from retold.cli.printing import describe_result
from retold.collect.command import CollectConfig, collect
from retold.schemas.errors import RunError, UsageError
from retold.train.command import train
from retold.train.config import TrainConfig
from retold.train.plan import TrainPlan, plan_training, train_or_plan


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "raw"
    task_args = {"size": 7, "limit": 30}
    collect(CollectConfig(task="maze", task_args=task_args, dataset=path, episodes=12))
    return path


def small(run: Path, raw: Path, **fields: Any) -> TrainConfig:
    values = {
        "updates": 4,
        "batch_size": 4,
        "context_length": 16,
        "model_width": 16,
        "heads": 2,
        "layers": 1,
        "head_width": 16,
        "dry_run": True,
        **fields,
    }
    return TrainConfig(run=run, data=(raw,), **values)


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_dry_run_changes_nothing_and_is_what_training_then_does(
    raw: Path, tmp_path: Path
) -> None:
    before = content(raw)
    config = small(tmp_path / "run", raw)
    plan = plan_training(config)
    assert content(raw) == before and not (tmp_path / "run").exists()
    train(replace(config, dry_run=False))
    page = show_policy(PolicyConfig(action="show", policy=tmp_path / "run"))
    besides = plan.parameters["target_heads_besides"]
    assert {**page.parameters, "all": sum(page.parameters.values())} == {
        name: count for name, count in plan.parameters.items() if name != "target_heads_besides"
    }
    assert besides == page.parameters["heads"]
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert min(row["tokens"] for row in rows) * 0.5 < plan.tokens_per_update <= 64
    assert plan.windows_per_update == 4 and plan.updates_done == 0
    (data,) = plan.data
    assert (data["episodes"], data["share"], data["variants"]) == (12, 1.0, 0)
    resumed = plan_training(replace(config, resume=True, updates=6))
    assert (resumed.updates_done, resumed.updates) == (4, 6)


def test_a_dry_run_refuses_what_training_would(raw: Path, tmp_path: Path) -> None:
    config = small(tmp_path / "run", raw)
    train(replace(config, dry_run=False, updates=1))
    before = content(tmp_path / "run")
    with pytest.raises(RunError, match="--resume"):
        plan_training(config)
    with pytest.raises(RunError, match="batch_size"):
        plan_training(replace(config, resume=True, batch_size=5))
    with pytest.raises(UsageError, match="--data"):
        replace(config, data=())
    assert content(tmp_path / "run") == before


def test_the_memory_of_a_plan_grows_with_the_update_and_the_model(
    raw: Path, tmp_path: Path
) -> None:
    one = plan_training(small(tmp_path / "run", raw)).memory
    wide = plan_training(small(tmp_path / "run", raw, batch_size=12)).memory
    assert wide["activations_bytes"] == pytest.approx(3 * one["activations_bytes"], rel=0.2)
    assert wide["optimiser_bytes"] == one["optimiser_bytes"]
    large = plan_training(small(tmp_path / "run", raw, model_width=64)).memory
    assert large["optimiser_bytes"] > 4 * one["optimiser_bytes"]
    assert large["activations_bytes"] > 1.5 * one["activations_bytes"]
    # Batches of one update are in memory one after the other.
    many = plan_training(small(tmp_path / "run", raw, tokens_per_update=200))
    assert many.windows_per_update >= 12
    assert many.memory["activations_bytes"] < 1.5 * one["activations_bytes"]


def test_objectives_without_values_plan_for_none(raw: Path, tmp_path: Path) -> None:
    plan = train_or_plan(small(tmp_path / "run", raw, objective="dt"))
    assert isinstance(plan, TrainPlan)
    assert plan.objective == "dt" and "target_heads_besides" not in plan.parameters
    text = describe_result(plan)
    assert all(word in text for word in ("tokens per update", "activations bytes", "kB", "all"))


def test_the_command_prints_its_plan(
    raw: Path, tmp_path: Path, run_retold: Callable[..., Any]
) -> None:
    done = run_retold("train", tmp_path / "run", "--data", raw, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "parameters" in done.stdout and "memory" in done.stdout
    assert not (tmp_path / "run").exists()
