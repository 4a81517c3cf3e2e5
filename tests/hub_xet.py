"""The store behind a fake Hub that `hf_xet` sends large files to: chunks in xorbs, and shards that name them.

Formats as in the protocol's public specification. A file becomes the repository's once a shard says
of which chunks it is made, and the SHA-256 that the shard claims is that of its content.
"""

import hashlib
import json
import struct
from collections.abc import Iterator

import pyarrow as pa
from hub_api import AT, KIND, NAME, PLAIN, Refusal, Reply, Request, Route
from hub_repositories import Repository

TOKEN = "xet_" + "x" * 20
_ENTRY = 48
_END = b"\xff" * 32
_HAS_CHECKS = 1 << 31
_HAS_METADATA = 1 << 30


def token(request: Request, kind: str, name: str, revision: str, scope: str) -> Reply:
    """What lets a client into the store, for the login."""
    request.check_token()
    if not request.hub.has_xet:
        raise Refusal(404, text="no such route")
    request.commit(kind, name, revision)
    place = f"{request.hub.url}/xet/{kind.replace('models/', '')}{name}"
    content = {"accessToken": TOKEN, "exp": 2**40, "casUrl": place}
    return Reply(200, json.dumps(content).encode())


def put_xorb(request: Request, kind: str, name: str, xorb: str) -> Reply:
    """Keep the chunks of a xorb."""
    _enter(request, kind, name)
    is_new = xorb not in request.hub.xorbs
    request.hub.xorbs[xorb] = list(_read_chunks(request.content))
    return Reply(200, json.dumps({"was_inserted": is_new}).encode())


def put_shard(request: Request, kind: str, name: str) -> Reply:
    """Put together the files that a shard describes."""
    repository = _enter(request, kind, name)
    for sha256, parts in _read_files(request.content):
        chunks = []
        for xorb, first, end in parts:
            if xorb not in request.hub.xorbs:
                raise Refusal(400, text=f"xorb {xorb} was not uploaded")
            chunks += request.hub.xorbs[xorb][first:end]
        content = b"".join(chunks)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise Refusal(400, text="the content is not that of its hash")
        repository.large[sha256] = content
    return Reply(200, b'{"result": 1}')


def find_chunk(request: Request, kind: str, name: str, chunk: str) -> Reply:
    """Nothing is known of chunks in other repositories."""
    _enter(request, kind, name)
    return Reply(404, b"{}")


def _enter(request: Request, kind: str, name: str) -> Repository:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        raise Refusal(401, text="no token of the store")
    return request.hub.repositories[f"{kind}{name}"]


def _read_chunks(content: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(content) and content[place] == 0:  # what follows the chunks begins otherwise
        packed = int.from_bytes(content[place + 1 : place + 4], "little")
        scheme = content[place + 4]
        size = int.from_bytes(content[place + 5 : place + 8], "little")
        place += 8
        yield _unpack(content[place : place + packed], scheme, size)
        place += packed


def _unpack(packed: bytes, scheme: int, size: int) -> bytes:
    if scheme == 0:
        return packed
    content: bytes = pa.decompress(packed, size, codec="lz4", asbytes=True)
    if scheme == 1:
        return content
    grouped = bytearray(size)
    start = 0
    for group in range(4):
        count = len(range(group, size, 4))
        grouped[group::4] = content[start : start + count]
        start += count
    return bytes(grouped)


def _read_files(shard: bytes) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """Of each file its SHA-256, and the xorbs and chunks in them that it consists of."""
    place = _ENTRY
    while shard[place : place + 32] != _END:
        flags, count = struct.unpack_from("<II", shard, place + 32)
        place += _ENTRY
        parts = []
        for _ in range(count):
            first, end = struct.unpack_from("<II", shard, place + 40)
            parts.append((_name(shard[place : place + 32]), first, end))
            place += _ENTRY
        place += _ENTRY * count * bool(flags & _HAS_CHECKS)
        if not flags & _HAS_METADATA:
            raise Refusal(400, text="a file has no SHA-256")
        yield _name(shard[place : place + 32]), parts
        place += _ENTRY


def _name(hash_: bytes) -> str:
    """A hash in words of 8 bytes, as it is written."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", hash_))


_STORE = rf"/xet/{PLAIN}/v1"
ROUTES: tuple[Route, ...] = (
    ("GET", rf"/api/{KIND}{NAME}/xet-(?P<scope>read|write)-token/{AT}", token),
    ("POST", rf"{_STORE}/xorbs/default/(?P<xorb>[0-9a-f]+)", put_xorb),
    ("POST", rf"{_STORE}/shards", put_shard),
    ("GET", rf"{_STORE}/chunks/[a-z-]+/(?P<chunk>[0-9a-f]+)", find_chunk),
)
