"""VirtualQueue: the prefill queue of a simulation: jobs that wait, and prefill workers that have nothing to do.

As the real one (`actors.disagg.prefill_service`): oldest first, to the worker that has waited longest; a worker that is
named for a job gets it if it has nothing to do. What its taker lost goes to somebody who has nothing to do, or is
handed out again after AGAIN_US, ahead of all others. One job at a time for each worker.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from core.ids import WorkerId
from replay.simulating.agenda import Agenda
from replay.simulating.virtual_job import Taker, VirtualJob
from streams.log import QUEUE_LIMITS

AGAIN_US = round(QUEUE_LIMITS.ack_wait_s * 1_000_000)


class VirtualQueue:
    """See the module's text. Nobody is idle while a job waits."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._waiting: deque[VirtualJob] = deque()
        """Some are over."""
        self._takers: set[WorkerId] = set()
        self._idle: dict[WorkerId, Taker] = {}
        """Those that have waited longest first."""

    def __repr__(self) -> str:
        return f"<VirtualQueue {len(self._waiting)} jobs waiting, {len(self._idle)} of {self.workers} workers idle>"

    @property
    def workers(self) -> int:
        """Prefill workers that live."""
        return len(self._takers)

    def join(self, taker: Taker) -> None:
        """It takes jobs from now on."""
        self._takers.add(taker.id)
        self.free(taker)

    def leave(self, taker: Taker) -> None:
        """It takes none any more."""
        self._takers.remove(taker.id)
        self._idle.pop(taker.id, None)

    def put(self, job: VirtualJob, prefer: WorkerId) -> None:
        """Somebody has the job, the preferred worker first, or it waits."""
        if prefer in self._idle:
            self._idle.pop(prefer).take(job, delivery=0)
        else:
            self._hand_out(job)

    def again(self, job: VirtualJob) -> None:
        """Who had the job ended."""
        if self._idle:
            self._next_idle().take(job, delivery=0)
        else:
            self._agenda.put(self._agenda.now_us + AGAIN_US, partial(self._hand_out, job, ahead=True))

    def free(self, taker: Taker) -> None:
        """It has the next job, or nothing to do."""
        while self._waiting:
            job = self._waiting.popleft()
            if not job.over:
                job.delivered += 1
                taker.take(job, job.delivered)
                return
        self._idle[taker.id] = taker

    def _hand_out(self, job: VirtualJob, *, ahead: bool = False) -> None:
        if job.over:
            return
        if self._idle:
            job.delivered += 1
            self._next_idle().take(job, job.delivered)
        elif ahead:
            self._waiting.appendleft(job)
        else:
            self._waiting.append(job)

    def _next_idle(self) -> Taker:
        return self._idle.pop(next(iter(self._idle)))
