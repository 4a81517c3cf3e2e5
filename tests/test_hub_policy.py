"""Policies on the Hub: pushed as one commit with a model card, pulled bit by bit, never believed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RunRetold
from hub_policies import ELSEWHERE, NAME, evaluation_of, fetch, publish, share
from hub_state import TOKEN, Hub
from test_hub import collect_maze, get, send

from retold.cli.__main__ import main
from retold.cli.push_policy import PushPolicyConfig, push_policy
from retold.dataset.log import CommitLog
from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.snapshot import load_snapshot
from retold.schemas.canonical import encode_json
from retold.schemas.errors import ConflictError, DatasetError, PolicyError, UsageError
from retold.tasks.registry import task_schema


@pytest.fixture
def run(tmp_path: Path) -> Path:
    publish(tmp_path / "run")
    return tmp_path / "run"


def card_of(hub: Hub) -> tuple[dict[str, Any], str]:
    import yaml

    text = hub.repository(NAME).files["README.md"].content.decode()
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_what_is_pushed_is_pulled_bit_by_bit(hub: Hub, run: Path, tmp_path: Path) -> None:
    result = share(run, tag="v1")
    repository = hub.repository(NAME)
    assert len(repository.commits) == 2, "the one that made the repository, and the push"
    assert repository.head.oid == result.commit == repository.tags["v1"]
    assert repository.files["policy.safetensors"].is_lfs
    pulled = fetch(tmp_path / "copy", f"{NAME}@v1")
    newest = run / "policies" / "00000005"
    for name in ("policy.json", "policy.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (newest / name).read_bytes()
    assert pulled.policy_id == result.policy_id == load_snapshot(tmp_path / "copy")[1].policy_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "run"]
    assert fetch(tmp_path / "copy").new_bytes == 0, "the same policy is there"
    again = share(tmp_path / "copy")
    assert (again.files, again.unchanged) == (0, 4), "a copy says of itself what the run said"


def test_a_second_push_changes_what_is_new_and_nothing_twice(hub: Hub, run: Path) -> None:
    first = share(run, tag="v1")
    assert (share(run).files, share(run, tag="v1").files) == (0, 0)
    publish(run, update=9)
    planned = share(run, dry_run=True)
    assert planned.commit is None and hub.repository(NAME).head.oid == first.commit
    second = share(run, tag="v2")
    assert (planned.files, planned.bytes) == (second.files, second.bytes)
    assert {change.path for change in planned.changes} == {
        *("policy.json", "policy.safetensors", "README.md")
    }
    assert hub.repository(NAME).tags == {"v1": first.commit, "v2": second.commit}
    assert len(hub.repository(NAME).commits) == 3
    publish(run, update=12)
    with pytest.raises(DatasetError, match="'v1' names commit .* for good"):
        share(run, tag="v1")
    assert hub.repository(NAME).head.oid == second.commit


def test_the_card_tells_what_the_policy_is(hub: Hub, run: Path, tmp_path: Path) -> None:
    (run / "evaluation.json").write_bytes(
        evaluation_of(
            run / "policies" / "00000005",
            goals=[{"goal": "cell 1 1", "asked": 3, "completed": 2}],
            task_args={"size": 5},
        )
    )
    assert share(run).is_evaluated
    head, body = card_of(hub)
    assert (head["library_name"], head["pipeline_tag"]) == ("retold", "reinforcement-learning")
    assert {"maze", "retold", "reinforcement-learning"} <= set(head["tags"])
    (index,) = head["model-index"]
    scores = {metric["name"]: metric["value"] for metric in index["results"][0]["metrics"]}
    assert scores == {"mean return": 1.5, "success": 0.25}
    for words in ("| model_width | 16 |", "| learning_rate | 0.0005 |", "| 3 | 2 | cell 1 1 |"):
        assert words in body
    assert ELSEWHERE.dataset_id in body and "5 updates" in body
    from huggingface_hub import ModelCard

    (tmp_path / "README.md").write_bytes(hub.repository(NAME).files["README.md"].content)
    known = ModelCard.load(tmp_path / "README.md").data
    assert known.eval_results is not None and known.eval_results[0].metric_value == 1.5
    there = b"".join(blob.content for blob in hub.repository(NAME).files.values())
    assert b"/home/ann" not in there, "places of this machine stay here"


def test_the_five_lines_of_the_card_load_the_policy(hub: Hub, run: Path) -> None:
    share(run)
    code = card_of(hub)[1].partition("```python\n")[2].partition("```")[0]
    assert len(code.strip().splitlines()) == 5
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(agent.description.update)"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.split() == ["5"], done.stderr


def test_a_score_goes_when_another_policy_comes(hub: Hub, run: Path) -> None:
    path = run / "evaluation.json"
    path.write_bytes(evaluation_of(run / "policies" / "00000005"))
    share(run)
    newest = publish(run, update=9)
    result = share(run)
    assert not result.is_evaluated and result.removed == 1
    assert "model-index" not in card_of(hub)[0] and "## Evaluation" not in card_of(hub)[1]
    with pytest.raises(PolicyError, match="it tells of policy '[0-9a-f]{16}', but this is"):
        share(run, evaluation=path)
    for content in (b"[]", b"{", b'{"policy": "x"}', b'{"policy": "x", "mean_return": NaN}'):
        path.write_bytes(content)
        with pytest.raises(PolicyError, match=r"evaluation\.json: "):
            share(run, evaluation=path)
        assert not share(run).is_evaluated
    with pytest.raises(PolicyError, match="there is no such file"):
        share(run, evaluation=run / "nothing.json")
    path.write_bytes(evaluation_of(newest))
    assert share(run).is_evaluated


def test_what_the_loop_scored_is_found(hub: Hub, run: Path) -> None:
    loop = {"seed": 3, "evaluate": {"episodes": 20, "action": "sample"}}
    (run / "loop.json").write_bytes(encode_json(loop))
    rows = [{"updates": n, "evaluation_return": n / 2, "evaluation_success": None} for n in (2, 5)]
    (run / "iterations.jsonl").write_bytes(b"[]\n" + b"".join(map(encode_json, rows)) + b'{"upd')
    assert share(run).is_evaluated
    stored = json.loads(hub.repository(NAME).files["evaluation.json"].content)
    assert (stored["mean_return"], stored["episodes"], stored["seed"]) == (2.5, 20, 3)


def test_datasets_are_named_by_their_release(hub: Hub, tmp_path: Path) -> None:
    raw = collect_maze(tmp_path / "raw", episodes=2)
    send(raw, tag="v1")
    get(tmp_path / "copy", "me/maze@v1")
    seen = CommitLog.open(raw).snapshot(0)
    collect_maze(raw, first=2, episodes=1)
    send(raw, tag="v2")
    run = tmp_path / "run"
    for data in (str(tmp_path / "copy"), "hf://me/maze@v1", "hf://me/maze"):
        publish(run, snapshots=(seen,), data=(data,))
        assert share(run).datasets == ("hf://me/maze@v1",)
        head, body = card_of(hub)
        assert head["datasets"] == ["me/maze"] and f"| `v1` | `{seen.dataset_id}` | 0 |" in body
    publish(run, update=7, snapshots=(seen, ELSEWHERE), data=(str(raw), "/home/ann/other"))
    assert share(run).datasets == (seen.dataset_id, ELSEWHERE.dataset_id)
    named = share(run, trained_on=("me/maze",))
    assert named.datasets == ("hf://me/maze@v1", ELSEWHERE.dataset_id)
    later = CommitLog.open(raw).snapshot(1)
    with pytest.raises(DatasetError, match="was not trained on this dataset"):
        share(publish(run, update=9, snapshots=(later,)), trained_on=("me/maze@v1",))
    with pytest.raises(DatasetError, match="no such repository"):
        share(run, trained_on=("me/nothing",))
    with pytest.raises(UsageError, match="names a repository twice"):
        share(run, trained_on=("me/maze", "me/maze@v2"))


def test_a_dataset_that_was_pushed_as_a_copy_is_known_by_its_parent(
    hub: Hub, tmp_path: Path
) -> None:
    raw = collect_maze(tmp_path / "raw", episodes=2)
    send(raw, profile="small", tag="v1")
    publish(tmp_path / "run", snapshots=(CommitLog.open(raw).snapshot(0),))
    assert share(tmp_path / "run", trained_on=("me/maze",)).datasets == ("hf://me/maze@v1",)


def test_what_people_wrote_in_a_card_is_kept(hub: Hub, run: Path) -> None:
    repository = hub.make(NAME)
    repository.put("README.md", b"---\nlicense: cc0-1.0\ntags: [mine]\n---\n# Walker\n\nRead me.\n")
    repository.put("figure.svg", b"<svg/>")
    push_policy(PushPolicyConfig(policy=run, repository=NAME))
    publish(run, update=9)
    push_policy(PushPolicyConfig(policy=run, repository=NAME))
    head, body = card_of(hub)
    assert head["license"] == "cc0-1.0" and "mine" in head["tags"]
    assert "# Walker\n\nRead me." in body and body.count("## Training") == 1
    assert "9 updates" in body and "figure.svg" in repository.files
    with pytest.raises(UsageError, match="--license"):
        push_policy(PushPolicyConfig(policy=run, repository="me/other"))


def test_tokens_and_home_folders_are_not_pushed(hub: Hub, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    policy = run / "policies" / "00000005"
    path.write_bytes(evaluation_of(policy, task_args={"map": "/home/ann/secret-plans/map"}))
    with pytest.raises(DatasetError, match=r"names the folder /home/ann .*--allow-paths"):
        share(run, evaluation=path)
    assert NAME not in hub.repositories
    share(run, evaluation=path, allow_paths=True)
    path.write_bytes(evaluation_of(policy, task_args={"key": TOKEN}))
    for settings in ({}, {"allow_paths": True}):
        with pytest.raises(DatasetError, match="looks like a secret") as refused:
            share(run, evaluation=path, **settings)
        assert TOKEN not in str(refused.value)


def test_a_repository_of_something_else_is_left_alone(hub: Hub, run: Path, tmp_path: Path) -> None:
    repository = hub.make(NAME)
    repository.put("config.json", b'{"model_type": "bert"}')
    with pytest.raises(PolicyError, match="none of Retold's"):
        share(run)
    hub.repositories.clear()
    share(run)
    other = tmp_path / "other"
    publish(other, schema=task_schema("bandit", {}))
    with pytest.raises(
        PolicyError, match="holds a policy for 'maze', but this one is for 'bandit'"
    ):
        share(other)
    raw = collect_maze(tmp_path / "raw", episodes=2)
    send(raw)
    with pytest.raises(DatasetError, match="no such repository"):
        fetch(tmp_path / "x", "me/maze")
    with pytest.raises(UsageError, match="Random actions"):
        share(Path("random"))
    with pytest.raises(UsageError, match="goes to the main branch"):
        PushPolicyConfig(policy=run, repository=f"{NAME}@v1")


def test_a_push_that_loses_a_race_says_so_and_changes_nothing(hub: Hub, run: Path) -> None:
    share(run)
    publish(run, update=9)
    hub.take()
    share(run, dry_run=True)
    hub.fail("race", at=len(hub.take()) + 1)
    with pytest.raises(ConflictError, match="somebody else committed"):
        share(run)
    assert hub.repository(NAME).commits[-1].title == "put somebody-else.txt"
    hub.heal()
    share(run)
    assert "somebody-else.txt" in hub.repository(NAME).files


def test_the_commands_print_one_line_and_exit_1(
    hub: Hub,
    run: Path,
    tmp_path: Path,
    run_retold: RunRetold,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retold.cli.__main__._configure_logging", lambda: None)
    pushed = run_retold("push-policy", run, NAME, "--license", "mit", "--tag", "v1", "--json")
    assert pushed.returncode == 0, pushed.stderr
    assert json.loads(pushed.stdout)["tag"] == "v1"
    assert TOKEN not in pushed.stdout + pushed.stderr
    pulled = run_retold("pull-policy", f"{NAME}@v1", tmp_path / "copy")
    assert pulled.returncode == 0, pulled.stderr
    assert json.loads(pushed.stdout)["policy_id"] in pulled.stdout
    publish(run, update=9)
    hub.token = "hf_" + "n" * 34
    for arguments, status, what in (
        (("push-policy", run, NAME), 1, "hf auth login"),
        (("push-policy", tmp_path / "nothing", NAME), 1, "no policy registry"),
        (("push-policy", run, NAME, "--tag", "1"), 2, "Begin with a letter"),
        (("pull-policy", "me/nothing", tmp_path / "x"), 1, "no such repository"),
        (("pull-policy", f"{NAME}@v9", tmp_path / "x"), 1, "no such tag"),
        (("pull-policy", "me", tmp_path / "x"), 2, "OWNER/NAME"),
    ):
        assert main([*map(str, arguments)]) == status
        told = capsys.readouterr().err
        assert what in told and len(told.strip().splitlines()) == 1, told


def test_an_evaluation_says_how_it_was_made(run: Path) -> None:
    score = evaluate(EvaluateConfig(policy=run, episodes=1, seed=7, action="sample"))
    assert (score.action, score.seed, score.task_args["size"]) == ("sample", 7, 5)
