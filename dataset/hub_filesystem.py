"""`hf://OWNER/NAME@TAG/…` as the file system that `RemotePath` asks: read only, in exact ranges.

A tag or branch is looked up once in a process, so that all reads see one commit. The listing of a
commit never changes and is asked for once; so is every block of a file, which a folder on disk keeps.
"""

import errno
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from retold.dataset.block_cache import BlockCache
from retold.dataset.hub_client import HubRepository, import_hub
from retold.dataset.hub_names import HubName, parse_hub_name
from retold.dataset.hub_revision import HubRevision
from retold.schemas.canonical import sha256_hex

CACHE_BYTES = 20_000_000_000
"""What is kept on disk of files on the Hub, at most."""
_AT_ONCE = 16


class HubFilesystem:
    """The part of fsspec's interface that a dataset needs. Keys are `OWNER/NAME@TAG/path`."""

    def __init__(self, endpoint: str, blocks: BlockCache) -> None:
        self._endpoint = endpoint
        self._blocks = blocks
        self._revisions: dict[HubName, HubRevision] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="hub")

    def exists(self, key: str) -> bool:
        """Whether there is such a file or folder."""
        revision, path = self._find(key)
        return path in revision.files or path in revision.folders

    def isfile(self, key: str) -> bool:
        """Whether there is such a file."""
        revision, path = self._find(key)
        return path in revision.files

    def ls(self, key: str, detail: bool = False, refresh: bool = False) -> list[str]:
        """Keys of what lies directly in a folder."""
        revision, path = self._find(key)
        if path not in revision.folders:
            raise FileNotFoundError(key)
        return [f"{key}/{name}" for name in sorted(revision.folders[path])]

    def find(self, key: str, detail: bool = True) -> dict[str, dict[str, int]]:
        """Every file below a folder, with its size."""
        revision, path = self._find(key)
        start = f"{path}/" if path else ""
        return {
            f"{key}/{name[len(start) :]}": {"size": file.size}
            for name, file in revision.files.items()
            if name.startswith(start)
        }

    def cat_file(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """A file, or bytes `start..end-1` of it."""
        revision, path = self._find(key)
        file = revision.files.get(path)
        if file is None:
            raise FileNotFoundError(key)
        first = start or 0
        last = file.size if end is None else min(end, file.size)
        if last <= first:
            return b""
        # A repository may claim any hash for its files: what it sends is kept for itself alone.
        owner = revision.repository.name.repository
        return self._blocks.read(
            sha256_hex(f"{self._endpoint} {owner} {file.content_id}".encode()),
            file.size,
            first,
            last,
            lambda begin, stop: revision.read_range(path, begin, stop),
        )

    def cat_ranges(
        self,
        keys: Sequence[str],
        starts: Sequence[int | None],
        ends: Sequence[int | None],
        on_error: str = "return",
    ) -> list[Any]:
        """Ranges of files, asked for at once; a missing file is an exception in the list."""

        def read(place: tuple[str, int | None, int | None]) -> Any:
            try:
                return self.cat_file(*place)
            except FileNotFoundError as error:
                if on_error == "raise":
                    raise
                return error

        places = list(zip(keys, starts, ends, strict=True))
        for key in dict.fromkeys(keys):
            self._find(key)  # listed once, not by every thread
        return [read(places[0])] if len(places) == 1 else list(self._pool.map(read, places))

    def pipe_file(self, key: str, content: bytes, mode: str = "overwrite") -> None:
        """Nothing is written so: a push makes one commit of many files."""
        raise OSError(errno.EROFS, "datasets on the Hub are changed with `retold push` only")

    def _find(self, key: str) -> tuple[HubRevision, str]:
        owner, _, rest = key.partition("/")
        name, _, path = rest.partition("/")
        return self._revision(parse_hub_name(f"{owner}/{name}")), path

    def _revision(self, name: HubName) -> HubRevision:
        if name not in self._revisions:
            repository = HubRepository(name)
            found = HubRevision(repository, repository.find_head(name.revision))
            _ = found.files
            self._revisions[name] = found
        return self._revisions[name]


def hub_filesystem() -> HubFilesystem:
    """The file system of this process, for the Hub that the environment names."""
    import_hub()
    from huggingface_hub import constants

    return _filesystem(constants.ENDPOINT, constants.HF_HOME)


@cache
def _filesystem(endpoint: str, home: str) -> HubFilesystem:
    return HubFilesystem(endpoint, BlockCache(Path(home) / "retold-blocks", CACHE_BYTES))
