"""Training: exact resume, refusals, and what a run leaves on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from retold.collect.command import CollectConfig, collect
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.registry import PolicyRegistry
from retold.policy.snapshot import load_snapshot
from retold.schemas.errors import DatasetError, RunError, UsageError
from retold.train.command import train
from retold.train.config import TrainConfig


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("train") / "raw"
    task_args = {"size": 7, "limit": 30}
    collect(CollectConfig(task="maze", task_args=task_args, dataset=path, episodes=12))
    return path


def make_config(run: Path, data: Path) -> TrainConfig:
    return TrainConfig(
        run=run,
        data=(data,),
        updates=20,
        batch_size=4,
        context_length=16,
        model_width=16,
        heads=2,
        layers=1,
        head_width=16,
        checkpoint_every=10,
        publish_every=10,
    )


def weights(run: Path) -> dict[str, torch.Tensor]:
    latest = PolicyRegistry.open(run).latest()
    assert latest is not None
    state: dict[str, torch.Tensor] = load_snapshot(latest)[0].state_dict()
    return state


def test_ten_and_ten_updates_equal_twenty(data: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path / "whole", data)
    train(config)
    train(replace(config, run=tmp_path / "parts", updates=10))
    train(replace(config, run=tmp_path / "parts", resume=True))
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    rows = [
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("whole", "parts")
    ]
    assert [row["update"] for row in rows[1]] == list(range(1, 21))
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]


def test_a_finished_run_trains_no_further(data: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path / "run", data)
    assert train(config).updates_now == 20
    assert train(replace(config, resume=True)).updates_now == 0


def test_an_existing_run_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    config = replace(make_config(tmp_path / "run", data), updates=1)
    train(config)
    with pytest.raises(RunError, match="--resume"):
        train(config)
    with pytest.raises(RunError, match="batch_size"):
        train(replace(config, resume=True, batch_size=5))


def test_a_damaged_checkpoint_is_named(data: Path, tmp_path: Path) -> None:
    config = replace(make_config(tmp_path / "run", data), updates=1)
    train(config)
    (file,) = (tmp_path / "run" / "checkpoints").glob("*/learner.pt")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(RunError, match=r"learner\.pt"):
        train(replace(config, resume=True, updates=2))


def test_missing_data_and_weights_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no dataset"):
        train(make_config(tmp_path / "run", tmp_path / "nothing"))
    with pytest.raises(UsageError, match="weights"):
        replace(make_config(tmp_path / "run", data), weight=(1.0, 2.0))


def test_a_new_policy_collects_and_is_recorded(data: Path, tmp_path: Path) -> None:
    from retold.dataset.reader import DatasetReader

    run, more = tmp_path / "run", tmp_path / "more"
    config = CollectConfig(
        task="maze",
        task_args={"size": 7, "limit": 30},
        dataset=more,
        policy=str(run),
        episodes=3,
    )
    PolicyRegistry.create(run)
    collect(config)
    train(replace(make_config(run, data), updates=2))
    collect(replace(config, first=3))
    with DatasetReader.open(more) as reader:
        records = [reader.record(row) for row in range(6)]
    assert [record.policy_update for record in records] == [None] * 3 + [2] * 3
    assert [record.policy for record in records[:3]] == ["random"] * 3


def test_evaluation_does_not_depend_on_how_many_episodes_fly(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(replace(make_config(run, data), updates=2))
    scores = [evaluate(EvaluateConfig(policy=run, episodes=6, environments=n)) for n in (1, 4)]
    assert scores[0] == scores[1]
