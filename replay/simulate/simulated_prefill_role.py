"""SimulatedPrefillRole: drives a prefill worker's machine in a simulation: frames take no time."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Protocol, assert_never, cast

from actors.disagg import prefill_execution as machine
from actors.disagg.prefill_execution import PrefillCommand, PrefillExecution
from actors.disagg.prefill_job import PublishJob
from actors.disagg.prefill_peers import Kind
from actors.engines.simulated.engine_state import Abort, Free, Submit
from actors.engines.simulated.engine_step import StepResult
from actors.engines.simulated.sequence import BlockHashPrompt
from actors.transport.frames import FromPrefill, Introduce, StillHeld, ToPrefill
from core.generation import GenerateRequest, Hint, Output, Sampling
from core.ids import RequestId, WorkerId
from core.kv_transfer import KvAddress, KvBlocks
from replay.simulate.simulated_log import SimulatedSource
from replay.simulate.simulated_request import MODEL
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda, VirtualShell
from streams.log import QUEUE_LIMITS, Delivery

ACK_WAIT_US = round(QUEUE_LIMITS.ack_wait_s * 1_000_000)


class JobConsumer(Protocol):
    """A prefill worker that asked for a job."""

    id: WorkerId

    def deliver(self, delivery: SimulatedDelivery) -> None:
        """It has this message now."""


class SimulatedDelivery:
    """One job's message."""

    __slots__ = ("job", "number", "requester", "timer")

    def __init__(self, job: str, requester: WorkerId) -> None:
        self.job = job
        self.requester = requester
        self.number = 0
        """Number of deliveries so far."""
        self.timer = 0
        """The number in the agenda of when it is handed out again."""

    def __repr__(self) -> str:
        return f"<SimulatedDelivery of {self.job}, handed out {self.number} times>"


class SimulatedPrefillQueue:
    """Messages that wait, and prefill workers that do."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._waiting: deque[SimulatedDelivery] = deque()
        self._consumers: dict[WorkerId, JobConsumer] = {}
        """Those that asked for a job, in the order in which they did."""

    def __repr__(self) -> str:
        return f"<SimulatedPrefillQueue {len(self._waiting)} jobs and {len(self._consumers)} workers wait>"

    def put(self, job: str, requester: WorkerId) -> None:
        """The message is in the queue, behind all others."""
        self._add(SimulatedDelivery(job, requester))

    def take(self, consumer: JobConsumer) -> None:
        """The consumer has the oldest message, or waits for one."""
        self._consumers[consumer.id] = consumer
        self._hand_out()

    def leave(self, consumer: JobConsumer) -> None:
        """The consumer has ended; its messages are handed out again when their time is over."""
        self._consumers.pop(consumer.id, None)

    def acknowledge(self, delivery: SimulatedDelivery) -> None:
        """The message is handed out no more."""
        self._agenda.cancel(delivery.timer)

    def postpone(self, delivery: SimulatedDelivery, delay_us: int = ACK_WAIT_US) -> None:
        """The message is handed out again after the delay."""
        self._agenda.cancel(delivery.timer)
        delivery.timer = self._agenda.put(self._agenda.now_us + delay_us, partial(self._add, delivery))

    def _add(self, delivery: SimulatedDelivery) -> None:
        if delivery.number > QUEUE_LIMITS.deliveries_max:
            return
        if delivery.number:
            self._waiting.appendleft(delivery)
        else:
            self._waiting.append(delivery)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._consumers:
            delivery, consumer = self._waiting.popleft(), self._consumers.pop(next(iter(self._consumers)))
            delivery.number += 1
            self.postpone(delivery)
            consumer.deliver(delivery)


SLOTS = 1
"""Prompts that a prefill worker computes at once, as live by default."""
TOKENS_BYTES = 8


def to_request(request: GenerateRequest, known: BlockHashPrompt) -> GenerateRequest:
    """The request as a frame has it: the prompt's length and hashes stand where its tokens would be."""
    tokens = known.tokens.to_bytes(TOKENS_BYTES, "little") + known.hashes
    return GenerateRequest(id=request.id, tokens=tokens, sampling=request.sampling, priority=request.priority)


def from_request(request: GenerateRequest) -> BlockHashPrompt:
    """The prompt of such a request."""
    tokens = request.tokens
    return BlockHashPrompt(int.from_bytes(tokens[:TOKENS_BYTES], "little"), tokens[TOKENS_BYTES:])


class DecodeEnd(Protocol):
    """A decode worker, as prefill workers and their connections see it."""

    id: WorkerId

    def connect(self, connection: SimulatedConnection) -> None:
        """A prefill worker has connected and introduced itself."""

    def on_frame(self, connection: SimulatedConnection, frame: FromPrefill) -> None:
        """A frame of that prefill worker."""

    def on_disconnect(self, connection: SimulatedConnection) -> None:
        """That prefill worker has ended."""


class SimulatedConnection:
    """Between a decode worker and a prefill worker, until one of them ends."""

    def __init__(self, decode: DecodeEnd, prefill: SimulatedPrefillRole) -> None:
        self.decode = decode
        self.prefill = prefill
        self.is_up = True

    def __repr__(self) -> str:
        return f"<SimulatedConnection of {self.prefill.id} to {self.decode.id}, {'up' if self.is_up else 'down'}>"

    def send(self, frame: ToPrefill) -> None:
        """The prefill worker has the frame at once."""
        if self.is_up:
            self.prefill.on_frame(self.decode.id, frame)

    def send_back(self, frame: FromPrefill) -> None:
        """The decode worker has the frame at once."""
        if self.is_up:
            self.decode.on_frame(self, frame)


class SimulatedPeers:
    """The decode workers and prefill workers that live: all are connected."""

    def __init__(self) -> None:
        self.lost: set[WorkerId] = set()
        """Decode workers of which the log says that they ended."""
        self._decode: dict[WorkerId, DecodeEnd] = {}
        self._prefill: dict[WorkerId, SimulatedPrefillRole] = {}

    def __repr__(self) -> str:
        return f"<SimulatedPeers {len(self._decode)} decode and {len(self._prefill)} prefill workers>"

    @property
    def workers(self) -> int:
        """Prefill workers that live."""
        return len(self._prefill)

    def add_decode(self, decode: DecodeEnd) -> None:
        """A decode worker begins."""
        self._decode[decode.id] = decode
        for prefill in self._prefill.values():
            prefill.connect(decode)

    def add_prefill(self, prefill: SimulatedPrefillRole) -> None:
        """A prefill worker begins."""
        self._prefill[prefill.id] = prefill
        for decode in self._decode.values():
            prefill.connect(decode)

    def remove(self, worker: WorkerId) -> None:
        """A worker has ended, and its connections break."""
        if (ended := self._prefill.pop(worker, None)) is not None:
            for decode in self._decode.values():
                decode.on_disconnect(ended.disconnect(decode.id))
        if self._decode.pop(worker, None) is not None:
            for prefill in self._prefill.values():
                prefill.disconnect(worker)
                prefill.on_disconnect(worker)


class SimulatedPrefillRole:
    """One prefill worker's; see `PrefillHooks`. To its machine it is the `RequesterView`."""

    def __init__(
        self,
        worker: SimulatedWorker,
        peers: SimulatedPeers,
        queue: SimulatedPrefillQueue,
        source: SimulatedSource,
        agenda: Agenda,
    ) -> None:
        settings = worker.settings
        kind = Kind(MODEL, settings.block_size, settings.layout(MODEL))
        self.id: WorkerId = worker.id
        self.place = worker.place
        self.introduction = Introduce(worker=worker.id, name=f"worker-{worker.place}", **kind._asdict())
        self.address = KvAddress(
            engine_id=worker.id,
            host="virtual",
            port=worker.place,
            layout=kind.layout,
            block_bytes=settings.block_bytes,
            transport="simulated",
        )
        self.execution = PrefillExecution(kind, settings.keep_ms, SLOTS, QUEUE_LIMITS, self)
        self._worker = worker
        self._peers = peers
        self._queue = queue
        self._source = source
        self._agenda = agenda
        self._connections: dict[WorkerId, SimulatedConnection] = {}
        self._shell = VirtualShell(self.execution, agenda, self._execute)
        peers.add_prefill(self)
        self._shell.feed(machine.Started())

    def __repr__(self) -> str:
        return f"<SimulatedPrefillRole of {self._worker!r}, {self.execution!r}>"

    def deliver(self, delivery: SimulatedDelivery) -> None:
        """The queue's answer."""
        self._shell.feed(machine.Delivered(delivery.job, delivery.requester, cast(Delivery, delivery)))

    # --- decode workers --------------------------------------------------------------------------------------------

    def connect(self, decode: DecodeEnd) -> None:
        """Frames reach it from now on."""
        connection = self._connections[decode.id] = SimulatedConnection(decode, self)
        decode.connect(connection)

    def disconnect(self, worker: WorkerId) -> SimulatedConnection:
        """No frame reaches it any more; returns the connection that there was."""
        connection = self._connections.pop(worker)
        connection.is_up = False
        return connection

    def on_frame(self, requester: WorkerId, frame: ToPrefill) -> None:
        """A frame of a decode worker."""
        self._shell.feed(machine.RequesterFrameArrived(requester, frame))

    def on_disconnect(self, requester: WorkerId) -> None:
        """That decode worker has ended."""
        self._shell.feed(machine.RequesterDisconnected(requester))

    # --- as of `RequesterView` -------------------------------------------------------------------------------------

    def connected(self, worker: WorkerId) -> bool:
        """The worker is alive."""
        return worker in self._connections

    def unreachable(self, worker: WorkerId) -> bool:
        """The worker has ended: a connection attempt fails at once."""
        return worker not in self._connections

    def has_departed(self, worker: WorkerId) -> bool:
        """The worker is no longer registered."""
        return worker in self._peers.lost

    # --- as of `PrefillHooks` --------------------------------------------------------------------------------------

    def submit(self, asked: Submit, hint: Hint) -> None:
        """No replica sends requests to a prefill worker."""
        raise AssertionError(f"{asked.request.id}, attempt {hint.attempt}, was sent to a prefill worker")

    def on_first_tokens(self, request: RequestId, output: Output) -> Output | None:
        """It makes no tokens."""
        raise AssertionError(f"{request} has a token of a prefill worker: {output}")

    def on_request_ended(self, request: RequestId) -> None:
        """It serves no requests."""

    def on_step(self, done: StepResult) -> None:
        """Prompts that were computed are held."""
        for prefilled in done.prefilled:
            blocks = KvBlocks(request=prefilled.id, ids=(prefilled.blocks,), tokens=prefilled.tokens)
            self._shell.feed(machine.Prefilled(prefilled.id, blocks, prefilled.cached_tokens))

    @property
    def is_quiet(self) -> bool:
        """No job is under way, and no blocks are held."""
        return not self.execution.executions and not self.execution.leases

    def drain(self) -> None:
        """The queue hands it no job any more."""
        self._queue.leave(self)
        self._shell.feed(machine.Drain())

    def on_worker_ended(self) -> None:
        """Its connections break; the queue hands out again what it had."""
        self._shell.close()
        self._queue.leave(self)
        self._peers.remove(self.id)

    def on_loss_written(self) -> None:
        """Its connections broke before."""

    # ---------------------------------------------------------------------------------------------------------------

    def _execute(self, command: PrefillCommand) -> None:  # noqa: C901  # one line for each command
        worker = self._worker
        match command:
            case machine.TakeNext():
                self._queue.take(self)
            case machine.SendToRequester(requester, frame):
                self._send(requester, frame)
            case machine.AnswerConfirm(requester, job, blocks):
                held = worker.still_held(RequestId(blocks.request))
                self._send(requester, StillHeld(job=job, held=held))
            case machine.ComputePrompt(job, request):
                one_token = GenerateRequest(
                    id=RequestId(job), tokens=b"", sampling=Sampling(max_tokens=1), priority=request.priority
                )
                worker.feed_engine(Submit(one_token, hold=True, known=from_request(request)))
            case machine.AbortCompute(job):
                worker.feed_engine(Abort(RequestId(job)))
            case machine.ReleaseBlocks(blocks):
                worker.feed_engine(Free(RequestId(blocks.request), fetched=False))
            case machine.CountPrompt(tokens, cached_tokens):
                worker.count(tokens, cached_tokens)
            case machine.Acknowledge(delivery):
                self._queue.acknowledge(cast(SimulatedDelivery, delivery))
            case machine.Postpone(delivery, delay_s):
                self._queue.postpone(cast(SimulatedDelivery, delivery), round(delay_s * 1e6))
            case machine.KeepAlive(delivery):
                self._queue.postpone(cast(SimulatedDelivery, delivery))
            case PublishJob(event):
                self._source.append([event])
            case _:
                assert_never(command)

    def _send(self, requester: WorkerId, frame: FromPrefill) -> None:
        """The frame is there, unless the decode worker has ended."""
        if requester in self._connections:
            self._connections[requester].send_back(frame)
