"""The trajectory dataset: reads and writes shards, the commit log, the episode table and other formats."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minari import MinariDataset


def as_minari(path: Path | str, *, snapshot: int | None = None) -> "MinariDataset":
    """A dataset as a `minari.MinariDataset`, without copying; see `retold.dataset.minari_view`.

    Args:
        path: the dataset's directory.
        snapshot: number of a commit; None: the newest.
    """
    from retold.dataset.minari_view import as_minari as open_view

    return open_view(Path(path), snapshot=snapshot)
