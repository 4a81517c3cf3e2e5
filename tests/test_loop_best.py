"""The best policy of a loop: named, kept with its checkpoint, and taken by its name."""

from pathlib import Path

import pytest

from retold.cli.loop import Iteration, best_iteration, read_iterations, run_loop
from retold.cli.loop_config import LoopConfig
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.registry import PolicyRegistry, resolve_policy
from retold.schemas.errors import PolicyError
from retold.train.checkpoint import list_checkpoints, write_checkpoint

LOOP = """
[task]
name = "tmaze"
args = { corridor = 2 }
[collect]
episodes = 8
[train]
updates = 3
keep_checkpoints = 1
batch_size = 4
model_width = 16
layers = 1
heads = 2
head_width = 16
warmup_updates = 1
learning_rate = 0.01
[evaluate]
episodes = 20
[loop]
iterations = 4
"""


def iteration(number: int, score: float | None) -> Iteration:
    return Iteration(
        iteration=number,
        episodes=1,
        steps=1,
        variants=0,
        updates=10 * (number + 1),
        evaluation_return=score,
        evaluation_success=None,
        bytes_per_variant=None,
    )


def test_the_best_iteration_is_the_first_of_the_highest_return() -> None:
    rows = [iteration(n, score) for n, score in enumerate((-3.0, -1.0, None, -1.0, -2.0))]
    assert best_iteration(rows) is rows[1]
    assert best_iteration(rows[:1]) is rows[0]
    assert best_iteration([iteration(0, None)]) is None


def test_the_best_checkpoint_stays_beside_the_newest(tmp_path: Path) -> None:
    for update in range(1, 7):
        write_checkpoint(tmp_path, update, {"update_count": update}, {}, keep=2)
        if update == 2:
            (tmp_path / "BEST").write_text("00000002\n")
    assert [int(path.name) for path in list_checkpoints(tmp_path)] == [2, 5, 6]
    (tmp_path / "BEST").write_text("00000006\n")
    write_checkpoint(tmp_path, 7, {"update_count": 7}, {}, keep=2)
    assert [int(path.name) for path in list_checkpoints(tmp_path)] == [6, 7]


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_loop_keeps_its_best_policy(ahead: int, tmp_path: Path) -> None:
    file, run = tmp_path / "loop.toml", tmp_path / "run"
    file.write_text(LOOP)
    result = run_loop(LoopConfig(config=file, run=run, iterations=3, ahead=ahead))
    result = run_loop(LoopConfig(config=file, run=run, ahead=ahead, resume=True))
    rows = read_iterations(run)
    best = max(rows, key=lambda row: row.evaluation_return or 0.0)
    assert result.best == best.updates and f"{run}/BEST" in result.describe()
    kept = {int(path.name) for path in list_checkpoints(run)}
    assert kept == {best.updates, rows[-1].updates}
    score = evaluate(EvaluateConfig(policy=run / "BEST", episodes=20))
    assert (score.update, score.mean_return) == (best.updates, best.evaluation_return)
    newest = resolve_policy(str(run / "LATEST")).newest()
    assert newest is not None and int(newest.name) == rows[-1].updates


def test_a_best_policy_that_is_gone_is_named(tmp_path: Path) -> None:
    PolicyRegistry.create(tmp_path)
    assert PolicyRegistry.open(tmp_path).best() is None
    (tmp_path / "BEST").write_text("00000009\n")
    with pytest.raises(PolicyError, match="BEST: it names policy '00000009'"):
        resolve_policy(str(tmp_path / "BEST"))
