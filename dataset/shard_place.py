"""Where shards are built and where they go: aside on this machine, then moved or sent into place."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from retold.dataset.files import list_names, sync_folder, touch_file, walk_files
from retold.dataset.paths import DatasetPath, path_inside
from retold.dataset.remote_path import RemotePath
from retold.schemas.canonical import sha256_hex
from retold.schemas.errors import ConflictError
from retold.schemas.faults import reach
from retold.schemas.manifest import FileEntry

_SENT_AT_ONCE_BYTES = 64_000_000
_SYNCED_AT_ONCE = 16


@contextmanager
def build_aside(dataset: DatasetPath) -> Iterator[Path]:
    """A new folder of this machine to build a shard of a dataset in; what is left there goes."""
    if isinstance(dataset, RemotePath):
        folder = Path(tempfile.mkdtemp(prefix="retold-shard-"))
    else:
        folder = path_inside(dataset, "tmp", uuid.uuid4().hex)
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shard_place(dataset: DatasetPath, shard_id: str) -> DatasetPath:
    """The folder of a shard."""
    return path_inside(dataset, "shards", shard_id[:2], shard_id)


def touch_shards(dataset: DatasetPath, shard_ids: Sequence[str]) -> None:
    """Make shards young, so that no `gc` takes them for some that were left.

    Raises:
        ConflictError: it has taken one.
    """
    for shard_id in shard_ids:
        path = shard_place(dataset, shard_id) / "manifest.json"
        try:
            touch_file(path)
        except FileNotFoundError as error:
            raise ConflictError(
                f"{path}: the shard was removed before it was committed. Run again."
            ) from error


def list_shards(dataset: DatasetPath) -> list[str]:
    """Sorted `<2 hex>/<id>` of the shard folders that are there, live or not."""
    folder = dataset / "shards"
    if isinstance(folder, RemotePath):  # one listing of everything beats one for each folder
        return sorted({"/".join(name.split("/")[:2]) for name in folder.list_files()})
    return [
        f"{prefix}/{name}"
        for prefix in list_names(folder)
        if (folder / prefix).is_dir()
        for name in list_names(folder / prefix)
    ]


def place_shard(folder: Path, dataset: DatasetPath, shard_id: str) -> None:
    """Give a whole shard its name, durably; an equal one that has it already is success.

    That one may have been left long ago, and `gc` may be about to take it: it is made young, and
    if it went meanwhile, the new one takes the place.
    """
    target = shard_place(dataset, shard_id)
    if isinstance(target, RemotePath):
        _send(folder, target)
    else:
        _sync_tree(folder)
        reach("shard-after")
        _move(folder, target)


def list_files(folder: DatasetPath) -> tuple[FileEntry, ...]:
    """Every file below a folder, as a manifest names it."""
    entries = []
    for name in sorted(walk_files(folder)):
        content = (folder / name).read_bytes()
        entries.append(FileEntry(name, len(content), sha256_hex(content)))
    return tuple(entries)


def _send(folder: Path, target: RemotePath) -> None:
    """Write the files to the store, the manifest last: what has none is not whole.

    A store keeps what it has acknowledged, so nothing is left to sync.
    """
    reach("shard-after")
    reach("rename-before")
    batch: dict[str, bytes] = {}
    for name in sorted(walk_files(folder).keys() - {"manifest.json"}):
        batch[name] = (folder / name).read_bytes()
        if sum(map(len, batch.values())) > _SENT_AT_ONCE_BYTES:
            target.write_files(batch)
            batch = {}
    target.write_files(batch)
    reach("rename-inside")
    (target / "manifest.json").write_bytes((folder / "manifest.json").read_bytes())
    reach("rename-after")


def _move(folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    reach("rename-before")
    while True:
        try:
            os.rename(folder, target)
            break
        except OSError:
            if not target.is_dir():
                raise
        try:
            # The name is a hash of the content: what stands there is the same shard.
            touch_file(target / "manifest.json")
            break
        except FileNotFoundError:
            continue
    reach("rename-inside")
    sync_folder(target.parent)
    sync_folder(target.parent.parent)
    reach("rename-after")


def _sync_tree(folder: Path) -> None:
    """Make a folder and all that is in it durable; a disk serves many such waits at once."""
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as pool:
        for _ in pool.map(_sync, (folder, *folder.rglob("*"))):
            pass


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
