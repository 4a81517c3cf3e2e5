"""Manifests of many shards as one table, a row for each file."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from retold.schemas.errors import FormatError
from retold.schemas.manifest import FileEntry, Manifest

FILES_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("sha256", pa.binary(32)),
        ("episodes", pa.int64()),
        ("rows", pa.int64()),
        ("profile", pa.string()),
    ]
)
"""`episodes`, `rows` and `profile` are the shard's, and stand in each of its rows."""


def pack_manifests(manifests: Mapping[str, Manifest]) -> pa.Table:
    """The table of manifests that are given by shard id."""
    rows = [
        {
            "shard": shard_id,
            "path": file.path,
            "bytes": file.bytes,
            "sha256": bytes.fromhex(file.sha256),
            "episodes": manifest.episodes,
            "rows": manifest.rows,
            "profile": manifest.profile,
        }
        for shard_id, manifest in manifests.items()
        for file in manifest.files
    ]
    return pa.Table.from_pylist(rows, FILES_SCHEMA)


def unpack_manifests(table: pa.Table) -> dict[str, Manifest]:
    """The inverse of `pack_manifests`.

    Raises:
        FormatError: a value is missing.
    """
    if any(column.null_count for column in table.columns):
        raise FormatError("The table of files has empty places. Delete this checkpoint.")
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        rows.setdefault(row["shard"], []).append(row)
    return {shard_id: _make_manifest(mine) for shard_id, mine in rows.items()}


def _make_manifest(rows: list[dict[str, Any]]) -> Manifest:
    columns = {name: [row[name] for row in rows] for name in FILES_SCHEMA.names}
    files = zip(columns["path"], columns["bytes"], columns["sha256"], strict=True)
    return Manifest(
        files=tuple(FileEntry(p, n, h.hex()) for p, n, h in files),
        episodes=columns["episodes"][0],
        rows=columns["rows"][0],
        profile=columns["profile"][0],
    )
