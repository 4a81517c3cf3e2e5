"""Rows of a stranger's table, a batch at a time: of Parquet files, or of a dataset on the Hub."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.foreign_files import hash_files, reading
from retold.dataset.hub_client import HubRepository
from retold.dataset.hub_names import HubName, parse_hub_name
from retold.dataset.hub_revision import HubRevision
from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.errors import DatasetError, RetoldError

_BUILDERS = ("parquet", "csv", "json", "arrow")
"""Kinds of files on the Hub that hold tables, and nothing that could be executed."""
_NO_ROWS = ("README.md", ".gitattributes")


class TableRows(Protocol):
    """What both kinds have in common."""

    where: str
    """For messages."""
    name: str
    """Of the task, if nobody names it otherwise."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""

    @property
    def sha256(self) -> str:
        """Of what the rows are made from."""

    def batches(self, columns: Sequence[str], size: int) -> Iterator[pa.Table]:
        """Some columns of all rows in order, so many rows at a time."""


class ParquetRows:
    """A Parquet file, or a folder of them in the order of their names."""

    def __init__(self, path: Path) -> None:
        self.where, self.name = str(path), path.stem
        self._path = path
        self._files = (path,) if path.is_file() else tuple(sorted(path.rglob("*.parquet")))
        if not self._files:
            raise DatasetError(
                f"{path}: there is no Parquet file here. Give a file, a folder of *.parquet, or "
                f"OWNER/NAME of a dataset on the Hub."
            )
        with reading(self._files[0], "a Parquet file"):
            self._schema = pq.read_schema(self._files[0])

    @property
    def schema(self) -> pa.Schema:
        """Of the first file."""
        return self._schema

    @property
    def sha256(self) -> str:
        """Of the files."""
        return hash_files(self._path, self._files)

    def batches(self, columns: Sequence[str], size: int) -> Iterator[pa.Table]:
        """Some columns of all rows in order, so many rows at a time."""
        for path in self._files:
            with reading(path, "a Parquet file"):
                # Buffered, so that a row group need not fit the memory.
                file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
                for name in columns:
                    if name not in file.schema_arrow.names:
                        raise DatasetError(
                            f"{path}: column {name!r} is missing, which {self._files[0].name} has. "
                            f"Give files of one table."
                        )
                for batch in file.iter_batches(batch_size=size, columns=list(columns)):
                    yield pa.Table.from_batches([batch])


class HubRows:
    """A dataset on the Hub, read by `datasets`: kept on disk, and mapped into memory."""

    def __init__(self, name: HubName, config: str | None, split: str) -> None:
        import datasets

        self.where, self.name = str(name), name.repository.partition("/")[2]
        repository = HubRepository(name)
        self._revision = HubRevision(repository, repository.find_head(name.revision))
        self._part = {"config": config, "split": split}
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(logging.CRITICAL)  # what it raises is told in one line
        with _telling(self.where):
            builder = datasets.load_dataset_builder(
                name.repository, name=config, revision=self._revision.commit
            )
            kinds = [kind.__module__.split(".") for kind in type(builder).__mro__]
            known = [parts[2] for parts in kinds if parts[:2] == ["datasets", "packaged_modules"]]
            if not known or known[0] not in _BUILDERS:
                raise DatasetError(
                    f"{self.where}: it is no table of {', '.join(_BUILDERS)} files, and nothing else "
                    f"is read. Bring it into Parquet first."
                )
            builder.download_and_prepare()
            if split not in builder.info.splits:
                raise DatasetError(
                    f"{self.where}: there is no split {split!r}, but "
                    f"{', '.join(map(repr, builder.info.splits))}. Name one in the mapping: "
                    f'split = "…".'
                )
            self._table: Any = builder.as_dataset(split=split).with_format("arrow")

    @property
    def schema(self) -> pa.Schema:
        """Of the split."""
        return self._table.data.schema

    @property
    def sha256(self) -> str:
        """Of all files but the card, which may change although no row does."""
        contents = {
            path: file.content_id
            for path, file in self._revision.files.items()
            if path not in _NO_ROWS
        }
        return sha256_hex(encode_json([contents, self._part]))

    def batches(self, columns: Sequence[str], size: int) -> Iterator[pa.Table]:
        """Some columns of all rows in order, so many rows at a time."""
        with _telling(self.where):
            yield from self._table.select_columns(list(columns)).iter(batch_size=size)


def open_rows(source: Path, config: str | None, split: str) -> TableRows:
    """The rows that a source names: what is on this machine first.

    Raises:
        DatasetError: there is nothing, or it cannot be read.
    """
    text = re.sub(r"^hf:/+", "", str(source))
    if source.exists():
        return ParquetRows(source)
    if text == str(source) and (text.endswith(".parquet") or text.startswith((".", "/", "~"))):
        raise DatasetError(f"{source}: there is no such file or folder. Check the path.")
    return HubRows(parse_hub_name(text), config, split)


@contextmanager
def _telling(where: str) -> Iterator[None]:
    """One line for what `datasets` raises of kinds of its own."""
    from datasets.exceptions import DatasetsError

    try:
        with reading(where, "a dataset of the Hub"):
            yield
    except RetoldError:
        raise
    except DatasetsError as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300].rstrip(".")
        raise DatasetError(
            f"{where}: `datasets` cannot read it: {reason}. Nothing was written."
        ) from error
