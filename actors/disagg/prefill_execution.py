"""PrefillExecution: a prefill worker's machine: it takes jobs, has prompts computed, keeps their blocks until fetched.

1. Jobs come from the shared queue, oldest first, when a slot is free; or by an offer, which is taken only while the
   queue has nothing for this worker: then no job is passed over that has waited longer.
2. A job is computed only if its requester, asked for the prompt, still wants it from this worker. So repeated and old
   messages do no harm, and one job has one effect.
3. The queue's message is acknowledged when the job is over here and kept alive until then. After a failure it is handed
   out again, and given up as a dead letter after so many times.
4. A requester is gone when its connection is: nothing is computed or held for it any longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, assert_never

from actors.disagg.prefill_job import PublishJob
from actors.disagg.prefill_peers import Kind
from actors.transport.frames import (
    Claim,
    Confirm,
    FromPrefill,
    JobCompleted,
    JobFailed,
    JobOffer,
    JobPrompt,
    Release,
    StillHeld,
    ToPrefill,
)
from core.errors import CallerError, ContrailError
from core.events.jobs import PrefillCompleted, PrefillFailed, PrefillStarted
from core.generation import GenerateRequest
from core.ids import WorkerId
from core.kv_transfer import KvBlocks, answer_digest
from core.machine import Tick
from core.prompt import scope_bytes
from core.timers import Timers
from streams.log import Delivery, QueueLimits

CLAIM_TIMEOUT_S = 5.0
"""Bound on a requester's answer to a claim."""
CONNECT_WAIT_S = 2.0
"""Bound on the wait for a connection to the requester of a job."""
CONNECT_CHECK_S = 0.02
AGAIN_S = 1.0
"""After so long a job that failed here is handed out again."""
TAKE_RETRY_S = 0.5
"""Between tries while the queue is away."""
KEEPALIVE_PARTS = 3
"""The queue hears of work under way so many times in the time after which it would hand it out again."""
OVER_KEPT = 1024
"""Jobs remembered as over, so that their messages need no question."""
WITHDRAWN = "withdrawn"
TAKE, KEEP, CLAIM, LEASE = "take", "keep", "claim", "lease"
"""Of timers: the next try to take a job, the next sign of work, the end of a wait, the end of a lease."""


class RequesterView(Protocol):
    """The machine's view of the connections to decode workers."""

    def connected(self, worker: WorkerId) -> bool:
        """True if frames reach the worker now."""

    def unreachable(self, worker: WorkerId) -> bool:
        """True if connecting to the worker has failed since it was last connected."""

    def has_departed(self, worker: WorkerId) -> bool:
        """True if the worker was registered, and is neither registered nor connected any more."""


class Started(NamedTuple):
    """Jobs are taken from now on."""


class Drain(NamedTuple):
    """No job is taken any more."""


class Stop(NamedTuple):
    """Nothing is computed or held any more."""


class Delivered(NamedTuple):
    """The queue's answer to `TakeNext`. `job` is None for a message that asks for none."""

    job: str | None
    requester: WorkerId
    delivery: Delivery


class TakeFailed(NamedTuple):
    """The queue is away."""


class RequesterFrameArrived(NamedTuple):
    """A frame of a decode worker."""

    requester: WorkerId
    frame: ToPrefill


class RequesterDisconnected(NamedTuple):
    """The connection to a decode worker broke."""

    requester: WorkerId


class Prefilled(NamedTuple):
    """The engine holds the blocks of the job's prompt."""

    job: str
    blocks: KvBlocks
    cached_tokens: int


class PrefillBroke(NamedTuple):
    """The engine did not compute the prompt."""

    job: str
    error: ContrailError


PrefillEvent = (
    Started
    | Drain
    | Stop
    | Delivered
    | TakeFailed
    | RequesterFrameArrived
    | RequesterDisconnected
    | Prefilled
    | PrefillBroke
)


class TakeNext(NamedTuple):
    """The queue is asked for its oldest message: `Delivered` or `TakeFailed` follows."""


class SendToRequester(NamedTuple):
    """The frame goes to a decode worker."""

    requester: WorkerId
    frame: FromPrefill


class AnswerConfirm(NamedTuple):
    """The requester hears whether the engine has held these blocks without a break until now."""

    requester: WorkerId
    job: str
    blocks: KvBlocks


class ComputePrompt(NamedTuple):
    """The engine computes the prompt and holds its blocks: `Prefilled` or `PrefillBroke` follows."""

    job: str
    request: GenerateRequest


class AbortCompute(NamedTuple):
    """The engine gives the prompt up; no event follows."""

    job: str


class ReleaseBlocks(NamedTuple):
    """The engine holds the blocks no longer."""

    blocks: KvBlocks


class CountPrompt(NamedTuple):
    """A prompt of so many tokens was computed, of which so many came from the cache."""

    tokens: int
    cached_tokens: int


class Acknowledge(NamedTuple):
    """The queue hands the message out no more."""

    delivery: Delivery


class Postpone(NamedTuple):
    """The queue hands the message out again after the delay."""

    delivery: Delivery
    delay_s: float


class KeepAlive(NamedTuple):
    """The queue's time until it hands the message out again begins anew."""

    delivery: Delivery


PrefillCommand = (
    TakeNext
    | SendToRequester
    | AnswerConfirm
    | ComputePrompt
    | AbortCompute
    | ReleaseBlocks
    | CountPrompt
    | Acknowledge
    | Postpone
    | KeepAlive
    | PublishJob
)


@dataclass(slots=True, eq=False)
class JobExecution:
    """One job under way here."""

    job: str
    requester: WorkerId
    number: int
    """The number of times that the queue had delivered the job; 0 if it was offered."""
    deliveries: list[Delivery]
    """The queue's messages of the job that are held: none if it was offered, several if one came again."""
    connect_by_us: int
    claimed: bool = False
    """The requester was asked for the prompt."""
    attempt: int = -1
    request: GenerateRequest | None = field(default=None, repr=False)
    """The prompt, from when it is computed on."""
    started_us: int = 0


class BlockLease(NamedTuple):
    """Blocks of one job, held until they are released or the engine's own time for them is over."""

    requester: WorkerId
    blocks: KvBlocks


class PrefillExecution:
    """One prefill worker's. `keep_ms` is how long its engine holds blocks for others."""

    def __init__(self, kind: Kind, keep_ms: int, slots: int, limits: QueueLimits, requesters: RequesterView) -> None:
        assert slots > 0
        self.executions: dict[str, JobExecution] = {}
        """Jobs under way; one more than there are slots, if one was offered and one came at the same moment."""
        self.leases: dict[str, BlockLease] = {}
        """By job."""
        self.counts = Counter[str]()
        """Jobs by how they ended here: `completed`, `failed`, `dead`, `not_wanted`, `withdrawn`."""
        self.started = 0
        """Jobs that the log knows to be under way here."""
        self.draining = True
        """No job is taken: before `Started`, after `Drain`."""
        self._kind = kind
        self._keep_ms = keep_ms
        self._slots = slots
        self._limits = limits
        self._requesters = requesters
        self._taking = False
        """True if the queue was asked for a job and has not delivered one."""
        self._over: dict[str, None] = {}
        self._timers: Timers[tuple[str, str]] = Timers()
        self._commands: list[PrefillCommand] = []
        self._now_us = 0

    def __repr__(self) -> str:
        return f"<PrefillExecution {len(self.executions)} jobs under way, {len(self.leases)} prompts held>"

    @property
    def due_us(self) -> int | None:
        """See `core.machine`."""
        return self._timers.due_us

    def step(self, event: PrefillEvent | Tick, now_us: int) -> Sequence[PrefillCommand]:  # noqa: C901  # one per event
        """See `core.machine`."""
        self._now_us, self._commands = now_us, []
        match event:
            case Tick():
                self._tick()
            case Started():
                self.draining = False
            case Drain():
                self.draining = True
            case Stop():
                self._stop()
            case Delivered(job, requester, delivery):
                self._on_delivered(job, requester, delivery)
            case TakeFailed():
                self._taking = False
                self._set_timer(TAKE, "", TAKE_RETRY_S)
            case RequesterFrameArrived(requester, frame):
                self._on_frame(requester, frame)
            case RequesterDisconnected(requester):
                self._drop_requester(requester, "the decode worker is gone")
            case Prefilled(job, blocks, cached_tokens):
                self._on_prefilled(job, blocks, cached_tokens)
            case PrefillBroke(job, error):
                self._on_broke(job, error)
            case _:
                assert_never(event)
        self._take()
        return self._commands

    def _tick(self) -> None:
        while (key := self._timers.pop_due(self._now_us)) is not None:
            what, job = key
            if what == KEEP:
                self._keep_alive(self.executions[job])
            elif what == CLAIM:
                self._claim(self.executions[job])
            elif what == LEASE:
                del self.leases[job]

    def _set_timer(self, what: str, job: str, delay_s: float) -> None:
        self._timers.set((what, job), self._now_us + round(delay_s * 1e6))

    # --- the queue -------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """The queue is asked for a job if a slot is free."""
        is_full = len(self.executions) >= self._slots
        if not (self._taking or self.draining or is_full or (TAKE, "") in self._timers):
            self._taking = True
            self._commands.append(TakeNext())

    def _on_delivered(self, job: str | None, requester: WorkerId, delivery: Delivery) -> None:
        self._taking = False
        if job is None or job in self._over or self._requesters.has_departed(requester):
            self._commands.append(Acknowledge(delivery))
        elif job in self.executions:
            self.executions[job].deliveries.append(delivery)
        elif self.draining:
            self._commands.append(Postpone(delivery, 0.0))
        else:
            self._begin(job, requester, delivery)

    def _keep_alive(self, execution: JobExecution) -> None:
        self._commands += [KeepAlive(delivery) for delivery in execution.deliveries]
        self._set_timer(KEEP, execution.job, self._limits.ack_wait_s / KEEPALIVE_PARTS)

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _begin(self, job: str, requester: WorkerId, delivery: Delivery | None) -> None:
        number, deliveries = (0, []) if delivery is None else (delivery.number, [delivery])
        connect_by_us = self._now_us + round(CONNECT_WAIT_S * 1e6)
        execution = self.executions[job] = JobExecution(job, requester, number, deliveries, connect_by_us)
        self._set_timer(KEEP, job, self._limits.ack_wait_s / KEEPALIVE_PARTS)
        if number > self._limits.deliveries_max:
            self._fail(execution, f"handed out {self._limits.deliveries_max} times in vain")
        else:
            self._claim(execution)

    def _claim(self, execution: JobExecution) -> None:
        """The requester is asked for the prompt as soon as it is connected; without an answer in time the job fails."""
        job, requester = execution.job, execution.requester
        if execution.claimed:
            self._fail(execution, f"decode worker {requester} does not answer")
        elif self._requesters.connected(requester):
            execution.claimed = True
            self._set_timer(CLAIM, job, CLAIM_TIMEOUT_S)
            self._send(requester, Claim(job=job, delivery=execution.number))
        elif self._requesters.unreachable(requester):
            self._fail(execution, f"decode worker {requester} cannot be reached")
        elif self._now_us >= execution.connect_by_us:
            self._fail(execution, f"decode worker {requester} does not answer")
        else:
            self._set_timer(CLAIM, job, CONNECT_CHECK_S)

    def _on_prompt(self, execution: JobExecution, prompt: JobPrompt) -> None:
        if prompt.request is None:
            self.counts["not_wanted"] += 1
            if prompt.why == "over":
                self._note_over(execution.job)
                self._end(execution)
            else:
                self._end(execution, again_s=self._limits.ack_wait_s)  # another has it, and may fail
            return
        self._timers.cancel((CLAIM, execution.job))
        execution.attempt, execution.request, execution.started_us = prompt.attempt, prompt.request, self._now_us
        self.started += 1
        event = PrefillStarted(
            job=execution.job,
            requester=execution.requester,
            attempt=execution.attempt,
            delivery=execution.number,
            open=self.started,
        )
        self._commands += (PublishJob(event), ComputePrompt(execution.job, prompt.request))

    def _on_prefilled(self, job: str, blocks: KvBlocks, cached_tokens: int) -> None:
        """The blocks are held, and requester and log know it."""
        execution = self.executions.get(job)
        if execution is None or execution.request is None:
            self._commands.append(ReleaseBlocks(blocks))
            return
        request = execution.request
        self._release(job)  # of an earlier attempt
        self.leases[job] = BlockLease(execution.requester, blocks)
        self._set_timer(LEASE, job, self._keep_ms / 1000)
        self.started -= 1
        canonical = scope_bytes(request.adapter, request.cache_salt) + request.tokens
        event = PrefillCompleted(
            job=job,
            requester=execution.requester,
            attempt=execution.attempt,
            model=self._kind.model,
            block_size=self._kind.block_size,
            layout=self._kind.layout,
            digest=answer_digest(canonical, job, execution.attempt),
            blocks=blocks,
            keep_ms=self._keep_ms,
            compute_ms=(self._now_us - execution.started_us) // 1000,
            cached_tokens=cached_tokens,
            open=self.started,
        )
        self.counts["completed"] += 1
        self._note_over(job)
        self._commands.append(CountPrompt(blocks.tokens, cached_tokens))
        self._send(execution.requester, JobCompleted(event=event))
        self._commands.append(PublishJob(event))
        self._end(execution)

    def _on_broke(self, job: str, error: ContrailError) -> None:
        if job in self.executions:  # an error of the caller's: no other engine of this kind would take it either
            self._fail(self.executions[job], str(error), in_vain=isinstance(error, CallerError))

    def _fail(self, execution: JobExecution, reason: str, *, in_vain: bool = False) -> None:
        """The job is handed out again, unless that was often enough or is in vain."""
        self._give_up(execution, reason, dead=in_vain or execution.number >= self._limits.deliveries_max)

    def _give_up(self, execution: JobExecution, reason: str, *, dead: bool = False) -> None:
        """Requester and log know, and the queue."""
        withdrawn = reason == WITHDRAWN
        self.counts[WITHDRAWN if withdrawn else "dead" if dead else "failed"] += 1
        is_started = execution.request is not None
        if is_started or dead:
            self.started -= is_started
            event = PrefillFailed(
                job=execution.job,
                requester=execution.requester,
                attempt=execution.attempt,
                reason=reason,
                dead=dead,
                open=self.started,
            )
            if not withdrawn:
                self._send(execution.requester, JobFailed(event=event))
            self._commands.append(PublishJob(event))
        self._end(execution, again_s=None if dead or withdrawn else AGAIN_S)

    def _end(self, execution: JobExecution, again_s: float | None = None) -> None:
        """The job is over here; its messages are handed out again after `again_s`, if that is given."""
        del self.executions[execution.job]
        self._timers.cancel((KEEP, execution.job))
        self._timers.cancel((CLAIM, execution.job))
        for delivery in execution.deliveries:
            self._commands.append(Acknowledge(delivery) if again_s is None else Postpone(delivery, again_s))

    def _break_off(self, execution: JobExecution, reason: str) -> None:
        if execution.request is not None:
            self._commands.append(AbortCompute(execution.job))
        self._give_up(execution, reason)

    def _note_over(self, job: str) -> None:
        self._over[job] = None
        if len(self._over) > OVER_KEPT:
            del self._over[next(iter(self._over))]

    # --- decode workers --------------------------------------------------------------------------------------------

    def _on_frame(self, requester: WorkerId, frame: ToPrefill) -> None:
        execution = self.executions.get(frame.job)
        match frame:
            case JobPrompt():
                if execution is not None and execution.claimed and execution.request is None:
                    self._on_prompt(execution, frame)
            case JobOffer(job=job):
                is_free = self._taking and not self.draining and len(self.executions) < self._slots
                if is_free and execution is None:
                    self._begin(job, requester, None)
            case Confirm(job=job):
                lease = self.leases.get(job)
                if lease is None:
                    self._send(requester, StillHeld(job=job, held=False))
                else:
                    self._commands.append(AnswerConfirm(requester, job, lease.blocks))
            case Release(job=job):
                self._note_over(job)
                self._release(job)
                if execution is not None:
                    self._break_off(execution, WITHDRAWN)
            case _:
                assert_never(frame)

    def _release(self, job: str) -> None:
        lease = self.leases.pop(job, None)
        if lease is not None:
            self._timers.cancel((LEASE, job))
            self._commands.append(ReleaseBlocks(lease.blocks))

    def _drop_requester(self, requester: WorkerId, reason: str) -> None:
        """Nothing is computed or held for it."""
        for job in [job for job, lease in self.leases.items() if lease.requester == requester]:
            self._release(job)
        for execution in [each for each in self.executions.values() if each.requester == requester]:
            self._break_off(execution, reason)

    def _stop(self) -> None:
        self.draining = True
        for execution in list(self.executions.values()):
            self._break_off(execution, "the prefill worker ends")
        for job in list(self.leases):
            self._release(job)

    def _send(self, requester: WorkerId, frame: FromPrefill) -> None:
        self._commands.append(SendToRequester(requester, frame))
