"""Playing the episodes of a collection in several processes.

Each worker plays whole episodes with environments and a policy of its own, so that steps are never
sent from process to process, and a reset keeps only its own worker busy. A worker whose environment
hangs or takes the process down is ended and replaced; only the episode at fault is dropped.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from retold.collect.play import Outcome, PlaySetup, play_here
from retold.collect.worker_process import Heartbeat, WorkerProcess
from retold.policy.rollout import DroppedEpisode, EpisodeAssignment
from retold.schemas.errors import EnvironmentFailure, RetoldError

_POLL_SECONDS = 0.2
_AHEAD = 2
"""Episodes that are taken on for each environment before they are answered."""
_MOST_DEATHS = 3
"""Workers that may die outside of any environment before collecting stops."""


class WorkerPool:
    """Processes that play; they end with the context."""

    def __init__(
        self, setup: PlaySetup, environments: int, *, workers: int, timeout_seconds: float
    ) -> None:
        """Start them.

        Args:
            setup: what to play, and how.
            environments: episodes in flight at once, over all workers.
            workers: processes.
            timeout_seconds: longest call of an environment.
        """
        self._setup = setup
        self._timeout_seconds = timeout_seconds
        self._assignments: Iterator[EpisodeAssignment] | None = None
        """None before anything is played."""
        self._reserve: deque[EpisodeAssignment] = deque()
        """Episodes that are taken on, and given to nobody yet."""
        self._most_taken = _AHEAD * environments
        self._deaths = 0
        shares = [environments // workers + (i < environments % workers) for i in range(workers)]
        self._workers = [_Worker(setup, share) for share in shares]
        self._dismissed: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._dismissed:
            worker.process.wait(self._timeout_seconds)

    def wait_until_ready(self) -> None:
        """Wait until all have made their environments; `play` does not need it.

        Raises:
            RetoldError: a worker failed at it.
        """
        while not all(worker.is_ready for worker in self._workers):
            for _ in self._wait():
                pass

    def play(
        self, assignments: Iterator[EpisodeAssignment], is_stopped: Callable[[], int]
    ) -> Iterator[Outcome]:
        """Play every assigned episode, in whatever order they finish; a pool plays once.

        Args:
            assignments: which episodes.
            is_stopped: asked at least every second; nothing more is played once it is true.

        Raises:
            RetoldError: a worker failed at something that is no environment's fault.
        """
        self._assignments = assignments
        for worker in list(self._workers):
            self._give(worker)
        while self._workers and not is_stopped():
            yield from self._wait()

    def _wait(self) -> Iterator[Outcome]:
        """What has finished since, after a while at most."""
        ready = wait([worker.process.connection for worker in self._workers], _POLL_SECONDS)
        for worker in list(self._workers):
            if worker.process.connection in ready:
                yield from self._receive(worker)
            elif (busy := worker.process.heartbeat.read()) and busy[0] > self._timeout_seconds:
                yield from self._replace(
                    worker, f"took more than {self._timeout_seconds:g} seconds for one call"
                )

    def _give(self, worker: "_Worker") -> None:
        """Let a worker know what to play next, or that there is nothing more.

        It gets ahead of what it plays, so that it never waits for us, but less as the reserve runs
        out: so all workers end at about the same time.
        """
        while not worker.is_told_to_end:
            self._take_on()
            ahead = 1 + len(self._reserve) // (2 * len(self._workers))
            if len(worker.given) >= worker.at_once + ahead:
                return
            assignment = self._reserve.popleft() if self._reserve else None
            if assignment is None:
                worker.is_told_to_end = True
            else:
                worker.given[assignment.index] = assignment
            try:
                worker.process.connection.send(assignment)
            except (BrokenPipeError, ConnectionResetError):
                return  # it has died: the next receive says so
        if not worker.given:
            self._dismiss(worker)

    def _dismiss(self, worker: "_Worker") -> None:
        """Listen to a worker no more, which takes a while to end its process."""
        self._workers.remove(worker)
        self._dismissed.append(worker)

    def _take_on(self) -> None:
        """Fill the reserve, as far as not too much is taken on."""
        assert self._assignments is not None
        taken = len(self._reserve) + sum(len(worker.given) for worker in self._workers)
        self._reserve.extend(islice(self._assignments, max(0, self._most_taken - taken)))

    def _receive(self, worker: "_Worker") -> Iterator[Outcome]:
        try:
            outcome = worker.process.connection.recv()
        except (EOFError, ConnectionResetError):
            if worker.is_told_to_end and not worker.given:
                self._dismiss(worker)
            else:
                yield from self._replace(worker, "ended its process")
            return
        if outcome is None:
            worker.is_ready = True
            return
        if isinstance(outcome, RetoldError):
            raise outcome
        del worker.given[outcome.assignment.index]
        self._give(worker)
        yield outcome

    def _replace(self, worker: "_Worker", what: str) -> Iterator[Outcome]:
        """End a worker; what its environment was not busy with is played again elsewhere."""
        busy = worker.process.heartbeat.read()
        status = worker.process.kill()
        self._workers.remove(worker)
        for assignment in worker.given.values():
            if busy is not None and assignment.seed == busy[1]:
                yield DroppedEpisode(assignment, self._describe(assignment, what))
            else:
                self._reserve.appendleft(assignment)
        if busy is None:
            self._deaths += 1
            if self._deaths >= _MOST_DEATHS:
                raise EnvironmentFailure(
                    f"Task {self._setup.task}: {self._deaths} worker processes died, the last with "
                    f"exit status {status}. Episodes that were finished are kept; look for a lack "
                    f"of memory, then run again with fewer --workers."
                )
        fresh = _Worker(self._setup, worker.environments)
        self._workers.append(fresh)
        if self._assignments is not None:
            self._give(fresh)

    def _describe(self, assignment: EpisodeAssignment, what: str) -> str:
        return (
            f"Task {self._setup.task}, seed {assignment.seed}: the environment {what}. Episodes that "
            f"were finished before are kept; correct the task and run again."
        )


def work(
    connection: "Connection[Any, Any]", heartbeat: Heartbeat, setup: PlaySetup, environments: int
) -> None:
    """A worker's side: None out once it is ready, then assignments in until None, outcomes out."""
    import torch

    torch.set_num_threads(1)  # the workers share the cores

    def assignments() -> Iterator[EpisodeAssignment]:
        connection.send(None)
        yield from iter(connection.recv, None)

    try:
        for outcome in play_here(setup, environments, assignments(), heartbeat):
            connection.send(outcome)
    except RetoldError as error:
        connection.send(error)


class _Worker:
    """A process and the episodes it was given."""

    def __init__(self, setup: PlaySetup, environments: int) -> None:
        self.environments = environments
        # Random actions are asked of nobody: such episodes are played one after the other.
        self.at_once = 1 if setup.policy == "random" else environments
        self.process = WorkerProcess(f"{__name__}:work", setup, environments)
        self.given: dict[int, EpisodeAssignment] = {}
        self.is_ready = False
        self.is_told_to_end = False
