"""`manifest.json` of a shard: every file with its size and hash. Its own hash names the shard."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from retold.schemas.canonical import encode_json, require_count, require_hex, sha256_hex
from retold.schemas.errors import FormatError

FORMAT_VERSION = 1
"""Version of everything a dataset keeps on disk."""


def check_format_version(where: str, version: Any) -> None:
    """Refuse what this Retold cannot read, naming the command that helps.

    Raises:
        FormatError: the version is newer, older, or no version at all.
    """
    if type(version) is not int or version < 1:
        raise FormatError(
            f"{where}: format_version is {version!r}, which is no version. Restore the file from a "
            f"copy of the dataset."
        )
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{where}: format_version is {version}, but this retold reads {FORMAT_VERSION}. "
            f"Upgrade with `pip install -U retold`."
        )
    if version < FORMAT_VERSION:
        raise FormatError(
            f"{where}: format_version is {version}, but this retold reads {FORMAT_VERSION}. "
            f"Write it anew with `retold migrate OLD NEW`."
        )


@dataclass(frozen=True)
class FileEntry:
    """One file of a shard."""

    path: str
    """Relative to the shard, `/` between folders."""
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A shard's table of contents."""

    files: tuple[FileEntry, ...]
    """Sorted by path; `manifest.json` itself is not among them."""
    episodes: int
    rows: int
    """Rows of each time array: the sum of length + 1 over episodes; 0 for variants."""
    profile: str
    """Codec profile the arrays were written with."""

    def to_json(self) -> dict[str, Any]:
        """The manifest as plain JSON values."""
        return {
            "format_version": FORMAT_VERSION,
            "files": [{"path": f.path, "bytes": f.bytes, "sha256": f.sha256} for f in self.files],
            "episodes": self.episodes,
            "rows": self.rows,
            "profile": self.profile,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Manifest":
        """The inverse of `to_json`."""
        return cls(
            files=tuple(
                FileEntry(f["path"], require_count(f["bytes"]), require_hex(f["sha256"], 64))
                for f in content["files"]
            ),
            episodes=require_count(content["episodes"]),
            rows=require_count(content["rows"]),
            profile=content["profile"],
        )

    @cached_property
    def encoded(self) -> bytes:
        """The bytes of `manifest.json`."""
        return encode_json(self.to_json())

    @property
    def sha256(self) -> str:
        """Hash of `manifest.json`, and so of the shard."""
        return sha256_hex(self.encoded)

    @property
    def shard_id(self) -> str:
        """The first 32 hex digits of the shard's hash."""
        return self.sha256[:32]
