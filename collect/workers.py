"""Playing the episodes of a collection in several processes.

Each worker plays whole episodes with environments and a policy of its own, so that steps are never
sent from process to process, and a reset keeps only its own worker busy. A worker whose environment
hangs or takes the process down is ended and replaced; only the episode at fault is dropped.
"""

from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from retold.collect.play import Outcome, PlaySetup, play_here
from retold.collect.worker_process import Heartbeat, WorkerProcess
from retold.policy.rollout import DroppedEpisode, EpisodeAssignment
from retold.schemas.errors import EnvironmentFailure, RetoldError

_POLL_SECONDS = 0.2
_AHEAD = 2
"""Episodes that a worker is given for each of its environments before it has answered."""
_MOST_DEATHS = 3
"""Workers that may die outside of any environment before collecting stops."""


def play_in_workers(
    setup: PlaySetup,
    environments: int,
    assignments: Iterator[EpisodeAssignment],
    *,
    workers: int,
    timeout_seconds: float,
    is_stopped: Callable[[], int],
) -> Iterator[Outcome]:
    """Play every assigned episode, in whatever order they finish.

    Args:
        setup: what to play, and how.
        environments: episodes in flight at once, over all workers.
        assignments: which episodes.
        workers: processes.
        timeout_seconds: longest call of an environment.
        is_stopped: asked at least every second; nothing more is played once it is true.

    Raises:
        RetoldError: a worker failed at something that is no environment's fault.
    """
    pool = _Pool(setup, assignments, timeout_seconds)
    shares = [environments // workers + (i < environments % workers) for i in range(workers)]
    try:
        for share in shares:
            pool.add_worker(share)
        while pool.workers and not is_stopped():
            yield from pool.wait()
    finally:
        for worker in pool.workers:
            worker.process.kill()


def work(
    connection: "Connection[Any, Any]", heartbeat: Heartbeat, setup: PlaySetup, environments: int
) -> None:
    """A worker's side: assignments in until None, outcomes out."""
    import torch

    torch.set_num_threads(1)  # the workers share the cores
    try:
        for outcome in play_here(setup, environments, iter(connection.recv, None), heartbeat):
            connection.send(outcome)
    except RetoldError as error:
        connection.send(error)


class _Worker:
    """A process and the episodes it was given."""

    def __init__(self, setup: PlaySetup, environments: int) -> None:
        self.environments = environments
        self.process = WorkerProcess(f"{__name__}:work", setup, environments)
        self.given: dict[int, EpisodeAssignment] = {}
        self.is_told_to_end = False


class _Pool:
    def __init__(
        self, setup: PlaySetup, assignments: Iterator[EpisodeAssignment], timeout_seconds: float
    ) -> None:
        self.workers: list[_Worker] = []
        self._setup = setup
        self._assignments = assignments
        self._timeout_seconds = timeout_seconds
        self._again: deque[EpisodeAssignment] = deque()
        """Episodes that were under way in a worker that was ended for another one's sake."""
        self._deaths = 0

    def add_worker(self, environments: int) -> None:
        """Start a worker and give it something to do."""
        worker = _Worker(self._setup, environments)
        self.workers.append(worker)
        for _ in range(_AHEAD * environments):
            self._give(worker)

    def wait(self) -> Iterator[Outcome]:
        """What has finished since, after a while at most."""
        ready = wait([worker.process.connection for worker in self.workers], _POLL_SECONDS)
        for worker in list(self.workers):
            if worker.process.connection in ready:
                yield from self._receive(worker)
            elif (busy := worker.process.heartbeat.read()) and busy[0] > self._timeout_seconds:
                yield from self._replace(
                    worker, f"took more than {self._timeout_seconds:g} seconds for one call"
                )

    def _give(self, worker: _Worker) -> None:
        if worker.is_told_to_end:
            return
        assignment = self._again.popleft() if self._again else next(self._assignments, None)
        if assignment is None:
            worker.is_told_to_end = True
        else:
            worker.given[assignment.index] = assignment
        worker.process.connection.send(assignment)

    def _receive(self, worker: _Worker) -> Iterator[Outcome]:
        try:
            outcome = worker.process.connection.recv()
        except (EOFError, ConnectionResetError):
            if worker.is_told_to_end and not worker.given:
                worker.process.wait()
                self.workers.remove(worker)
            else:
                yield from self._replace(worker, "ended its process")
            return
        if isinstance(outcome, RetoldError):
            raise outcome
        del worker.given[outcome.assignment.index]
        try:
            self._give(worker)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has died: the next receive says so
        yield outcome

    def _replace(self, worker: _Worker, what: str) -> Iterator[Outcome]:
        """End a worker; what its environment was not busy with is played again elsewhere."""
        busy = worker.process.heartbeat.read()
        status = worker.process.kill()
        self.workers.remove(worker)
        for assignment in worker.given.values():
            if busy is not None and assignment.seed == busy[1]:
                yield DroppedEpisode(assignment, self._describe(assignment, what))
            else:
                self._again.append(assignment)
        if busy is None:
            self._deaths += 1
            if self._deaths >= _MOST_DEATHS:
                raise EnvironmentFailure(
                    f"Task {self._setup.task}: {self._deaths} worker processes died, the last with "
                    f"exit status {status}. Episodes that were finished are kept; look for a lack "
                    f"of memory, then run again with fewer --workers."
                )
        self.add_worker(worker.environments)

    def _describe(self, assignment: EpisodeAssignment, what: str) -> str:
        return (
            f"Task {self._setup.task}, seed {assignment.seed}: the environment {what}. Episodes that "
            f"were finished before are kept; correct the task and run again."
        )
