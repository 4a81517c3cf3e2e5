"""Policies on a Hub that fails, and from strangers: what comes through is whole, or nothing."""

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_policies import NAME, fetch, publish, share
from hub_state import Hub
from huggingface_hub.utils import close_session
from test_hub import tree
from test_hub_faults import EVER, FAULTS, attempt, steps

from retold.dataset import hub_client
from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.errors import DatasetError, PolicyError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    publish(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that waits for a server that hangs for a moment only."""
    monkeypatch.setattr(hub_client, "TIMEOUT_SECONDS", 0.3)
    close_session()  # the one that other tests used waits as long as it was told to
    yield
    close_session()


def check_push(hub: Hub, run: Path, kind: str, most: int) -> None:
    for number in steps(hub, lambda: share(run, tag="v1"), most):
        for count in (1, EVER)[: 1 + (kind != "stall")]:
            hub.repositories.clear()
            hub.fail(kind, at=number, count=count)
            error = attempt(lambda: share(run, tag="v1"))
            there = hub.repositories.get(NAME)
            files = {} if there is None else there.files
            assert ("policy.json" in files) == ("README.md" in files), "half a push"
            assert kind not in ("500", "cut") or count == 1 or error is not None
            hub.heal()
            share(run, tag="v1")
            repository = hub.repository(NAME)
            assert len(repository.commits) == 2, (kind, number, count)
            assert repository.tags == {"v1": repository.head.oid}


def check_pull(hub: Hub, run: Path, kind: str, most: int) -> None:
    share(run)
    place = run.parent / "copies"
    place.mkdir()
    for number in steps(hub, lambda: fetch(place / "first"), most):
        for count in (1, EVER)[: 1 + (kind != "stall")]:
            copy = place / f"{number}-{count}"
            hub.fail(kind, at=number, count=count)
            error = attempt(lambda copy=copy: fetch(copy))  # type: ignore[misc]
            assert copy.exists() == (error is None), "a policy appears whole or not at all"
            hub.heal()
            fetch(copy)
            assert tree(copy) == tree(place / "first"), (kind, number, count)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", FAULTS)
def test_a_push_and_a_pull_survive_faults(hub: Hub, run: Path, kind: str) -> None:
    check_push(hub, run, kind, most=2)
    check_pull(hub, run, kind, most=2)


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", FAULTS)
def test_a_push_and_a_pull_survive_faults_at_every_request(hub: Hub, run: Path, kind: str) -> None:
    check_push(hub, run, kind, most=1000)
    check_pull(hub, run, kind, most=1000)


def forge(repository: Any, **changes: Any) -> None:
    """Let `policy.json` there say something else."""
    content = json.loads(repository.files["policy.json"].content)
    repository.put("policy.json", encode_json(content | changes))


def test_a_hostile_repository_harms_nothing(hub: Hub, run: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "harmed"), "w"))

    share(run)
    repository = hub.repository(NAME)
    good = repository.head
    weights = repository.files["policy.safetensors"].content
    evil = pickle.dumps(Harm()).ljust(len(weights), b".")
    sizes = dict(json.loads(repository.files["policy.json"].content)["architecture"])
    schema = json.loads(repository.files["policy.json"].content)["schema"]
    box = schema["observation_space"]
    attacks: dict[str, Callable[[], object]] = {
        "wrong bytes": lambda: repository.put("policy.safetensors", b"x" * len(weights)),
        "a wrong hash that is claimed": lambda: repository.put(
            "policy.safetensors",
            b"x" * len(weights),
            is_lfs=True,
            claimed_sha256=repository.files["policy.safetensors"].sha256,
        ),
        "a huge size": lambda: repository.put("policy.safetensors", weights, claimed_size=10**15),
        "a pickle in place of weights": lambda: (
            repository.put("policy.safetensors", evil),
            forge(repository, weights_sha256=sha256_hex(evil)),
        ),
        "a huge description": lambda: repository.put("policy.json", b"{}", claimed_size=10**12),
        "a deep description": lambda: repository.put("policy.json", b"[" * 100_000),
        "a description of nothing": lambda: repository.put("policy.json", b"{}"),
        "endless layers": lambda: forge(repository, architecture=sizes | {"layers": 10**9}),
        "layers that are no number": lambda: forge(
            repository, architecture=sizes | {"layers": "1"}
        ),
        "a vast width": lambda: forge(repository, architecture=sizes | {"model_width": 4_000_000}),
        "an unknown field": lambda: forge(repository, architecture=sizes | {"code": "evil()"}),
        "an encoder of somebody else's": lambda: forge(
            repository, architecture=sizes | {"encoder": "evil"}
        ),
        "no task": lambda: forge(repository, schema=schema | {"tasks": []}),
        "a vast observation": lambda: forge(
            repository, schema=schema | {"observation_space": box | {"shape": [10**12]}}
        ),
        "an observation of nothing": lambda: forge(
            repository, schema=schema | {"observation_space": box | {"dtype": "evil"}}
        ),
        "updates that are text": lambda: forge(repository, update="<b>5</b>"),
        "no architecture": lambda: forge(repository, architecture=[]),
        "endless discounts": lambda: forge(repository, discounts=[0.9] * 10_000),
        "a missing file": lambda: repository.commit({}, ["policy.safetensors"], "gone"),
    }
    for name, attack in attacks.items():
        attack()
        hub.take()
        error = attempt(lambda: fetch(tmp_path / "copy"))
        assert error is not None and not (tmp_path / "copy").exists(), name
        assert sum(seen.sent for seen in hub.take()) < 200_000, name
        repository.commit(dict(good.files), [], "mended")
    assert not (tmp_path / "harmed").exists()


def test_what_is_no_part_of_a_policy_is_not_even_fetched(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    share(run)
    repository = hub.repository(NAME)
    for path in ("setup.py", "policy.pkl", "../escaped", "/etc/passwd", "policies/../../escaped"):
        repository.put(path, b"evil")
    repository.put("evaluation.json", b"{}", claimed_size=10**12)
    card = b"---\nlicense: mit\n---\n<script>alert(1)</script>\n"
    repository.put("README.md", card)
    (tmp_path / "deep").mkdir()
    fetch(tmp_path / "deep" / "copy")
    assert sorted(path.name for path in (tmp_path / "deep" / "copy").iterdir()) == [
        *("README.md", "config.json", "policy.json", "policy.safetensors")
    ]
    assert not list(tmp_path.rglob("escaped"))
    assert (tmp_path / "deep" / "copy" / "README.md").read_bytes() == card


def test_what_stands_where_a_policy_should_go_is_left_alone(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    share(run)
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / ".copy.pull").symlink_to(outside)
    with pytest.raises(Exception, match="link to elsewhere"):
        fetch(tmp_path / "copy")
    (tmp_path / ".copy.pull").unlink()
    (tmp_path / "copy").symlink_to(outside / "nothing")
    with pytest.raises(DatasetError, match="exists already"):
        fetch(tmp_path / "copy")
    assert list(outside.iterdir()) == []
    with pytest.raises(DatasetError, match="exists already"):
        fetch(outside)
    fetch(tmp_path / "sound")
    (tmp_path / "sound" / "policy.safetensors").write_bytes(b"damaged")
    with pytest.raises(PolicyError, match="hash differs"):
        fetch(tmp_path / "sound")


def test_an_interrupted_pull_of_an_older_release_is_forgotten(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    share(run)
    last = steps(hub, lambda: fetch(tmp_path / "first"), 1)[-1]
    hub.fail("500", at=last, count=EVER)
    assert attempt(lambda: fetch(tmp_path / "copy")) is not None
    hub.heal()
    (tmp_path / ".copy.pull" / ".policy.safetensors.part").write_bytes(b"half of the old one")
    publish(run, update=9)
    share(run)
    assert fetch(tmp_path / "copy").update == 9
