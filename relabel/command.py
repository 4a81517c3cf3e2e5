"""`retold relabel`: retell the episodes of a dataset under instructions they happened to follow."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retold.dataset.log import CommitLog
from retold.dataset.pins import pin
from retold.dataset.reader import DatasetReader
from retold.relabel.graph import run_shards
from retold.relabel.strategies import Strategy
from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.commit import Commit, SourceEntry
from retold.schemas.errors import ConflictError, DatasetError, UsageError
from retold.schemas.instruction import REWARD_VERSION

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RelabelConfig:
    """What `retold relabel` is asked."""

    source: Path
    """Dataset whose episodes are retold. It is never changed."""
    target: Path
    """Dataset of variants to append to; made if there is none."""
    strategy: Strategy = "some"
    """`some` replaces a random number of the goals that were missed, `all` every one."""
    variants: int = 4
    """Variants of each episode; those equal to the original or to one another are dropped."""
    seed: int = 0
    """Seed of the draws. Another seed or strategy makes a new generation beside the old one."""
    workers: int = 2
    """Dask worker processes on this machine; 0 retells in this process, without Dask."""
    scheduler: str | None = None
    """Address of a running Dask scheduler, used instead of local workers."""

    def __post_init__(self) -> None:
        for name, minimum in (("variants", 1), ("seed", 0), ("workers", 0)):
            if getattr(self, name) < minimum:
                raise UsageError(
                    f"--{name} is {getattr(self, name)}, but must be at least {minimum}."
                )
        if self.source.resolve() == self.target.resolve():
            raise UsageError(
                f"{self.target}: source and target are the same dataset. Give another target."
            )


@dataclass(frozen=True, kw_only=True)
class RelabelResult:
    """What was retold."""

    target: str
    shards: int
    """Source shards retold now."""
    skipped: int
    """Source shards that had been retold the same way before."""
    episodes: int
    variants: int
    dropped: int
    """Variants that equalled the original or one another."""
    bytes_per_variant: float | None
    snapshot: int | None
    """Number of the target's newest commit."""


def relabel(config: RelabelConfig) -> RelabelResult:
    """Retell the source shards that have not been retold this way, in one commit.

    Raises:
        DatasetError: the source has no episodes with goals, or a worker failed.
    """
    with DatasetReader.open(config.source) as reader:
        _check_goals(reader)
        snapshot = reader.snapshot
        raw = [entry for entry in reader.shards if entry.kind == "raw"]
    log = CommitLog.create(config.target)
    generation = {
        "source": snapshot.dataset_id,
        "strategy": config.strategy,
        "variants": config.variants,
        "seed": config.seed,
        "reward_version": REWARD_VERSION,
    }
    base = log.head()
    known = _find_retold(list(log.commits()), generation)
    todo = [entry.shard_id for entry in raw if entry.shard_id not in known]
    pin_id = "relabel-" + sha256_hex(encode_json([log.dataset_id, generation]))[:16]
    results = []
    if todo:
        with pin(config.source, pin_id, f"relabel into {log.dataset_id}", snapshot):
            results = run_shards(config, snapshot.number, todo)
            log.append(
                operation="relabel",
                base=base,
                added=[result.entry for result in results if result.entry is not None],
                sources={snapshot.dataset_id: SourceEntry(snapshot, _locations(config))},
                details={"generation": generation, "source_shards": todo},
                check=lambda since: _refuse_repeats(log, since, generation, todo),
            )
    head = log.head()
    entries = [result.entry for result in results if result.entry is not None]
    variants = sum(entry.episodes for entry in entries)
    return RelabelResult(
        target=str(config.target),
        shards=len(todo),
        skipped=len(raw) - len(todo),
        episodes=sum(result.episodes for result in results),
        variants=variants,
        dropped=sum(result.dropped for result in results),
        bytes_per_variant=sum(e.bytes for e in entries) / variants if variants else None,
        snapshot=None if head is None else head.number,
    )


def _check_goals(reader: DatasetReader) -> None:
    if any(task.vocabulary is None for task in reader.schema.tasks):
        raise DatasetError(
            f"{reader.path}: task {reader.schema.tasks[0].name} has no goals, so there is nothing "
            f"to retell. Train on the dataset as it is."
        )
    if all(entry.kind != "raw" for entry in reader.shards):
        raise DatasetError(
            f"{reader.path}: the dataset holds variants only. Retell the dataset that they were "
            f"made from."
        )


def _find_retold(commits: Sequence[Commit], generation: dict[str, Any]) -> set[str]:
    """Source shards that were retold this way, also those that gave no variant."""
    return {
        shard_id
        for commit in commits
        if commit.operation == "relabel" and commit.details["generation"] == generation
        for shard_id in commit.details["source_shards"]
    }


def _refuse_repeats(
    log: CommitLog, since: Sequence[Commit], generation: dict[str, Any], todo: Sequence[str]
) -> None:
    if _find_retold(since, generation) & set(todo):
        raise ConflictError(
            f"{log.path}: another process retold the same shards meanwhile. Run again."
        )


def _locations(config: RelabelConfig) -> tuple[str, ...]:
    """Relative first, so that two datasets moved together still find each other."""
    source = config.source.resolve()
    return os.path.relpath(source, config.target.resolve()), str(source)
