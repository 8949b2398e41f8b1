"""RemotePrefill: a decode worker's machine of remote prefill: the verdict, the job, the pull, its checks, the fallback.

1. The verdict is `decide_prefill`; its inputs travel with the first tokens and stand in the log.
2. A job has one end here: its blocks are pulled and confirmed, or it is cancelled and the engine computes the prompt.
   Only this worker's clock counts: the wait counts from the request for the job, the holder's promise from its claim,
   before which no block can have been held.
3. Nothing is pulled that `core.kv_transfer.mismatch` objects to, or with too little left of the promised time. No token
   leaves before the holder said that the blocks were held until they had come. If it does not say so, the whole cache
   is forgotten: wrong blocks would be found under right names. That goes on when the client is gone. Where it cannot be
   done, the engine must serve no request any more. An engine with KV tiers copies pulled blocks to none of them before
   `ConfirmPull`.
4. Logprobs of a prompt and embeddings are no part of its blocks: such a prompt is computed here, without a verdict.
5. A prefill worker loses a job with its connection. The job is offered again at once, and the queue hands it out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol, assert_never

import msgspec

from actors.disagg.prefill_job import JobPhase, PrefillJob, PublishJob, UnverifiedBlocks, share_block
from actors.disagg.prefill_peers import Kind, PrefillConnection, PrefillPeers
from actors.engines.engine import EngineLoad, TransferFailed
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
    ToPrefill,
)
from core.errors import ContrailError, EngineDead
from core.events.jobs import PrefillCancelled, PrefillCompleted, PrefillFailed, PrefillPulled, PrefillRequested
from core.generation import TASK_GENERATE, GenerateRequest, Hint, PrefillReport
from core.ids import WorkerId
from core.kv_transfer import KvAddress, KvPull, mismatch, prompt_digest
from core.machine import Tick
from core.prompt import Prompt
from core.settings import TIERS, RoutingSettings
from core.timers import Timers
from projections.folds.jobs_fold import JobsFold
from projections.policy.decide import decide_prefill
from projections.policy.prefill_choice import PrefillInputs

CONFIRM_TIMEOUT_S = 2.0
"""Bound on the holder's answer whether it held the blocks."""
LOG_CHECK_S = 0.25
"""Between looks at whether a prefill worker can have read of a job: the log may be away."""
OFFERS_MAX = 2
"""To how many prefill workers a job is offered again when its taker is gone; the queue hands it out in any case."""
PULL_TIMEOUT_S = 10.0
"""From handing a pull to the engine to its first token: NIXL itself waits for ever for a holder that hangs."""
SLOT_CHECK_S = 0.005
"""Between looks at whether the engine has a slot free."""
MARGIN_PARTS = 8
"""One part in so many of the promised time is left unused, for the errors of clocks and networks."""
HOST = TIERS[1]
CLIENT_GONE = "client_gone"
SLOT = "slot"
"""The key of the timer for looks at the engine; all others are ids of jobs."""


class DecodeView(Protocol):
    """The machine's view of its worker: the engine's cache and load, the queue, the settings."""

    @property
    def routing(self) -> RoutingSettings:
        """The present settings."""

    @property
    def jobs(self) -> JobsFold:
        """The jobs stream, as far as it was read."""

    @property
    def log_away(self) -> bool:
        """True if the log acknowledges nothing now, so that no prefill worker would read of a job."""

    def load(self) -> EngineLoad:
        """The engine's newest numbers."""

    def overlap(self, prompt: Prompt) -> int:
        """The number of first blocks of the prompt that are in the cache."""

    def loadable(self, prompt: Prompt) -> int:
        """The number of those that are in the cache or on the engine's host, from which it would load them."""

    def holds(self, block: int) -> bool:
        """True if the block with this hash is in the cache."""


class RequestSubmitted(NamedTuple):
    """A request has come; `job` is an id that no request here had before."""

    job: str
    request: GenerateRequest
    prompt: Prompt
    hint: Hint


class RequestClosed(NamedTuple):
    """The request's answer has ended, or its client is gone."""

    job: str


class PrefillRegistered(NamedTuple):
    """The registry has this address of a prefill worker's blocks; None if the worker is registered no more."""

    worker: WorkerId
    address: KvAddress | None


class PrefillFrameArrived(NamedTuple):
    """A frame of a prefill worker."""

    connection: PrefillConnection
    frame: FromPrefill


class PrefillDisconnected(NamedTuple):
    """A connection broke."""

    connection: PrefillConnection


class JobEventRead(NamedTuple):
    """An event of the jobs stream: the same as the prefill worker's frame; the first of both counts."""

    source: str
    event: object


class PullStarted(NamedTuple):
    """The engine has made its first tokens behind blocks that it fetched."""

    job: str
    cached_tokens: int


class PullFailed(NamedTuple):
    """The engine ended a pull before its first token."""

    job: str
    error: ContrailError


class PullSettled(NamedTuple):
    """`EndPull` is done, and the cache's changes are known; or they cannot be had, and why."""

    job: str
    error: Exception | None = None


class CacheForgotten(NamedTuple):
    """`ForgetCache` is done; or it cannot be, and why."""

    job: str
    error: Exception | None = None


class EngineStepped(NamedTuple):
    """The engine's load may have changed. Without this event the machine looks every SLOT_CHECK_S."""


DecodeEvent = (
    RequestSubmitted
    | RequestClosed
    | PrefillRegistered
    | PrefillFrameArrived
    | PrefillDisconnected
    | JobEventRead
    | PullStarted
    | PullFailed
    | PullSettled
    | CacheForgotten
    | EngineStepped
)


class ComputeHere(NamedTuple):
    """The engine computes the prompt; its first output has the report."""

    job: str
    report: PrefillReport | None


class StartPull(NamedTuple):
    """The engine fetches the prompt's blocks; `PullStarted` or `PullFailed` follows."""

    job: str
    pull: KvPull


class DeliverPulled(NamedTuple):
    """The pulled blocks are right: the tokens of the pull leave, the first ones with the job's report. To be read."""

    job: PrefillJob


class ConfirmPull(NamedTuple):
    """The blocks of this pull are right, or none of them is in the cache: the engine may copy them to slower tiers."""

    pull: KvPull


class FailRequest(NamedTuple):
    """The request ends with this error."""

    job: str
    error: ContrailError


class EndPull(NamedTuple):
    """The engine gives the pull up; `PullSettled` follows."""

    job: str


class ForgetCache(NamedTuple):
    """Nothing that is in the engine's cache will be found any more; `CacheForgotten` follows."""

    job: str


class SpoilEngine(NamedTuple):
    """The engine must serve no request any more."""

    reason: str


class SendToPrefill(NamedTuple):
    """The frame goes to a prefill worker."""

    connection: PrefillConnection
    frame: ToPrefill


class Decline(NamedTuple):
    """The holder's engine hears that these blocks will not be fetched."""

    pull: KvPull


DecodeCommand = (
    ComputeHere
    | StartPull
    | DeliverPulled
    | ConfirmPull
    | FailRequest
    | EndPull
    | ForgetCache
    | SpoilEngine
    | SendToPrefill
    | Decline
    | PublishJob
)


class RemotePrefill:
    """One decode worker's. `slots` is how many requests its engine runs at once."""

    def __init__(self, kind: Kind, slots: int, view: DecodeView) -> None:
        self.peers = PrefillPeers(kind)
        self.jobs: dict[str, PrefillJob] = {}
        """Those that are not over."""
        self.verdicts = Counter[str]()
        """By reason."""
        self.counts = Counter[str]()
        """By how jobs ended: `pulled`, or the reason of their cancellation."""
        self.transports = Counter[str]()
        """Prompts with fetched blocks, by transport."""
        self.pulled_blocks = 0
        self.ready: list[PrefillJob] = []
        """Answered jobs that wait for a slot in the engine."""
        self._slots = slots
        self._view = view
        self._requests: dict[str, PrefillJob] = {}
        """Those with a client."""
        self._waiting: dict[str, PrefillJob] = {}
        """Those of them that wait for blocks that are fetched for others."""
        self._unverified = UnverifiedBlocks()
        self._timers: Timers[str] = Timers()
        self._commands: list[DecodeCommand] = []
        self._now_us = 0

    def __repr__(self) -> str:
        return f"<RemotePrefill {len(self.jobs)} jobs open, {len(self._waiting)} requests wait, {self.peers!r}>"

    @property
    def waiting(self) -> int:
        """Requests that wait for others, and not for the engine."""
        return len(self.jobs) + len(self._waiting)

    @property
    def due_us(self) -> int | None:
        """See `core.machine`."""
        return self._timers.due_us

    def step(self, event: DecodeEvent | Tick, now_us: int) -> Sequence[DecodeCommand]:  # noqa: C901, PLR0912
        """See `core.machine`."""
        self._now_us, self._commands = now_us, []
        match event:
            case Tick():
                self._tick()
            case RequestSubmitted(job, request, prompt, hint):
                self._requests[job] = self._waiting[job] = PrefillJob(job, request, prompt, hint)
                self._proceed(self._requests[job])
            case RequestClosed(job):
                self._close(job)
            case PrefillRegistered(worker, address):
                self.peers.register(worker, address)
            case PrefillFrameArrived(connection, frame):
                self._on_frame(connection, frame)
            case PrefillDisconnected(connection):
                self._on_disconnect(connection)
            case JobEventRead(source, job_event):
                self._on_event(source, job_event)
            case PullStarted(job, cached_tokens):
                self._on_first(job, cached_tokens)
            case PullFailed(job, error):
                self._on_pull_failed(job, error)
            case PullSettled(job, error):
                self._on_settled(job, error)
            case CacheForgotten(job, error):
                self._on_forgotten(job, error)
            case EngineStepped():
                self._start_ready_pulls()
            case _:
                assert_never(event)
        return self._commands

    def _tick(self) -> None:
        while (key := self._timers.pop_due(self._now_us)) is not None:
            if key == SLOT:
                self._start_ready_pulls()
            else:
                self._on_time(self.jobs[key])

    def _on_time(self, job: PrefillJob) -> None:
        match job.phase:
            case JobPhase.ASKED if self._now_us >= job.deadline_us:
                self._recompute(job, "deadline", "no answer in time")
            case JobPhase.ASKED if job.taker is None and self._view.log_away:
                self._recompute(job, "log_away", "no prefill worker can take the job: the log is away")
            case JobPhase.ASKED:
                self._timers.set(job.id, self._next_check_us(job))
            case JobPhase.READY:
                self._start_ready_pulls()
            case JobPhase.PULLING:
                self._give_up(job, "transfer_failed", f"no token within {PULL_TIMEOUT_S:g} s")
            case _:
                self._answer_confirm(job, held=False)

    # --- requests --------------------------------------------------------------------------------------------------

    def _proceed(self, job: PrefillJob) -> None:
        """The request is with the engine, or has a job, unless it builds on unverified blocks."""
        if self._unverified.block(job.prompt):
            return
        sampling = job.request.sampling
        if job.report is None and job.request.task == TASK_GENERATE and sampling.prompt_logprobs < 0:
            job.depth = self._view.overlap(job.prompt)
            job.report = self._verdict(job)
            if job.report.remote:
                self._open(job)
                return
        del self._waiting[job.id]
        job.phase = JobPhase.SERVED
        self._commands.append(ComputeHere(job.id, job.report))

    def _verdict(self, job: PrefillJob) -> PrefillReport:
        settings, prompt, depth = self._view.routing, job.prompt, job.depth
        loadable = 0 if HOST in job.hint.skip_tiers else self._view.loadable(prompt)
        near = max(depth, loadable, job.hint.pool_tokens // prompt.block_size)
        uncached = prompt.tokens - min(near, prompt.blocks_reusable) * prompt.block_size
        waiting = self._view.jobs.waiting().keys() | {each.id for each in self.jobs.values() if each.attempt < 0}
        waiting -= {each.id for each in self.jobs.values() if each.attempt >= 0}
        # looked at for long prompts only: it takes a digest for each request in the engine
        busy = uncached > settings.remote_prefill_min_tokens and any(
            share_block(prompt, other.prompt, depth + 1) for other in self._requests.values() if other is not job
        )
        report = decide_prefill(
            PrefillInputs(
                uncached_tokens=uncached,
                queued=len(waiting),
                workers=len(self.peers.able()),
                min_tokens=settings.remote_prefill_min_tokens,
                queue_max=settings.prefill_queue_max,
                log_away=self._view.log_away,
                busy=busy,
            )
        )
        self.verdicts[report.reason] += 1
        return report

    def _close(self, id_: str) -> None:
        job = self._requests.pop(id_, None)
        if job is None:
            return
        self._waiting.pop(id_, None)
        job.client_gone = True
        if job.phase in {JobPhase.ASKED, JobPhase.READY}:
            self._cancel(job, CLIENT_GONE)
            self._verified(job)
        elif job.phase in {JobPhase.PULLING, JobPhase.CONFIRMING}:
            self._give_up(job, CLIENT_GONE)

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _open(self, job: PrefillJob) -> None:
        """The job is in the log, and offered to the prefill worker that holds most of the prompt."""
        assert job.report is not None
        wait_ms = self._view.routing.prefill_wait_max_ms
        del self._waiting[job.id]
        self.jobs[job.id] = job
        self._unverified.add(job.id, job.prompt, job.depth + 1)
        job.phase, job.asked_us, job.deadline_us = JobPhase.ASKED, self._now_us, self._now_us + wait_ms * 1000
        job.report = msgspec.structs.replace(job.report, job=job.id)
        self._timers.set(job.id, self._next_check_us(job))
        kind, hint = self.peers.kind, job.hint
        event = PrefillRequested(
            job=job.id,
            request=job.request.id,
            attempt=hint.attempt,
            model=kind.model,
            block_size=kind.block_size,
            prompt_tokens=job.prompt.tokens,
            cached_tokens=job.depth * kind.block_size,
            digest=prompt_digest(job.canonical).hex(),
            wait_ms=wait_ms,
            prefer=hint.prefer,
            prefer_tokens=hint.prefer_tokens,
            open=len(self.jobs),
        )
        if hint.prefer:
            self._offer(job, WorkerId(hint.prefer))
        self._commands.append(PublishJob(event))

    def _next_check_us(self, job: PrefillJob) -> int:
        return min(job.deadline_us, self._now_us + round(LOG_CHECK_S * 1e6))

    def _offer(self, job: PrefillJob, worker: WorkerId) -> None:
        peer = self.peers.get(worker)
        if peer is not None:
            self._send(peer.connection, JobOffer(job=job.id))

    def _start_ready_pulls(self) -> None:
        """The first job that waits for a slot has one, if the engine can begin it at once."""
        load = self._view.load()
        pulling = sum(job.phase is JobPhase.PULLING for job in self.jobs.values())
        free = not load.waiting and load.running + pulling < self._slots
        for job in [job for job in self.ready if self._now_us >= job.until_us]:
            if free:
                self._recompute(job, "lease", "too little is left of the time that the blocks are held")
            else:
                self._recompute(job, "no_slot", "no slot came free in the engine while the blocks were held")
        if free and self.ready:
            job = self.ready.pop(0)
            job.phase, job.pull_depth = JobPhase.PULLING, self._view.overlap(job.prompt)
            self._timers.set(job.id, self._now_us + round(PULL_TIMEOUT_S * 1e6))
            job.begun = True
            self._commands.append(StartPull(job.id, job.pull))
        if self.ready and SLOT not in self._timers:
            self._timers.set(SLOT, self._now_us + round(SLOT_CHECK_S * 1e6))

    def _on_first(self, id_: str, cached_tokens: int) -> None:
        job = self.jobs.get(id_)
        if job is None or job.phase is not JobPhase.PULLING:
            return
        job.cached_tokens = cached_tokens
        if self._now_us > job.until_us:
            self._give_up(job, "unconfirmed", "the blocks came after the time for which they were promised")
        else:
            self._confirm(job, JobPhase.CONFIRMING)

    def _confirm(self, job: PrefillJob, phase: JobPhase) -> None:
        """The holder is asked whether the blocks were held until now."""
        assert job.taker is not None
        job.phase = phase
        self._timers.set(job.id, self._now_us + round(CONFIRM_TIMEOUT_S * 1e6))
        self._send(job.taker.connection, Confirm(job=job.id))
        if job.held is not None:
            self._answer_confirm(job, held=job.held)

    def _answer_confirm(self, job: PrefillJob, *, held: bool) -> None:
        """The first answer counts, and the next question too has it."""
        if job.phase is JobPhase.REASKING:
            if held:
                self._end_pull(job)
            else:
                self._forget(job)
        elif job.phase is JobPhase.CONFIRMING:
            if held:
                self._pulled(job)
            else:
                self._give_up(job, "unconfirmed", "the holder did not say that the blocks were held")

    def _pulled(self, job: PrefillJob) -> None:
        """The job's good end, and the report says so."""
        assert job.taker is not None
        assert job.report is not None
        prompt, address = job.prompt, job.taker.address
        blocks = prompt.blocks_to_hold - job.cached_tokens // prompt.block_size
        job.phase = JobPhase.SERVED
        job.report = report = msgspec.structs.replace(
            job.report,
            worker=job.taker.worker,
            outcome="pulled",
            pulled_tokens=prompt.tokens - job.cached_tokens,
            wait_ms=(job.answered_us - job.asked_us) // 1000,
            pull_ms=(self._now_us - job.answered_us) // 1000,
            remote_cached_tokens=0 if job.answer is None else job.answer.cached_tokens,
            compute_ms=0 if job.answer is None else job.answer.compute_ms,
        )
        self.pulled_blocks += blocks
        self.transports[address.transport] += 1
        self._end(job, "pulled")
        event = PrefillPulled(
            job=job.id,
            worker=report.worker,
            blocks=blocks,
            bytes=blocks * address.block_bytes,
            tokens=report.pulled_tokens,
            transport=address.transport,
            wait_ms=report.wait_ms,
            pull_ms=report.pull_ms,
            open=len(self.jobs),
        )
        self._commands += (PublishJob(event), DeliverPulled(job))
        self._verified(job)

    def _recompute(self, job: PrefillJob, reason: str, detail: str = "") -> None:
        """The job's other end: the engine computes the prompt."""
        assert job.report is not None
        self._cancel(job, reason, detail)
        waited_ms = (self._now_us - job.asked_us) // 1000
        job.report = msgspec.structs.replace(job.report, outcome=reason, detail=detail, wait_ms=waited_ms)
        job.phase = JobPhase.WAITING
        self._waiting = {job.id: job, **self._waiting}  # it came before those that wait for it
        self._verified(job)

    def _cancel(self, job: PrefillJob, reason: str, detail: str = "") -> None:
        if job.answer is not None:
            self._commands.append(Decline(job.pull))
        self._end(job, reason)
        waited_ms = (self._now_us - job.asked_us) // 1000
        event = PrefillCancelled(job=job.id, reason=reason, detail=detail, wait_ms=waited_ms, open=len(self.jobs))
        self._commands.append(PublishJob(event))

    def _end(self, job: PrefillJob, how: str) -> None:
        self.counts[how] += 1
        del self.jobs[job.id]
        self._timers.cancel(job.id)
        if job in self.ready:
            self.ready.remove(job)
        if job.taker is not None:
            self._send(job.taker.connection, Release(job=job.id))

    def _verified(self, job: PrefillJob) -> None:
        """The job's blocks are in doubt no more: requests that waited for them go on, in their order."""
        self._unverified.remove(job.id)
        if job.begun:
            self._commands.append(ConfirmPull(job.pull))
        for waiting in list(self._waiting.values()):
            self._proceed(waiting)

    # --- pulls that were given up --------------------------------------------------------------------------------

    def _give_up(self, job: PrefillJob, reason: str, detail: str = "") -> None:
        """The engine ends the pull; blocks of it may be in the cache."""
        job.failure = (reason, detail)
        job.phase = JobPhase.SETTLING
        self._timers.cancel(job.id)
        self._commands.append(EndPull(job.id))

    def _on_pull_failed(self, id_: str, error: ContrailError) -> None:
        job = self.jobs.get(id_)
        if job is None or job.phase is not JobPhase.PULLING:
            return
        if isinstance(error, TransferFailed):  # nothing of the pull is in the cache
            job.failure = ("transfer_failed", str(error))
            self._end_pull(job)
        else:
            job.error = error
            self._give_up(job, CLIENT_GONE)

    def _on_settled(self, id_: str, error: Exception | None) -> None:
        job = self.jobs.get(id_)
        if job is None or job.phase is not JobPhase.SETTLING:
            return
        # a part of a block has no name, and may be a whole block by now, under the name of right tokens
        partial = job.pull_depth >= job.prompt.blocks
        if error is not None:
            self._spoil(job, error)
        elif not partial and not self._view.holds(job.prompt.key(job.pull_depth + 1)):
            self._end_pull(job)
        elif self._now_us <= job.until_us:
            self._confirm(job, JobPhase.REASKING)
        else:
            self._forget(job)

    def _forget(self, job: PrefillJob) -> None:
        job.phase = JobPhase.FORGETTING
        self._timers.cancel(job.id)
        self._commands.append(ForgetCache(job.id))

    def _on_forgotten(self, id_: str, error: Exception | None) -> None:
        job = self.jobs.get(id_)
        if job is None or job.phase is not JobPhase.FORGETTING:
            return
        if error is None:
            self._end_pull(job)
        else:
            self._spoil(job, error)

    def _end_pull(self, job: PrefillJob) -> None:
        """No block that is in the cache because of the pull is wrong."""
        if job.error is None and not job.client_gone:
            self._recompute(job, *job.failure)
            return
        self._cancel(job, CLIENT_GONE)
        if job.error is not None and not job.client_gone:
            self._commands.append(FailRequest(job.id, job.error))
        self._verified(job)

    def _spoil(self, job: PrefillJob, error: Exception) -> None:
        """Blocks in the cache may be wrong for ever: they stay unverified, and the worker must leave."""
        self._cancel(job, CLIENT_GONE)
        self._commands.append(SpoilEngine(f"blocks that may be wrong cannot be forgotten: {error}"))
        if not job.client_gone:
            self._commands.append(
                FailRequest(job.id, EngineDead(f"blocks that may be wrong are in the cache: {error}"))
            )

    # --- prefill workers -------------------------------------------------------------------------------------------

    def _on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        match frame:
            case Introduce(worker=worker):
                if self.peers.introduced(connection, frame):
                    self._rename_taker(connection, WorkerId(worker))
            case Claim(job=id_):
                self._claim(connection, id_)
            case JobCompleted(event=event):
                self._on_completed(connection, event)
            case JobFailed(event=event):
                self._on_failed(event)
            case StillHeld(job=id_, held=held):
                job = self.jobs.get(id_)
                if job is not None and job.held is None:
                    job.held = held
                    self._answer_confirm(job, held=held)
            case _:
                assert_never(frame)

    def _rename_taker(self, connection: PrefillConnection, worker: WorkerId) -> None:
        """A prefill worker goes on under another id, with the jobs that it has."""
        for job in self.jobs.values():
            if job.taker is not None and job.taker.connection is connection:
                job.taker = job.taker._replace(worker=worker)

    def _on_disconnect(self, connection: PrefillConnection) -> None:
        """Jobs claimed by the prefill worker are offered to others; its answers are of no use."""
        worker = self.peers.on_disconnect(connection)
        taken = [job for job in self.jobs.values() if job.taker is not None and job.taker.connection is connection]
        for job in taken:
            if job.answer is not None:
                self._lose_answer(job, "worker_gone", f"prefill worker {worker} is gone with its answer")
            else:
                job.taker = None
                able = self.peers.able()
                start = int(job.id, 16) % len(able) if able else 0
                for other in (able[start:] + able[:start])[:OFFERS_MAX]:
                    self._offer(job, other)

    def _on_event(self, source: str, event: object) -> None:
        if isinstance(event, PrefillCompleted) and event.job in self.jobs:
            self._take_answer(WorkerId(source), event)
        elif isinstance(event, PrefillFailed) and event.job in self.jobs:
            self._on_failed(event)

    def _claim(self, connection: PrefillConnection, id_: str) -> None:
        worker = self.peers.worker_of(connection)
        peer = self.peers.get(worker) if worker is not None else None
        job = self.jobs.get(id_)
        if job is None or peer is None:
            self._send(connection, JobPrompt(job=id_, why="over" if job is None else "unknown"))
        else:
            self._send(connection, job.claim(peer, self._now_us))

    def _on_completed(self, connection: PrefillConnection, event: PrefillCompleted) -> None:
        worker = self.peers.worker_of(connection)
        if worker is None or not self._take_answer(worker, event):
            self._send(connection, Release(job=event.job))
            peer = self.peers.get(worker) if worker is not None else None
            if peer is not None:
                self._commands.append(Decline(KvPull(peer.address, event.blocks)))

    def _take_answer(self, worker: WorkerId, event: PrefillCompleted) -> bool:
        """True if the answer is the job's, now or before; the blocks of any other answer are of no use."""
        job = self.jobs.get(event.job)
        if job is None or job.taker is None or job.taker.worker != worker or job.attempt != event.attempt:
            return False
        if job.phase is not JobPhase.ASKED:
            return True
        keep_ms, kind = event.keep_ms, self.peers.kind
        job.answer, job.answered_us = event, self._now_us
        job.until_us = job.claimed_us + (keep_ms - keep_ms // MARGIN_PARTS) * 1000
        wrong = mismatch(
            job.expected(kind.model, kind.block_size, kind.layout),
            digest=event.digest,
            model=event.model,
            block_size=event.block_size,
            layout=event.layout,
            blocks=event.blocks,
        )
        if wrong:
            self._recompute(job, "mismatch", wrong)
            return True
        job.phase = JobPhase.READY
        self._timers.set(job.id, job.until_us)
        self.ready.append(job)
        self._start_ready_pulls()
        return True

    def _on_failed(self, event: PrefillFailed) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.attempt != event.attempt:
            return
        if job.answer is not None:
            self._lose_answer(job, "dead_letter" if event.dead else "prefill_failed", event.reason)
        elif event.dead:
            self._recompute(job, "dead_letter", event.reason)
        else:
            job.taker = None  # the queue hands it out again

    def _lose_answer(self, job: PrefillJob, reason: str, detail: str) -> None:
        """The blocks of the answer are held no more; a pull that is under way goes on to its end."""
        if job.phase is JobPhase.READY:
            self._recompute(job, reason, detail)
        elif job.held is None:
            job.held = False
            self._answer_confirm(job, held=False)

    def _send(self, connection: PrefillConnection, frame: ToPrefill) -> None:
        self._commands.append(SendToPrefill(connection, frame))
