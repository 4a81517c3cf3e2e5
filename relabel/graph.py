"""The Dask graph: one task for each source shard."""

import logging
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retold.relabel.shard_task import ShardResult, retell_shard
from retold.schemas.errors import DatasetError

if TYPE_CHECKING:
    from retold.relabel.command import RelabelConfig

_RETRIES = 2


def run_shards(
    config: "RelabelConfig", snapshot: int, shard_ids: Sequence[str]
) -> list[ShardResult]:
    """The result of every shard, in order. Nothing is committed here.

    Raises:
        DatasetError: a worker died too often; the shard is named.
    """
    source, target = config.source.resolve(), config.target.resolve()
    arguments = [
        (source, snapshot, shard, target, config.strategy, config.variants, config.seed)
        for shard in shard_ids
    ]
    if config.workers == 0 and config.scheduler is None:
        return [retell_shard(*values) for values in arguments]
    import distributed
    from distributed.scheduler import KilledWorker

    make_cluster: Any = distributed.LocalCluster
    make_client: Any = distributed.Client
    with tempfile.TemporaryDirectory(prefix="retold-") as folder:
        where = config.scheduler or "this machine"
        cluster: Any = config.scheduler or make_cluster(
            n_workers=min(config.workers, len(shard_ids)),
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            local_directory=folder,
            silence_logs=logging.CRITICAL,
        )
        try:
            with make_client(cluster, timeout=30) as client:
                # A key of its own for every call: an equal task of another run is not this one.
                futures = [
                    client.submit(retell_shard, *values, pure=False, retries=_RETRIES)
                    for values in arguments
                ]
                return [
                    _result(future, shard, KilledWorker)
                    for future, shard in zip(futures, shard_ids, strict=True)
                ]
        except OSError as error:
            raise DatasetError(
                f"{where}: the Dask scheduler or a worker cannot be reached: {error}. Check "
                f"--scheduler, or retell in this process with `--workers 0`."
            ) from error
        finally:
            if not isinstance(cluster, str):
                cluster.close()


def _result(future: Any, shard: str, killed: type[Exception]) -> ShardResult:
    try:
        result: ShardResult = future.result()
        return result
    except killed as error:
        raise DatasetError(
            f"Source shard {shard}: the worker that retold it died {_RETRIES + 1} times. Nothing "
            f"was committed; look for a lack of memory, then run again."
        ) from error
