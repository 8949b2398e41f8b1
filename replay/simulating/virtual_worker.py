"""VirtualWorker: one life of a worker in a simulation: its engine in virtual time, and what it says in the log."""

from __future__ import annotations

from collections.abc import Callable

from actors.engines.simulated_inputs import Abort, Submit
from actors.engines.simulated_settings import SimulatedSettings
from actors.engines.step import EngineState, load_of, refuse, step
from actors.load_reports import REPORT_EVERY_MS, REPORT_IDLE_MS
from core.events import LoadReported, WorkerJoined, WorkerLost
from core.generation import Output
from core.ids import LOST_SUFFIX, RequestId, WorkerId
from core.roles import DECODE
from core.subjects import LOAD
from replay.simulating.agenda import Agenda
from replay.simulating.copies import Copies
from replay.simulating.journey import MODEL
from replay.simulating.virtual_log import KV, VirtualLog
from replay.simulating.virtual_source import VirtualSource

REPORT_EVERY_US = REPORT_EVERY_MS * 1000
REPORT_IDLE_US = REPORT_IDLE_MS * 1000

Heard = Callable[[RequestId, Output, int], None]
"""Told a request, an output of it, and when it came."""


class VirtualWorker:
    """Its engine is stepped when something is due there, when a request comes, and when its load is reported."""

    def __init__(
        self, id: WorkerId, place: int, engine: SimulatedSettings, agenda: Agenda, log: VirtualLog, heard: Heard
    ) -> None:
        """`place` is its place in the fleet, which the worker that comes after it takes over."""
        self.id = id
        self.place = place
        self.alive = True
        self._log = log
        self._agenda = agenda
        self._heard = heard
        self._engine = EngineState(engine)
        self._copies = Copies()
        self._kv = VirtualSource(log, KV, id)
        self._load = VirtualSource(log, LOAD, id)
        self._arrived: list[Submit] = []
        self._step_at = -1
        """When it is stepped next; -1 if nothing is due there."""
        self._step_number = 0
        self._report_number = 0
        self._reported: LoadReported | None = None
        self._reported_us = -REPORT_IDLE_US
        self._serving: dict[RequestId, int] = {}
        """Requests that have not ended, with the length of their prompts."""
        self._totals = [0, 0]

    def __repr__(self) -> str:
        return f"<VirtualWorker {self.id} in place {self.place}, {self._engine!r}>"

    def join(self) -> None:
        """The log knows of it, with an empty cache."""
        settings = self._engine.settings
        joined = WorkerJoined(
            name=f"worker-{self.place}",
            model=MODEL,
            role=DECODE,
            engine="simulated",
            block_size=settings.block_size,
            capacity_blocks=settings.capacity_blocks,
            context_max=settings.context_max,
            address=f"virtual:{self.place}",
        )
        self._kv.say([joined])
        self._report()

    def submit(self, asked: Submit) -> None:
        """The request is with the engine; all that come at one time are taken in together. CallerError if the engine
        can never serve it."""
        assert self.alive
        assert asked.known is not None
        refuse(self._engine.settings, asked.request, asked.known)
        self._serving[asked.request.id] = asked.known.tokens
        self._arrived.append(asked)
        self._step_by(self._agenda.now_us)
        self._report_by(self._reported_us + REPORT_EVERY_US)

    def die(self) -> None:
        """The engine has told all tokens that it had made by now, and says nothing any more."""
        self._step()
        now_us = self._agenda.now_us
        for request, output in step(self._engine, now_us, [Abort(request) for request in self._serving]).outputs:
            if output.tokens:
                self._heard(request, Output(tokens=output.tokens), now_us)
        self.alive = False
        self._agenda.cancel(self._step_number)
        self._agenda.cancel(self._report_number)

    def lose(self, by: str) -> None:
        """The log knows that it is gone, as a replica found."""
        assert not self.alive
        lost = WorkerLost(by=by, reason="no lease, no answer")
        for stream in (KV, LOAD):
            VirtualSource(self._log, stream, self.id, self.id + LOST_SUFFIX).say([lost])

    def _step_by(self, at_us: int) -> None:
        if self._step_at < 0 or at_us < self._step_at:
            self._agenda.cancel(self._step_number)
            self._step_at = at_us
            self._step_number = self._agenda.put(at_us, self._step)

    def _step(self) -> None:
        """The engine is that of now, and others have heard what came of it."""
        arrived, self._arrived = self._arrived, []
        done = step(self._engine, self._agenda.now_us, arrived)
        self._agenda.cancel(self._step_number)
        self._step_at = -1
        if done.due_us is not None:
            self._step_by(done.due_us)
        events = self._copies.apply(done.changes)
        if events:
            self._kv.say(events)
        for (request, output), at_us in zip(done.outputs, done.times_us, strict=True):
            if output.cached_tokens is not None:
                self._totals[0] += self._serving[request]
                self._totals[1] += output.cached_tokens
            if output.finish is not None:
                del self._serving[request]
            self._heard(request, output, at_us)

    def _report_by(self, at_us: int) -> None:
        self._agenda.cancel(self._report_number)
        self._report_number = self._agenda.put(at_us, self._report)

    def _report(self) -> None:
        """The log hears of the load if it is news or due; the next look is in time for the next report."""
        now_us = self._agenda.now_us
        if self._step_at >= 0:  # else nothing has happened there since the last step
            self._step()
        load = load_of(self._engine)
        report = LoadReported(
            running=load.running,
            waiting=load.waiting,
            blocks_used=load.blocks_used,
            blocks_total=load.blocks_total,
            kv_n=self._kv.n,
            kv_head=self._kv.head,
            prompt_tokens=self._totals[0],
            cached_tokens=self._totals[1],
        )
        if report != self._reported or now_us - self._reported_us >= REPORT_IDLE_US:
            self._load.say([report])
            self._reported, self._reported_us = report, now_us
        busy = self._step_at >= 0
        self._report_by(now_us + REPORT_EVERY_US if busy else self._reported_us + REPORT_IDLE_US)
