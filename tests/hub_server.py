"""A small Hugging Face Hub on this machine's loopback: real HTTP, so that real clients talk to it.

It counts requests and bytes, and fails on demand at a given request.
"""

import base64
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hub_repositories import Blob, GitCommit, Repository, is_large

TOKEN = "hf_" + "t" * 34
PAGE = 50
"""Entries of a listing that one reply holds."""


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
    is_only_for_commits: bool = False

    def hits(self, number: int) -> bool:
        return self.at <= number < self.at + self.count


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
    token: str = TOKEN
    """The token that is good now."""

    def repository(self, name: str) -> Repository:
        return self.repositories[name]

    def fail(self, kind: str, at: int = 0, count: int = 1) -> None:
        """Let requests fail, counted from now on."""
        self.number, self.fault = 0, Fault(kind, at, count)
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


@dataclass
class Reply:
    """An answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class _Refusal(Exception):
    def __init__(self, status: int, code: str = "", text: str = "") -> None:
        self.reply = Reply(
            status,
            json.dumps({"error": text or code}).encode(),
            {"X-Error-Code": code} if code else {},
        )


@contextmanager
def run_hub() -> Iterator[Hub]:
    """A server for as long as the context lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield hub
    finally:
        hub.heal()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a head and its body are two packets: the second would wait

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _handle(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            number, self.hub.number = self.hub.number, self.hub.number + 1
            fault = self.hub.fault
        kind = fault.kind if fault is not None and fault.hits(number) else None
        if kind == "cut":
            self._note(content, Reply(0), 0)
            return self._drop()
        if kind in ("500", "401"):
            reply = Reply(int(kind), b'{"error": "no"}')
        else:
            if kind == "race" and (target := self._repository_of()) is not None:
                target.put("somebody-else.txt", str(number).encode())
            reply = self._answer(content)
        if kind == "lost":
            self._note(content, reply, 0)
            return self._drop()
        self._send(reply, kind, content)

    def _repository_of(self) -> Repository | None:
        return next(
            (r for n, r in self.hub.repositories.items() if f"{n}/" in f"{self.path}/"), None
        )

    def _answer(self, content: bytes) -> Reply:
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        for method, pattern, answer in _ROUTES:
            match = re.fullmatch(pattern, parts.path)
            if match and method == self.command.replace("HEAD", "GET"):
                values = {k: urllib.parse.unquote(v or "") for k, v in match.groupdict().items()}
                try:
                    if method != "GET" and not parts.path.startswith("/upload/"):
                        self._check_token()
                    return answer(self, content, query, **values)
                except _Refusal as refusal:
                    return refusal.reply
        return Reply(404, b'{"error": "no such route"}')

    def _check_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            raise _Refusal(401, text="Invalid username or password.")

    def _send(self, reply: Reply, kind: str | None, content: bytes) -> None:
        self._note(content, reply, 0 if self.command == "HEAD" else len(reply.body))
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", **reply.headers}
        for name, value in ({"Content-Length": str(len(reply.body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            if kind == "stall":
                self.wfile.write(reply.body[: len(reply.body) // 2])
                self.wfile.flush()
                self.hub.released.wait(20)
                self._drop()
            elif kind == "slow":
                for place in range(0, len(reply.body), 100):
                    self.wfile.write(reply.body[place : place + 100])
                    self.wfile.flush()
                    time.sleep(0.0002)
            else:
                self.wfile.write(reply.body)
        except OSError:  # the client has gone
            self.close_connection = True

    def _note(self, content: bytes, reply: Reply, sent: int) -> None:
        seen = Seen(
            self.command,
            self.path,
            self.headers.get("Range"),
            len(content),
            sent,
            reply.status,
        )
        with self.hub.lock:
            self.hub.seen.append(seen)

    def _drop(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _find(self, kind: str, name: str) -> Repository:
        found = self.hub.repositories.get(f"{kind}{name}")
        if found is None:
            raise _Refusal(404, "RepoNotFound")
        if found.is_private:
            self._check_token()
        return found

    def _commit(self, kind: str, name: str, revision: str) -> tuple[Repository, GitCommit]:
        repository = self._find(kind, name)
        commit = repository.find(revision)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound")
        return repository, commit

    def whoami(self, content: bytes, query: dict[str, str]) -> Reply:
        self._check_token()
        return _json({"type": "user", "name": "me", "orgs": [], "auth": {}})

    def validate_card(self, content: bytes, query: dict[str, str]) -> Reply:
        text = json.loads(content)["content"]
        if not re.match(r"---\n.*?\n---\n", text, re.DOTALL):
            raise _Refusal(400, text="no metadata")
        return _json({"errors": [], "warnings": []})

    def create(self, content: bytes, query: dict[str, str]) -> Reply:
        asked = json.loads(content)
        kind = "datasets/" if asked.get("type") == "dataset" else ""
        name = f"{kind}{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.hub.repositories:
            return Reply(409, json.dumps({"error": "exists", "url": self.hub.url}).encode())
        made = self.hub.make(name)
        made.is_private = bool(asked.get("private") or asked.get("visibility") == "private")
        return _json({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def info(
        self, content: bytes, query: dict[str, str], kind: str, name: str, revision: str = ""
    ) -> Reply:
        kind = kind.replace("models/", "")
        repository, commit = self._commit(kind, name, revision or "main")
        return _json(
            {
                "id": name,
                "_id": "0",
                "sha": commit.oid,
                "private": repository.is_private,
                "gated": False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": [{"rfilename": path} for path in commit.files],
            }
        )

    def tree(
        self,
        content: bytes,
        query: dict[str, str],
        kind: str,
        name: str,
        revision: str,
        path: str = "",
    ) -> Reply:
        _, commit = self._commit(kind.replace("models/", ""), name, revision)
        start = f"{path.strip('/')}/" if path.strip("/") else ""
        below = {p: b for p, b in commit.files.items() if p.startswith(start)}
        if start and not below:
            raise _Refusal(404, "EntryNotFound")
        entries: dict[str, dict[str, Any]] = {}
        is_deep = query.get("recursive", "").lower() == "true"
        for file, blob in sorted(below.items()):
            steps = file[len(start) :].split("/")
            for count in range(1, len(steps)) if is_deep else range(1, min(2, len(steps))):
                folder = start + "/".join(steps[:count])
                entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
            if is_deep or len(steps) == 1:
                entries[file] = blob.describe(file)
        first = int(query.get("cursor", 0))
        page = list(entries.values())[first : first + PAGE]
        headers = {}
        if first + PAGE < len(entries):
            again = urllib.parse.urlencode({**query, "cursor": first + PAGE})
            path_only = urllib.parse.urlsplit(self.path).path
            headers["Link"] = f'<{self.hub.url}{path_only}?{again}>; rel="next"'
        return Reply(200, json.dumps(page).encode(), headers)

    def paths_info(
        self, content: bytes, query: dict[str, str], kind: str, name: str, revision: str
    ) -> Reply:
        _, commit = self._commit(kind.replace("models/", ""), name, revision)
        asked = urllib.parse.parse_qs(content.decode()).get("paths", [])
        found: list[dict[str, Any]] = []
        for path in asked:
            if path in commit.files:
                found.append(commit.files[path].describe(path))
            elif any(file.startswith(f"{path}/") for file in commit.files):
                found.append({"type": "directory", "path": path, "oid": "0" * 40, "size": 0})
        return _json(found)

    def preupload(
        self, content: bytes, query: dict[str, str], kind: str, name: str, revision: str
    ) -> Reply:
        _, commit = self._commit(kind.replace("models/", ""), name, revision)
        ignored = commit.files.get(".gitignore")
        patterns = [] if ignored is None else ignored.content.decode().split()
        found = []
        for file in json.loads(content)["files"]:
            sample = base64.b64decode(file["sample"])
            known = commit.files.get(file["path"])
            entry = {
                "path": file["path"],
                "uploadMode": "lfs" if is_large(file["path"], sample, file["size"]) else "regular",
                "shouldIgnore": any(file["path"].startswith(pattern) for pattern in patterns),
            }
            if known is not None:
                entry["oid"] = known.sha256 if known.is_lfs else known.git_oid
            found.append(entry)
        return _json({"files": found})

    def lfs_batch(self, content: bytes, query: dict[str, str], kind: str, name: str) -> Reply:
        repository = self._find(kind, name)
        objects = []
        for file in json.loads(content)["objects"]:
            entry = dict(file)
            if file["oid"] not in repository.large:
                url = f"{self.hub.url}/upload/{kind}{name}/{file['oid']}"
                entry["actions"] = {
                    "upload": {"href": url},
                    "verify": {"href": f"{self.hub.url}/verify/{kind}{name}/{file['oid']}"},
                }
            objects.append(entry)
        return _json({"transfer": "basic", "objects": objects})

    def upload(
        self, content: bytes, query: dict[str, str], kind: str, name: str, oid: str
    ) -> Reply:
        if Blob(content, True).sha256 != oid:
            raise _Refusal(400, text="the content is not that of its hash")
        self._find(kind, name).large[oid] = content
        return Reply(200, b"{}", {"ETag": f'"{oid}"'})

    def verify(
        self, content: bytes, query: dict[str, str], kind: str, name: str, oid: str
    ) -> Reply:
        asked = json.loads(content)
        if len(self._find(kind, name).large.get(oid, b"")) != asked["size"]:
            raise _Refusal(422, text="it is not there")
        return _json({})

    def commit(
        self, content: bytes, query: dict[str, str], kind: str, name: str, revision: str
    ) -> Reply:
        repository = self._find(kind.replace("models/", ""), name)
        header, *lines = [json.loads(line) for line in content.splitlines() if line]
        added: dict[str, Blob] = {}
        deleted = []
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                added[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif line["key"] == "lfsFile":
                if value["oid"] not in repository.large:
                    raise _Refusal(400, text=f"{value['path']} was not uploaded")
                added[value["path"]] = Blob(repository.large[value["oid"]], True)
            else:
                is_folder = line["key"] == "deletedFolder"
                deleted.append(value["path"].rstrip("/") + "/" * is_folder)
        with repository.lock:
            parent = header["value"].get("parentCommit")
            if revision != "main" or parent not in (None, repository.head.oid):
                raise _Refusal(412, text="A commit has happened since.")
            made = repository.commit(added, deleted, header["value"]["summary"])
        url = f"{self.hub.url}/{repository.name}/commit/{made.oid}"
        return _json({"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""})

    def tag(
        self, content: bytes, query: dict[str, str], kind: str, name: str, revision: str
    ) -> Reply:
        repository, commit = self._commit(kind.replace("models/", ""), name, revision)
        tag = json.loads(content)["tag"]
        if tag in repository.tags:
            raise _Refusal(409, text="Tag reference exists already")
        repository.tags[tag] = commit.oid
        return _json({})

    def refs(self, content: bytes, query: dict[str, str], kind: str, name: str) -> Reply:
        repository = self._find(kind.replace("models/", ""), name)
        return _json(
            {
                "branches": [
                    {"name": "main", "ref": "refs/heads/main", "targetCommit": repository.head.oid}
                ],
                "converts": [],
                "tags": [
                    {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": oid}
                    for tag, oid in repository.tags.items()
                ],
            }
        )

    def resolve(
        self,
        content: bytes,
        query: dict[str, str],
        kind: str,
        name: str,
        revision: str,
        path: str,
    ) -> Reply:
        _, commit = self._commit(kind, name, revision)
        blob = commit.files.get(path)
        if blob is None:
            raise _Refusal(404, "EntryNotFound")
        headers = {
            "X-Repo-Commit": commit.oid,
            "Accept-Ranges": "bytes",
            "ETag": f'"{blob.sha256 if blob.is_lfs else blob.git_oid}"',
        }
        if blob.is_lfs:
            store = self.hub.url.replace("127.0.0.1", "localhost")  # another host, as it is really
            place = f"{store}/cdn/{kind}{name}/{commit.oid}/{urllib.parse.quote(path)}"
            linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(blob.size)}
            return Reply(302, b"", {**headers, **linked, "Location": place})
        return self._ranged(blob, headers)

    def deliver(
        self,
        content: bytes,
        query: dict[str, str],
        kind: str,
        name: str,
        revision: str,
        path: str,
    ) -> Reply:
        blob = self.hub.repositories[f"{kind}{name}"].find(revision).files[path]  # type: ignore[union-attr]
        return self._ranged(blob, {"ETag": f'"{blob.sha256}"', "Accept-Ranges": "bytes"})

    def _ranged(self, blob: Blob, headers: Mapping[str, str]) -> Reply:
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        kind = {"Content-Type": "application/octet-stream"}
        size = len(blob.content)
        if asked is None or not size:
            return Reply(200, blob.content, {**headers, **kind})
        start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        end = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
        if start >= size:
            return Reply(416, b"", {"Content-Range": f"bytes */{size}"})
        part = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        return Reply(206, blob.content[start:end], {**headers, **kind, **part})


def _json(value: Any) -> Reply:
    return Reply(200, json.dumps(value).encode())


_KIND = r"(?P<kind>datasets/|models/)"
_NAME = r"(?P<name>[^/]+/[^/]+?)"
_PLAIN = r"(?P<kind>datasets/|)" + _NAME
_AT = r"(?P<revision>[^/]+)"
_ROUTES: tuple[tuple[str, str, Callable[..., Reply]], ...] = (
    ("GET", r"/api/whoami-v2", _Handler.whoami),
    ("POST", r"/api/validate-yaml", _Handler.validate_card),
    ("POST", r"/api/repos/create", _Handler.create),
    ("GET", rf"/api/{_KIND}{_NAME}/refs", _Handler.refs),
    ("GET", rf"/api/{_KIND}{_NAME}/tree/{_AT}(?P<path>/.*)?", _Handler.tree),
    ("GET", rf"/api/{_KIND}{_NAME}/revision/{_AT}", _Handler.info),
    ("GET", rf"/api/{_KIND}{_NAME}", _Handler.info),
    ("POST", rf"/api/{_KIND}{_NAME}/paths-info/{_AT}", _Handler.paths_info),
    ("POST", rf"/api/{_KIND}{_NAME}/preupload/{_AT}", _Handler.preupload),
    ("POST", rf"/api/{_KIND}{_NAME}/commit/{_AT}", _Handler.commit),
    ("POST", rf"/api/{_KIND}{_NAME}/tag/{_AT}", _Handler.tag),
    ("POST", rf"/{_PLAIN}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    ("PUT", rf"/upload/{_PLAIN}/(?P<oid>[0-9a-f]+)", _Handler.upload),
    ("POST", rf"/verify/{_PLAIN}/(?P<oid>[0-9a-f]+)", _Handler.verify),
    ("GET", rf"/cdn/{_PLAIN}/{_AT}/(?P<path>.+)", _Handler.deliver),
    ("GET", rf"/{_PLAIN}/resolve/{_AT}/(?P<path>.+)", _Handler.resolve),
)
