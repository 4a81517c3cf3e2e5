"""What a fake Hub keeps: repositories with their commits, tags and large files."""

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LFS_SUFFIXES = (".parquet", ".safetensors", ".bin", ".gif")
LARGE_BYTES = 2_000
"""Binary files from this size on are large ones; the real limit is higher, tiny datasets are not."""


@dataclass(frozen=True)
class Blob:
    """One file of a repository. What it claims to be may be a lie: a hostile one does so."""

    content: bytes
    is_lfs: bool
    claimed_size: int | None = None
    claimed_sha256: str | None = None

    @property
    def size(self) -> int:
        return len(self.content) if self.claimed_size is None else self.claimed_size

    @property
    def sha256(self) -> str:
        return self.claimed_sha256 or hashlib.sha256(self.content).hexdigest()

    @property
    def git_oid(self) -> str:
        content = self.pointer if self.is_lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version lfs\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    def describe(self, path: str) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "size": self.size, "oid": self.git_oid}
        if self.is_lfs:
            entry["lfs"] = {
                "oid": self.sha256,
                "size": self.size,
                "pointerSize": len(self.pointer),
            }
        return entry


@dataclass(frozen=True)
class GitCommit:
    """A commit and every file of the repository at it."""

    oid: str
    parent: str | None
    title: str
    files: Mapping[str, Blob]


@dataclass
class Repository:
    """One repository. `main` is the only branch."""

    name: str
    """E.g. `datasets/me/maze`, or `me/policy` for a model."""
    is_private: bool = False
    commits: list[GitCommit] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    """Large files by their hash, committed or not."""
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.commit({".gitattributes": Blob(b"*.parquet filter=lfs\n", False)}, (), "initial")

    @property
    def head(self) -> GitCommit:
        return self.commits[-1]

    @property
    def files(self) -> Mapping[str, Blob]:
        return self.head.files

    def find(self, revision: str) -> GitCommit | None:
        """The commit that a branch, a tag or an id names."""
        oid = self.head.oid if revision == "main" else self.tags.get(revision, revision)
        return next((commit for commit in self.commits if commit.oid == oid), None)

    def commit(self, added: Mapping[str, Blob], deleted: Iterable[str], title: str) -> GitCommit:
        """Add and delete files; a path that ends in `/` is a folder."""
        files = dict(self.files) if self.commits else {}
        for path in deleted:
            gone = [p for p in files if p == path or (path.endswith("/") and p.startswith(path))]
            for name in gone:
                del files[name]
        files |= added
        parent = self.head.oid if self.commits else None
        summary = f"{parent} {title} {sorted((p, b.git_oid) for p, b in files.items())}"
        made = GitCommit(hashlib.sha1(summary.encode()).hexdigest(), parent, title, files)
        self.commits.append(made)
        return made

    def put(self, path: str, content: bytes, **claims: Any) -> None:
        """Commit one file behind everybody's back."""
        is_lfs = claims.pop("is_lfs", is_large(path, content))
        self.commit({path: Blob(content, is_lfs, **claims)}, (), f"put {path}")


def is_large(path: str, sample: bytes, size: int | None = None) -> bool:
    """Whether the Hub wants a file as a large one."""
    size = len(sample) if size is None else size
    is_binary = b"\0" in sample
    return size > 0 and (path.endswith(LFS_SUFFIXES) or (is_binary and size >= LARGE_BYTES))
