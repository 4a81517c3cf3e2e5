"""Pushes whose large files go through `hf_xet`, as they do where nobody switches it off."""

from pathlib import Path

import pytest
from hub_state import Hub, Seen
from test_hub import NAME, collect_maze, get, send, tree
from test_hub_faults import EVER, attempt

from retold.dataset import hub_client
from retold.dataset.audit import audit_structure
from retold.dataset.log import CommitLog


@pytest.fixture
def xet_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A Hub whose client sends large files through Xet, in a session that knows nothing yet."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _xet

    for name, value in {
        "HF_HUB_DISABLE_XET": "0",
        "HF_XET_CLIENT_RETRY_BASE_DELAY": "5ms",
        "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "2",
        "HF_XET_CLIENT_READ_TIMEOUT": "1s",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr(_xet, "_GLOBAL_XET_HOLDER", _xet.XetSessionHolder())
    monkeypatch.setattr(hub_client, "TIMEOUT_SECONDS", 0.5)
    return hub


def sent_through(seen: list[Seen], part: str) -> int:
    return sum(request.received for request in seen if part in request.path)


def test_a_push_through_xet_is_one_commit_and_sends_only_what_is_new(
    xet_hub: Hub, tmp_path: Path
) -> None:
    raw = collect_maze(tmp_path / "raw")
    first = send(raw)
    seen = xet_hub.take()
    assert sent_through(seen, "/xorbs/") > 0 and sent_through(seen, "/upload/") == 0
    repository = xet_hub.repository(NAME)
    assert len(repository.commits) == 2 and repository.head.oid == first.commit
    old = {path for path in repository.files if path.startswith("shards/")}
    collect_maze(raw, first=6, episodes=1)
    second = send(raw)
    seen = xet_hub.take()
    (new,) = CommitLog.open(raw).read(1).added
    added = {path for path in repository.files if path.startswith("shards/")} - old
    assert added and all(new.shard_id in path for path in added)
    large = sum(
        blob.size
        for path, blob in repository.files.items()
        if blob.is_lfs and (path in added or path.startswith("viewer/"))
    )
    assert sent_through(seen, "/xorbs/") < large + 2_000, "with the headers of its chunks"
    assert len(repository.commits) == 3 and repository.head.oid == second.commit
    assert send(raw).files == 0 and len(repository.commits) == 3
    assert sent_through(xet_hub.take(), "/xet/") == 0
    copy = tmp_path / "copy"
    get(copy)
    assert tree(copy) == tree(raw) and audit_structure(copy) == []


def test_an_interrupted_push_through_xet_does_not_send_twice(xet_hub: Hub, tmp_path: Path) -> None:
    raw = collect_maze(tmp_path / "raw", episodes=2)
    xet_hub.fail("500", count=EVER, part="/commit/")
    assert attempt(lambda: send(raw)) is not None
    assert sent_through(xet_hub.take(), "/xorbs/") > 0
    xet_hub.heal()
    send(raw)
    assert sent_through(xet_hub.take(), "/xorbs/") == 0
    assert len(xet_hub.repository(NAME).commits) == 2


def check_faults(hub: Hub, raw: Path, kind: str, numbers: list[int]) -> None:
    for number in numbers:
        for count in (1, EVER):
            if kind == "stall" and count == EVER:
                continue
            hub.repositories.clear()
            hub.fail(kind, at=number, count=count)
            error = attempt(lambda: send(raw))
            there = hub.repositories.get(NAME)
            files = {} if there is None else there.files
            assert ("dataset.json" in files) == ("README.md" in files), "half a push"
            if error is not None and kind == "401":
                assert "hf auth login" in str(error)
            hub.heal()
            send(raw)
            assert len(hub.repository(NAME).commits) == 2, (kind, number, count)


FAULTS = ("500", "cut", "lost", "401", "stall", "slow")


@pytest.mark.parametrize("kind", ("500", "401"))
def test_a_push_through_xet_survives_faults(xet_hub: Hub, tmp_path: Path, kind: str) -> None:
    raw = collect_maze(tmp_path / "raw", episodes=2)
    send(raw)
    paths = [request.path for request in xet_hub.take()]
    steps = [n for n, path in enumerate(paths) if "/xet-write-token/" in path or "/xorbs/" in path]
    check_faults(xet_hub, raw, kind, steps)


@pytest.mark.long
@pytest.mark.parametrize("kind", FAULTS)
def test_a_push_through_xet_survives_faults_at_every_request(
    xet_hub: Hub, tmp_path: Path, kind: str
) -> None:
    raw = collect_maze(tmp_path / "raw", episodes=2)
    send(raw)
    check_faults(xet_hub, raw, kind, list(range(len(xet_hub.take()) - 1)))


def test_a_hub_without_a_xet_store_is_told_of(
    xet_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    raw = collect_maze(tmp_path / "raw", episodes=1)
    xet_hub.has_xet = False
    error = attempt(lambda: send(raw))
    assert error is not None and "HF_HUB_DISABLE_XET=1" in str(error)
    assert "dataset.json" not in xet_hub.repository(NAME).files
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    send(raw)
    assert len(xet_hub.repository(NAME).commits) == 2
