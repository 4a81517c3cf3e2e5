"""What must not get onto the Hub: tokens, and the names of people's home folders."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from retold.dataset.hub_client import Upload
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError

_TOKENS = re.compile(
    rb"\bhf_[A-Za-z0-9]{30,}|\bapi_org_[A-Za-z0-9]{30,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}"
    rb"|\bgithub_pat_[A-Za-z0-9_]{40,}|\bsk-[A-Za-z0-9_-]{32,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    rb"|://[^/\s\"'@]{1,64}:[^/\s\"'@]{3,}@"
)
_HOMES = re.compile(
    rb"(?:/home|/Users)/[A-Za-z0-9._-]+|(?<![A-Za-z0-9._/-])/root(?=/)|[A-Z]:\\+Users\\+[^\\\"/]+"
)
_SHOWN = 24


@dataclass(frozen=True)
class Leak:
    """One thing that would be shown to everybody."""

    path: str
    """In the repository."""
    kind: str
    """`token` or `home`."""
    shown: str
    """The home folder, or the beginning of the token."""


def scan_files(files: Mapping[str, Upload]) -> Iterator[Leak]:
    """What the texts among the files give away."""
    for path, upload in files.items():
        if path.endswith((".json", ".md", "LATEST")):
            yield from find_leaks(path, upload.read())


def refuse_leaks(
    where: DatasetPath, leaks: Iterable[Leak], *, allow_paths: bool, instead: str
) -> None:
    """Refuse to push cards and metadata that hold a token or the name of a home folder.

    Args:
        where: what is pushed, for messages.
        leaks: of all that would be in the repository.
        allow_paths: let home folders pass; tokens never do.
        instead: what else can be done about a home folder, as the beginning of a sentence.

    Raises:
        DatasetError: something was found.
    """
    found = tuple(leaks)
    tokens = [leak for leak in found if leak.kind == "token"]
    if tokens:
        raise DatasetError(
            f"{where}: {tokens[0].path} holds what looks like a secret ({tokens[0].shown}…), "
            f"which everybody would see. Nothing was sent. Revoke it, and make what holds it anew "
            f"without it."
        )
    homes = [leak for leak in found if leak.kind == "home"]
    if homes and not allow_paths:
        raise DatasetError(
            f"{where}: {homes[0].path} names the folder {homes[0].shown} ({len(homes)} files "
            f"do), which everybody would see. Nothing was sent. {instead}, or let it be seen with "
            f"--allow-paths."
        )


def scan_tables(reader: DatasetReader) -> Iterator[Leak]:
    """What the texts of an episode table give away."""
    for field in reader.table.schema:
        if pa.types.is_string(field.type):
            texts = reader.table[field.name].unique().drop_null().to_pylist()
            found = {leak.kind: leak for t in texts for leak in find_leaks("", t.encode())}
            for leak in found.values():
                yield Leak(f"the column {field.name!r} of its episodes", leak.kind, leak.shown)


def find_leaks(path: str, content: bytes) -> Iterator[Leak]:
    """At most one token and one home folder of a file."""
    home = str(Path.home()).encode()
    if match := _TOKENS.search(content):
        yield Leak(path, "token", _show(match[0][:7]))
    if match := _HOMES.search(content):
        yield Leak(path, "home", _show(match[0]))
    elif len(home) > 1 and re.search(re.escape(home) + rb"[/\"' ]", content):
        yield Leak(path, "home", _show(home))


def _show(found: bytes) -> str:
    return found.decode(errors="replace")[:_SHOWN]
