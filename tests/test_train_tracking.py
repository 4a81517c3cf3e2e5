"""Trackers: sent what `metrics.jsonl` holds, gone on with after a resume, and never in learning's way."""

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from retold.collect.command import CollectConfig, collect
from retold.schemas.errors import RunError, UsageError
from retold.train.command import train
from retold.train.config import TrainConfig

STAND_IN = """
import json

RUNS = []

class Run:
    def __init__(self, given):
        self.given, self.rows, self.is_finished = given, [], False
        RUNS.append(self)

    def log(self, metrics, step):
        if {fails!r} == "log" and step > 2:
            raise OSError("the line is cut")
        self.rows.append((step, metrics))

    def finish(self):
        self.is_finished = True
        print("finished")

def init(**given):
    if {fails!r} == "init":
        raise ValueError("no key is configured.")
    json.dumps(given)
    return Run(given)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("tracking")
    collect(CollectConfig(task="bandit", dataset=folder / "raw", episodes=4))
    return TrainConfig(
        run=folder / "run",
        data=(folder / "raw",),
        updates=4,
        batch_size=2,
        context_length=8,
        model_width=16,
        heads=2,
        layers=1,
        head_width=16,
    )


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tracker: str, *, fails: str = ""
) -> None:
    """Put a stand-in where Python finds it; `fails` is the call that raises."""
    (folder / f"{tracker}.py").write_text(STAND_IN.replace("{fails!r}", repr(fails)))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, tracker, raising=False)


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_tracker_gets_every_update_and_goes_on_after_a_resume(
    tracker: str,
    config: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(monkeypatch, tmp_path, tracker)
    asked = replace(config, run=tmp_path / "run", track=tracker, track_project="corridors")
    train(replace(asked, updates=2))
    train(replace(asked, resume=True))
    first, second = sys.modules[tracker].RUNS
    told = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in first.rows + second.rows] == [1, 2, 3, 4]
    assert [row["loss"] for _, row in first.rows + second.rows] == [row["loss"] for row in told]
    assert first.is_finished and second.is_finished
    assert "finished" not in capsys.readouterr().out
    assert first.given["project"] == "corridors" and first.given["resume"] == "allow"
    assert first.given["config"]["batch_size"] == 2
    name = "id" if tracker == "wandb" else "name"
    assert first.given[name] == second.given[name]
    sys.modules.pop(tracker)


def test_two_runs_of_one_name_are_two_runs_of_the_tracker(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "trackio")
    for folder in ("a", "b"):
        train(replace(config, run=tmp_path / folder / "run", track="trackio", updates=1))
    first, second = sys.modules["trackio"].RUNS
    assert first.given["name"] != second.given["name"]
    sys.modules.pop("trackio")


def test_a_tracker_that_fails_midway_is_left_alone_while_learning_goes_on(
    config: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(monkeypatch, tmp_path, "wandb", fails="log")
    with caplog.at_level(logging.WARNING):
        result = train(replace(config, run=tmp_path / "run", track="wandb"))
    assert result.updates == 4
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 4
    (warning,) = (record.message for record in caplog.records if "wandb" in record.message)
    assert "the line is cut" in warning
    sys.modules.pop("wandb")


def test_a_tracker_that_does_not_start_is_named(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "wandb", fails="init")
    with pytest.raises(RunError, match=r"wandb cannot be started: no key is configured\."):
        train(replace(config, run=tmp_path / "run", track="wandb"))
    sys.modules.pop("wandb")


def test_a_tracker_that_is_not_installed_is_refused_before_a_run_is_made(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # what the tracker itself leaves in a working folder
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(UsageError, match=r"pip install 'retold\[wandb\]'"):
        train(replace(config, run=tmp_path / "run", track="wandb"))
    assert not (tmp_path / "run").exists()
