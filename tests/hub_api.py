"""What a fake Hub answers: the part of its HTTP interface that the real clients use."""

import base64
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hub_repositories import Blob, GitCommit, Repository, is_large
from hub_state import Hub

PAGE = 50
"""Entries of a listing that one reply holds."""


@dataclass
class Reply:
    """An answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Route = tuple[str, str, Callable[..., Reply]]
"""A method, a pattern of paths whose groups are the arguments, and what answers."""


class Refusal(Exception):
    """An answer that ends the handling of a request."""

    def __init__(self, status: int, code: str = "", text: str = "") -> None:
        self.reply = Reply(
            status,
            json.dumps({"error": text or code}).encode(),
            {"X-Error-Code": code} if code else {},
        )


@dataclass
class Request:
    """What was asked."""

    hub: Hub
    path: str
    """With its query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes

    def check_token(self) -> None:
        """Refuse whoever has not logged in."""
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            raise Refusal(401, text="Invalid username or password.")

    def find(self, kind: str, name: str) -> Repository:
        """A repository that the login may see."""
        found = self.hub.repositories.get(f"{kind.replace('models/', '')}{name}")
        if found is None:
            raise Refusal(404, "RepoNotFound")
        if found.is_private:
            self.check_token()
        return found

    def commit(self, kind: str, name: str, revision: str) -> tuple[Repository, GitCommit]:
        """A repository, and the commit of it that a revision names."""
        repository = self.find(kind, name)
        commit = repository.find(revision)
        if commit is None:
            raise Refusal(404, "RevisionNotFound")
        return repository, commit


def answer(command: str, request: Request, routes: Sequence[Route]) -> Reply:
    """The answer to a request."""
    path = urllib.parse.urlsplit(request.path).path
    for method, pattern, route in routes:
        match = re.fullmatch(pattern, path)
        if match and method == command.replace("HEAD", "GET"):
            values = {k: urllib.parse.unquote(v or "") for k, v in match.groupdict().items()}
            try:
                if method != "GET" and not path.startswith(("/upload/", "/xet/")):
                    request.check_token()
                return route(request, **values)
            except Refusal as refusal:
                return refusal.reply
    return Reply(404, b'{"error": "no such route"}')


def whoami(request: Request) -> Reply:
    request.check_token()
    return _json({"type": "user", "name": "me", "orgs": [], "auth": {}})


def validate_card(request: Request) -> Reply:
    text = json.loads(request.content)["content"]
    if not re.match(r"---\n.*?\n---\n", text, re.DOTALL):
        raise Refusal(400, text="no metadata")
    return _json({"errors": [], "warnings": []})


def create(request: Request) -> Reply:
    asked = json.loads(request.content)
    kind = "datasets/" if asked.get("type") == "dataset" else ""
    name = f"{kind}{asked.get('organization') or 'me'}/{asked['name']}"
    if name in request.hub.repositories:
        url = f"{request.hub.url}/{name}"
        return Reply(409, json.dumps({"error": "exists", "url": url}).encode())
    made = request.hub.make(name)
    made.is_private = bool(asked.get("private") or asked.get("visibility") == "private")
    return _json({"url": f"{request.hub.url}/{name}", "name": name, "id": name})


def info(request: Request, kind: str, name: str, revision: str = "") -> Reply:
    repository, commit = request.commit(kind, name, revision or "main")
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


def tree(request: Request, kind: str, name: str, revision: str, path: str = "") -> Reply:
    _, commit = request.commit(kind, name, revision)
    start = f"{path.strip('/')}/" if path.strip("/") else ""
    below = {p: b for p, b in commit.files.items() if p.startswith(start)}
    if start and not below:
        raise Refusal(404, "EntryNotFound")
    entries: dict[str, dict[str, Any]] = {}
    is_deep = request.query.get("recursive", "").lower() == "true"
    for file, blob in sorted(below.items()):
        steps = file[len(start) :].split("/")
        for count in range(1, len(steps)) if is_deep else range(1, min(2, len(steps))):
            folder = start + "/".join(steps[:count])
            entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
        if is_deep or len(steps) == 1:
            entries[file] = blob.describe(file)
    first = int(request.query.get("cursor", 0))
    page = list(entries.values())[first : first + PAGE]
    headers = {}
    if first + PAGE < len(entries):
        again = urllib.parse.urlencode({**request.query, "cursor": first + PAGE})
        path_only = urllib.parse.urlsplit(request.path).path
        headers["Link"] = f'<{request.hub.url}{path_only}?{again}>; rel="next"'
    return Reply(200, json.dumps(page).encode(), headers)


def paths_info(request: Request, kind: str, name: str, revision: str) -> Reply:
    _, commit = request.commit(kind, name, revision)
    asked = urllib.parse.parse_qs(request.content.decode()).get("paths", [])
    found: list[dict[str, Any]] = []
    for path in asked:
        if path in commit.files:
            found.append(commit.files[path].describe(path))
        elif any(file.startswith(f"{path}/") for file in commit.files):
            found.append({"type": "directory", "path": path, "oid": "0" * 40, "size": 0})
    return _json(found)


def preupload(request: Request, kind: str, name: str, revision: str) -> Reply:
    _, commit = request.commit(kind, name, revision)
    ignored = commit.files.get(".gitignore")
    patterns = [] if ignored is None else ignored.content.decode().split()
    found = []
    for file in json.loads(request.content)["files"]:
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


def lfs_batch(request: Request, kind: str, name: str) -> Reply:
    repository = request.find(kind, name)
    objects = []
    for file in json.loads(request.content)["objects"]:
        entry = dict(file)
        if file["oid"] not in repository.large:
            url = f"{request.hub.url}/upload/{kind}{name}/{file['oid']}"
            entry["actions"] = {
                "upload": {"href": url},
                "verify": {"href": f"{request.hub.url}/verify/{kind}{name}/{file['oid']}"},
            }
        objects.append(entry)
    return _json({"transfer": "basic", "objects": objects})


def upload(request: Request, kind: str, name: str, oid: str) -> Reply:
    if Blob(request.content, True).sha256 != oid:
        raise Refusal(400, text="the content is not that of its hash")
    request.find(kind, name).large[oid] = request.content
    return Reply(200, b"{}", {"ETag": f'"{oid}"'})


def verify(request: Request, kind: str, name: str, oid: str) -> Reply:
    asked = json.loads(request.content)
    if len(request.find(kind, name).large.get(oid, b"")) != asked["size"]:
        raise Refusal(422, text="it is not there")
    return _json({})


def commit(request: Request, kind: str, name: str, revision: str) -> Reply:
    repository = request.find(kind, name)
    header, *lines = [json.loads(line) for line in request.content.splitlines() if line]
    added: dict[str, Blob] = {}
    deleted = []
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            added[value["path"]] = Blob(base64.b64decode(value["content"]), False)
        elif line["key"] == "lfsFile":
            if value["oid"] not in repository.large:
                raise Refusal(400, text=f"{value['path']} was not uploaded")
            added[value["path"]] = Blob(repository.large[value["oid"]], True)
        else:
            is_folder = line["key"] == "deletedFolder"
            deleted.append(value["path"].rstrip("/") + "/" * is_folder)
    with repository.lock:
        parent = header["value"].get("parentCommit")
        if revision != "main" or parent not in (None, repository.head.oid):
            raise Refusal(412, text="A commit has happened since.")
        made = repository.commit(added, deleted, header["value"]["summary"])
    url = f"{request.hub.url}/{repository.name}/commit/{made.oid}"
    return _json({"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""})


def tag(request: Request, kind: str, name: str, revision: str) -> Reply:
    repository, commit = request.commit(kind, name, revision)
    tag = json.loads(request.content)["tag"]
    if tag in repository.tags:
        raise Refusal(409, text="Tag reference exists already")
    repository.tags[tag] = commit.oid
    return _json({})


def refs(request: Request, kind: str, name: str) -> Reply:
    repository = request.find(kind, name)
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


def resolve(request: Request, kind: str, name: str, revision: str, path: str) -> Reply:
    _, commit = request.commit(kind, name, revision)
    blob = commit.files.get(path)
    if blob is None:
        raise Refusal(404, "EntryNotFound")
    headers = {
        "X-Repo-Commit": commit.oid,
        "Accept-Ranges": "bytes",
        "ETag": f'"{blob.sha256 if blob.is_lfs else blob.git_oid}"',
    }
    if blob.is_lfs:
        store = request.hub.url.replace("127.0.0.1", "localhost")  # another host, as it is really
        place = f"{store}/cdn/{kind}{name}/{commit.oid}/{urllib.parse.quote(path)}"
        linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(blob.size)}
        return Reply(302, b"", {**headers, **linked, "Location": place})
    return _ranged(request, blob, headers)


def deliver(request: Request, kind: str, name: str, revision: str, path: str) -> Reply:
    blob = request.hub.repositories[f"{kind}{name}"].find(revision).files[path]  # type: ignore[union-attr]
    return _ranged(request, blob, {"ETag": f'"{blob.sha256}"', "Accept-Ranges": "bytes"})


def _ranged(request: Request, blob: Blob, headers: Mapping[str, str]) -> Reply:
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range") or "")
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


KIND = r"(?P<kind>datasets/|models/)"
NAME = r"(?P<name>[^/]+/[^/]+?)"
PLAIN = r"(?P<kind>datasets/|)" + NAME
AT = r"(?P<revision>[^/]+)"
ROUTES: tuple[Route, ...] = (
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/validate-yaml", validate_card),
    ("POST", r"/api/repos/create", create),
    ("GET", rf"/api/{KIND}{NAME}/refs", refs),
    ("GET", rf"/api/{KIND}{NAME}/tree/{AT}(?P<path>/.*)?", tree),
    ("GET", rf"/api/{KIND}{NAME}/revision/{AT}", info),
    ("GET", rf"/api/{KIND}{NAME}", info),
    ("POST", rf"/api/{KIND}{NAME}/paths-info/{AT}", paths_info),
    ("POST", rf"/api/{KIND}{NAME}/preupload/{AT}", preupload),
    ("POST", rf"/api/{KIND}{NAME}/commit/{AT}", commit),
    ("POST", rf"/api/{KIND}{NAME}/tag/{AT}", tag),
    ("POST", rf"/{PLAIN}\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT", rf"/upload/{PLAIN}/(?P<oid>[0-9a-f]+)", upload),
    ("POST", rf"/verify/{PLAIN}/(?P<oid>[0-9a-f]+)", verify),
    ("GET", rf"/cdn/{PLAIN}/{AT}/(?P<path>.+)", deliver),
    ("GET", rf"/{PLAIN}/resolve/{AT}/(?P<path>.+)", resolve),
)
