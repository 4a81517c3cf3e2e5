"""The asynchronous loop: collecting, relabelling and training side by side, with a bound between.

Training of an iteration waits until its episodes are collected and retold; collecting of an iteration
waits until training is at most `ahead` iterations behind. So an episode is first learned from at most
`ahead + 1` iterations of updates after the policy that played it.
"""

import logging
from collections.abc import Iterator
from multiprocessing.connection import wait

from retold.cli.loop_plan import LoopPlan
from retold.cli.loop_stages import STAGES
from retold.collect.worker_process import WorkerProcess
from retold.schemas.errors import RetoldError, RunError
from retold.schemas.stop_signals import note_stop_signals

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5


def run_side_by_side(plan: LoopPlan, first: int) -> Iterator[int]:
    """Run the iterations from `first` on; the number of each once it is trained.

    Raises:
        RetoldError: a stage failed, or a signal arrived; what was committed before stays.
    """
    stages = _Stages(plan, first)
    with note_stop_signals() as stopped:
        try:
            while stages.finished["train"] < plan.iterations:
                if stopped():
                    raise RunError(
                        f"{plan.run}: stopped after {stages.finished['train']} iterations, which "
                        f"are kept. Go on with --resume."
                    )
                stages.give_orders()
                yield from stages.answers()
            stages.dismiss()
        finally:
            stages.end()


class _Stages:
    """The stages' processes, how far each has come, and what each is busy with."""

    def __init__(self, plan: LoopPlan, first: int) -> None:
        self._plan = plan
        self.finished = dict.fromkeys(STAGES, first)
        """Iterations that a stage has finished, by stage."""
        self._busy: set[str] = set()
        self._processes = {
            stage: WorkerProcess("retold.cli.loop_stages:serve", stage, plan) for stage in STAGES
        }

    def give_orders(self) -> None:
        """Send every idle stage on whose turn it is."""
        done = self.finished
        may_begin = {
            "collect": min(self._plan.iterations, done["train"] + self._plan.ahead + 1),
            "relabel": done["collect"],
            "train": done["relabel"],
        }
        for stage in STAGES:
            if stage not in self._busy and done[stage] < may_begin[stage]:
                logger.info("Iteration %d: %s begins.", done[stage], stage)
                self._processes[stage].connection.send(done[stage])
                self._busy.add(stage)

    def answers(self) -> Iterator[int]:
        """Take what the stages say, after a while at most; iterations that are trained now."""
        connections = {self._processes[stage].connection: stage for stage in STAGES}
        for connection in wait(list(connections), _POLL_SECONDS):
            stage = connections[connection]  # type: ignore[index]
            try:
                answer = self._processes[stage].connection.recv()
            except (EOFError, ConnectionResetError) as error:
                raise RunError(
                    f"{self._plan.run}: the process of stage {stage} ended in iteration "
                    f"{self.finished[stage]}. What was committed is kept; look at its messages, or "
                    f"for a lack of memory, then go on with --resume."
                ) from error
            if isinstance(answer, RetoldError):
                raise answer
            self._busy.discard(stage)
            self.finished[stage] += 1
            if stage == "train":
                yield int(answer)

    def dismiss(self) -> None:
        """Let every stage end by itself."""
        for process in self._processes.values():
            process.connection.send(None)

    def end(self) -> None:
        """End whatever still runs."""
        for process in self._processes.values():
            process.kill()
