"""LiveRequests: drives the RequestScheduler of a live replica: real workers, real clients, the real clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from actors.membership.replica_membership import ReplicaMembership
from actors.prompt_cache.hash_columns import HashColumns
from actors.router.answer_progress import AnswerProgress
from actors.router.fleet import Fleet
from actors.router.request_scheduler import (
    Arrived,
    AttemptBroke,
    CancelAttempt,
    ClientGone,
    Complete,
    Deliver,
    Fail,
    Measure,
    OutputArrived,
    PlanTook,
    Publish,
    PublishLocal,
    ReaderStopped,
    RequestScheduler,
    SchedulerCommand,
    SchedulerEvent,
    Send,
    WorkerFailed,
)
from actors.router.routed_request import RoutedRequest
from actors.transport.framing import FRAME_BYTES_MAX
from actors.transport.worker_connection import WorkerConnection, WorkerDisconnected
from core.clock import Clock
from core.errors import CallerError, ContrailError
from core.events.routing import INTERNAL
from core.failure import detail_of, failure_in, mark_in_log
from core.generation import TASK_GENERATE, GenerateRequest, Output, OutputConsumer, engine_priority
from core.ids import RequestId, renamed
from core.keys import session_key
from core.models import DeadlineExceeded, GenerationFailed
from core.prompt import TOKEN_BYTES
from projections.folds.state import State
from streams.machine_shell import MachineShell

_logger = logging.getLogger(__name__)

SchedulerShell = MachineShell[SchedulerEvent, SchedulerCommand]


class LiveRequest:
    """One request with its client and the stream of its present attempt."""

    __slots__ = (
        "_clock",
        "_shell",
        "connection",
        "consumer",
        "done",
        "failure",
        "is_reserved",
        "number",
        "progress",
        "request",
    )  # fmt: skip

    def __init__(
        self,
        request: RoutedRequest,
        progress: AnswerProgress,
        consumer: OutputConsumer,
        shell: SchedulerShell,
        clock: Clock,
        *,
        is_reserved: bool,
    ) -> None:
        self.is_reserved = is_reserved
        """A proxy sends the request to the worker, and reports what comes of it: no connection of ours has it."""
        self.request = request
        self.progress = progress
        self.consumer = consumer
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the request is over; its exception is the error that `run` raises."""
        self.failure: Exception | None = None
        """The error that the consumer raised."""
        self.connection: WorkerConnection | None = None
        self.number = -1
        """The stream of the present attempt, over that connection."""
        self._shell = shell
        self._clock = clock

    def __repr__(self) -> str:
        return f"<LiveRequest {self.request!r}>"

    def put(self, output: Output) -> None:
        """An output arrived: it passes to the consumer, or the scheduler judges it first."""
        request = self.request
        if request.flowing and output.finish is None:
            request.pass_on(output)
            self.deliver(output)
        else:
            self._shell.feed(OutputArrived(request.id, request.attempt, output, self._clock.monotonic_us()))

    def fail(self, error: Exception) -> None:
        """The attempt broke: the scheduler decides on another one."""
        self._shell.feed(AttemptBroke(self.request.id, self.request.attempt, error))

    def deliver(self, output: Output) -> None:
        """The consumer has the output. The request ends if the consumer wants no more, or fails."""
        try:
            wants_more = self.consumer.on_output(output)
        except Exception as error:  # noqa: BLE001  # `run` raises it: other requests have no part in it
            self.failure = error
            outcome, detail, is_whole = self._failed(error)
        else:
            if wants_more or output.finish is not None:
                return
            ended = self.consumer.outcome()
            outcome, detail, is_whole = ended or "abort", "", ended is not None
        self._shell.feed(ReaderStopped(self.request.id, outcome, detail, is_whole))

    def end(self, error: Exception | None) -> None:
        """`done` has its result: what the consumer raised, else the error, else the whole answer. A request that was
        cancelled in this turn of the loop has one already."""
        if self.done.done():
            return
        error = self.failure or error
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def _failed(self, error: Exception) -> tuple[str, str, bool]:
        """Outcome and detail for the log after the consumer raised the error, and True if the answer is whole."""
        if isinstance(error, GenerationFailed):
            return "error", str(error), False
        ended = self.consumer.outcome()
        if isinstance(error, ContrailError):
            return ended or "abort", "", ended is not None
        mark_in_log(error)
        return "error", detail_of(error), ended is not None

    def cancellation(self, error: asyncio.CancelledError) -> ClientGone:
        """The event that the cancellation is for the scheduler: the client hung up, or this process failed."""
        ended, failure, name = self.consumer.outcome(), failure_in(error), self.request.id
        if failure is not None and not isinstance(failure, ContrailError):
            mark_in_log(failure)
            return ClientGone(name, INTERNAL, "error", detail_of(failure), ended is not None)
        return ClientGone(name, cancel_reason(error), ended or "abort", "", ended is not None)


class LiveRequests:
    """The requests in progress of one replica; owned by one event loop."""

    def __init__(
        self,
        scheduler: RequestScheduler,
        fleet: Fleet,
        state: State,
        clock: Clock,
        hash_seed: int,
        columns: HashColumns,
        *,
        membership: ReplicaMembership,
        decided: Callable[[str, float], None],
    ) -> None:
        """`decided` is called with each decision's policy and its duration in seconds."""
        self.scheduler = scheduler
        self._shell: SchedulerShell = MachineShell(scheduler, clock, self._execute)
        self._fleet = fleet
        self._state = state
        self._clock = clock
        self._hash_seed = hash_seed
        self._columns = columns
        self._membership = membership
        self._decided = decided
        self._live: dict[RequestId, LiveRequest] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            Publish: self._publish,
            PublishLocal: self._publish_local,
            Measure: self._measure,
            Send: self._send,
            Deliver: self._deliver,
            Complete: self._complete,
            Fail: self._fail,
            CancelAttempt: self._cancel_attempt,
            WorkerFailed: self._on_worker_failed,
        }

    def __repr__(self) -> str:
        return f"<LiveRequests {self.scheduler!r}>"

    def feed(self, event: SchedulerEvent) -> None:
        """The scheduler has handled the event, and its commands are executed."""
        self._shell.feed(event)

    def close(self) -> None:
        """No Tick comes any more."""
        self._shell.close()

    async def run(self, model: str, request: GenerateRequest, consumer: OutputConsumer) -> None:
        """The consumer has the whole answer, or wants no more of it. The model must be known. A cancellation cancels
        the attempt at its worker.

        Overloaded, RateLimited, DeadlineExceeded or NoWorkers if the request got no worker, CallerError if no engine
        can take it, GenerationFailed if its answer broke off and no worker could continue it; and what the consumer
        raises.
        """
        await self.serve(self.begin(model, request, consumer))

    async def serve(self, live: LiveRequest) -> None:
        """The same of a request that `begin` returned in this turn of the loop."""
        self._live[live.request.id] = live
        try:
            self._shell.feed(Arrived(live.request))
            await live.done
        except asyncio.CancelledError as error:
            self._shell.feed(live.cancellation(error))
            if live.done.done() and not live.done.cancelled():
                live.done.exception()  # it ended in the very turn in which it was cancelled
            raise
        finally:
            del self._live[live.request.id]

    def begin(
        self, model: str, request: GenerateRequest, consumer: OutputConsumer, *, is_reserved: bool = False
    ) -> LiveRequest:
        """The request as the scheduler takes it. A second request under an id in progress gets another id. CallerError
        if its prompt is too long for a frame."""
        if len(request.tokens) > FRAME_BYTES_MAX:  # its decision would be longer than the log takes, too
            raise CallerError(
                f"the prompt takes {len(request.tokens)} bytes; at most {FRAME_BYTES_MAX} can be sent to a worker"
            )
        if request.id in self._live:
            request = msgspec.structs.replace(request, id=renamed(request.id))
        catalog, tenant = self._fleet.catalog, request.tenant or ""
        priority = engine_priority(tenant, request.priority)
        sent = request if priority == request.priority else msgspec.structs.replace(request, priority=priority)
        progress = AnswerProgress(sent, catalog.context_max(model), catalog.block_size(model), self._columns)
        routed = RoutedRequest(
            id=request.id,
            model=model,
            prompt_tokens=len(request.tokens) // TOKEN_BYTES,
            answer_max=request.sampling.max_tokens if request.task == TASK_GENERATE else 0,
            answer=progress,
            tenant=tenant,
            priority=request.priority,
            session=self._session_key(tenant, request.session),
            session_parent=self._session_key(tenant, request.session_parent),
            deadline_ms=request.deadline_ms,
            intake=consumer.intake(),
            may_fetch=not is_reserved,
        )
        return LiveRequest(routed, progress, consumer, self._shell, self._clock, is_reserved=is_reserved)

    def _session_key(self, tenant: str, name: str | None) -> str:
        """Key of the session; one name gives each tenant another key."""
        return session_key(f"{tenant}/{name}", self._hash_seed) if name else ""

    def _execute(self, command: SchedulerCommand) -> None:
        self._handlers[type(command)](command)

    def _publish(self, command: Publish) -> None:
        self._membership.publisher.publish(command.event)

    def _publish_local(self, command: PublishLocal) -> None:
        self._membership.publisher.publish_local(command.local)

    def _deliver(self, command: Deliver) -> None:
        self._live[command.request.id].deliver(command.output)

    def _complete(self, command: Complete) -> None:
        self._live[command.request.id].end(None)

    def _fail(self, command: Fail) -> None:
        self._live[command.request.id].end(command.error)

    def _cancel_attempt(self, command: CancelAttempt) -> None:
        live = self._live[command.request.id]
        if live.connection is not None:
            live.connection.cancel(live.number)

    def _on_worker_failed(self, command: WorkerFailed) -> None:
        self._fleet.on_request_failed(command.worker)
        _logger.warning("trying another worker: %s", command.text, extra={"request_id": command.request.id})

    def _send(self, command: Send) -> None:
        request, worker = command.request, command.worker
        self._membership.publisher.decisions_sent += 1
        live = self._live[request.id]
        if not live.is_reserved and not self._open_stream(live, command):
            return
        member = self._state.member(worker)
        live.consumer.on_routed(member.joined.name if member is not None and member.joined is not None else worker)

    def _open_stream(self, live: LiveRequest, command: Send) -> bool:
        """True if the attempt is on its way to its worker; else it broke."""
        client = self._fleet.clients.get(command.worker)
        live.connection = None if client is None else client.connection
        if live.connection is None:
            live.fail(WorkerDisconnected("no connection to the worker"))
            return False
        try:
            live.number = live.connection.open(
                live, live.request.model, command.payload, command.hint, live.progress.parts
            )
        except CallerError as error:
            live.fail(error)
            return False
        return True

    def _measure(self, command: Measure) -> None:
        took_us = self._clock.monotonic_us() - self._shell.step_began_us
        if command.policy:
            self._decided(command.policy, took_us / 1e6)
        if command.queued > 1:
            self._shell.feed(PlanTook(took_us, command.queued))


def cancel_reason(error: asyncio.CancelledError) -> str:
    """Reason, of TURNED_AWAY, for a request that was cancelled: a deadline, a hang-up, or a failure of this process."""
    if failure_in(error) is not None:
        return INTERNAL
    return "deadline" if any(isinstance(each, DeadlineExceeded) for each in error.args) else "client_gone"
