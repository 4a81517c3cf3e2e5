"""Faults at each step of a push and a pull: one line, nothing half done, and a rerun that completes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hub_state import Hub
from test_hub import NAME, collect_maze, get, send, tree

from retold.dataset import hub_client, hub_pull
from retold.schemas.errors import RetoldError

EVER = 10**6
FAULTS = ("500", "cut", "lost", "401", "stall", "slow")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return collect_maze(tmp_path / "raw", episodes=2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(hub_pull, "_AT_ONCE", 1)


def attempt(act: Callable[[], object]) -> RetoldError | None:
    try:
        act()
    except RetoldError as error:
        assert error.exit_status == 1 and "\n" not in str(error), error
        return error
    return None


def steps(hub: Hub, act: Callable[[], object], most: int) -> list[int]:
    """Numbers of the requests of something that works, spread over all of them.

    Equal files are sent side by side, so that the number varies by a few: the last are left out.
    """
    hub.take()
    act()
    count = len(hub.take()) - 3
    return sorted({place * (count - 1) // most for place in range(most + 1)})


def check_push(hub: Hub, raw: Path, kind: str, most: int) -> None:
    numbers = steps(hub, lambda: send(raw, tag="v1"), most)
    for number in numbers:
        for count in (1, EVER):
            if kind == "stall" and count == EVER:
                continue  # each request would wait for its time to run out
            hub.repositories.clear()
            hub.fail(kind, at=number, count=count)
            error = attempt(lambda: send(raw, tag="v1"))
            if error is not None:
                there = hub.repositories.get(NAME)
                files = {} if there is None else there.files
                assert ("dataset.json" in files) == ("README.md" in files), "half a push"
            if count == EVER and kind in ("500", "cut"):
                assert error is not None
            hub.heal()
            send(raw, tag="v1")
            repository = hub.repository(NAME)
            assert len(repository.commits) == 2, (kind, number, count)
            assert repository.tags == {"v1": repository.head.oid}


def check_pull(hub: Hub, raw: Path, kind: str, most: int) -> None:
    send(raw)
    place = raw.parent / "copies"
    place.mkdir()
    numbers = steps(hub, lambda: get(place / "first"), most)
    for number in numbers:
        for count in (1, EVER):
            if kind == "stall" and count == EVER:
                continue
            copy = place / f"{number}-{count}"
            hub.fail(kind, at=number, count=count)
            error = attempt(lambda copy=copy: get(copy))  # type: ignore[misc]
            assert copy.exists() == (error is None), "a copy appears whole or not at all"
            if count == EVER and kind in ("500", "cut"):
                assert error is not None
            hub.heal()
            get(copy)
            assert tree(copy) == tree(raw), (kind, number, count)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_push_survives_faults(hub: Hub, raw: Path, kind: str) -> None:
    check_push(hub, raw, kind, most=3)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_pull_survives_faults(hub: Hub, raw: Path, kind: str) -> None:
    check_pull(hub, raw, kind, most=3)


@pytest.mark.long
@pytest.mark.parametrize("kind", FAULTS)
def test_a_push_survives_faults_at_every_request(hub: Hub, raw: Path, kind: str) -> None:
    check_push(hub, raw, kind, most=1000)


@pytest.mark.long
@pytest.mark.parametrize("kind", FAULTS)
def test_a_pull_survives_faults_at_every_request(hub: Hub, raw: Path, kind: str) -> None:
    check_pull(hub, raw, kind, most=1000)


def test_an_interrupted_push_does_not_send_twice(hub: Hub, raw: Path) -> None:
    send(raw)
    large = [request.path for request in hub.take() if "/upload/" in request.path]
    hub.repositories.clear()
    hub.fail("500", count=EVER, part="/commit/")
    assert attempt(lambda: send(raw)) is not None
    assert sorted(s.path for s in hub.take() if "/upload/" in s.path) == sorted(large)
    hub.heal()
    send(raw)
    assert not [s.path for s in hub.take() if "/upload/" in s.path]
    assert len(hub.repository(NAME).commits) == 2


def test_a_commit_that_fails_for_now_is_made_once(hub: Hub, raw: Path) -> None:
    send(raw)
    commit = next(n for n, request in enumerate(hub.take()) if "/commit/" in request.path)
    for kind in ("500", "cut", "lost", "stall"):
        hub.repositories.clear()
        hub.fail(kind, at=commit)
        made = send(raw)
        hub.heal()
        titles = [made.title for made in hub.repository(NAME).commits]
        assert len(titles) == 2 and made.commit == hub.repository(NAME).head.oid, (kind, titles)


def test_an_interrupted_pull_does_not_download_twice(hub: Hub, raw: Path, tmp_path: Path) -> None:
    send(raw)
    last = steps(hub, lambda: get(tmp_path / "first"), 1)[-1]
    hub.fail("500", at=last, count=EVER)
    assert attempt(lambda: get(tmp_path / "copy")) is not None
    hub.heal()
    hub.take()
    get(tmp_path / "copy")
    assert sum("/arrays/" in seen.path and seen.sent > 0 for seen in hub.take()) <= 4
