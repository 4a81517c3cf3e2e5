"""Runs: resumed exactly, refused when something differs, followed, stopped, and able to learn."""

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from race import TINY, make_tiny_episode

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.dataset.paths import dataset_path
from retold.dataset.shard_writer import write_raw_shard
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.registry import PolicyRegistry
from retold.policy.snapshot import load_snapshot, read_description
from retold.schemas.dataset_schema import IMPORTED
from retold.schemas.episode import Episode
from retold.schemas.errors import DatasetError, RunError, UsageError
from retold.schemas.spaces import BoxSpace
from retold.train.checkpoint import list_checkpoints, read_checkpoint
from retold.train.command import train
from retold.train.config import TrainConfig

SHORT_MAZE = {"corridor": 2, "slack": 5}


def add_episodes(dataset: Path, count: int, first: int = 0) -> None:
    collect(
        CollectConfig(
            task="tmaze", task_args=SHORT_MAZE, dataset=dataset, episodes=count, first=first
        )
    )


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    add_episodes(tmp_path / "raw", 30)
    return tmp_path / "raw"


def small(run: Path, raw: Path, updates: int, **fields: Any) -> TrainConfig:
    values = {
        "model_width": 16,
        "layers": 1,
        "heads": 2,
        "head_width": 16,
        "batch_size": 4,
        "context_length": 6,
        "burn_in": 2,
        **fields,
    }
    return TrainConfig(run=run, data=(raw,), updates=updates, **values)


def assert_equal_state(one: Any, other: Any, where: str = "state") -> None:
    """Bit for bit, through dictionaries and lists."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal_state(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal_state(a, b, f"{where}/{number}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def newest_state(run: Path) -> dict[str, Any]:
    return read_checkpoint(list_checkpoints(run)[-1])[0]


def weights(run: Path) -> bytes:
    name = (run / "LATEST").read_text().strip()
    return (run / "policies" / name / "policy.safetensors").read_bytes()


def metric_rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_rate(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "updates_per_second"} for row in rows]


def test_ten_updates_and_ten_more_are_twenty(tmp_path: Path, raw: Path) -> None:
    train(small(tmp_path / "whole", raw, 20))
    assert train(small(tmp_path / "parts", raw, 10)).updates_now == 10
    result = train(small(tmp_path / "parts", raw, 20, resume=True))
    assert (result.updates, result.updates_now) == (20, 10)
    assert_equal_state(newest_state(tmp_path / "whole"), newest_state(tmp_path / "parts"))
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    rows = [without_rate(metric_rows(tmp_path / name)) for name in ("whole", "parts")]
    assert rows[0] == rows[1]
    assert [row["update"] for row in rows[0]] == list(range(1, 21))


def test_a_killed_run_ends_like_one_that_was_not(
    tmp_path: Path, raw: Path, run_retold: Callable[..., Any]
) -> None:
    flags = [
        *("--data", raw, "--updates", 10, "--checkpoint-every", 4, "--publish-every", 4),
        *("--model-width", 16, "--layers", 1, "--heads", 2, "--head-width", 16),
        *("--batch-size", 4, "--context-length", 6, "--burn-in", 2),
    ]
    run = tmp_path / "killed"
    # The second checkpoint, of update 8, is cut short: updates 5 to 8 are done again.
    killed = run_retold("train", run, *flags, kill_at="checkpoint-inside:2")
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in list_checkpoints(run)] == ["00000004"]
    # What was committed meanwhile is not drawn from before the run's updates are done.
    add_episodes(raw, 20, first=30)
    train(small(run, raw, 10, checkpoint_every=4, publish_every=4, resume=True))
    raw_before = tmp_path / "raw-before"
    add_episodes(raw_before, 30)
    train(small(tmp_path / "whole", raw_before, 10, checkpoint_every=4, publish_every=4))
    assert_equal_state(newest_state(tmp_path / "whole"), newest_state(run))
    assert [row["update"] for row in metric_rows(run)] == list(range(1, 11))


def test_a_longer_run_draws_from_what_was_committed_since(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "run"
    train(small(run, raw, 2))
    add_episodes(raw, 5, first=30)
    train(small(run, raw, 4, resume=True))
    head = CommitLog.open(raw).head()
    assert head is not None and head.number == 1
    assert read_checkpoint(list_checkpoints(run)[-1])[1]["snapshots"][str(raw)]["number"] == 1
    policy = run / "policies" / (run / "LATEST").read_text().strip()
    assert load_snapshot(policy)[1].snapshots == (head,)


def test_a_finished_run_returns_at_once(tmp_path: Path, raw: Path) -> None:
    train(small(tmp_path / "run", raw, 3))
    before = weights(tmp_path / "run")
    result = train(small(tmp_path / "run", raw, 2, resume=True))
    assert (result.updates, result.updates_now, result.loss) == (3, 0, None)
    assert weights(tmp_path / "run") == before


def test_policies_are_published_on_the_way_and_at_the_end(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "run"
    result = train(small(run, raw, 7, publish_every=3))
    names = sorted(path.name for path in (run / "policies").iterdir())
    assert names == ["00000003", "00000006", "00000007"]
    assert result.policy == str(run / "policies" / "00000007")
    assert load_snapshot(run / "policies" / "00000003")[1].update == 3


def test_a_run_is_never_started_over(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "run"
    train(small(run, raw, 2))
    before = sorted(path.read_bytes() for path in run.rglob("*") if path.is_file())
    with pytest.raises(RunError, match=r"exists already\. Give --resume"):
        train(small(run, raw, 4))
    assert sorted(path.read_bytes() for path in run.rglob("*") if path.is_file()) == before


def test_a_resumed_run_says_what_differs(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "run"
    train(small(run, raw, 2))
    with pytest.raises(RunError, match=r"the run has batch_size = 4, but 8 is asked for"):
        train(small(run, raw, 4, resume=True, batch_size=8))


def test_nothing_is_made_when_there_is_no_data(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(DatasetError, match="nothing-here: there is no dataset"):
        train(small(run, tmp_path / "nothing-here", 2))
    assert not run.exists()


def test_datasets_that_do_not_mix_are_refused(tmp_path: Path, raw: Path) -> None:
    maze = tmp_path / "maze"
    collect(CollectConfig(task="maze", dataset=maze, episodes=2, task_args={"size": 5, "limit": 9}))
    config = dataclasses.replace(small(tmp_path / "run", raw, 2), data=(raw, maze))
    with pytest.raises(UsageError, match=r"it holds maze, whose spaces or goals differ"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_goes_on(
    tmp_path: Path, raw: Path
) -> None:
    run = tmp_path / "run"
    train(small(run, raw, 4, checkpoint_every=2))
    path = list_checkpoints(run)[-1] / "learner.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"00000004/learner\.pt: it was changed"):
        train(small(run, raw, 6, resume=True))
    path.unlink()
    (path.parent / "checkpoint.json").unlink()
    path.parent.rmdir()
    assert train(small(run, raw, 6, resume=True)).updates_now == 4


def test_values_that_are_not_finite_stop_learning_and_are_named(tmp_path: Path) -> None:
    """What was imported may hold them; what is collected is refused before it is written."""
    task = dataclasses.replace(TINY.tasks[0], code_version=IMPORTED)
    space = BoxSpace((2,), "float32", -np.inf, np.inf)
    schema = dataclasses.replace(TINY, tasks=(task,), observation_space=space)

    def make_episode(number: int, value: float) -> Episode:
        episode = make_tiny_episode(number)
        rows = np.full((episode.length + 1, 2), value, np.float32)
        return dataclasses.replace(episode, observation={"observation": rows})

    raw, run = tmp_path / "raw", tmp_path / "run"
    episodes = [make_episode(0, np.nan), *(make_episode(n, n) for n in range(1, 40))]
    log = CommitLog.create(raw)
    log.append(operation="import", added=[write_raw_shard(raw, episodes, schema)])
    with pytest.raises(RunError, match="no step was taken") as error:
        train(small(run, raw, 400, publish_every=1))
    bad = f"{episodes[0].record.episode_id} of {raw} (observation)"
    assert f"stored in {bad}. Leave" in str(error.value)
    newest = PolicyRegistry.open(run).latest()
    assert newest is not None
    policy, _ = load_snapshot(newest)
    assert all(bool(weight.isfinite().all()) for weight in policy.parameters())


def test_a_rate_that_is_too_high_names_the_batch(tmp_path: Path, raw: Path) -> None:
    settings = {"learning_rate": 1e30, "warmup_updates": 1, "normformer": False}
    with pytest.raises(RunError, match="a --learning-rate below 1e") as error:
        train(small(tmp_path / "run", raw, 50, **settings))
    assert f" of {raw}" in str(error.value)


def test_sources_are_left_as_they_were(tmp_path: Path, raw: Path) -> None:
    before = {path: path.read_bytes() for path in raw.rglob("*") if path.is_file()}
    train(small(tmp_path / "run", raw, 2))
    assert {path: path.read_bytes() for path in raw.rglob("*") if path.is_file()} == before


@contextmanager
def when(condition: Callable[[], bool], action: Callable[[], None]) -> Iterator[None]:
    """Runs the action once, from another thread, as soon as the condition holds."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if condition():
                action()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_terminated_run_keeps_its_last_update(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "run"
    config = small(run, raw, 1_000_000, checkpoint_every=5)
    with (
        when(lambda: bool(list_checkpoints(run)), terminate),
        pytest.raises(RunError, match=r"stopped by SIGTERM after update \d+, which is kept"),
    ):
        train(config)
    kept = newest_state(run)["update_count"]
    assert kept >= 5
    assert metric_rows(run)[-1]["update"] == kept
    assert train(small(run, raw, kept + 1, checkpoint_every=5, resume=True)).updates_now == 1


def test_a_follower_waits_for_the_first_episodes(tmp_path: Path) -> None:
    run, raw = tmp_path / "run", tmp_path / "raw"
    # A dataset with a commit but no episode is not enough either.
    CommitLog.create(raw).append(operation="gc")
    with when((run / "config.json").exists, lambda: add_episodes(raw, 8)):
        result = train(small(run, raw, 2, follow=True))
    assert result.updates == 2


@pytest.mark.parametrize("place", ["hf://me/maze", "hf://me/maze@v1"])
def test_a_follower_does_not_wait_for_the_hub_to_grow(place: str, tmp_path: Path) -> None:
    config = dataclasses.replace(
        small(tmp_path / "run", tmp_path, 2, follow=True), data=(dataset_path(place),)
    )
    with pytest.raises(UsageError, match="retold pull"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_a_follower_does_not_wait_for_a_snapshot_to_grow(tmp_path: Path, raw: Path) -> None:
    with pytest.raises(UsageError, match="never grows"):
        train(small(tmp_path / "run", raw.with_name(f"{raw.name}@0"), 2, follow=True))
    assert not (tmp_path / "run").exists()


def test_a_follower_that_waits_can_be_stopped(tmp_path: Path) -> None:
    run, raw = tmp_path / "run", tmp_path / "raw"
    with (
        when((run / "registry_id").exists, terminate),
        pytest.raises(RunError, match=r"stopped by SIGTERM before the first update"),
    ):
        train(small(run, raw, 2, follow=True))
    add_episodes(raw, 8)
    assert train(small(run, raw, 2, resume=True)).updates == 2


def test_a_follower_draws_from_new_commits_after_publishing(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "run"

    def drawn_from() -> list[int]:
        policies = sorted(path for path in (run / "policies").glob("*") if path.name.isdigit())
        return [read_description(path).snapshots[0].number for path in policies]

    with (
        when((run / "LATEST").exists, lambda: add_episodes(raw, 5, first=30)),
        when(lambda: 1 in drawn_from(), terminate),
        pytest.raises(RunError, match="stopped by SIGTERM"),
    ):
        train(small(run, raw, 1_000_000, follow=True, publish_every=5))
    numbers = drawn_from()
    assert numbers == sorted(numbers)
    assert numbers[0] == 0


def test_lag_counts_the_updates_since_the_policy_of_an_episode(tmp_path: Path, raw: Path) -> None:
    run, newer = tmp_path / "run", tmp_path / "newer"
    train(small(run, raw, 3))
    assert "policy_lag" not in metric_rows(run)[0]  # random actions have no version
    collect(
        CollectConfig(
            task="tmaze", task_args=SHORT_MAZE, dataset=newer, policy=str(run), episodes=10
        )
    )
    train(small(run, newer, 6, resume=True))
    # The next update is the first that could use the episodes.
    assert [row["policy_lag"] for row in metric_rows(run)[3:]] == [0, 1, 2]


def test_metrics_name_the_return_of_what_was_drawn(tmp_path: Path, raw: Path) -> None:
    train(small(tmp_path / "run", raw, 3))
    for row in metric_rows(tmp_path / "run"):
        assert 0 <= row["episode_return"] <= 1


def test_random_episodes_are_enough_to_learn_what_to_remember(tmp_path: Path) -> None:
    raw, run = tmp_path / "raw", tmp_path / "run"
    add_episodes(raw, 200)
    # Seeds 0 to 5 all succeed from update 100 on; random actions succeed in about 15 %.
    train(
        TrainConfig(
            run=run,
            data=(raw,),
            updates=150,
            context_length=16,
            model_width=32,
            layers=1,
            batch_size=32,
            learning_rate=1e-3,
            warmup_updates=20,
            discounts=(0.9,),
            acting_discount=0.9,
        )
    )
    score = evaluate(EvaluateConfig(policy=run, episodes=20))
    assert score.success == 1.0
