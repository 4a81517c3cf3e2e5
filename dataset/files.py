"""Files that are whole or absent: durable writes, atomic replacement, exclusive creation."""

import os
import uuid
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on disk; the folder entry is the caller's to sync."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that readers see the old or the new content, never a part."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_durably(temporary, content)
    os.replace(temporary, path)


def link_exclusively(temporary: Path, path: Path) -> bool:
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
