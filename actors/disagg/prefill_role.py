"""PrefillRole: a worker that computes prompts for decode workers, and serves no requests: the shell of
`PrefillExecution`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, assert_never

from actors.disagg import prefill_execution as machine
from actors.disagg.prefill_execution import PrefillCommand, PrefillExecution
from actors.disagg.prefill_job import PublishJob
from actors.disagg.requester_connections import RequesterConnections
from actors.disagg.worker_role import RoleContext, TransferRole, unavailable_outputs
from actors.transport.frames import Generate, Introduce, StillHeld, ToPrefill
from core.codec import decode_message
from core.errors import ContrailError, Corrupt, PeerError, Refused, Unavailable
from core.events.jobs import JobEvent, PrefillFailed, PrefillRequested
from core.generation import GenerateRequest, Output
from core.ids import WorkerId
from core.subjects import JOBS, asked_wildcard, job_kind, owner
from streams.log import QUEUE_LIMITS, Delivery, Queue, QueueLimits
from streams.machine_shell import MachineShell

PULL_WAIT_S = 5.0
"""Bound on one request for the queue's next message."""
QUIET_CHECK_S = 0.05

_logger = logging.getLogger(__name__)


def queue_name(kind: str) -> str:
    """Of the queue that all prefill workers of a kind share: the name of its durable consumer."""
    return f"prefill-{kind}"


class PrefillRole(TransferRole):
    """It serves no requests, and prefill workers do not ask each other."""

    def __init__(self, context: RoleContext, slots: int, *, limits: QueueLimits = QUEUE_LIMITS) -> None:
        super().__init__(context)
        self.requesters = RequesterConnections(
            self._kind.model,
            context.link,
            self._introduce,
            on_frame=self._on_frame,
            on_disconnect=self._on_disconnect,
        )
        self.execution = PrefillExecution(self._kind, self._transfer.keep_ms, slots, limits, self.requesters)
        self._limits = limits
        self._shell = MachineShell(self.execution, context.clock, self._execute)
        self._queue: Queue | None = None
        self._taking: asyncio.Task[None] | None = None
        self._computing: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<PrefillRole {self.execution!r}, {self.requesters!r}>"

    @property
    def jobs_open(self) -> int:
        """Those that it said it began."""
        return self.execution.started

    async def start(self) -> None:
        """Decode workers are connected to and jobs taken from now on, as soon as registry and log are there."""
        await self.requesters.follow(self._context.registry)
        self._shell.feed(machine.Started())

    def rejoined(self) -> None:
        """All decode workers hear the new id."""
        self.requesters.introduce_again()

    async def quiet(self) -> None:
        """No job is taken any more, and those under way are over."""
        self._shell.feed(machine.Drain())
        while self.execution.executions or self.execution.leases:  # noqa: ASYNC110  # leases end by time, too
            await asyncio.sleep(QUIET_CHECK_S)

    async def stop(self) -> None:
        """Nothing is computed, held or connected any more; the queue hands out again what was not done."""
        computing = list(self._computing.values())
        self._shell.feed(machine.Stop())
        if self._taking is not None:
            self._taking.cancel()
            computing.append(self._taking)
        if waited := {*computing, *self._tasks}:
            await asyncio.wait(waited)
        if self._queue is not None:
            await self._queue.close()
        self._shell.close()
        await self.requesters.close()

    def generate(self, frame: Generate) -> AsyncIterator[Output]:  # noqa: ARG002  # of any request
        """Unavailable: such a worker decodes nothing."""
        return unavailable_outputs("this worker computes prompts for decode workers and serves no requests")

    def totals(self) -> dict[str, int]:
        """Jobs by how they ended here."""
        counts = self.execution.counts
        return {f"jobs_{how}": counts[how] for how in ("completed", "failed", "dead", "not_wanted", "withdrawn")}

    def describe(self) -> dict[str, Any]:
        """Jobs under way, held blocks and counts."""
        execution = self.execution
        return {
            "jobs_under_way": len(execution.executions),
            "prompts_held": len(execution.leases),
            "decode_workers": sum(client.up for client in self.requesters.clients.values()),
            "jobs": dict(sorted(execution.counts.items())),
            "engine": self._transfer.totals()._asdict(),
        }

    # --- events ----------------------------------------------------------------------------------------------------

    def _on_frame(self, requester: WorkerId, frame: ToPrefill) -> None:
        self._shell.feed(machine.RequesterFrameArrived(requester, frame))

    def _on_disconnect(self, requester: WorkerId) -> None:
        self._shell.feed(machine.RequesterDisconnected(requester))

    def _introduce(self) -> Introduce:
        publisher = self._context.current_publisher()
        return Introduce(worker=publisher.id, name=publisher.joined.name, **self._kind._asdict())

    # --- commands --------------------------------------------------------------------------------------------------

    def _execute(self, command: PrefillCommand) -> None:  # noqa: C901  # one line for each command
        match command:
            case machine.TakeNext():
                self._taking = self._spawn(self._take(), "prefill queue")
            case machine.SendToRequester(requester, frame):
                self.requesters.send(requester, frame)
            case machine.AnswerConfirm(requester, job, blocks):
                self.requesters.send(requester, StillHeld(job=job, held=self._transfer.still_held(blocks)))
            case machine.ComputePrompt(job, request):
                self._computing[job] = self._spawn(self._compute(job, request), f"prefill {job}")
            case machine.AbortCompute(job):
                self._computing.pop(job).cancel()
            case machine.ReleaseBlocks(blocks):
                self._spawn_short(self._transfer.release(blocks))
            case machine.CountPrompt(tokens, cached_tokens):
                self._context.served(tokens, cached_tokens)
            case machine.Acknowledge(delivery):
                self._spawn_short(_send_to_queue(delivery.done))
            case machine.Postpone(delivery, delay_s):
                self._spawn_short(_send_to_queue(partial(delivery.again, delay_s)))
            case machine.KeepAlive(delivery):
                self._spawn_short(_send_to_queue(delivery.working))
            case PublishJob(event):
                self._publish(event)
            case _:
                assert_never(command)

    def _publish(self, event: JobEvent) -> None:
        if isinstance(event, PrefillFailed) and event.dead:
            _logger.error("prefill job %s is given up: %s", event.job, event.reason)
        super()._publish(event)

    async def _take(self) -> None:
        delivery = None
        try:
            if self._queue is None:
                self._queue = await self._open_queue()
            while delivery is None and not self.execution.draining:
                delivery = await self._queue.next(PULL_WAIT_S)
        except (Unavailable, Refused) as error:
            _logger.warning("the prefill queue is away, trying again: %s", error)
            self._shell.feed(machine.TakeFailed())
            return
        if delivery is not None:
            event, requester = _requested(delivery), WorkerId(owner(delivery.record.subject))
            self._shell.feed(machine.Delivered(None if event is None else event.job, requester, delivery))

    async def _open_queue(self) -> Queue:
        kind = job_kind(self._kind.model, self._kind.block_size)
        wildcard = asked_wildcard(self._context.namespace, kind)
        return await self._context.log.queue(JOBS, queue_name(kind), wildcard, self._limits)

    async def _compute(self, job: str, request: GenerateRequest) -> None:
        try:
            blocks, cached_tokens = await self._transfer.prefill(request)
        except ContrailError as error:
            self._broke(job, error)
        except Exception as error:
            self._broke(job, PeerError(f"a defect: {error!r}"))
            raise
        else:
            del self._computing[job]
            self._shell.feed(machine.Prefilled(job, blocks, cached_tokens))

    def _broke(self, job: str, error: ContrailError) -> None:
        if self._computing.get(job) is asyncio.current_task():  # else it was aborted, and failed on its way out
            del self._computing[job]
            self._shell.feed(machine.PrefillBroke(job, error))


async def _send_to_queue(acknowledgement: Callable[[], Coroutine[None, None, None]]) -> None:
    """The queue has heard it, unless it is away: then it hands the message out again, which does no harm."""
    with suppress(Unavailable):
        await acknowledgement()


def _requested(delivery: Delivery) -> PrefillRequested | None:
    """The job that the message asks for; None for a message that ends one, or that is none of ours."""
    try:
        events = decode_message(delivery.record.payload).events
    except Corrupt as error:
        _logger.warning("%s:%d cannot be read: %s", delivery.record.stream, delivery.record.seq, error)
        return None
    return next((event for event in events if isinstance(event, PrefillRequested)), None)
