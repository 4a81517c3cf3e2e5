"""A generation: all variants that one way of retelling makes of one source dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.relabel.options import RelabelOptions
from retold.relabel.shard_task import ShardResult
from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.commit import Commit
from retold.schemas.errors import ConflictError, DatasetError
from retold.schemas.instruction import REWARD_VERSION


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What two runs must share to be one: then the second retells only what the first did not."""

    source: str
    """Dataset id."""
    options: RelabelOptions
    condition: str | None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the details of its commits."""
        return {
            "source": self.source,
            "strategy": self.options.label,
            "variants": self.options.variants,
            "seed": self.options.seed,
            "filter": self.condition,
            "reward_version": REWARD_VERSION,
        }

    def pin_id(self, log: CommitLog) -> str:
        """Names the pin in the source; the same on every run."""
        return "relabel-" + sha256_hex(encode_json([log.dataset_id, self.to_json()]))[:16]

    def refuse_doubles(self, log: CommitLog, commits: Sequence[Commit]) -> None:
        """Ids follow from source, strategy and seed: what else differs would make an id twice.

        Raises:
            DatasetError: the target holds live variants with the same ids, made in another way.
        """
        mine = self.to_json()
        live = {entry.shard_id for entry in log.live_shards()} if commits else set()
        for commit in commits:
            other = _generation_of(commit)
            if (
                other is not None
                and other != mine
                and all(other[name] == mine[name] for name in ("source", "strategy", "seed"))
                and any(entry.shard_id in live for entry in commit.added)
            ):
                name = next(name for name in mine if other.get(name) != mine[name])
                raise DatasetError(
                    f"{log.path}: it holds variants of strategy {mine['strategy']} and seed "
                    f"{mine['seed']} made with {name} = {other.get(name)}, and {mine[name]} is "
                    f"asked for. Give another --seed or another target."
                )


def find_retold_episodes(target: CommitLog, generation: Generation) -> pa.Array:
    """Ids of the source episodes that have live variants of this generation."""
    with DatasetReader.open(target.path) as retold:
        mine = pc.and_(
            pc.equal(retold.table["strategy"], generation.options.label),
            pc.equal(retold.table["relabel_seed"], generation.options.seed),
        )
        return retold.table["source_episode_id"].filter(mine).unique()


def find_retold_rows(reader: DatasetReader, shard_id: str, retold: pa.Array) -> frozenset[int]:
    """Rows of a source shard whose episodes are among those retold.

    A shard that compaction made is new by its id, though its episodes may not be.
    """
    ids = reader.shard_reader(shard_id).table["episode_id"]
    return frozenset(np.flatnonzero(pc.is_in(ids, value_set=retold).to_numpy()).tolist())


def find_retold(commits: Sequence[Commit], generation: Generation) -> set[str]:
    """Source shards that were retold this way, also those that gave no variant."""
    wanted = generation.to_json()
    return {
        shard_id
        for commit in commits
        if _generation_of(commit) == wanted
        for shard_id in commit.details["source_shards"]
    }


def refuse_repeats(
    log: CommitLog, generation: Generation, part: Sequence[ShardResult], since: Sequence[Commit]
) -> None:
    """Refuse to commit what another process committed meanwhile.

    Raises:
        ConflictError: some of the shards are there already.
    """
    if find_retold(since, generation) & {result.source_shard for result in part}:
        raise ConflictError(
            f"{log.path}: another process retold the same shards meanwhile. Run again."
        )
    generation.refuse_doubles(log, since)


def _generation_of(commit: Commit) -> dict[str, Any] | None:
    """What a commit retold; None for other commits. The filter is newer than the rest."""
    if commit.operation != "relabel" or "generation" not in commit.details:
        return None
    return {"filter": None, **commit.details["generation"]}
