"""Paths to a dataset, and paths in one that can lead nowhere else."""

import os
from pathlib import Path
from typing import TypeVar

from retold.dataset.remote_path import RemotePath, is_url
from retold.schemas.errors import FormatError

DatasetPath = Path | RemotePath
"""Where a dataset, or a file of one, is: a folder of this machine, or a URL."""
AnyPath = TypeVar("AnyPath", Path, RemotePath, DatasetPath)

_DO_NOT_USE = (
    "Replace it by what it leads to if you made it; do not use a dataset that others made so"
)


def dataset_path(text: str | DatasetPath) -> DatasetPath:
    """The place that a text names: a path, or a URL such as `s3://bucket/dataset`.

    Raises:
        UsageError: it is a URL that leads nowhere.
    """
    if not isinstance(text, str):
        return text
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    return RemotePath(text) if is_url(text) else Path(text)


def split_snapshot(path: DatasetPath) -> tuple[DatasetPath, str | None]:
    """The dataset's folder, and the snapshot that follows `@` in its name.

    A folder of this machine that really has that name is meant as it is. On the Hub the first `@`
    belongs to the repository: `hf://OWNER/NAME@TAG@12` is a snapshot of what was released as TAG.
    """
    folder, at, name = path.name.rpartition("@")
    if isinstance(path, RemotePath) and path.is_repository and "@" not in folder:
        return path, None
    if not at or not folder or (isinstance(path, Path) and path.exists()):
        return path, None
    return path.with_name(folder), name


def path_inside(root: AnyPath, *names: str) -> AnyPath:
    """The path below a dataset's folder, refused where a name or a link would lead elsewhere.

    The folder itself may be a link: whoever names it knows where it leads.

    Raises:
        FormatError: the dataset was made, or changed, to read or write outside it.
    """
    path = root
    for name in names:
        if not is_plain_path(name) or "/" in name:
            raise FormatError(f"{root}: it names {name!r}, which is no plain name. {_DO_NOT_USE}.")
        path = path / name
        if path.is_symlink():
            raise FormatError(f"{path}: this is a link to elsewhere. {_DO_NOT_USE}.")
    return path


def is_plain_path(name: str) -> bool:
    """Whether a relative path in a dataset, `/` between folders, stays where it starts."""
    return "\0" not in name and "\\" not in name and not {"", ".", ".."} & set(name.split("/"))


def find_link(folder: DatasetPath) -> Path | None:
    """Some link in a folder of which no part may be one; None if there is none."""
    if isinstance(folder, RemotePath):
        return None
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                return Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                link = find_link(Path(entry.path))
                if link is not None:
                    return link
    return None


def refuse_links(folder: DatasetPath) -> None:
    """Refuse a folder that is a link or holds one; one that is missing is no matter.

    Raises:
        FormatError: it would lead outside.
    """
    try:
        link = folder if folder.is_symlink() else find_link(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if link is not None:
        raise FormatError(f"{link}: this is a link to elsewhere. {_DO_NOT_USE}.")
