"""PrefillJobClient: a decode worker's open jobs: appended to the log, given to one prefill worker at a time, and ended
once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import assert_never

from actors.disagg.prefill_job import PrefillAnswer, PrefillJob, Recompute
from actors.disagg.prefill_peers import PrefillConnection, PrefillPeers
from actors.transport.frames import (
    Claim,
    Confirm,
    FromPrefill,
    Introduce,
    JobCompleted,
    JobFailed,
    JobOffer,
    JobPrompt,
    Release,
    StillHeld,
)
from core.clock import Clock
from core.events import Event
from core.events.jobs import PrefillCancelled, PrefillCompleted, PrefillFailed, PrefillPulled, PrefillRequested
from core.generation import GenerateRequest, Hint, PrefillReport
from core.ids import WorkerId
from core.kv_transfer import KvAddress, KvPull, mismatch, prompt_digest
from core.prompt import TOKEN_BYTES

CONFIRM_TIMEOUT_S = 2.0
"""How long the holder may take to say that it held the blocks."""
LOG_AWAY_S = 0.5
"""A log that acknowledges nothing for so long is asked for no help."""
LOOK_S = 0.25
"""Between looks at whether anybody can have heard of a job."""
OFFERS_MAX = 2
"""To how many a job is offered again when who had it is gone; the queue hands it out in any case."""

_logger = logging.getLogger(__name__)


class PrefillJobClient:
    """`say` puts an event into the worker's own chain of the jobs stream, which has been without an answer from the
    log for `away_s`; `decline` tells the holder of blocks that we will not fetch them."""

    def __init__(
        self,
        peers: PrefillPeers,
        clock: Clock,
        *,
        say: Callable[[Event], None],
        away_s: Callable[[], float],
        decline: Callable[[KvPull], Coroutine[None, None, None]],
    ) -> None:
        self.peers = peers
        self.jobs: dict[str, PrefillJob] = {}
        """Those that are not over."""
        self.counts = Counter[str]()
        """By how jobs ended: `pulled`, or the reason of their cancellation."""
        self.transports = Counter[str]()
        """Prompts whose blocks came, by how."""
        self._clock = clock
        self._say = say
        self._away_s = away_s
        self._decline = decline
        self._declining: set[asyncio.Task[None]] = set()

    @property
    def log_away(self) -> bool:
        """Whether nobody would hear of a job that is asked for now."""
        return self._away_s() > LOG_AWAY_S

    def __repr__(self) -> str:
        return f"<PrefillJobClient {len(self.jobs)} jobs open, {self.peers!r}>"

    def open(
        self, request: GenerateRequest, canonical: bytes, cached_tokens: int, wait_ms: int, hint: Hint
    ) -> PrefillJob:
        """The job is on its way to the queue, and offered to the one that holds most of the prompt, if there is one."""
        job = PrefillJob(request, canonical, self._clock.monotonic_ms(), wait_ms)
        self.jobs[job.id] = job
        kind = self.peers.kind
        self._say(
            PrefillRequested(
                job=job.id,
                request=request.id,
                attempt=hint.attempt,
                model=kind.model,
                block_size=kind.block_size,
                prompt_tokens=len(request.tokens) // TOKEN_BYTES,
                cached_tokens=cached_tokens,
                digest=prompt_digest(canonical).hex(),
                wait_ms=wait_ms,
                prefer=hint.prefer,
                prefer_tokens=hint.prefer_tokens,
                open=len(self.jobs),
            )
        )
        if hint.prefer:
            self._offer(job, WorkerId(hint.prefer))
        return job

    async def answer(self, job: PrefillJob) -> PrefillAnswer:
        """An answer to this very job, from an engine whose blocks are of use here. Recompute if there is none."""
        answer = await self._answer(job)
        event, kind = answer.event, self.peers.kind
        expected = job.expected(kind.model, kind.block_size, kind.layout, len(job.request.tokens) // TOKEN_BYTES)
        wrong = mismatch(
            expected,
            digest=event.digest,
            model=event.model,
            block_size=event.block_size,
            layout=event.layout,
            blocks=event.blocks,
        )
        if wrong:
            raise Recompute("mismatch", wrong)
        return answer

    async def _answer(self, job: PrefillJob) -> PrefillAnswer:
        while True:
            left_s = (job.deadline_ms - self._clock.monotonic_ms()) / 1000
            try:
                return await job.answer(min(left_s, LOOK_S))
            except TimeoutError:
                if left_s <= LOOK_S:
                    raise Recompute("deadline", "no answer in time") from None
                if job.taker is None and self.log_away:
                    raise Recompute("log_away", "nobody can take the job: the log is away") from None

    async def confirm(self, job: PrefillJob, answer: PrefillAnswer) -> None:
        """The holder says that the blocks were held until now. Recompute if it does not."""
        answer.peer.connection.send(Confirm(job=job.id))
        if not await job.held(CONFIRM_TIMEOUT_S):
            raise Recompute("unconfirmed", "the holder did not say that the blocks were held")

    def pulled(
        self, job: PrefillJob, answer: PrefillAnswer, report: PrefillReport, blocks: int, block_bytes: int
    ) -> None:
        """The job's good end."""
        self._end(job, "pulled")
        self.transports[answer.peer.address.transport] += 1
        self._say(
            PrefillPulled(
                job=job.id,
                worker=answer.peer.worker,
                blocks=blocks,
                bytes=blocks * block_bytes,
                tokens=report.pulled_tokens,
                transport=answer.peer.address.transport,
                wait_ms=report.wait_ms,
                pull_ms=report.pull_ms,
                open=len(self.jobs),
            )
        )

    def cancel(self, job: PrefillJob, reason: str, detail: str = "") -> None:
        """Its other end; nothing if it is over."""
        if job.over:
            return
        if job.given is not None:
            self._give_back(job.given.peer.address, job.given.event)
        self._end(job, reason)
        waited = self._clock.monotonic_ms() - job.asked_ms
        self._say(PrefillCancelled(job=job.id, reason=reason, detail=detail, wait_ms=waited, open=len(self.jobs)))

    def _end(self, job: PrefillJob, how: str) -> None:
        job.over = True
        self.counts[how] += 1
        del self.jobs[job.id]
        if job.taker is not None:
            job.taker.connection.send(Release(job=job.id))

    # --- what prefill workers say ------------------------------------------------------------------------------

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """A frame of a prefill worker over its connection."""
        match frame:
            case Introduce(worker=worker):
                if self.peers.introduced(connection, frame):
                    for job in self.jobs.values():  # it may go on under a new id
                        job.called(connection, WorkerId(worker))
            case Claim(job=id_):
                self._claimed(connection, id_)
            case JobCompleted(event=event):
                self._completed(connection, event)
            case JobFailed(event=event):
                self._failed(event)
            case StillHeld(job=id_, held=held):
                if id_ in self.jobs:
                    self.jobs[id_].confirmed(held=held)
            case _:
                assert_never(frame)

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """A connection broke: what its worker had taken is to be had again; what it had answered is of no use."""
        worker = self.peers.on_disconnect(connection)
        if worker is None:
            return
        for job in [job for job in self.jobs.values() if job.taker is not None and job.taker.connection is connection]:
            if job.answered:
                job.fail(Recompute("worker_gone", f"prefill worker {worker} is gone with its answer"))
            else:
                job.let_go()
                self._offer_again(job)

    def on_event(self, source: str, event: object) -> None:
        """What prefill workers say in the log: the same as over TCP, whichever comes first."""
        if isinstance(event, PrefillCompleted) and event.job in self.jobs:
            self._take_answer(WorkerId(source), event)
        elif isinstance(event, PrefillFailed) and event.job in self.jobs:
            self._failed(event)

    def _claimed(self, connection: PrefillConnection, id_: str) -> None:
        worker = self.peers.worker_of(connection)
        peer = self.peers.get(worker) if worker is not None else None
        job = self.jobs.get(id_)
        if job is None or peer is None:
            connection.send(JobPrompt(job=id_, why="over" if job is None else "unknown"))
        else:
            connection.send(job.claim(peer, self._clock.monotonic_ms()))

    def _completed(self, connection: PrefillConnection, event: PrefillCompleted) -> None:
        worker = self.peers.worker_of(connection)
        if worker is None or not self._take_answer(worker, event):
            connection.send(Release(job=event.job))
            peer = self.peers.get(worker) if worker is not None else None
            if peer is not None:
                self._give_back(peer.address, event)

    def _give_back(self, address: KvAddress, event: PrefillCompleted) -> None:
        """Their holder hears that these blocks will not be fetched, if the engine can tell it."""
        task = asyncio.create_task(self._decline(KvPull(address, event.blocks)), name=f"decline {event.job}")
        self._declining.add(task)
        task.add_done_callback(self._declining.discard)

    async def close(self) -> None:
        """Whoever holds blocks for us has heard that we do not want them."""
        if self._declining:
            await asyncio.wait(self._declining)

    def _take_answer(self, worker: WorkerId, event: PrefillCompleted) -> bool:
        """True if the answer is the job's, now or before; False if it is a loser's, whose blocks nobody wants."""
        job = self.jobs.get(event.job)
        if job is None or job.taker is None or job.taker.worker != worker or job.attempt != event.attempt:
            return False
        if not job.answered:
            job.put(event, self._clock.monotonic_ms())
        return True

    def _failed(self, event: PrefillFailed) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.attempt != event.attempt:
            return
        if event.dead:
            job.fail(Recompute("dead_letter", event.reason))
        elif job.answered:
            job.fail(Recompute("prefill_failed", event.reason))
        else:
            job.let_go()  # the queue hands it out again

    # -----------------------------------------------------------------------------------------------------------

    def _offer(self, job: PrefillJob, worker: WorkerId) -> None:
        peer = self.peers.get(worker)
        if peer is not None:
            peer.connection.send(JobOffer(job=job.id))

    def _offer_again(self, job: PrefillJob) -> None:
        able = self.peers.able()
        start = int(job.id, 16) % len(able) if able else 0
        for worker in (able[start:] + able[:start])[:OFFERS_MAX]:
            self._offer(job, worker)
