"""A repository at one commit, and the bytes of its files: exact ranges, checked, asked for again."""

import hashlib
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from retold.dataset.hub_client import (
    HubFile,
    HubRepository,
    again,
    git_oid,
    import_hub,
    open_session,
)
from retold.dataset.hub_errors import telling_hub_errors
from retold.schemas.canonical import sha256_hex
from retold.schemas.errors import DatasetError, FormatError

_REDIRECT_SECONDS = 300.0
"""How long the place that a large file was found at is used again; the Hub signs it for longer."""
_PIECE_BYTES = 16_000_000


@dataclass
class HubRevision:
    """One repository at one commit, which never changes."""

    repository: HubRepository
    commit: str
    _places: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Where large files were found, and until when that holds."""

    @cached_property
    def files(self) -> dict[str, HubFile]:
        """Every file, by its path. Asked for once."""
        return self.repository.list_files(self.commit)

    @cached_property
    def folders(self) -> dict[str, set[str]]:
        """What lies directly in each folder."""
        folders: dict[str, set[str]] = {"": set()}
        for path in self.files:
            parent, _, name = path.rpartition("/")
            while name not in folders.setdefault(parent, set()):
                folders[parent].add(name)
                if not parent:
                    break
                parent, _, name = parent.rpartition("/")
        return folders

    def where(self, path: str) -> str:
        """A file, for messages."""
        return f"hf://{self.repository.name.repository}@{self.commit[:12]}/{path}"

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes `start..end-1` of a file, over one request, sent again where it broke off.

        Raises:
            DatasetError: the Hub does not deliver them.
        """
        with telling_hub_errors(self.where(path)):
            return again(lambda: self._fetch(path, start, end))

    def read_file(self, path: str, limit: int) -> bytes:
        """A small file, checked against the listing.

        Args:
            path: of the file.
            limit: bytes that it may have; a larger one is refused before it is asked for.

        Raises:
            FormatError: there is none, it is too large, or it is not what the listing says.
        """
        file = self.files.get(path)
        if file is None:
            raise FormatError(
                f"{self.where(path)}: the file is missing. Do not use this repository until its "
                f"owner has pushed again."
            )
        if file.size > limit:
            raise FormatError(
                f"{self.where(path)}: it has {file.size:,} bytes, but {limit:,} is the most that is "
                f"read. Nothing was downloaded; do not use this repository."
            )
        content = self.read_range(path, 0, file.size) if file.size else b""
        found = git_oid(content) if file.sha256 is None else sha256_hex(content)
        if found != file.content_id:
            raise self.refuse_content(path)
        return content

    def download(self, path: str, target: Path, size: int, sha256: str) -> int:
        """Write a file to disk under its own name once it is whole and checked; bytes that came.

        What an interrupted download left beside it is gone on from.

        Raises:
            FormatError: it is not what was promised.
        """
        if target.is_file() and not target.is_symlink() and _hash(target) == sha256:
            return 0
        if (found := self.files.get(path)) is None or found.size != size:
            there = "missing" if found is None else f"of {found.size:,} bytes"
            raise FormatError(
                f"{self.where(path)}: the file is {there}, but the manifest promises {size:,} bytes. "
                f"Do not use this repository until its owner has pushed again."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        with part.open("ab") as file:
            start = came = file.tell()
            if start > size:
                file.truncate(0)
                start = came = 0
            while came < size:
                file.write(self.read_range(path, came, min(size, came + _PIECE_BYTES)))
                came = file.tell()
        if _hash(part) != sha256:
            part.unlink()
            raise self.refuse_content(path)
        part.replace(target)
        return size - start

    def refuse_content(self, path: str) -> FormatError:
        """What to say of a file that is not what it was promised to be."""
        return FormatError(
            f"{self.where(path)}: its content is not what was promised (its hash differs). It was "
            f"not kept; run again, and do not use this repository if that happens twice."
        )

    def _fetch(self, path: str, start: int, end: int) -> bytes:
        tools, session = import_hub().utils, open_session()
        home = self.repository.file_url(self.commit, path)
        place, until = self._places.get(path, (home, 0.0))
        is_known = place != home and time.monotonic() < until
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if not is_known or self.repository.is_own(place):  # the login is for the Hub alone
            headers = {**tools.build_hf_headers(), **headers}
        content = bytearray()
        with session.stream("GET", place if is_known else home, headers=headers) as response:
            if is_known and response.status_code in (400, 401, 403, 404):
                self._places.pop(path, None)  # its signature has expired
                raise ConnectionResetError("the file has another place by now")
            tools.hf_raise_for_status(response)
            if response.status_code != 206 and start:
                raise DatasetError(f"{self.where(path)}: the server sends no ranges of files.")
            if str(response.url) != home:
                self._places[path] = (str(response.url), time.monotonic() + _REDIRECT_SECONDS)
            for part in response.iter_bytes():
                content += part
                if len(content) >= end - start:
                    break
        if len(content) < end - start:
            raise ConnectionResetError(f"{len(content)} of {end - start} bytes came")
        return bytes(content[: end - start])


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
