"""An S3 server for tests: the calls that datasets make, in memory, and fast.

Like S3 it is strongly consistent, and of several conditional puts one wins. It can lose replies after a
write was done. `test_s3_server.py` compares its answers with moto's, which is far slower.
"""

import asyncio
import bisect
import contextlib
import hashlib
import multiprocessing
import os
import random
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from multiprocessing.connection import Connection
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

BUCKET = "bucket"
_CONTROL = "/_test/"
_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_MOST_KEYS = 1000
_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content"}
_MESSAGES = {
    "NoSuchBucket": "The specified bucket does not exist",
    "NoSuchKey": "The specified key does not exist.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "InvalidRange": "The requested range is not satisfiable",
    "NotImplemented": "This server does not know that call",
}


@dataclass(frozen=True)
class S3Server:
    """A running server; `AWS_ENDPOINT_URL` names it."""

    endpoint: str

    def lose_replies(self, share: float) -> None:
        """From now on, lose this share of the replies to writes."""
        self._ask(f"lose/{share}")

    def set_conditions(self, *, heeded: bool) -> None:
        """Whether `If-None-Match` is heeded, which some stores do not."""
        self._ask(f"conditions/{'on' if heeded else 'off'}")

    def take_requests(self) -> list[tuple[str, str, str]]:
        """Method, path and range of each request since the last time; `LIST` of a prefix."""
        lines = self._ask("requests").splitlines()
        return [(method, path, span) for method, path, span in (line.split("\t") for line in lines)]

    def put(self, key: str, content: bytes) -> None:
        """Write an object past every client."""
        request = urllib.request.Request(
            f"{self.endpoint}/{BUCKET}/{key}",
            data=content,
            method="PUT",
            headers={"Content-Type": "application/octet-stream"},
        )
        urllib.request.urlopen(request).read()

    def _ask(self, what: str) -> str:
        with urllib.request.urlopen(f"{self.endpoint}{_CONTROL}{what}") as reply:
            return str(reply.read().decode())


@contextlib.contextmanager
def run_s3_server() -> Iterator[S3Server]:
    """Run a server with one bucket in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,))
    process.start()
    there.close()
    before = {name: os.environ.get(name) for name in (*_SETTINGS, "AWS_ENDPOINT_URL")}
    try:
        server = S3Server(f"http://127.0.0.1:{here.recv()}")
        os.environ |= {**_SETTINGS, "AWS_ENDPOINT_URL": server.endpoint}
        request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).read()
        yield server
    finally:
        process.kill()
        process.join()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@dataclass(frozen=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    """`/bucket` or `/bucket/key`, decoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What the server answers."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class _Object:
    content: bytes
    etag: str
    content_type: str
    modified: datetime


class _Bucket:
    """Objects by key, and their keys in order."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self._keys: list[str] = []

    def put(self, key: str, new: _Object) -> None:
        if key not in self.objects:
            bisect.insort(self._keys, key)
        self.objects[key] = new

    def delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def list_page(
        self, prefix: str, delimiter: str, after: str, count: int
    ) -> tuple[list[str], list[str], str]:
        """Keys, common prefixes, and what to go on after: empty at the end.

        Args:
            prefix: of every key.
            delimiter: keys are cut after it, behind the prefix; none if empty.
            after: the key, or common prefix, that the page before ended with.
            count: most keys and prefixes.
        """
        keys: list[str] = []
        folders: list[str] = []
        last = after
        place = bisect.bisect_left(self._keys, prefix)
        if after:
            place = max(place, bisect.bisect_right(self._keys, after))
        while place < len(self._keys) and self._keys[place].startswith(prefix):
            key = self._keys[place]
            end = key.find(delimiter, len(prefix)) + len(delimiter) if delimiter else 0
            folder = key[:end] if end > len(prefix) else ""
            if folder and folder == last:  # named on this page, or on the one before
                place = bisect.bisect_left(self._keys, f"{folder}\U0010ffff", place)
                continue
            if len(keys) + len(folders) == count:
                return keys, folders, last
            (folders if folder else keys).append(folder or key)
            last, place = folder or key, place + 1
        return keys, folders, ""


class S3Store:
    """Buckets, and the answer to each call."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self.has_conditions = True

    def answer(self, request: Request) -> Reply:
        """Do what is asked."""
        name, _, key = request.path.removeprefix("/").partition("/")
        if request.method == "PUT" and not key:
            self._buckets[name] = _Bucket()
            return Reply(200, {"Location": f"/{name}"})
        bucket = self._buckets.get(name)
        if bucket is None:
            return _error(request, 404, "NoSuchBucket")
        if request.query.keys() & {"uploads", "uploadId", "delete"}:
            return _error(request, 501, "NotImplemented")
        if not key:
            if request.method == "HEAD":
                return Reply(200)
            is_listing = request.query.get("list-type") == "2"
            return _list(name, bucket, request) if is_listing else _error(request, 501)
        if request.method in ("GET", "HEAD"):
            return _read(bucket, key, request)
        if request.method == "PUT":
            return self._write(bucket, key, request)
        if request.method == "DELETE":
            bucket.delete(key)
            return Reply(204)
        return _error(request, 501, "NotImplemented")

    def _write(self, bucket: _Bucket, key: str, request: Request) -> Reply:
        headers = request.headers
        is_coded = "aws-chunked" in headers.get("content-encoding", "")
        if is_coded or "x-amz-copy-source" in headers:
            return _error(request, 501, "NotImplemented")
        if self.has_conditions and "if-none-match" in headers and key in bucket.objects:
            return _error(request, 412, "PreconditionFailed")
        etag = f'"{hashlib.md5(request.body).hexdigest()}"'
        content_type = headers.get("content-type", "binary/octet-stream")
        # Objects are as young as whole seconds say, as S3 has it.
        now = datetime.now(UTC).replace(microsecond=0)
        bucket.put(key, _Object(request.body, etag, content_type, now))
        return Reply(200, {"ETag": etag})


def _read(bucket: _Bucket, key: str, request: Request) -> Reply:
    found = bucket.objects.get(key)
    if found is None:
        return _error(request, 404, "NoSuchKey")
    headers = {
        "ETag": found.etag,
        "Last-Modified": format_datetime(found.modified, usegmt=True),
        "Content-Type": found.content_type,
        "Accept-Ranges": "bytes",
    }
    size = len(found.content)
    span = request.headers.get("range", "")
    if not span:
        return Reply(200, headers, found.content)
    first, _, last = span.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size:
        return _error(request, 416, "InvalidRange")
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Reply(206, headers, found.content[start:end])


def _list(name: str, bucket: _Bucket, request: Request) -> Reply:
    query = request.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    count = min(_MOST_KEYS, int(query.get("max-keys", _MOST_KEYS)))
    after = query.get("continuation-token", query.get("start-after", ""))
    keys, folders, more = bucket.list_page(prefix, delimiter, after, count)
    code = quote if query.get("encoding-type") == "url" else escape
    parts = [
        f"<Name>{name}</Name><Prefix>{code(prefix)}</Prefix><MaxKeys>{count}</MaxKeys>",
        f"<KeyCount>{len(keys) + len(folders)}</KeyCount>",
        f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>",
    ]
    if delimiter:
        parts.append(f"<Delimiter>{code(delimiter)}</Delimiter>")
    if "encoding-type" in query:
        parts.append("<EncodingType>url</EncodingType>")
    if more:
        parts.append(f"<NextContinuationToken>{escape(more)}</NextContinuationToken>")
    for key in keys:
        found = bucket.objects[key]
        parts.append(
            f"<Contents><Key>{code(key)}</Key><Size>{len(found.content)}</Size>"
            f"<LastModified>{found.modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{escape(found.etag)}</ETag><StorageClass>STANDARD</StorageClass></Contents>"
        )
    for folder in folders:
        parts.append(f"<CommonPrefixes><Prefix>{code(folder)}</Prefix></CommonPrefixes>")
    return _xml(200, "ListBucketResult", "".join(parts))


def _error(request: Request, status: int, code: str = "NotImplemented") -> Reply:
    inside = f"<Code>{code}</Code><Message>{_MESSAGES[code]}</Message>"
    if code == "PreconditionFailed":
        inside += "<Condition>If-None-Match</Condition>"
    if code == "NoSuchKey":
        inside += f"<Key>{escape(request.path.split('/', 2)[2])}</Key>"
    inside += f"<Resource>{escape(request.path)}</Resource>"
    return _xml(status, "Error", inside)


def _xml(status: int, root: str, inside: str) -> Reply:
    space = "" if root == "Error" else ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{space}>{inside}</{root}>'
    return Reply(status, {"Content-Type": "application/xml"}, text.encode())


class _Service:
    """The store, a note of each request, and how many replies are lost."""

    def __init__(self) -> None:
        self._store = S3Store()
        self._share = 0.0
        self._random = random.Random(0)
        self._requests: list[str] = []

    def answer(self, request: Request) -> Reply | None:
        """What to send; None: it was done, and the client is not told."""
        if request.path.startswith(_CONTROL):
            return self._control(request.path.removeprefix(_CONTROL))
        kind, path = request.method, request.path
        if "list-type" in request.query:
            kind, path = "LIST", f"{path}/{request.query.get('prefix', '')}"
        self._requests.append(f"{kind}\t{path}\t{request.headers.get('range', '')}")
        reply = self._store.answer(request)
        is_write = request.method in ("PUT", "POST", "DELETE")
        return None if is_write and self._random.random() < self._share else reply

    def _control(self, what: str) -> Reply:
        reply = ""
        if what == "requests":
            reply, self._requests = "\n".join(self._requests), []
        elif what.startswith("lose/"):
            self._share = float(what.removeprefix("lose/"))
        else:
            self._store.has_conditions = what == "conditions/on"
        return Reply(200, {"Content-Type": "text/plain"}, reply.encode())


class _Connection(asyncio.Protocol):
    """One client's requests, one after the other."""

    def __init__(self, service: _Service) -> None:
        self._service = service
        self._buffer = bytearray()
        self._is_expected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while not self._transport.is_closing() and self._take_request():
            pass

    def _take_request(self) -> bool:
        """Answer the first request in the buffer; whether it was there as a whole."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        size = int(headers.get("content-length", 0))
        if len(self._buffer) < end + 4 + size:
            if "expect" in headers and not self._is_expected:
                self._is_expected = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return False
        body = bytes(self._buffer[end + 4 : end + 4 + size])
        del self._buffer[: end + 4 + size]
        self._is_expected = False
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        pairs_of_query = parse_qsl(query, keep_blank_values=True) if query else ()
        request = Request(method, unquote(path), dict(pairs_of_query), headers, body)
        reply = self._service.answer(request)
        if reply is None or "transfer-encoding" in headers:
            self._transport.abort()
            return False
        self._send(reply, is_head=method == "HEAD")
        return True

    def _send(self, reply: Reply, *, is_head: bool) -> None:
        lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Error')}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        lines += [f"x-amz-request-id: {uuid.uuid4().hex[:16]}"]
        if reply.status != 204:
            lines.append(f"Content-Length: {len(reply.body)}")
        head = "\r\n".join((*lines, "\r\n")).encode("latin-1")
        self._transport.write(head if is_head else head + reply.body)


def _serve(connection: Connection) -> None:
    async def run() -> None:
        service = _Service()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(service), "127.0.0.1", 0)
        connection.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
