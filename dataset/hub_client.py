"""One repository on the Hugging Face Hub: what it holds, and the one way in which it is changed.

Only the modules `hub_*` talk to the Hub, through `huggingface_hub`, which is imported when it is needed.
The login is the usual one; no token is ever shown, logged or stored.
"""

import hashlib
import logging
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from retold.dataset.hub_errors import HubBusyError, is_passing, tell_passing, telling_hub_errors
from retold.dataset.hub_names import HubName, is_commit
from retold.dataset.paths import DatasetPath
from retold.schemas.canonical import require_hex, sha256_hex
from retold.schemas.errors import ConflictError, DatasetError, UsageError

logger = logging.getLogger(__name__)

Kind = Literal["dataset", "model"]

WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Before a request that failed for now is sent again."""
TIMEOUT_SECONDS = 60.0
"""Without a byte, before a connection counts as broken."""
_SENT_AT_ONCE_BYTES = 64_000_000
_SENT_AT_ONCE_FILES = 200

T = TypeVar("T")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, as its listing says."""

    size: int
    git_oid: str
    sha256: str | None
    """Of large files, which are stored by it; None for those that git holds."""

    @property
    def content_id(self) -> str:
        """Equal for equal contents."""
        return self.sha256 or self.git_oid

    def holds(self, size: int, sha256: str, read: Callable[[], bytes]) -> bool:
        """Whether it is this content; `read` is asked only where git's own hash must be compared."""
        if self.sha256 is not None:
            return self.sha256 == sha256
        return self.size == size and self.git_oid == git_oid(read())

    def holds_bytes(self, content: bytes) -> bool:
        """Whether it is this content."""
        return self.holds(len(content), sha256_hex(content), lambda: content)


@dataclass(frozen=True)
class Upload:
    """A file to be sent: its content, or where that is."""

    content: bytes | DatasetPath
    size: int
    sha256: str

    def read(self) -> bytes:
        """The whole content."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


def git_oid(content: bytes) -> str:
    """The hash that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class HubRepository:
    """A repository, there or not."""

    def __init__(self, name: HubName, kind: Kind = "dataset") -> None:
        self.name = name
        self.kind = kind
        self._prefix = "datasets/" if kind == "dataset" else ""

    def find_head(self, revision: str | None = None) -> str:
        """The commit that a revision is now.

        Raises:
            DatasetError: there is no such repository or revision, or the Hub cannot be asked.
        """
        if revision is not None and is_commit(revision):
            return revision
        name = revision or "main"
        at = "" if revision is None else f"@{revision}"
        with telling_hub_errors(f"hf://{self.name.repository}{at}"):
            info = again(
                lambda: self._api.repo_info(
                    self.name.repository,
                    repo_type=self.kind,
                    revision=name,
                    timeout=TIMEOUT_SECONDS,
                )
            )
        if not isinstance(info.sha, str) or not is_commit(info.sha):
            raise DatasetError(f"{self.name}: the Hub names no commit for {name}. Try again later.")
        return info.sha

    def exists(self) -> bool:
        """Whether there is such a repository that the login may see."""
        with telling_hub_errors(str(self.name)):
            return bool(
                again(lambda: self._api.repo_exists(self.name.repository, repo_type=self.kind))
            )

    def read_tags(self) -> dict[str, str]:
        """The commit of every tag."""
        with telling_hub_errors(str(self.name)):
            refs = again(
                lambda: self._api.list_repo_refs(self.name.repository, repo_type=self.kind)
            )
        return {tag.name: tag.target_commit for tag in refs.tags}

    def list_files(self, commit: str) -> dict[str, HubFile]:
        """Every file of a commit, by its path.

        Raises:
            DatasetError: the listing cannot be had, or makes no sense.
        """
        files = {}
        for entry in self._list_entries(commit):
            with telling_hub_errors(f"{self.name}: the listing"):
                if entry["type"] != "file":
                    continue
                lfs = entry.get("lfs") or {}
                size = entry["size"]
                if type(size) is not int or size < 0:
                    raise ValueError(f"a file has the size {size!r}")
                sha256 = require_hex(lfs["oid"], 64) if lfs else None
                files[str(entry["path"])] = HubFile(size, require_hex(entry["oid"], 40), sha256)
        return files

    def file_url(self, commit: str, path: str) -> str:
        """Where a file's content is asked for."""
        return f"{self._endpoint}/{self._prefix}{self.name.repository}/resolve/{commit}/" + (
            urllib.parse.quote(path)
        )

    def is_own(self, url: str) -> bool:
        """Whether a place is the Hub's own, rather than a store that it sends readers to."""
        return url.startswith(f"{self._endpoint}/")

    def create(self, *, is_private: bool) -> None:
        """Make the repository; one that is there is left as it is."""
        with telling_hub_errors(str(self.name)):
            again(
                lambda: self._api.create_repo(
                    self.name.repository,
                    repo_type=self.kind,
                    private=is_private,
                    exist_ok=True,
                )
            )

    def check_login(self) -> None:
        """See that somebody is logged in, before anything is read or sent.

        Raises:
            DatasetError: nobody is.
        """
        with telling_hub_errors(str(self.name)):
            again(self._api.whoami)

    def commit(
        self,
        uploads: Mapping[str, Upload],
        deleted: Sequence[str],
        *,
        parent: str,
        message: str,
    ) -> str:
        """Send files and make exactly one commit on `parent`; the commit's id.

        Large files go first, and those that the Hub has are not sent: an interrupted push resumes.

        Raises:
            ConflictError: the branch is no longer at `parent`; nothing was changed.
            DatasetError: the Hub refused, or cannot be asked; the branch is as it was.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = []
        for batch in _batches(uploads):
            made = []
            for path, upload in batch.items():
                content = upload.content
                if not isinstance(content, bytes | Path):
                    content = content.read_bytes()
                addition = CommitOperationAdd(path, content)
                addition.upload_info.sha256 = bytes.fromhex(upload.sha256)
                made.append(addition)
            self._send(made)
            operations += made
        operations += [CommitOperationDelete(path, is_folder=False) for path in deleted]
        return self._commit(operations, uploads, deleted, parent, message)

    def tag(self, name: str, commit: str) -> None:
        """Give a commit a name for good.

        Raises:
            DatasetError: the name is that of another commit.
        """
        with telling_hub_errors(f"{self.name}: tag {name!r}"):
            again(
                lambda: self._api.create_tag(
                    self.name.repository,
                    tag=name,
                    revision=commit,
                    repo_type=self.kind,
                    exist_ok=True,
                )
            )
        found = self.read_tags().get(name)
        if found != commit:
            raise refuse_moving(self.name, name, found)

    def _send(self, additions: Sequence[Any]) -> None:
        with telling_hub_errors(str(self.name)):
            self._api.preupload_lfs_files(
                self.name.repository, additions=additions, repo_type=self.kind, free_memory=True
            )
        ignored = [a.path_in_repo for a in additions if a._should_ignore]
        if ignored:
            raise DatasetError(
                f"{self.name}: its .gitignore leaves out {ignored[0]}, without which the push would "
                f"be broken. Nothing was changed; remove the line from .gitignore there."
            )

    def _commit(
        self,
        operations: Sequence[Any],
        uploads: Mapping[str, Upload],
        deleted: Sequence[str],
        parent: str,
        message: str,
    ) -> str:
        """Commit, again where it failed for now: on one parent it can be done only once."""
        is_again = False
        for wait in (*WAITS_SECONDS, None):
            try:
                with telling_hub_errors(str(self.name)):
                    made = self._api.create_commit(
                        self.name.repository,
                        operations,
                        commit_message=message,
                        repo_type=self.kind,
                        parent_commit=parent,
                    )
                return str(made.oid)
            except (ConflictError, HubBusyError) as error:
                if not is_again and isinstance(error, ConflictError):
                    raise
                head = self.find_head()
                if head != parent and self._has(head, uploads, deleted):
                    logger.warning("%s: committed, but the reply was lost.", self.name)
                    return head
                if wait is None or head != parent or isinstance(error, ConflictError):
                    raise
                logger.warning("%s", tell_passing(error, wait))
                is_again = True
                time.sleep(wait)
        raise AssertionError("the last failure was raised")

    def _has(self, commit: str, uploads: Mapping[str, Upload], deleted: Sequence[str]) -> bool:
        files = self.list_files(commit)
        return not set(deleted) & set(files) and all(
            path in files and files[path].holds(upload.size, upload.sha256, upload.read)
            for path, upload in uploads.items()
        )

    def _list_entries(self, commit: str) -> Iterator[Mapping[str, Any]]:
        """Page after page; the client's own listing would wait for ever where a server hangs."""
        url: str | None = (
            f"{self._endpoint}/api/{self.kind}s/{self.name.repository}/tree/{commit}"
            f"?recursive=true&expand=false"
        )
        while url is not None:
            with telling_hub_errors(str(self.name)):
                response = get(url)
                entries = response.json()
                if not isinstance(entries, list):
                    raise TypeError("a listing is no list")
            yield from entries
            url = response.links.get("next", {}).get("url")
            if url is not None and not url.startswith(f"{self._endpoint}/"):
                raise DatasetError(f"{self.name}: its listing goes on elsewhere, at {url[:80]}.")

    @property
    def _api(self) -> Any:
        open_session()  # anew each time: the client closes its session where a connection is refused
        return self._client

    @cached_property
    def _client(self) -> Any:
        return import_hub().HfApi(library_name="retold")

    @property
    def _endpoint(self) -> str:
        return str(self._client.endpoint)


def refuse_moving(name: HubName, tag: str, commit: str | None) -> DatasetError:
    """What to say where a tag would have to move."""
    where = "another commit" if commit is None else f"commit {commit[:12]}"
    return DatasetError(
        f"{name}: tag {tag!r} names {where} for good. Choose another name for this release."
    )


def import_hub() -> Any:
    """The Hub's client library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import huggingface_hub
        import huggingface_hub.utils
    except ImportError as error:
        raise UsageError(
            f"The Hub needs the package {error.name!r}. Install it with `pip install 'retold[hub]'`."
        ) from error
    client: Any = huggingface_hub  # its submodules re-export without saying so
    client.utils.disable_progress_bars()
    return client


def open_session() -> Any:
    """The client's HTTP session, which does not wait for ever for a server that hangs."""
    session = import_hub().utils.get_session()
    if session.timeout.read is None:
        session.timeout = TIMEOUT_SECONDS
    return session


def get(url: str, headers: Mapping[str, str] | None = None) -> Any:
    """The reply to a request with the login's headers, sent again where it failed for now."""
    tools = import_hub().utils

    def ask() -> Any:
        response = open_session().get(url, headers={**tools.build_hf_headers(), **(headers or {})})
        tools.hf_raise_for_status(response)
        return response

    return again(ask)


def again(ask: Callable[[], T]) -> T:
    """The answer of something that may be asked twice, asked again where it failed for now."""
    for wait in WAITS_SECONDS:
        try:
            return ask()
        except Exception as error:
            if not is_passing(error):
                raise
            logger.warning("%s", tell_passing(error, wait))
            time.sleep(wait)
    return ask()


def _batches(uploads: Mapping[str, Upload]) -> Iterator[dict[str, Upload]]:
    batch: dict[str, Upload] = {}
    for path, upload in uploads.items():
        batch[path] = upload
        is_full = sum(u.size for u in batch.values()) >= _SENT_AT_ONCE_BYTES
        if is_full or len(batch) == _SENT_AT_ONCE_FILES:
            yield batch
            batch = {}
    if batch:
        yield batch
