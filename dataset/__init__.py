"""The trajectory dataset: reads and writes shards, the commit log, the episode table and other formats."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minari import MinariDataset

    from retold.dataset.paths import DatasetPath


def as_minari(path: "DatasetPath | str", *, snapshot: int | None = None) -> "MinariDataset":
    """A dataset as a `minari.MinariDataset`, without copying; see `retold.dataset.minari_view`.

    Args:
        path: the dataset's folder or URL.
        snapshot: number of a commit; None: the newest.
    """
    from retold.dataset.minari_view import as_minari as open_view

    return open_view(path, snapshot=snapshot)
