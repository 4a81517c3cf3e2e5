"""The files that make a snapshot of a dataset on the Hub: its log, and what is live of it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from retold.dataset.checkpoint import CHECKPOINT_EVERY, list_checkpoints, read_checkpoint
from retold.dataset.commit_files import commit_path, encode_latest
from retold.dataset.files import hash_file
from retold.dataset.hub_client import HubFile, Upload
from retold.dataset.hub_origin import SOURCES_FOLDER
from retold.dataset.paths import DatasetPath, path_inside
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_files import ShardFiles
from retold.schemas.canonical import sha256_hex
from retold.schemas.errors import DatasetError, FormatError, RetoldError

MOST_FILES = 10_000
"""Files that one push may send (format rule 20)."""
MOST_REPOSITORY_FILES = 100_000
MOST_FOLDER_ENTRIES = 10_000
"""Both are the Hub's own."""
MANAGED = ("commits/", "schemas/", "shards/", "checkpoints/", f"{SOURCES_FOLDER}/", "viewer/")
"""Folders of a repository that a push makes as the dataset has them; the rest it leaves alone."""


def upload_bytes(content: bytes) -> Upload:
    """Content that is made for the push."""
    return Upload(content, len(content), sha256_hex(content))


def snapshot_files(reader: DatasetReader) -> dict[str, Upload]:
    """What a snapshot consists of, by path: the log up to it, and schemas and shards live at it."""
    path, number = reader.path, reader.snapshot.number
    files = {"dataset.json": _upload_file(path_inside(path, "dataset.json"))}
    for commit in range(number + 1):
        files[f"commits/{commit:08d}.json"] = _upload_file(commit_path(path, commit))
    files["LATEST"] = upload_bytes(encode_latest(reader.dataset_id, number))
    for entry in reader.shards:
        schema = f"schemas/{entry.schema}.json"
        if schema not in files:
            files[schema] = _upload_file(path_inside(path, "schemas", f"{entry.schema}.json"))
        shard = ShardFiles(path, entry)
        for name, file in shard.files.items():
            content = path_inside(shard.path, *name.split("/"))
            files[f"{shard.place}/{name}"] = Upload(content, file.bytes, file.sha256)
        files[f"{shard.place}/manifest.json"] = _upload_file(shard.path / "manifest.json")
    files |= _checkpoint_files(reader)
    return files


def source_files(reader: DatasetReader) -> dict[str, Upload]:
    """The datasets that variants of a snapshot refer to, each as it is now, below `sources/`.

    Raises:
        DatasetError: one is not found.
    """
    files: dict[str, Upload] = {}
    ids = set(reader.table["source_dataset_id"].to_pylist()) - {None, reader.dataset_id}
    for dataset_id in sorted(ids):
        source = reader.source_reader(dataset_id)
        place = f"{SOURCES_FOLDER}/{dataset_id}"
        files |= {f"{place}/{name}": file for name, file in snapshot_files(source).items()}
    return files


def find_changes(
    wanted: Mapping[str, Upload], present: Mapping[str, HubFile], managed: tuple[str, ...]
) -> tuple[dict[str, Upload], list[str]]:
    """What must be sent, and what must go, for a repository to hold the wanted files.

    Args:
        wanted: files by path.
        present: what the repository holds.
        managed: what is a push's own: files by their path, folders by theirs and a `/`. Of it, what
            is not wanted goes.
    """
    changed = {}
    for path, upload in wanted.items():
        there = present.get(path)
        if there is None or not there.holds(upload.size, upload.sha256, upload.read):
            changed[path] = upload
    gone = [path for path in present if path not in wanted and _is_among(path, managed)]
    return changed, sorted(gone)


def _is_among(path: str, managed: tuple[str, ...]) -> bool:
    folders = tuple(name for name in managed if name.endswith("/"))
    return path in managed or (bool(folders) and path.startswith(folders))


def check_content(uploads: Mapping[str, Upload]) -> None:
    """See that every file to be sent is what its dataset says.

    Raises:
        FormatError: one was damaged since it was written.
    """
    for upload in uploads.values():
        if isinstance(upload.content, bytes):
            continue
        try:
            digest, size = hash_file(upload.content)
        except OSError as error:
            raise FormatError(
                f"{upload.content}: it cannot be read: {error.strerror}. Find all damage with "
                f"`retold audit`; nothing was sent."
            ) from error
        if (digest, size) != (upload.sha256, upload.size):
            raise FormatError(
                f"{upload.content}: it was changed (its hash differs). Find all damage with `retold "
                f"audit`; nothing was sent."
            )


def check_limits(
    dataset: DatasetPath, changed: Mapping[str, Upload], after: Mapping[str, object]
) -> None:
    """Refuse a push that the Hub would not take, or whose repository it would not serve well.

    Args:
        dataset: for the message.
        changed: what is to be sent.
        after: every file of the repository after the push, by path.

    Raises:
        DatasetError: there are too many files.
    """
    folders: dict[str, set[str]] = {}
    for path in after:
        steps = path.split("/")
        for depth in range(len(steps)):
            folders.setdefault("/".join(steps[:depth]), set()).add(steps[depth])
    fullest = max(folders, key=lambda folder: len(folders[folder]), default="")
    entries = len(folders.get(fullest, ()))
    for what, count, most in (
        ("a push of", len(changed), MOST_FILES),
        ("a repository of", len(after), MOST_REPOSITORY_FILES),
        (f"a folder {fullest!r} of", entries, MOST_FOLDER_ENTRIES),
    ):
        if count > most:
            raise DatasetError(
                f"{dataset}: this would be {what} {count:,} files, but {most:,} is the most. Merge "
                f"its shards with `retold compact {dataset}`, or push a fresh log with "
                f"--materialize."
            )


def _checkpoint_files(reader: DatasetReader) -> dict[str, Upload]:
    """The newest checkpoint, from which others open the dataset with few requests."""
    folder = path_inside(reader.path, "checkpoints")
    for number in reversed(list_checkpoints(reader.path)):
        if number > reader.snapshot.number or (number + 1) % CHECKPOINT_EVERY:
            continue
        with suppress(RetoldError, FileNotFoundError):
            checkpoint = read_checkpoint(reader.path, number)
            if checkpoint.snapshot == reader.log.snapshot(number):
                return {
                    f"checkpoints/{name}": _upload_file(folder / name) for name in _parts(number)
                }
    return {}


def _parts(number: int) -> Iterator[str]:
    for ending in ("json", "parquet", "files.parquet"):
        yield f"{number:08d}.{ending}"


def _upload_file(path: DatasetPath) -> Upload:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"{path}: it cannot be read: {error.strerror}. Find all damage with `retold audit`."
        ) from error
    # Small files are sent as they were read, so that what was checked is what is sent.
    return Upload(content, len(content), sha256_hex(content))
