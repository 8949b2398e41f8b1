"""PrefillService: a prefill worker's side: takes jobs, computes prompts, keeps their blocks until they were fetched.

1. Jobs come from the shared queue, oldest first, when a slot is free; or by an offer, which is taken only while the
   queue has nothing for us: then nobody who has waited longer is passed over.
2. A job is computed only if its requester, asked for the prompt, still wants it from us. So repeated and old messages
   do no harm, and one job has one effect.
3. The queue's message is acknowledged when the job is over for us, kept alive until then, handed out again if we
   fail, and given up as a dead letter after so many times.
4. Who asked is gone when its connection is: nothing is computed or held for it any longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from actors.disagg.prefill_execution import WITHDRAWN, PrefillExecution, PrefillWorkerState
from actors.disagg.requester_connections import RequesterConnections
from actors.engines.engine import Engine
from actors.transport.frames import Confirm, JobOffer, JobPrompt, Release, StillHeld, ToPrefill
from core.clock import Clock
from core.codec import decode_message
from core.errors import Corrupt, Refused, Unavailable
from core.events import Event
from core.events.jobs import PrefillRequested
from core.ids import WorkerId
from core.subjects import JOBS, asked_wildcard, job_kind, owner
from streams.log import QUEUE_LIMITS, Delivery, EventLog, Queue, QueueLimits

PULL_WAIT_S = 5.0
"""How long one look at the queue waits."""
RETRY_S = 0.5
"""Between tries while the log is away."""
QUIET_LOOK_S = 0.05

_logger = logging.getLogger(__name__)


def queue_name(kind: str) -> str:
    """Of the queue that all prefill workers of a kind share: the name of its durable consumer."""
    return f"prefill-{kind}"


class PrefillService:
    """One prefill worker's. `say` puts an event into its own chain of the jobs stream."""

    def __init__(
        self,
        engine: Engine,
        log: EventLog,
        requesters: RequesterConnections,
        clock: Clock,
        namespace: str,
        *,
        slots: int,
        say: Callable[[Event], None],
        served: Callable[[int, int], None],
        limits: QueueLimits = QUEUE_LIMITS,
    ) -> None:
        """`served` hears of each prompt computed: its tokens, and how many came from the cache."""
        assert engine.transfer is not None
        assert slots > 0
        self.state = PrefillWorkerState(engine, engine.transfer, requesters, clock, limits, say, served)
        self.requesters = requesters
        self.draining = False
        self._log = log
        self._namespace = namespace
        self._limits = limits
        self._slots = slots
        self._executions: dict[str, PrefillExecution] = {}
        """Jobs under way; one more than there are slots, if one was offered and one came at the same moment."""
        self._changed = asyncio.Event()
        self._idle = False
        """Whether we wait for the queue, which has nothing for us."""
        self._taking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PrefillService {self.under_way} jobs under way, {self.state.leases!r}, {self.requesters!r}>"

    @property
    def under_way(self) -> int:
        """Jobs that are being computed or about to be."""
        return len(self._executions)

    def start(self) -> None:
        """Jobs are taken from now on."""
        self._taking = asyncio.create_task(self._take_again_and_again(), name="prefill queue")
        self._taking.add_done_callback(_report)

    async def quiet(self) -> None:
        """Returns when no job is under way and nothing is held; none is taken once `draining` is set."""
        while self._executions or self.state.leases:  # noqa: ASYNC110  # leases also end by the engine's own clock
            await asyncio.sleep(QUIET_LOOK_S)

    async def stop(self) -> None:
        """Nothing is computed, held or connected any more; the queue hands out again what was not done."""
        self.draining = True
        tasks = [execution.task for execution in self._executions.values() if execution.task is not None]
        for execution in self._executions.values():
            execution.break_off("the prefill worker ends")
        if self._taking is not None:
            self._taking.cancel()
            tasks.append(self._taking)
        if tasks:
            await asyncio.wait(tasks)
        await self.state.leases.close()
        await self.requesters.close()

    def on_frame(self, requester: WorkerId, frame: ToPrefill) -> None:
        """A frame of a decode worker."""
        execution = self._executions.get(frame.job)
        match frame:
            case JobPrompt():
                if execution is not None and not execution.prompt.done():
                    execution.prompt.set_result(frame)
            case JobOffer(job=job):
                if self._idle and not self.draining and len(self._executions) < self._slots and execution is None:
                    self._begin(job, requester, None)
            case Confirm(job=job):
                self.requesters.send(requester, StillHeld(job=job, held=self.state.leases.still_held(job)))
            case Release(job=job):
                self.state.note_over(job)
                self.state.leases.release(job)
                if execution is not None:
                    execution.break_off(WITHDRAWN)
            case _:
                assert_never(frame)

    def on_disconnect(self, requester: WorkerId) -> None:
        """Its connection broke: nothing is computed or held for it."""
        self.state.leases.release_all_of(requester)
        for execution in list(self._executions.values()):
            if execution.requester == requester:
                execution.break_off("the decode worker is gone")

    async def _take_again_and_again(self) -> None:
        queue: Queue | None = None
        try:
            while not self.draining:
                try:
                    if queue is None:
                        queue = await self._open_queue()
                    await self._take_one(queue)
                except (Unavailable, Refused) as error:
                    _logger.warning("the prefill queue is away, trying again: %s", error)
                    await asyncio.sleep(RETRY_S)
        finally:
            if queue is not None:
                await queue.close()

    async def _open_queue(self) -> Queue:
        info = self.state.engine.info
        kind = job_kind(info.model, info.block_size)
        return await self._log.queue(JOBS, queue_name(kind), asked_wildcard(self._namespace, kind), self._limits)

    async def _take_one(self, queue: Queue) -> None:
        while len(self._executions) >= self._slots:
            self._changed.clear()
            await self._changed.wait()
        self._idle = True
        try:
            delivery = await queue.next(PULL_WAIT_S)
        finally:
            self._idle = False
        if delivery is None:
            return
        event, requester = _asked(delivery), WorkerId(owner(delivery.record.subject))
        if event is None or event.job in self.state.over or requester in self.requesters.departed:
            await delivery.done()
        elif event.job in self._executions:
            self._executions[event.job].deliveries.append(delivery)
        elif self.draining:
            await delivery.again()
        else:
            self._begin(event.job, requester, delivery)

    def _begin(self, job: str, requester: WorkerId, delivery: Delivery | None) -> None:
        execution = self._executions[job] = PrefillExecution(self.state, job, requester, delivery)
        execution.task = asyncio.create_task(execution.run(), name=f"prefill {job}")
        execution.task.add_done_callback(lambda task: self._ended(job, task))

    def _ended(self, job: str, task: asyncio.Task[None]) -> None:
        del self._executions[job]
        self._changed.set()
        _report(task)


def _asked(delivery: Delivery) -> PrefillRequested | None:
    """The job that the message asks for; None for what ends one, or is no message of ours."""
    try:
        events = decode_message(delivery.record.payload).events
    except Corrupt as error:
        _logger.warning("%s:%d cannot be read: %s", delivery.record.stream, delivery.record.seq, error)
        return None
    return next((event for event in events if isinstance(event, PrefillRequested)), None)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _logger.error("a part of the prefill worker failed by a defect", exc_info=task.exception())
