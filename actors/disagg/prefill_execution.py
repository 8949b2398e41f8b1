"""PrefillExecution: one job at a prefill worker, from the claim to its end here."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from actors.disagg.block_leases import BlockLeases
from actors.disagg.requester_connections import RequesterConnections
from actors.engines.engine import BlockTransfer, Engine
from actors.transport.frames import Claim, JobCompleted, JobFailed, JobPrompt
from core.clock import Clock
from core.errors import CallerError, ContrailError, Unavailable
from core.events import Event
from core.events.jobs import PrefillCompleted, PrefillFailed, PrefillStarted
from core.generation import GenerateRequest
from core.ids import WorkerId
from core.kv_transfer import answer_digest
from core.prompt import TOKEN_BYTES, scope_bytes
from streams.log import Delivery, QueueLimits

CLAIM_TIMEOUT_S = 5.0
"""How long a requester may take to give the prompt."""
CONNECT_WAIT_S = 2.0
"""How long a job waits for a connection to its requester."""
CONNECT_LOOK_S = 0.02
AGAIN_S = 1.0
"""After so long a job that failed here is handed out again."""
KEEPALIVE_PARTS = 3
"""The queue hears of work under way so many times in the time after which it would hand it out again."""
OVER_KEPT = 1024
"""Jobs remembered as over, so that their messages need no question."""
WITHDRAWN = "withdrawn"

_logger = logging.getLogger(__name__)


class PrefillWorkerState:
    """What all executions of one prefill worker share."""

    def __init__(
        self,
        engine: Engine,
        transfer: BlockTransfer,
        requesters: RequesterConnections,
        clock: Clock,
        limits: QueueLimits,
        say: Callable[[Event], None],
        served: Callable[[int, int], None],
    ) -> None:
        self.engine = engine
        self.transfer = transfer
        self.requesters = requesters
        self.leases = BlockLeases(transfer)
        self.clock = clock
        self.limits = limits
        self.say = say
        self.served = served
        self.counts = Counter[str]()
        """Jobs by how they ended here: `completed`, `failed`, `dead`, `not_wanted`, `withdrawn`."""
        self.started = 0
        """Jobs that the log knows to be under way here."""
        self.over: dict[str, None] = {}

    def note_over(self, job: str) -> None:
        """The job's messages need no question any more."""
        self.over[job] = None
        if len(self.over) > OVER_KEPT:
            del self.over[next(iter(self.over))]


class PrefillExecution:
    """`run` ends when the job is over here, and then the queue knows what to do with its messages."""

    def __init__(self, state: PrefillWorkerState, job: str, requester: WorkerId, delivery: Delivery | None) -> None:
        self.job = job
        self.requester = requester
        self.deliveries = [] if delivery is None else [delivery]
        """The queue's messages of this job that we hold: none if it was offered, several if one came again."""
        self.delivered = 0 if delivery is None else delivery.number
        self.prompt: asyncio.Future[JobPrompt] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._state = state
        self._attempt = -1
        self._started = False
        self._broken_off = ""

    def __repr__(self) -> str:
        return f"<PrefillExecution on {self.job} for {self.requester}, {'started' if self._started else 'not started'}>"

    def break_off(self, why: str) -> None:
        """Nothing more is computed for it; the reason is told once."""
        if self.task is not None and not self._broken_off:
            self._broken_off = why
            self.task.cancel()

    async def run(self) -> None:
        """Raises nothing but defects."""
        keeping = asyncio.create_task(self._keep_alive(), name=f"keep {self.job}")
        try:
            await self._try()
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    async def _try(self) -> None:
        deliveries_max = self._state.limits.deliveries_max
        try:
            if self.delivered > deliveries_max:
                await self._give_up(f"handed out {deliveries_max} times in vain", dead=True)
                return
            prompt = await self._claim()
            if prompt.request is None:
                await self._leave_it(prompt.why)
                return
            self._attempt = prompt.attempt
            await self._compute(prompt.request)
            await self._settle(again=False)
        except CallerError as error:
            await self._give_up(str(error), dead=True)  # no other engine of this kind would take it either
        except ContrailError as error:
            await self._give_up(str(error), dead=self.delivered >= deliveries_max)
        except asyncio.CancelledError:
            await self._give_up(self._broken_off or "stopped", dead=False)
            if not self._broken_off:
                raise

    async def _claim(self) -> JobPrompt:
        """What the requester says: the prompt, or why there is none. Unavailable if it says nothing."""
        requesters = self._state.requesters
        try:
            async with asyncio.timeout(CONNECT_WAIT_S):
                while not requesters.connected(self.requester):
                    if requesters.unreachable(self.requester):
                        raise Unavailable(f"decode worker {self.requester} cannot be reached")
                    await asyncio.sleep(CONNECT_LOOK_S)
            requesters.send(self.requester, Claim(job=self.job, delivery=self.delivered))
            async with asyncio.timeout(CLAIM_TIMEOUT_S):
                return await self.prompt
        except TimeoutError as error:
            raise Unavailable(f"decode worker {self.requester} does not answer") from error

    async def _leave_it(self, why: str) -> None:
        """It is over, or another has it, who may fail: then it is looked at again."""
        self._state.counts["not_wanted"] += 1
        if why == "over":
            self._state.note_over(self.job)
        await self._settle(again=why != "over", delay_s=self._state.limits.ack_wait_s)

    async def _compute(self, request: GenerateRequest) -> None:
        """The blocks are held, and requester and log know it."""
        state, info, started_ms = self._state, self._state.engine.info, self._state.clock.monotonic_ms()
        self._count(started=True)
        state.say(
            PrefillStarted(
                job=self.job,
                requester=self.requester,
                attempt=self._attempt,
                delivery=self.delivered,
                open=state.started,
            )
        )
        blocks, cached_tokens = await state.transfer.prefill(request)
        state.leases.add(self.job, self.requester, blocks)
        self._count(started=False)
        canonical = scope_bytes(request.adapter, request.cache_salt) + request.tokens
        completed = PrefillCompleted(
            job=self.job,
            requester=self.requester,
            attempt=self._attempt,
            model=info.model,
            block_size=info.block_size,
            layout=state.transfer.address.layout,
            digest=answer_digest(canonical, self.job, self._attempt),
            blocks=blocks,
            keep_ms=state.transfer.keep_ms,
            compute_ms=state.clock.monotonic_ms() - started_ms,
            cached_tokens=cached_tokens,
            open=state.started,
        )
        state.counts["completed"] += 1
        state.note_over(self.job)
        state.served(len(request.tokens) // TOKEN_BYTES, cached_tokens)
        state.requesters.send(self.requester, JobCompleted(event=completed))
        state.say(completed)

    async def _give_up(self, reason: str, *, dead: bool) -> None:
        """Requester and log know, and the queue hands the job out again unless nobody wants it any more."""
        state, withdrawn = self._state, self._broken_off == WITHDRAWN
        state.counts[WITHDRAWN if withdrawn else "dead" if dead else "failed"] += 1
        if self._started or dead:
            self._count(started=False)
            event = PrefillFailed(
                job=self.job,
                requester=self.requester,
                attempt=self._attempt,
                reason=reason,
                dead=dead,
                open=state.started,
            )
            if not withdrawn:
                state.requesters.send(self.requester, JobFailed(event=event))
            state.say(event)
        if dead:
            _logger.error("prefill job %s is given up: %s", self.job, reason)
        await self._settle(again=not (dead or withdrawn), delay_s=AGAIN_S)

    def _count(self, *, started: bool) -> None:
        self._state.started += started - self._started
        self._started = started

    async def _settle(self, *, again: bool, delay_s: float = 0.0) -> None:
        """The queue knows, unless it is away: then it hands the job out again, which does no harm."""
        for delivery in self.deliveries:
            with suppress(Unavailable):
                await (delivery.again(delay_s) if again else delivery.done())

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._state.limits.ack_wait_s / KEEPALIVE_PARTS)
            for delivery in self.deliveries:
                with suppress(Unavailable):
                    await delivery.working()
