"""Laws of PrefillExecution under events in any order: bounded work, honest counts, every message settled once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.disagg import prefill_execution as machine
from actors.disagg.prefill_execution import PrefillExecution
from actors.disagg.prefill_job import PublishJob
from actors.disagg.prefill_peers import Kind
from actors.transport.frames import Claim, Confirm, JobOffer, JobPrompt, Release, StillHeld
from core.errors import CallerError, PeerError
from core.events.jobs import PrefillCompleted, PrefillFailed, PrefillStarted
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, WorkerId
from core.kv_transfer import KvBlocks
from core.machine import TICK
from streams.log import QUEUE_LIMITS, Delivery

SLOTS = 2
JOBS = [f"job-{number}" for number in range(5)]
REQUESTERS = (WorkerId("a"), WorkerId("b"))
STEPS_MAX = 60


class Message(NamedTuple):
    """A delivery of the queue; equal only to itself."""

    job: str
    number: int
    serial: int


class Requesters:
    """Connections that the test makes and breaks."""

    def __init__(self) -> None:
        self.up = dict.fromkeys(REQUESTERS, True)
        self.tried = dict.fromkeys(REQUESTERS, False)

    def connected(self, worker: WorkerId) -> bool:
        return self.up[worker]

    def unreachable(self, worker: WorkerId) -> bool:
        return not self.up[worker] and self.tried[worker]

    def has_departed(self, worker: WorkerId) -> bool:
        return False


class World:
    """One machine and all that surrounds it; `choices` are the events that could come now."""

    def __init__(self) -> None:
        self.now_us = 0
        self.requesters = Requesters()
        self.machine = PrefillExecution(Kind("m", 16, "layout"), 1000, SLOTS, QUEUE_LIMITS, self.requesters)
        self.takes = 0
        """Questions that the queue has not answered."""
        self.serial = 0
        self.open_messages: list[Message] = []
        """Delivered and not settled."""
        self.claims: list[tuple[WorkerId, str]] = []
        self.computing: list[str] = []
        self.prompted: set[str] = set()
        self.held: list[str] = []
        """Jobs whose blocks the engine holds, as it was told."""
        self.started: list[str] = []
        """As the log knows it."""
        self.feed(machine.Started())

    def feed(self, event: Any) -> None:
        for command in self.machine.step(event, self.now_us):
            self._check(command)
        assert self.takes <= 1
        assert len(self.machine.executions) <= SLOTS + 1
        assert len(self.computing) <= SLOTS + 1, "at most `slots` computing, and one offer that was raced"
        assert self.machine.started == len(self.started)
        assert {message.job for message in self.open_messages} <= self.machine.executions.keys()

    def _check(self, command: Any) -> None:
        match command:
            case machine.TakeNext():
                self.takes += 1
                assert len(self.machine.executions) < SLOTS
            case machine.SendToRequester(requester, Claim(job=job)):
                assert self.requesters.up[requester]
                self.claims.append((requester, job))
            case machine.SendToRequester(_, StillHeld(job=job, held=held)):
                assert not held
                assert job not in self.machine.leases
            case machine.AnswerConfirm(_, job):
                assert job in self.held
            case machine.ComputePrompt(job):
                assert job in self.prompted, "only a prompt that its requester gave"
                self.prompted.remove(job)
                self.computing.append(job)
            case machine.AbortCompute(job):
                self.computing.remove(job)
            case machine.ReleaseBlocks(blocks):
                self.held.remove(blocks.request)
            case machine.Acknowledge(delivery) | machine.Postpone(delivery):
                self.open_messages.remove(cast(Message, delivery))  # each is settled once
            case machine.KeepAlive(delivery):
                assert cast(Message, delivery) in self.open_messages
            case PublishJob(PrefillStarted(job=job, open=open_)):
                self.started.append(job)
                assert open_ == len(self.started)
            case PublishJob(PrefillCompleted() | PrefillFailed() as event):
                if event.job in self.started:
                    self.started.remove(event.job)
                assert event.open == len(self.started)

    # --- events ----------------------------------------------------------------------------------------------------

    def choices(self) -> list[Callable[[], None]]:
        """Events that lead on stand here several times."""
        found: list[Callable[[], None]] = []
        if self.takes:
            found += [partial(self._deliver, job, number) for job in JOBS for number in (1, 1, 5, 6)]
            found += [self._take_fails, partial(self._deliver, None, 1)]
        for requester in REQUESTERS:
            found += [partial(self._offer, requester, job) for job in JOBS[:2]]
            found += [partial(self._turn, requester)]
            found += [partial(self._frame, requester, Confirm(job=job)) for job in JOBS]
            found += [partial(self._frame, requester, Release(job=job)) for job in self.machine.executions]
        for why in ("", "", "", "over", "taken"):
            found += [partial(self._answer, requester, job, why) for requester, job in self.claims] * 2
        found += [partial(self._prefilled, job) for job in self.computing] * 6
        for error in (CallerError("x"), PeerError("x")):
            found += [partial(self._broke, job, error) for job in self.computing]
        return [*found, self._tick, self._tick]

    def _deliver(self, job: str | None, number: int) -> None:
        self.takes -= 1
        self.serial += 1
        message = Message(job or "", number, self.serial)
        self.open_messages.append(message)
        self.feed(machine.Delivered(job, REQUESTERS[self.serial % 2], cast(Delivery, message)))

    def _take_fails(self) -> None:
        self.takes -= 1
        self.feed(machine.TakeFailed())
        assert self.takes == 0

    def _offer(self, requester: WorkerId, job: str) -> None:
        before, could = set(self.machine.executions), self.takes
        self._frame(requester, JobOffer(job=job))
        assert could or set(self.machine.executions) <= before, "an offer is taken only while the queue gave nothing"

    def _frame(self, requester: WorkerId, frame: Any) -> None:
        self.feed(machine.RequesterFrameArrived(requester, frame))

    def _turn(self, requester: WorkerId) -> None:
        """The connection breaks, or comes back; a first try to connect fails."""
        if self.requesters.up[requester]:
            self.requesters.up[requester] = False
            self.feed(machine.RequesterDisconnected(requester))
            assert requester not in {each.requester for each in self.machine.executions.values()}
            assert requester not in {each.requester for each in self.machine.leases.values()}
        else:
            self.requesters.up[requester] = self.requesters.tried[requester]
            self.requesters.tried[requester] ^= True

    def _answer(self, requester: WorkerId, job: str, why: str) -> None:
        self.claims.remove((requester, job))
        request = None if why else GenerateRequest(id=RequestId(job), tokens=b"1234", sampling=Sampling(max_tokens=1))
        execution = self.machine.executions.get(job)
        if not why and execution is not None and execution.claimed and execution.request is None:
            self.prompted.add(job)
        self._frame(requester, JobPrompt(job=job, attempt=0, request=request, why=why))

    def _prefilled(self, job: str) -> None:
        self.computing.remove(job)
        self.held.append(job)
        blocks = KvBlocks(request=job, ids=((1,),), tokens=1)
        self.feed(machine.Prefilled(job, blocks, 0))

    def _broke(self, job: str, error: CallerError | PeerError) -> None:
        self.computing.remove(job)
        self.feed(machine.PrefillBroke(job, error))

    def _tick(self) -> None:
        leases = set(self.machine.leases)
        if self.machine.due_us is not None:
            self.now_us = max(self.now_us, self.machine.due_us)
        self.feed(TICK)
        for job in sorted(leases - set(self.machine.leases)):
            self.held.remove(job)  # by the engine's own clock

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """It is told to stop: nothing is left."""
        self.feed(machine.Stop())
        assert (self.computing, self.held, self.started, self.open_messages) == ([], [], [], [])
        assert self.machine.due_us is None or not self.machine.executions


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=STEPS_MAX))
def test_laws_hold_in_any_order_of_events(draws: list[int]) -> None:
    world = World()
    for draw in draws:
        choices = world.choices()
        choices[draw % len(choices)]()
    world.finish()
