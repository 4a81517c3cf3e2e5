"""A fake Hub for a test, and this process and its children told to use it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import run_hub
from hub_state import TOKEN, Hub

from retold.dataset import hub_client, hub_filesystem


@pytest.fixture(scope="module")
def running_hub() -> Iterator[Hub]:
    with run_hub() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """An empty Hub, a login, and nothing cached. Nobody waits before asking again."""
    server = running_hub
    from huggingface_hub import close_session, constants
    from huggingface_hub.utils import _http

    server.repositories.clear()
    server.heal()
    server.number = 0
    server.token = TOKEN
    server.has_xet = True
    server.xorbs.clear()
    server.take()
    home = tmp_path / "hub-home"
    for name, value in {
        "HF_ENDPOINT": server.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(home),
        "HF_TOKEN": TOKEN,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(hub_client, "WAITS_SECONDS", (0.0, 0.0, 0.0))
    close_session()  # its timeout is that of the test which opened it
    forget_revisions()
    yield server
    server.heal()
    close_session()
    forget_revisions()


def forget_revisions() -> None:
    """As a new process: no revision is known."""
    hub_filesystem._filesystem.cache_clear()
