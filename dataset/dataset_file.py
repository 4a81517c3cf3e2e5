"""`dataset.json`: what makes a folder a dataset. Made once, never changed."""

import json
import uuid

from retold.dataset.files import create_exclusively, list_names, make_folder
from retold.dataset.paths import DatasetPath, path_inside
from retold.schemas.canonical import encode_json, require_hex
from retold.schemas.errors import DatasetError, FormatError
from retold.schemas.manifest import FORMAT_VERSION, check_format_version


def create_dataset(path: DatasetPath, dataset_id: str | None = None) -> None:
    """Make a folder a dataset, unless it is one.

    Args:
        path: does not exist, is an empty folder, or is a dataset; on a store likewise.
        dataset_id: of the new dataset; drawn if None.

    Raises:
        DatasetError: the path is something else, or cannot be written.
    """
    if path.exists() and not _may_become_dataset(path):
        raise DatasetError(
            f"{path}: this exists and is not a dataset (it has no dataset.json). "
            f"Give a path that does not exist yet."
        )
    try:
        make_folder(path)
        make_folder(path_inside(path, "commits"))
        if not (path / "dataset.json").exists():
            content = {
                "format_version": FORMAT_VERSION,
                "dataset_id": dataset_id or uuid.uuid4().hex,
            }
            create_exclusively(path / "dataset.json", encode_json(content))
    except OSError as error:
        raise DatasetError(
            f"{path}: the dataset cannot be created: {error.strerror}. "
            f"Choose a place that you may write to."
        ) from error


def read_dataset_id(path: DatasetPath) -> str:
    """The id in a dataset's `dataset.json`.

    Raises:
        DatasetError: there is no dataset.
        FormatError: it is damaged, or of another format version.
    """
    file = path_inside(path, "dataset.json")
    try:
        encoded = file.read_bytes()
        content = json.loads(encoded)
        check_format_version(str(file), content["format_version"])
        if encode_json(content) != encoded:  # e.g. the last byte was lost
            raise ValueError("it is not in the one form in which it is written")
        return require_hex(content["dataset_id"], 32)
    except (FileNotFoundError, NotADirectoryError) as error:
        if list_names(path / "commits"):
            raise FormatError(
                f"{file}: the file is missing, but there are commits beside it. Restore it from a "
                f"copy of the dataset, or save what is sound with `retold repair DATASET NEW`."
            ) from error
        raise DatasetError(
            f"{path}: there is no dataset here (dataset.json is missing). "
            f"Make one with `retold collect TASK {path}`."
        ) from error
    except OSError as error:
        raise DatasetError(
            f"{file}: it cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{file}: this is not a dataset description. Restore it from a copy of the dataset."
        ) from error


def _may_become_dataset(path: DatasetPath) -> bool:
    """Whether a path is a dataset, or holds nothing but what an interrupted creation left."""
    if (path / "dataset.json").exists():
        return True
    return path.is_dir() and all(
        name.startswith((".dataset.json.", ".probe-"))
        or (name == "commits" and (path / name).is_dir() and not list_names(path / name))
        for name in list_names(path)
    )
