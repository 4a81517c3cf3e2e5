"""`hub.json` in a folder: which repository a dataset was pulled from, and how much of its log."""

import json
from dataclasses import dataclass

from retold.dataset.files import replace_atomically
from retold.dataset.hub_names import HUB_PROTOCOL, parse_hub_name
from retold.dataset.paths import DatasetPath, path_inside
from retold.dataset.remote_path import RemotePath
from retold.schemas.canonical import encode_json, require_count, require_hex
from retold.schemas.errors import FormatError, UsageError

SOURCES_FOLDER = "sources"
"""Where datasets lie that were pushed along with the one whose variants refer to them, by id."""
ORIGIN_FILE = "hub.json"
_ALL = 10**9


@dataclass(frozen=True)
class Origin:
    """Where a dataset was pulled from."""

    repository: str
    commit: str
    """Of the repository."""
    through: int
    """Number of the newest commit of the dataset's log that came from there."""


def read_origin(dataset: DatasetPath) -> Origin | None:
    """Where a dataset was pulled from; None if it was made here.

    Raises:
        FormatError: the file is damaged, so that nobody knows whom to trust.
    """
    path = path_inside(dataset, ORIGIN_FILE)
    try:
        content = json.loads(path.read_bytes())
        name = parse_hub_name(content["repository"])
        return Origin(
            name.repository,
            require_hex(content["commit"], 40),
            require_count(content["through"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise FormatError(
            f"{path}: this is not what `retold pull` writes. Pull the dataset anew, or delete the "
            f"file if the dataset was made here."
        ) from error


def write_origin(dataset: DatasetPath, origin: Origin) -> None:
    """Remember where a dataset was pulled from."""
    content = {
        "repository": origin.repository,
        "commit": origin.commit,
        "through": origin.through,
    }
    replace_atomically(path_inside(dataset, ORIGIN_FILE), encode_json(content))


def pulled_through(dataset: DatasetPath) -> int:
    """The newest commit of a dataset that came from the Hub; -1 if none did."""
    if isinstance(dataset, RemotePath):
        return _ALL if dataset.protocol == HUB_PROTOCOL else -1
    origin = read_origin(dataset)
    return -1 if origin is None else origin.through
