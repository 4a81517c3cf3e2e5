"""Collecting on a Dask cluster: each task collects a part of the episodes into the one dataset."""

import dataclasses
from collections.abc import Sequence

from retold.collect.command import CollectConfig, CollectResult, collect
from retold.dataset.log import CommitLog
from retold.schemas.errors import DatasetError

_RETRIES = 2
"""Of a part whose worker died; it plays only what is not committed."""


def collect_on_cluster(
    config: CollectConfig, missing: Sequence[int], log: CommitLog
) -> CollectResult:
    """Collect the missing episodes on the workers of a running scheduler.

    Raises:
        DatasetError: the cluster cannot be reached, or a part's worker died again and again.
    """
    from distributed import Client
    from distributed.scheduler import KilledWorker

    parts = [
        dataclasses.replace(config, scheduler=None, first=first, episodes=count, workers=0)
        for first, count in split_range(missing, config.collectors)
    ]
    skipped = config.episodes - len(missing)
    try:
        with Client(config.scheduler, timeout=10) as client:  # type: ignore[no-untyped-call]
            futures = [client.submit(collect, part, pure=False, retries=_RETRIES) for part in parts]
            results: list[CollectResult] = client.gather(futures)
    except OSError as error:
        raise DatasetError(
            f"{config.scheduler}: the Dask scheduler cannot be reached: {error}. Check its address, "
            f"or collect without --scheduler."
        ) from error
    except KilledWorker as error:
        raise DatasetError(
            f"{log.path}: a Dask worker that collected died again and again. What was committed "
            f"stays; look for a lack of memory, then run again."
        ) from error
    return _add_up(config, log, results, skipped)


def split_range(missing: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """First number and length of ranges that hold about as many missing episodes each.

    A range may cover episodes that are there already: those are not played again.
    """
    size = -(-len(missing) // parts)
    chunks = [missing[i : i + size] for i in range(0, len(missing), size)] if missing else []
    return [(chunk[0], chunk[-1] - chunk[0] + 1) for chunk in chunks]


def _add_up(
    config: CollectConfig, log: CommitLog, results: Sequence[CollectResult], skipped: int
) -> CollectResult:
    episodes = sum(result.episodes for result in results)
    head = log.head()
    return CollectResult(
        dataset=str(config.dataset),
        episodes=episodes,
        skipped=skipped,
        dropped=sum(result.dropped for result in results),
        steps=sum(result.steps for result in results),
        mean_return=_weigh(results, "mean_return", episodes),
        success=_weigh(results, "success", episodes),
        snapshot=None if head is None else head.number,
    )


def _weigh(results: Sequence[CollectResult], name: str, episodes: int) -> float | None:
    known = [result for result in results if getattr(result, name) is not None]
    if not known or not episodes:
        return None
    total = sum(result.episodes for result in known)
    return sum(float(getattr(result, name)) * result.episodes for result in known) / total
