"""`commits/<number>.json`: one entry of a dataset's append-only log, and the snapshot it makes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from retold.schemas.canonical import (
    encode_json,
    is_sealed,
    require_count,
    require_hex,
    seal_json,
    sha256_hex,
)
from retold.schemas.manifest import FORMAT_VERSION, check_format_version

_UNSEALED_FIELDS = frozenset(
    {
        *("format_version", "number", "commit_id", "base", "parent_sha256", "operation", "added"),
        *("removed", "time", "command", "code_version", "sources", "details"),
    }
)
"""Of the first commits ever written, which have neither `dataset_id` nor `content_sha256`."""


@dataclass(frozen=True)
class Snapshot:
    """A dataset as one commit left it: what policies, pins and references record."""

    dataset_id: str
    number: int
    sha256: str
    """Of the commit's file."""

    def to_json(self) -> dict[str, Any]:
        """The snapshot as plain JSON values."""
        return {"dataset_id": self.dataset_id, "number": self.number, "sha256": self.sha256}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Snapshot":
        """The inverse of `to_json`."""
        return cls(
            require_hex(content["dataset_id"], 32),
            require_count(content["number"]),
            require_hex(content["sha256"], 64),
        )


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """A shard as a commit names it."""

    shard_id: str
    sha256: str
    """Of the shard's manifest."""
    schema: str
    """Hash that names the file in `schemas/`."""
    kind: str
    """`raw` (has arrays) or `variant` (rows that refer to other episodes)."""
    episodes: int
    steps: int
    """Transitions, summed over episodes."""
    bytes: int
    """Size on disk, the manifest included."""

    def to_json(self) -> dict[str, Any]:
        """The entry as plain JSON values."""
        return {
            "id": self.shard_id,
            "sha256": self.sha256,
            "schema": self.schema,
            "kind": self.kind,
            "episodes": self.episodes,
            "steps": self.steps,
            "bytes": self.bytes,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ShardEntry":
        """The inverse of `to_json`."""
        return cls(
            shard_id=require_hex(content["id"], 32),
            sha256=require_hex(content["sha256"], 64),
            schema=require_hex(content["schema"], 64),
            kind=content["kind"],
            episodes=require_count(content["episodes"]),
            steps=require_count(content["steps"]),
            bytes=require_count(content["bytes"]),
        )


@dataclass(frozen=True)
class SourceEntry:
    """Another dataset that variants of this one refer to."""

    snapshot: Snapshot
    locations: tuple[str, ...]
    """Where to look, in order: a path relative to this dataset, then absolute ones."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One operation on a dataset. Time, host and chance belong here, never into a shard."""

    dataset_id: str | None = None
    """The dataset whose log this is; None in the first commits ever written."""
    number: int
    commit_id: str
    """Random, made before the first attempt, so that a lost reply never commits twice."""
    base: Snapshot | None
    """The snapshot that the operation was planned on; None for the first commit."""
    parent_sha256: str | None
    """Of the file of commit `number - 1`."""
    operation: str
    """`collect`, `relabel`, `import`, `evict`, `compact`, `gc` …"""
    added: tuple[ShardEntry, ...] = ()
    removed: tuple[str, ...] = ()
    """Ids of shards that are no longer part of the dataset."""
    time: str = ""
    """UTC, ISO 8601."""
    command: str = ""
    """The command line, or the Python call."""
    code_version: str = ""
    sources: Mapping[str, SourceEntry] = field(default_factory=dict)
    """By dataset id."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the operation wants to remember: seeds, policy, ranges, strategy. JSON values."""

    def to_json(self) -> dict[str, Any]:
        """The commit as plain JSON values, its seal (`content_sha256`) left out."""
        identity = {} if self.dataset_id is None else {"dataset_id": self.dataset_id}
        return {
            **identity,
            "format_version": FORMAT_VERSION,
            "number": self.number,
            "commit_id": self.commit_id,
            "base": None if self.base is None else self.base.to_json(),
            "parent_sha256": self.parent_sha256,
            "operation": self.operation,
            "added": [entry.to_json() for entry in self.added],
            "removed": list(self.removed),
            "time": self.time,
            "command": self.command,
            "code_version": self.code_version,
            "sources": {
                dataset_id: {
                    "snapshot": source.snapshot.to_json(),
                    "locations": list(source.locations),
                }
                for dataset_id, source in self.sources.items()
            },
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Commit":
        """The inverse of `to_json`."""
        parent = content["parent_sha256"]
        return cls(
            dataset_id=require_hex(content["dataset_id"], 32) if "dataset_id" in content else None,
            number=require_count(content["number"]),
            commit_id=require_hex(content["commit_id"], 32),
            base=None if content["base"] is None else Snapshot.from_json(content["base"]),
            parent_sha256=None if parent is None else require_hex(parent, 64),
            operation=content["operation"],
            added=tuple(ShardEntry.from_json(entry) for entry in content["added"]),
            removed=tuple(require_hex(shard_id, 32) for shard_id in content["removed"]),
            time=content["time"],
            command=content["command"],
            code_version=content["code_version"],
            sources={
                dataset_id: SourceEntry(
                    Snapshot.from_json(item["snapshot"]), tuple(item["locations"])
                )
                for dataset_id, item in content["sources"].items()
            },
            details=content["details"],
        )

    @classmethod
    def decode(cls, where: str, encoded: bytes) -> "Commit":
        """The commit that a file holds, its seal checked.

        A commit is sealed by `content_sha256`: the hash of its file with these 64 digits zeroed.
        Only the first commits ever written are not, and those have no field besides theirs.

        Raises:
            FormatError: it is of another format version.
            ValueError: it is damaged; also KeyError, TypeError, AttributeError, RecursionError.
        """
        content = json.loads(encoded)
        check_format_version(where, content["format_version"])
        if "content_sha256" in content:
            seal = require_hex(content["content_sha256"], 64)
            if not is_sealed(encoded, seal):
                raise ValueError("its seal is broken")
        elif unknown := set(content) - _UNSEALED_FIELDS:
            raise ValueError(f"it has {min(unknown)!r}, but no seal")
        return cls.from_json(content)

    @cached_property
    def encoded(self) -> bytes:
        """The bytes of the commit's file, sealed if it says whose log it is part of."""
        if self.dataset_id is None:
            return encode_json(self.to_json())
        return seal_json(self.to_json())

    @property
    def sha256(self) -> str:
        """Hash of the commit's file."""
        return sha256_hex(self.encoded)
