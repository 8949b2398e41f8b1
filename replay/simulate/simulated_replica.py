"""SimulatedReplica: one replica of a simulation: its folds of the log, its lag, and its RequestScheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import xxhash
from msgspec.structs import replace

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.consistency.digest_exchange import REPORT_EVERY_MS, CheckpointPassed, DigestExchange, PublishDigests
from actors.membership.decision_bases import ROOT_AGE_MAX_MS, DecisionBases
from actors.membership.routing_publisher import LIMITS
from actors.router.request_scheduler import ClockCorrected, RequestScheduler, SchedulerCommand, SchedulerEvent
from core.events import (
    Event,
    LocalChanged,
    ReplicaJoined,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    SettingsChanged,
    UnknownEvent,
)
from core.events.routing import ROUTED_VERSION
from core.ids import ReplicaId, WorkerId
from core.machine import TICK
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.view import Local, View, local_by_worker
from replay.simulate.simulated_clock import ClockError, SimulatedClock, sample
from replay.simulate.simulated_log import CHAIN_KEY, EPOCH, START_MS, SimulatedLog, SimulatedSource
from replay.simulate.virtual_time import Agenda, VirtualShell
from streams.broker_clock import BrokerClock
from streams.log_watch import POLL_EVERY_S

US_PER_MS = 1000
SAMPLE_EVERY_US = round(POLL_EVERY_S * 1_000_000)
REVISION = 0
"""Of the settings: they hold for the whole run."""


class SimulatedReplica:
    """A live replica's scheduler, with simulated reads and writes of the log. It folds the arrived messages when it
    decides, or when there are many. Its own events count for itself at once, and go to the log a little later, together
    with later ones, as a live replica's do."""

    def __init__(
        self,
        id: ReplicaId,
        name: str,
        lag_us: int,
        settings: RoutingSettings,
        agenda: Agenda,
        log: SimulatedLog,
        *,
        slots: int,
        seed: int,
        gone: set[WorkerId],
        freed: Callable[[], None],
        execute: Callable[[SchedulerCommand], None],
        clock: ClockError | None = None,
        clock_is_corrected: bool = True,
        continues: bool = False,
        from_zero: bool = False,
    ) -> None:
        """With `continues`, decisions are recorded as ones that continue others, and events in their latest version.
        Each engine runs so many requests as `slots` at once; `gone` are workers that have no connection any more.
        With `from_zero`, requests wait while there is no worker. `clock` is the error of the clocks, None where no
        clock of the run has any.
        `freed` is called when the log has first tokens or ends from here: a worker may be free for what others
        hold."""
        self.id = id
        self.lag_us = lag_us
        self.scheduler = RequestScheduler(self, settings, REVISION, seed=seed, wall_offset_ms=START_MS)
        self._shell: VirtualShell[SchedulerEvent, SchedulerCommand] = VirtualShell(self.scheduler, agenda, execute)
        self._slots = slots
        self._from_zero = from_zero
        self._gone = gone
        self._freed = freed
        self._agenda = agenda
        self._log = log
        self._reader = log.reader(lag_us, self._catch_up)
        self._source = SimulatedSource(log, ROUTING, id, limits=LIMITS, on_stored=self._on_stored)
        self._state = State(CHAIN_KEY)
        for stream in log.streams:
            self._state.open(stream, EPOCH)
        self._exchange = DigestExchange(self._state, REPORT_EVERY_MS * US_PER_MS)
        self._pending = PendingEvents()
        self._bases = DecisionBases(ROOT_AGE_MAX_MS) if continues else None
        self._local: dict[WorkerId, tuple[str, ...]] = {}
        if clock is not None:
            self._clock = SimulatedClock(agenda, START_MS, clock)
            self._broker_clock = BrokerClock(self._clock)
            self._seed = xxhash.xxh3_64_intdigest(id.encode(), seed)
            self._correct_clock(is_corrected=clock_is_corrected)
        self.publish(ReplicaJoined(name=name, version="simulated"))
        self.publish(SettingsChanged(revision=REVISION, settings=settings.to_mapping()))

    def __repr__(self) -> str:
        return f"<SimulatedReplica {self.id}, {self._state!r}, {self._pending!r}>"

    def feed(self, event: SchedulerEvent) -> None:
        """The scheduler has taken the event in, and its commands are executed."""
        self._shell.feed(event)

    def publish(self, event: Event) -> None:
        """The event counts here at once, and is on its way to the log."""
        if self._bases is None:
            if isinstance(event, RequestPrefilled | RequestFinished):
                event = replace(event, v=1)
        elif isinstance(event, RequestRouted):
            event = self._bases.shortened(replace(event, v=ROUTED_VERSION), ROUTED_VERSION)
        self._pending.emit(event, self._state.routing.replicas.get(self.id))
        self._source.put(event)

    def _correct_clock(self, *, is_corrected: bool) -> None:
        """The scheduler has the wall clock as it is now, or the broker's as one exchange more shows it."""
        now_us = self._agenda.now_us
        if is_corrected:
            sample(self._clock, self._broker_clock, self._log.clock, now_us, self._seed)
        offset_ms = self._broker_clock.wall_ms() - now_us // US_PER_MS
        self._source.wall_offset_ms = offset_ms
        self.feed(ClockCorrected(offset_ms))
        self._agenda.put(now_us + SAMPLE_EVERY_US, partial(self._correct_clock, is_corrected=is_corrected))

    def flush(self) -> None:
        """The log has all published events."""
        self._source.flush()

    def _on_stored(self, events: Sequence[Event | UnknownEvent]) -> None:
        if any(isinstance(event, RequestPrefilled | RequestFinished) for event in events):
            self._freed()

    def publish_local(self, local: Local) -> None:
        """The log has this replica's exclusions, before a decision rests on them, and from time to time the digests of
        its folds."""
        for command in self._exchange.step(TICK, self._agenda.now_us):
            assert isinstance(command, PublishDigests)  # it reads no reports of others
            self.publish(command.event)
        now = local_by_worker(local)
        for worker in sorted(now.keys() | self._local.keys()):
            reasons = now.get(worker, ())
            if reasons != self._local.get(worker, ()):
                self.publish(LocalChanged(worker=worker, reasons=reasons))
        self._local = now

    # --- what the scheduler reads ------------------------------------------------------------------------------

    def view(self) -> View:
        """View of a decision made now: all messages that have arrived are folded."""
        self._catch_up()
        return View(self._state, self.id, self._pending, self._local_now())

    def slots(self, _worker: WorkerId) -> int:
        """All engines are alike."""
        return self._slots

    def connected(self, _model: str) -> int:
        """There is one model."""
        serving, gone = self._state.serving(), self._gone
        return sum(member.worker not in gone for member in serving) if gone else len(serving)

    def awaits_join(self, _model: str) -> bool:
        """A simulated log loses nothing."""
        return False

    def starts_from_zero(self, _model: str) -> bool:
        """There is one model."""
        return self._from_zero

    def is_log_away(self) -> bool:
        """A simulated log never is."""
        return False

    def _local_now(self) -> Local:
        """Exclusions that only this replica knows: workers without a connection, of those alive by the log."""
        gone = self._gone
        down = frozenset(gone.intersection([member.worker for member in self._state.alive()]) if gone else ())
        return {"not_connected": down} if down else {}

    def _catch_up(self) -> None:
        """All messages that have arrived are folded."""
        fold, read_back = self._state.fold, self._pending.read_back
        for stream, seq, _, owner, head, message in self._reader.until(self._agenda.now_us):
            fold(stream, seq, owner, message, head)
            if not seq % CHECKPOINT_EVERY:
                self._exchange.step(CheckpointPassed(stream, seq), self._agenda.now_us)
            if self._bases is not None and stream == ROUTING and message is not None:
                self._bases.note(EPOCH, seq, message.events)
            if owner == self.id and message is not None:
                for event in message.events:
                    read_back(event)  # type: ignore[arg-type]  # what we wrote is of types that we know
