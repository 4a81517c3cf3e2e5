"""Files of other formats: reading them with one-line errors, hashing them, replacing nothing."""

import hashlib
import shutil
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from retold.schemas.errors import DatasetError, RetoldError

_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
    EOFError,
    pa.ArrowException,
)
"""What the libraries of other formats raise when a file is not what it should be."""


@contextmanager
def reading(where: Path | str, what: str) -> Iterator[None]:
    """Say in one line what is wrong with a file that another library reads.

    Raises:
        DatasetError: the library could not read it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except RetoldError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            reason = f"{reason} is missing"
        raise DatasetError(
            f"{where}: this cannot be read as {what}: {reason.rstrip('.')}. Restore it from a copy, "
            f"then run again; nothing was written."
        ) from error


@contextmanager
def writing(target: Path, what: str) -> Iterator[None]:
    """Say in one line why another library could not write a file.

    Raises:
        DatasetError: it could not.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except RetoldError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise DatasetError(
            f"{target}: this cannot be written as {what}: {reason}. Make room or choose another "
            f"format, then run again; nothing was left behind."
        ) from error


def hash_files(root: Path, files: Sequence[Path]) -> str:
    """One hash of the names and contents of a source's files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        name = path.relative_to(root).as_posix() if path != root else ""
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


@contextmanager
def new_path(target: Path) -> Iterator[Path]:
    """A path beside the target to write to, which gets its name when the block ends well.

    Raises:
        DatasetError: the target exists; it is never overwritten.
    """
    refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        refuse_existing(target)
        temporary.rename(target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def refuse_existing(target: Path) -> None:
    """Refuse to overwrite.

    Raises:
        DatasetError: something stands there.
    """
    if target.exists() or target.is_symlink():
        raise DatasetError(
            f"{target}: this exists, and an export overwrites nothing. Give a path that does not "
            f"exist yet."
        )
