"""Whether episodes are in a dataset already: the ids of each shard's episodes, read once."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.checkpoint import Checkpoint
from retold.dataset.paths import DatasetPath
from retold.dataset.shard_files import (
    ShardFiles,
    episode_ids,
    fetch_ahead,
    peek_episode_ids,
)
from retold.dataset.shard_place import touch_shards
from retold.schemas.commit import ShardEntry
from retold.schemas.errors import DatasetError, FormatError, RetoldError

logger = logging.getLogger(__name__)


class EpisodeIds:
    """The ids of one dataset's episodes, shard by shard."""

    def __init__(self, dataset: DatasetPath) -> None:
        self._dataset = dataset
        self._ids: dict[str, NDArray[np.bytes_]] = {}

    def refuse_doubles(
        self,
        new: Sequence[ShardEntry],
        others: Sequence[ShardEntry],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Refuse episodes of new shards that are in other ones, or twice in the new ones.

        On a store it is seen, too, that the new shards are there.

        Args:
            new: shards that are to be committed.
            others: what they are compared with.
            checkpoint: has the ids of many shards in one file.

        Raises:
            ConflictError: a new shard is gone.
            FormatError: a new shard cannot be read.
            DatasetError: an episode is there twice.
        """
        files = self._fetch(new, others, checkpoint)
        ids = np.concatenate([self._read(entry, files) for entry in new])
        live = [self._read_or_warn(entry, files) for entry in others]
        unique, counts = np.unique(ids, return_counts=True)
        known = np.concatenate([np.zeros(0, "S32"), *live])
        doubles = [*np.intersect1d(unique, known), *unique[counts > 1]]
        if doubles:
            raise DatasetError(
                f"{self._dataset}: episode {doubles[0].decode()} is in the dataset already "
                f"({len(doubles)} of {len(ids)} are). Nothing was committed; leave them out."
            )

    def _fetch(
        self,
        new: Sequence[ShardEntry],
        others: Sequence[ShardEntry],
        checkpoint: Checkpoint | None,
    ) -> dict[str, ShardFiles]:
        """Shards whose ids have to be read, with what reading them takes."""
        missing = [entry for entry in (*new, *others) if entry.shard_id not in self._ids]
        tables = _checkpoint_tables(checkpoint) if missing else {}
        for entry in missing:
            if entry.shard_id in tables:
                self._ids[entry.shard_id] = episode_ids(tables[entry.shard_id])
        files = {entry.shard_id: ShardFiles(self._dataset, entry) for entry in (*missing, *new)}
        # Of shards that were committed before, damage is for their readers to find.
        committed = [files[e.shard_id] for e in others if e.shard_id not in self._ids]
        ours = [files[entry.shard_id] for entry in new]
        found, gone = peek_episode_ids(committed, ours)
        touch_shards(self._dataset, [shard.entry.shard_id for shard in gone])
        for shard, ids in zip(committed, found, strict=True):
            if ids is not None:
                self._ids[shard.entry.shard_id] = ids
        unread = [shard for shard in ours if shard.entry.shard_id not in self._ids]
        fetch_ahead(unread, ["episodes.parquet"])
        return files

    def _read(self, entry: ShardEntry, files: Mapping[str, ShardFiles]) -> NDArray[np.bytes_]:
        if entry.shard_id not in self._ids:
            self._ids[entry.shard_id] = files[entry.shard_id].episode_ids
        return self._ids[entry.shard_id]

    def _read_or_warn(
        self, entry: ShardEntry, files: Mapping[str, ShardFiles]
    ) -> NDArray[np.bytes_]:
        """Damage elsewhere must not cost what is appended now; readers refuse it anyway."""
        try:
            return self._read(entry, files)
        except RetoldError as error:
            logger.warning("%s", error)
            return np.zeros(0, "S32")


def _checkpoint_tables(checkpoint: Checkpoint | None) -> Mapping[str, pa.Table]:
    if checkpoint is None:
        return {}
    try:
        return checkpoint.shard_tables
    except FormatError as error:
        logger.warning("%s", error)
        return {}
