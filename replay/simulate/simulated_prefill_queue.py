"""SimulatedPrefillQueue: the prefill queue of a simulation, with its jobs.

Jobs go oldest first to the worker that has waited longest, as in the live queue. A worker that is named for a job gets
it if it has nothing to do. A job whose worker ended goes to an idle worker, or is handed out again after AGAIN_US,
ahead of all others. Each worker has one job at a time.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Protocol

from actors.engines.simulated.engine_state import Submit
from core.events.jobs import PrefillPulled, PrefillRequested
from core.generation import Hint, PrefillReport
from core.ids import RequestId, WorkerId
from core.kv_transfer import answer_digest, prompt_digest
from core.prompt import HASH_BYTES
from replay.simulate.report import PrefillVerdict
from replay.simulate.simulated_request import MODEL
from replay.simulate.virtual_time import Agenda
from streams.log import QUEUE_LIMITS


class JobRequester(Protocol):
    """The decode worker's side of a job."""

    id: WorkerId

    def answered(self, job: SimulatedPrefillJob) -> None:
        """Its blocks are there."""

    def lost(self, job: SimulatedPrefillJob) -> None:
        """Who had it, or holds its blocks, has ended."""


class JobConsumer(Protocol):
    """The prefill worker's side of a job."""

    id: WorkerId
    place: int

    def take(self, job: SimulatedPrefillJob, delivery: int) -> None:
        """It computes the prompt now. `delivery` is as of `PrefillStarted`."""

    def release(self, job: SimulatedPrefillJob, why: str) -> None:
        """Nobody wants it any more: nothing is computed or held for it."""


class SimulatedPrefillJob:
    """What requester and prefill worker know of it; either changes its own part. All times are virtual microseconds."""

    __slots__ = ("answered_us", "asked", "asked_us", "attempt", "blocks", "cached_tokens", "delivered", "depth",
                 "desk", "entered", "id", "landed_us", "over", "report", "taken_us", "taker", "timer")  # fmt: skip

    def __init__(
        self, id: str, asked: Submit, depth: int, report: PrefillReport, desk: JobRequester, asked_us: int
    ) -> None:
        """`depth` blocks of the prompt are in the requester's cache; `report` is the verdict, with this job's id."""
        self.id = id
        self.asked = asked
        self.depth = depth
        self.report = report
        self.desk = desk
        self.asked_us = asked_us
        self.attempt = -1
        """Who has it or had it last; -1 before the first."""
        self.delivered = 0
        """How often the queue handed it out."""
        self.taker: JobConsumer | None = None
        self.taken_us = -1
        """When that one took it."""
        self.answered_us = -1
        self.cached_tokens = 0
        """Of the prompt, in the prefill worker's cache."""
        self.entered = False
        """The requester's engine was told to fetch the blocks."""
        self.blocks = 0
        """How many it fetches."""
        self.landed_us = -1
        """When they are there; -1 until the engine asks for them."""
        self.over = False
        self.timer = 0
        """The number in the agenda of what ends it early."""

    def __repr__(self) -> str:
        state = "over" if self.over else "open"
        return f"<SimulatedPrefillJob {self.id} of {self.request}, attempt {self.attempt}, {state}>"

    @property
    def request(self) -> RequestId:
        """Whose prompt it is."""
        return self.asked.request.id

    @property
    def prompt_tokens(self) -> int:
        """Of the whole prompt."""
        assert self.asked.known is not None
        return self.asked.known.tokens

    @property
    def answer_digest(self) -> str:
        """Of the prompt for the present attempt."""
        return answer_digest(self._canonical, self.id, self.attempt)

    def take(self, taker: JobConsumer, now_us: int) -> None:
        """That one has it, and nobody else."""
        assert not self.over
        self.taker, self.taken_us, self.attempt = taker, now_us, self.attempt + 1

    def lands_in(self, hashes: bytes) -> bool:
        """Whether the first block that is fetched for it is one of the prompt with these hashes, too."""
        assert self.asked.known is not None
        start, stop = self.depth * HASH_BYTES, (self.depth + 1) * HASH_BYTES
        block = self.asked.known.hashes[start:stop]
        return bool(block) and hashes[start:stop] == block

    def requested(self, hint: Hint, block_size: int, wait_ms: int, open_: int) -> PrefillRequested:
        """What the requester says first; so many of its jobs are open then."""
        return PrefillRequested(
            job=self.id,
            request=self.request,
            attempt=hint.attempt,
            model=MODEL,
            block_size=block_size,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.depth * block_size,
            digest=prompt_digest(self._canonical).hex(),
            wait_ms=wait_ms,
            prefer=hint.prefer,
            prefer_tokens=hint.prefer_tokens,
            open=open_,
        )

    def pulled(self, report: PrefillReport, block_bytes: int, open_: int) -> PrefillPulled:
        """What it says last, if the blocks came."""
        return PrefillPulled(
            job=self.id,
            worker=report.worker,
            blocks=self.blocks,
            bytes=self.blocks * block_bytes,
            tokens=report.pulled_tokens,
            transport="simulated",
            wait_ms=report.wait_ms,
            pull_ms=report.pull_ms,
            open=open_,
        )

    def verdict(self, report: PrefillReport, now_us: int) -> PrefillVerdict:
        """What came of it, when the first token is there."""
        assert self.taker is not None
        return PrefillVerdict(
            request=self.request,
            reason=report.reason,
            outcome=report.outcome,
            place=self.taker.place,
            pulled_tokens=report.pulled_tokens,
            blocks=self.blocks,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.prompt_tokens - self.cached_tokens,
            queue_us=self.taken_us - self.asked_us,
            wait_us=self.answered_us - self.asked_us,
            pull_us=now_us - self.answered_us,
        )

    @property
    def _canonical(self) -> bytes:
        assert self.asked.known is not None
        return self.asked.known.tokens.to_bytes(8, "little") + self.asked.known.hashes


AGAIN_US = round(QUEUE_LIMITS.ack_wait_s * 1_000_000)


class SimulatedPrefillQueue:
    """Jobs that wait, and prefill workers that have nothing to do. No worker is idle while a job waits."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._waiting: deque[SimulatedPrefillJob] = deque()
        """Some are over."""
        self._takers: set[WorkerId] = set()
        self._idle: dict[WorkerId, JobConsumer] = {}
        """Those that have waited longest first."""

    def __repr__(self) -> str:
        workers = f"{len(self._idle)} of {self.workers} workers idle"
        return f"<SimulatedPrefillQueue {len(self._waiting)} jobs waiting, {workers}>"

    @property
    def workers(self) -> int:
        """Prefill workers that live."""
        return len(self._takers)

    def join(self, taker: JobConsumer) -> None:
        """It takes jobs from now on."""
        self._takers.add(taker.id)
        self.free(taker)

    def leave(self, taker: JobConsumer) -> None:
        """It takes none any more."""
        self._takers.remove(taker.id)
        self._idle.pop(taker.id, None)

    def put(self, job: SimulatedPrefillJob, prefer: WorkerId) -> None:
        """Somebody has the job, the preferred worker first, or it waits."""
        if prefer in self._idle:
            self._idle.pop(prefer).take(job, delivery=0)
        else:
            self._hand_out(job)

    def again(self, job: SimulatedPrefillJob) -> None:
        """Who had the job ended."""
        if self._idle:
            self._next_idle().take(job, delivery=0)
        else:
            self._agenda.put(self._agenda.now_us + AGAIN_US, partial(self._hand_out, job, ahead=True))

    def free(self, taker: JobConsumer) -> None:
        """It has the next job, or nothing to do."""
        while self._waiting:
            job = self._waiting.popleft()
            if not job.over:
                job.delivered += 1
                taker.take(job, job.delivered)
                return
        self._idle[taker.id] = taker

    def _hand_out(self, job: SimulatedPrefillJob, *, ahead: bool = False) -> None:
        if job.over:
            return
        if self._idle:
            job.delivered += 1
            self._next_idle().take(job, job.delivered)
        elif ahead:
            self._waiting.appendleft(job)
        else:
            self._waiting.append(job)

    def _next_idle(self) -> JobConsumer:
        return self._idle.pop(next(iter(self._idle)))
