"""A part of a dataset on the Hub, as a new dataset: only what it needs is asked for."""

from pathlib import Path

from retold.dataset.derive import Selection, refuse_existing, write_dataset
from retold.dataset.expression import parse_condition
from retold.dataset.filter import COLUMNS
from retold.dataset.hub_names import HUB_PROTOCOL
from retold.dataset.hub_revision import HubRevision
from retold.dataset.reader import DatasetReader
from retold.dataset.remote_path import RemotePath
from retold.schemas.commit import Snapshot
from retold.schemas.errors import DatasetError


def pull_part(
    revision: HubRevision, output: Path, condition: str | None, most_shards: int | None
) -> Snapshot:
    """Make a new dataset of some episodes, which keep their ids; variants get arrays of their own.

    Args:
        revision: of the repository.
        output: a path that does not exist.
        condition: on columns of the episode table; None: every episode.
        most_shards: look at so many live shards, the first ones; None: at all.

    Raises:
        DatasetError: no episode is chosen, or something cannot be read.
    """
    refuse_existing(output)
    meets = None if condition is None else parse_condition(condition, COLUMNS)
    name = revision.repository.name.repository
    url = RemotePath(f"{HUB_PROTOCOL}://{name}@{revision.commit}")
    with DatasetReader.open(url) as reader:
        chosen = reader.shards if most_shards is None else reader.shards[:most_shards]
        rows = [row for entry in chosen for row in reader.shard_rows(entry.shard_id)]
        if meets is not None:
            table = reader.table.select(list(COLUMNS)).to_pylist()
            rows = [row for row in rows if meets(table[row])]
        if not rows:
            raise DatasetError(
                f"{url}: none of {len(reader)} episodes is chosen by {condition!r}. Nothing was "
                f"made; ask for less."
            )
        return write_dataset(
            output,
            [Selection(reader, tuple(rows))],
            operation="pull",
            details={
                "repository": name,
                "commit": revision.commit,
                "where": condition,
                "shards": most_shards,
            },
            materialize=True,
        )
