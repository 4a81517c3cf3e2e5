"""The Dask graph: one task for each source shard, a bounded number of them under way."""

import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeVar

from retold.schemas.errors import DatasetError

_Result = TypeVar("_Result")
_RETRIES = 2
_TASKS_A_WORKER = 4
"""Tasks under way for each worker: enough to keep it busy, few enough to bound the memory."""


class TaskRunner:
    """Runs tasks in this process, on local Dask workers, or on a running cluster."""

    def __init__(self, workers: int, scheduler: str | None) -> None:
        self._workers = workers
        self._scheduler = scheduler
        self._stack = ExitStack()
        self._client: Any = None

    def __enter__(self) -> Self:
        if self._workers == 0 and self._scheduler is None:
            return self
        import distributed

        make_client: Any = distributed.Client
        try:
            cluster = self._scheduler or self._start_workers()
            self._client = self._stack.enter_context(make_client(cluster, timeout=10))
        except OSError as error:
            self._stack.close()
            raise self._unreachable(error) from error
        except RuntimeError as error:
            self._stack.close()
            raise DatasetError(
                f"this machine: the Dask workers cannot be started: {error} Retell in this process "
                f"with `--workers 0`; a script of your own must start its work under "
                f"`if __name__ == '__main__'`."
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start_workers(self) -> Any:
        import distributed

        make_cluster: Any = distributed.LocalCluster
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="retold-"))
        return self._stack.enter_context(
            make_cluster(
                n_workers=self._workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",
                local_directory=folder,
                silence_logs=logging.CRITICAL,
            )
        )

    def map(
        self,
        function: Callable[..., _Result],
        calls: Sequence[tuple[Any, ...]],
        names: Sequence[str],
    ) -> Iterator[_Result]:
        """The results in order, whatever the order and place in which they are made.

        Args:
            function: a module's function, so that workers find it.
            calls: its arguments, one task each.
            names: of the tasks, for messages.

        Raises:
            DatasetError: a worker died too often, or the cluster cannot be reached.
        """
        if self._client is None:
            yield from (function(*arguments) for arguments in calls)
            return
        from distributed.scheduler import KilledWorker

        window: deque[tuple[Any, str]] = deque()
        try:
            most = _TASKS_A_WORKER * max(len(self._client.nthreads()), 1)
            for arguments, name in zip(calls, names, strict=True):
                if len(window) >= most:
                    yield self._result(*window.popleft(), KilledWorker)
                # A key of its own for every call: an equal task of another run is not this one.
                future = self._client.submit(function, *arguments, pure=False, retries=_RETRIES)
                window.append((future, name))
            while window:
                yield self._result(*window.popleft(), KilledWorker)
        except OSError as error:
            raise self._unreachable(error) from error

    def _result(self, future: Any, name: str, killed: type[Exception]) -> Any:
        from distributed.client import FutureCancelledError

        try:
            return future.result()
        except killed as error:
            raise DatasetError(
                f"Source shard {name}: the worker that read it died again and again. Nothing of "
                f"this shard was committed; look for a lack of memory, then run again."
            ) from error
        except FutureCancelledError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> DatasetError:
        where = self._scheduler or "this machine"
        return DatasetError(
            f"{where}: the Dask scheduler or a worker cannot be reached: {error}. Check "
            f"--scheduler, or retell in this process with `--workers 0`."
        )
