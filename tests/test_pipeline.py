"""The real commands, end to end on tiny tasks: files, exit statuses, and mistakes in one line."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retold.cli.__main__ import main
from retold.dataset.reader import DatasetReader

RunRetold = Callable[..., "subprocess.CompletedProcess[str]"]
Capture = pytest.CaptureFixture[str]

MAZE = ("--task-args", '{"size": 5, "goals": [1, 2], "limit": 20}')
SMALL_POLICY = (
    *("--model-width", "16", "--layers", "1", "--heads", "2", "--batch-size", "4"),
    *("--context-length", "20"),
)
LOOP = """
[task]
name = "maze"
args = { size = 5, goals = [1, 2], limit = 20 }

[collect]
episodes = 6

[relabel]
variants = 2
workers = 0

[train]
updates = 3
model_width = 16
layers = 1
heads = 2
batch_size = 4
context_length = 20

[evaluate]
episodes = 4

[loop]
iterations = 2
"""


@dataclass(frozen=True)
class Pipeline:
    """Where the commands have put their outputs."""

    root: Path
    raw: Path
    retold: Path
    run: Path
    score: dict[str, Any]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, run_retold: RunRetold) -> Pipeline:
    root = tmp_path_factory.mktemp("pipeline")
    raw, retold, run = root / "raw", root / "retold", root / "run"
    commands = (
        ("collect", "maze", raw, "--episodes", "12", *MAZE),
        ("relabel", raw, retold, "--variants", "2", "--workers", "1"),
        ("train", run, "--data", raw, "--data", retold, "--weight", "2", "--updates", "3")
        + SMALL_POLICY,
        ("evaluate", run, "--episodes", "4", "--json"),
    )
    outputs = [run_retold(*command) for command in commands]
    assert [output.returncode for output in outputs] == [0] * 4, outputs
    return Pipeline(root, raw, retold, run, json.loads(outputs[-1].stdout))


def run_here(capture: Capture, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command run in this process."""
    capture.readouterr()
    status = main([str(argument) for argument in arguments])
    output = capture.readouterr()
    return status, output.out, output.err


def test_commands_chain_on_a_maze(pipeline: Pipeline, capsys: Capture) -> None:
    assert pipeline.score["episodes"] == 4
    assert 0 <= pipeline.score["success"] <= 1
    assert (pipeline.run / "LATEST").read_text().strip() == "00000003"
    assert (pipeline.run / "policies" / "00000003" / "policy.safetensors").exists()
    assert len((pipeline.run / "metrics.jsonl").read_text().splitlines()) == 3
    stored = json.loads((pipeline.run / "config.json").read_text())
    assert stored["weight"] == [1.0, 2.0]
    status, out, err = run_here(capsys, "audit", pipeline.raw, "--replay", "all")
    assert (status, err) == (0, "")
    assert "clean (12 episodes, 12 of them replayed; 0 errors, 0 warnings)" in out
    assert run_here(capsys, "audit", pipeline.retold)[0] == 0


def test_info_counts_what_is_there(pipeline: Pipeline, capsys: Capture) -> None:
    status, out, _ = run_here(capsys, "info", pipeline.raw, "--json")
    summary = json.loads(out)
    assert (status, summary["episodes"], summary["variants"]) == (0, 12, 0)
    assert sum(field["bytes"] for field in summary["fields"]) == summary["bytes"]
    assert sum(summary["length"]["histogram"]["counts"]) == 12
    status, out, _ = run_here(capsys, "info", pipeline.retold, "--json")
    retold = json.loads(out)
    (source,) = retold["lineage"]
    assert (source["dataset_id"], source["path"]) == (summary["dataset_id"], str(pipeline.raw))
    assert source["operations"] == {"collect": len(summary["commits"])}
    counts = retold["variants_per_episode"]["histogram"]["counts"]
    assert sum(n * count for n, count in enumerate(counts)) == retold["variants"]
    assert {goal["goal"] for goal in summary["goals"]} <= {g["goal"] for g in retold["goals"]}
    status, out, _ = run_here(capsys, "info", pipeline.retold)
    assert (status, str(pipeline.raw) in out) == (0, True)


def test_collect_again_adds_only_what_is_missing(tmp_path: Path, capsys: Capture) -> None:
    dataset = tmp_path / "raw"
    command = ("collect", "maze", dataset, *MAZE, "--json")
    for arguments, recorded in (
        (("--episodes", "3"), 3),
        (("--episodes", "5"), 2),
        (("--episodes", "5"), 0),
        (("--first", "5", "--episodes", "2"), 2),
    ):
        status, out, _ = run_here(capsys, *command, *arguments)
        assert status == 0
        assert json.loads(out)["episodes"] == recorded
    with DatasetReader.open(dataset) as reader:
        assert sorted(reader.table["index"].to_pylist()) == list(range(7))


def test_relabel_again_retells_only_new_shards(
    pipeline: Pipeline, tmp_path: Path, capsys: Capture
) -> None:
    raw, retold = tmp_path / "raw", tmp_path / "retold"
    shutil.copytree(pipeline.raw, raw)
    command = ("relabel", raw, retold, "--workers", "0", "--json")
    first = json.loads(run_here(capsys, *command)[1])
    again = json.loads(run_here(capsys, *command)[1])
    assert (first["shards"], again["shards"], again["skipped"]) == (1, 0, 1)
    assert run_here(capsys, "collect", "maze", raw, "--episodes", "15", *MAZE)[0] == 0
    grown = json.loads(run_here(capsys, *command)[1])
    assert (grown["shards"], grown["skipped"], grown["episodes"]) == (1, 1, 3)


def test_a_policy_collects_and_is_recorded(
    pipeline: Pipeline, tmp_path: Path, capsys: Capture
) -> None:
    dataset = tmp_path / "raw"
    command = ("collect", "maze", dataset, "--policy", pipeline.run, "--episodes", "3", *MAZE)
    assert run_here(capsys, *command)[0] == 0
    with DatasetReader.open(dataset) as reader:
        assert [reader.record(row).policy_update for row in range(3)] == [3, 3, 3]


def test_loop_goes_round_and_on(tmp_path: Path, run_retold: RunRetold, capsys: Capture) -> None:
    config, run = tmp_path / "loop.toml", tmp_path / "run"
    config.write_text(LOOP)
    output = run_retold("loop", config, "--run", run)
    assert output.returncode == 0, output
    header, *table, gap, best = output.stdout.splitlines()
    assert header.startswith("iteration") and len(table) == 2 and not gap
    assert best.startswith("best")
    status, out, _ = run_here(
        capsys, "loop", config, "--run", run, "--resume", "--iterations", "3", "--json"
    )
    iterations = json.loads(out)["iterations"]
    assert status == 0
    assert [row["episodes"] for row in iterations] == [6, 12, 18]
    assert [row["updates"] for row in iterations] == [3, 6, 9]
    with DatasetReader.open(run / "raw") as reader:
        updates = [reader.record(row).policy_update for row in range(18)]
    assert updates == [None] * 6 + [3] * 6 + [6] * 6, "each iteration acts with the newest policy"
    for dataset in (run / "raw", run / "retold"):
        assert run_here(capsys, "audit", dataset)[0] == 0


def test_loop_without_goals_trains_on_raw_episodes(tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "loop.toml"
    config.write_text(
        LOOP.replace('"maze"', '"tmaze"')
        .replace("{ size = 5, goals = [1, 2], limit = 20 }", "{ corridor = 4 }")
        .replace("[relabel]\nvariants = 2\nworkers = 0", "")
    )
    status, out, _ = run_here(capsys, "loop", config, "--run", tmp_path / "run", "--json")
    assert status == 0
    assert [row["variants"] for row in json.loads(out)["iterations"]] == [0, 0]
    assert not (tmp_path / "run" / "retold").exists()


@pytest.mark.parametrize("observation", ["symbols", "pixels"])
def test_crafter_is_collected_and_replayed(
    observation: str, tmp_path: Path, capsys: Capture
) -> None:
    raw, retold = tmp_path / "raw", tmp_path / "retold"
    arguments = json.dumps({"observation": observation, "limit": 60})
    command = ("collect", "crafter", raw, "--episodes", "2", "--task-args", arguments)
    assert run_here(capsys, *command)[0] == 0
    assert run_here(capsys, "relabel", raw, retold, "--workers", "0")[0] == 0
    assert run_here(capsys, "audit", raw, "--replay", "1")[0] == 0
    assert run_here(capsys, "audit", retold)[0] == 0


def test_audit_names_the_shard_of_a_flipped_byte(
    pipeline: Pipeline, tmp_path: Path, capsys: Capture
) -> None:
    dataset = tmp_path / "raw"
    shutil.copytree(pipeline.raw, dataset)
    victim = next(path for path in sorted(dataset.rglob("c/0")) if "reward" in str(path))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    status, out, err = run_here(capsys, "audit", dataset)
    assert (status, err) == (1, "")
    assert str(victim) in out
    assert "damaged" in out.splitlines()[-1]


MISTAKES: dict[str, tuple[int, str]] = {
    "collect mazes {new}": (2, "Did you mean 'maze'?"),
    "collect maze {new} --task-args {{size:5}}": (2, "which is not JSON"),
    "collect maze {new} --task-args [5]": (2, "not a JSON object"),
    'collect maze {new} --task-args {{"size":4}}': (2, "'size' is 4"),
    'collect maze {new} --task-args {{"sise":5}}': (2, "Did you mean 'size'?"),
    "collect maze {new} --episodes 0": (2, "--episodes is 0"),
    "collect maze {new} --episodes many": (2, "--episodes is 'many', which is not an integer"),
    "collect maze {new} --epsilon 2": (2, "--epsilon is 2.0"),
    "collect maze": (2, "DATASET is missing"),
    "collect maze {new} --policy {nothing}": (1, "no policy registry"),
    "collect maze {raw}": (1, "the dataset holds maze"),
    "collect tmaze {new} --policy {run}": (2, "the policy was made for maze"),
    "collect maze {file}/raw": (1, "{file}/raw"),
    "collect maze {new} --config {nothing}": (2, "cannot be read"),
    "collect maze {new} --config {file}": (2, "is not TOML"),
    "relabel {nothing} {new}": (1, "there is no dataset here"),
    "relabel {raw} {raw}": (2, "the same dataset"),
    "relabel {tmaze} {new}": (1, "has no goals"),
    "relabel {retold} {new}": (1, "holds variants only"),
    "relabel {raw} {new} --strategy most": (2, "no strategy 'most'"),
    "relabel {raw} {new} --goal-reward within:1": (2, "achieved_goal"),
    "relabel {raw} {new} --filter lenght>3": (2, "length"),
    "explain {raw} nothing": (1, "no such live episode"),
    "explain {raw} 0 1": (2, ""),
    "coverage {raw} --figure figure.txt": (2, ".png"),
    "relabel {newer} {new}": (1, "format_version"),
    "relabel {broken} {new}": (1, "{broken}"),
    "train {new}": (2, "--data"),
    "train {new} --weight 2": (2, "--weight is given 1 times and --data 0 times"),
    "train {new} --data {nothing}": (1, "there is no dataset here"),
    "train {new} --data {raw} --data {tmaze}": (2, "whose spaces or goals differ"),
    "train {run} --data {raw}": (1, "the run exists already"),
    "train {new} --data {raw} --acting-discount 0.5": (2, "--acting-discount is 0.5"),
    "evaluate {nothing}": (1, "no policy registry"),
    "evaluate {run} tmaze": (2, "the policy was made for maze"),
    'evaluate {run} --task-args {{"size":7}}': (2, "the policy was made for maze"),
    "evaluate {raw}": (1, "no policy registry"),
    "evaluate random": (2, "Name a TASK"),
    "loop {nothing}": (2, "cannot be read"),
    "loop {file} --run {new}": (2, "is not TOML"),
    "loop {loop}": (2, "the run has no folder"),
    "loop {loop} --run {new} --iterations 0": (2, "--iterations is 0"),
    "loop {loop} --run {raw}": (1, "not a loop's run"),
    "info {nothing}": (1, "there is no dataset here"),
    "info {run}": (1, "there is no dataset here"),
    "info {file}": (1, "{file}"),
    "info {newer}": (1, "format_version"),
    "info {broken}": (1, "{broken}"),
    "audit {nothing}": (1, "there is no dataset here"),
    "audit {raw} --replay some": (2, "or all"),
    "audit {newer}": (1, "format_version"),
    "colect maze {new}": (2, "Did you mean 'collect'?"),
    "collect maze {new} --epsilom 1": (2, "Did you mean '--epsilon'?"),
    "collect maze {new} more": (2, "one argument too many"),
}


@pytest.fixture(scope="module")
def places(pipeline: Pipeline) -> dict[str, Path]:
    """Good and bad inputs by name."""
    root = pipeline.root
    (root / "file").write_text("this = is = no TOML\n")
    (root / "loop.toml").write_text(LOOP)
    assert main(["collect", "tmaze", str(root / "tmaze"), "--episodes", "2"]) == 0
    for name in ("newer", "broken"):
        shutil.copytree(pipeline.raw, root / name)
    identity = json.loads((pipeline.raw / "dataset.json").read_text())
    (root / "newer" / "dataset.json").write_text(json.dumps({**identity, "format_version": 9}))
    (root / "broken" / "commits" / "00000000.json").write_bytes(b'{"number": 0, ')
    return {
        "raw": pipeline.raw,
        "retold": pipeline.retold,
        "run": pipeline.run,
        "nothing": root / "nothing",
        "file": root / "file",
        "loop": root / "loop.toml",
        "tmaze": root / "tmaze",
        "newer": root / "newer",
        "broken": root / "broken",
    }


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(
    line: str, places: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    status, said = MISTAKES[line]
    places = {**places, "new": tmp_path / "new"}
    arguments = [part.format(**places) for part in line.split()]
    before = sorted(places["raw"].rglob("*"))
    seen = run_here(capsys, *arguments)
    assert seen[0] == status, seen
    assert seen[1] == ""
    assert seen[2].startswith("retold")
    assert seen[2].endswith("\n")
    assert seen[2].count("\n") == 1
    assert said.format(**places) in seen[2]
    assert sorted(places["raw"].rglob("*")) == before
    assert not (tmp_path / "new").exists()


def test_the_process_exits_with_the_status(tmp_path: Path, run_retold: RunRetold) -> None:
    output = run_retold("info", tmp_path / "nothing")
    assert (output.returncode, output.stdout) == (1, "")
    assert output.stderr.count("\n") == 1
    assert run_retold("info").returncode == 2


def test_a_loop_refuses_to_start_over_or_otherwise(tmp_path: Path, capsys: Capture) -> None:
    config, run = tmp_path / "loop.toml", tmp_path / "run"
    for text, said in (
        (LOOP.replace("variants", "variant"), "[relabel]: there is no key 'variant'. Did you mean"),
        (LOOP.replace("[train]", "[trian]"), "no section [trian]. Did you mean 'train'?"),
        (LOOP.replace("[task]", "[tasks]"), "no section [tasks]. Did you mean 'task'?"),
        (LOOP + "name = 3", "there is no key 'name'"),
        (LOOP.replace("episodes = 6", "seed = 6"), "'seed' is set by `seed` under [loop]"),
        (LOOP.replace("episodes = 6", "episodes = 0"), "--episodes is 0"),
        (LOOP.replace('"maze"', '"tmaze"').replace("size = 5,", ""), "Task tmaze has no argument"),
    ):
        config.write_text(text)
        status, _, err = run_here(capsys, "loop", config, "--run", run)
        assert (status, err.count("\n")) == (2, 1), err
        assert said in err
        assert not run.exists()
    config.write_text(LOOP)
    assert run_here(capsys, "loop", config, "--run", run, "--iterations", "1")[0] == 0
    status, _, err = run_here(capsys, "loop", config, "--run", run)
    assert status == 1
    assert "the run exists already" in err
    status, _, err = run_here(capsys, "loop", config, "--run", run, "--resume", "--seed", "7")
    assert status == 1
    assert "the run has seed = 0, but 7 is asked for" in err
