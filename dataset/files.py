"""Files that are whole or absent: durable writes, atomic replacement, exclusive creation."""

import hashlib
import os
import uuid
from pathlib import Path

from retold.dataset.paths import DatasetPath
from retold.dataset.remote_path import RemotePath
from retold.schemas.faults import reach


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: DatasetPath) -> None:
    """Have a folder; a store has every folder."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)


def list_names(folder: DatasetPath) -> list[str]:
    """Sorted names of what lies directly in a folder; none if there is no folder."""
    if isinstance(folder, RemotePath):
        return folder.list_names()
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def walk_files(folder: DatasetPath) -> dict[str, int]:
    """Every file below a folder, by its path in it with `/` between folders, with its bytes."""
    if isinstance(folder, RemotePath):
        return folder.list_files()
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(files)}


def hash_file(path: DatasetPath) -> tuple[str, int]:
    """The SHA-256 of a file's content, as hex digits, and its bytes."""
    if isinstance(path, RemotePath):
        content = path.read_bytes()
        return hashlib.sha256(content).hexdigest(), len(content)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return digest, path.stat().st_size


def touch_file(path: DatasetPath) -> None:
    """Make a file young, so that `gc` leaves it; on a store, where that is not done, see that it is there.

    Raises:
        FileNotFoundError: it is not there.
    """
    if isinstance(path, Path):
        os.utime(path)
    elif not path.exists():
        raise FileNotFoundError(str(path))


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on disk; the folder entry is the caller's to sync."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_atomically(path: DatasetPath, content: bytes) -> None:
    """Replace a file so that readers see the old or the new content, never a part."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_durably(temporary, content)
    os.replace(temporary, path)


def create_exclusively(path: DatasetPath, content: bytes, *, fault: str | None = None) -> bool:
    """Write a durable file unless there is one of that name; whether it is ours.

    Args:
        path: the file. Its folder is there.
        content: what it holds if it is ours.
        fault: the point, between writing and naming, at which tests kill the process.
    """
    if isinstance(path, RemotePath):
        if fault is not None:
            reach(fault)
        return path.create(content)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_durably(temporary, content)
    if fault is not None:
        reach(fault)
    return _link_exclusively(temporary, path)


def _link_exclusively(temporary: Path, path: Path) -> bool:
    """Give a finished file its name if nobody has it; the temporary name is removed either way.

    `link` fails if the name exists, which creating and then writing would not do without showing a
    half file. Over NFS a lost reply looks like an error: a second link to the file is success.
    """
    try:
        os.link(temporary, path)
        is_ours = True
    except OSError as error:
        is_ours = temporary.stat().st_nlink == 2
        if not is_ours and not isinstance(error, FileExistsError):
            raise
    finally:
        temporary.unlink()
    sync_folder(path.parent)
    return is_ours
