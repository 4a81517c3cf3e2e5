"""The state of a fake Hub: its repositories, what it was asked, and what it shall do wrong."""

import threading
from dataclasses import dataclass, field
from typing import Any

from hub_repositories import Repository

TOKEN = "hf_" + "t" * 34


@dataclass(frozen=True)
class Seen:
    """One request that came, and what it cost."""

    method: str
    path: str
    range: str | None
    received: int
    sent: int
    status: int


@dataclass
class Fault:
    """What goes wrong, from the request of a number on."""

    kind: str
    """`500`, `401`, `cut` (before anything is done), `lost` (the reply of what was done), `stall`
    (half of the reply, then nothing), `slow` (bytes one by one), `race` (somebody commits first)."""
    at: int
    count: int = 1
    part: str = ""
    """Of the paths that it hits."""

    def hits(self, number: int, path: str) -> bool:
        return self.at <= number < self.at + self.count and self.part in path


@dataclass
class Hub:
    """The state of one server."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    fault: Fault | None = None
    number: int = 0
    lock: Any = field(default_factory=threading.RLock)
    released: threading.Event = field(default_factory=threading.Event)
    xorbs: dict[str, list[bytes]] = field(default_factory=dict)
    """Chunks that `hf_xet` sent, by the hash of what they came in. One store for all repositories."""
    has_xet: bool = True
    """Whether it offers the store that `hf_xet` sends to."""
    token: str = TOKEN
    """The token that is good now."""

    def repository(self, name: str) -> Repository:
        return self.repositories[name]

    def fail(self, kind: str, at: int = 0, count: int = 1, part: str = "") -> None:
        """Let requests fail, counted from now on."""
        self.number, self.fault = 0, Fault(kind, at, count, part)
        self.released.clear()

    def heal(self) -> None:
        """Let no request fail any more."""
        self.fault = None
        self.released.set()

    def take(self) -> list[Seen]:
        """The requests since the last call."""
        with self.lock:
            taken, self.seen = self.seen, []
        return taken

    def make(self, name: str) -> Repository:
        """A new repository, as if somebody had made it in a browser."""
        return self.repositories.setdefault(name, Repository(name))
