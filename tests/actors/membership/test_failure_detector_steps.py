"""FailureDetector step by step: observations and results in, commands out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from actors.membership import failure_detector
from actors.membership.failure_detector import (
    FOREIGN_LEASES,
    NO_ANSWER,
    NO_WORD,
    OBSERVE_EVERY_S,
    SILENT_S,
    WRITES_MAX,
    AliveWorker,
    Command,
    Connect,
    ConnectionState,
    CutConnection,
    DropConnection,
    EndWritten,
    FailureDetector,
    Observed,
    PingResult,
    PingWorker,
    SilentSource,
    WriteEnd,
)
from core.ids import WorkerId
from core.machine import TICK
from core.subjects import JOBS, LOAD, ROUTING, kv_stream

LEASE_MS = 10_000
KV = kv_stream(0)
A, B, C, D = (WorkerId(name * 16) for name in "abcd")
UP = ConnectionState(up=True, failures=0, silence=0, streams=0)
REFUSED = ConnectionState(up=False, failures=1, silence=0, streams=0)
CONNECTING = ConnectionState(up=False, failures=0, silence=0, streams=0)


class Driven:
    """A detector, and the time."""

    def __init__(self) -> None:
        self.detector = FailureDetector(LEASE_MS)
        self.now_us = 0

    def observe(
        self,
        connections: dict[WorkerId, ConnectionState],
        *,
        after_ms: int = 500,
        alive: Iterable[WorkerId] = (A,),
        registered: Iterable[WorkerId] = (),
        healthy: bool = True,
        silent: Iterable[SilentSource] = (),
        foreign: dict[str, int] | None = None,
    ) -> list[Command]:
        self.now_us += after_ms * 1000
        workers = {worker: AliveWorker(f"host:{worker}", KV) for worker in alive}
        seen = Observed(workers, frozenset(registered), healthy, connections, list(silent), foreign or {})
        return list(self.detector.step(seen, self.now_us))

    def tell(self, event: PingResult | EndWritten) -> None:
        assert not self.detector.step(event, self.now_us)


def end_of(worker: WorkerId) -> list[Command]:
    return [CutConnection(worker, NO_ANSWER), WriteEnd((KV, LOAD, JOBS), worker, NO_ANSWER)]


@pytest.fixture
def it() -> Driven:
    return Driven()


def test_a_refused_connection_beside_a_vanished_lease_leaves_no_doubt(it: Driven) -> None:
    """The worker is over at once; a second end is not written while the first one is on its way."""
    assert not it.observe({A: UP}, registered=[A])
    assert it.observe({A: REFUSED}) == end_of(A)
    assert it.detector.suspected == {A}
    assert not it.observe({A: REFUSED})
    it.tell(EndWritten(KV, A))
    assert it.observe({A: REFUSED}) == end_of(A), "the log has no end of it: it was away"


def test_a_worker_with_a_connection_has_a_lease_time_and_a_ping(it: Driven) -> None:
    """One ping at a time. It is over at the first observation after a ping without an answer."""
    it.observe({A: UP})
    assert not it.observe({A: UP}, after_ms=LEASE_MS - 1)
    assert it.observe({A: UP}, after_ms=1) == [PingWorker(A)]
    assert not it.observe({A: UP})
    it.tell(PingResult(A, answered=True))
    assert it.observe({A: UP}) == [PingWorker(A)]
    it.tell(PingResult(A, answered=False))
    assert it.observe({A: UP}) == end_of(A)


def test_a_worker_that_registers_while_it_is_asked_is_not_over(it: Driven) -> None:
    """The ping without an answer is forgotten with that, and its absence begins anew."""
    it.observe({A: UP})
    assert it.observe({A: UP}, after_ms=LEASE_MS) == [PingWorker(A)]
    it.tell(PingResult(A, answered=False))
    assert not it.observe({A: UP}, registered=[A])
    assert not it.detector.suspected
    assert not it.observe({A: UP}, after_ms=LEASE_MS)
    assert it.observe({A: UP}, after_ms=LEASE_MS) == [PingWorker(A)]


def test_a_worker_without_a_connection_is_connected_to_first(it: Driven) -> None:
    """A first try that is under way says nothing; one that failed says all."""
    it.observe({})
    assert it.observe({}, after_ms=LEASE_MS) == [Connect(A, f"host:{A}")]
    assert not it.observe({A: CONNECTING})
    assert it.observe({A: REFUSED}) == end_of(A)


def test_half_of_the_workers_may_be_lost_at_once(it: Driven) -> None:
    workers = [A, B, C, D]
    found = it.observe(dict.fromkeys(workers, REFUSED), alive=workers, registered=[C, D])
    assert found == [*end_of(A), *end_of(B)]
    assert it.detector.suspected == {A, B}


def test_more_than_half_at_once_is_the_registrys_fault(it: Driven) -> None:
    """For a lease time; then the connections decide."""
    workers = [A, B, C, D]
    connections = {A: REFUSED, B: REFUSED, C: UP, D: UP}
    assert not it.observe(connections, alive=workers, registered=[D])
    assert not it.detector.suspected
    assert not it.observe(connections, alive=workers, registered=[D], after_ms=LEASE_MS - 1)
    found = it.observe(connections, alive=workers, registered=[D], after_ms=1)
    assert found == [*end_of(A), *end_of(B), PingWorker(C)]
    assert it.detector.suspected == {A, B, C}


def test_while_the_registry_is_away_no_worker_is_suspected(it: Driven) -> None:
    """The time counts all the same."""
    for _ in range(3):
        assert not it.observe({A: REFUSED}, healthy=False, after_ms=LEASE_MS)
        assert not it.detector.suspected
    assert it.observe({A: REFUSED}) == end_of(A)


def test_a_silent_connection_is_left_out_and_then_cut(it: Driven) -> None:
    """Counted in observations; the worker is not over by that."""
    looks = round(SILENT_S / OBSERVE_EVERY_S)
    mute = UP._replace(silence=looks - 1, streams=1)
    assert not it.observe({A: mute}, registered=[A])
    assert it.detector.suspected == {A}
    (cut,) = it.observe({A: mute._replace(silence=looks)}, registered=[A])
    assert cut == CutConnection(A, "no word for 6 s, its streams move")
    assert not it.observe({A: CONNECTING}, registered=[A])
    assert not it.detector.suspected


def test_a_connection_of_a_worker_that_is_over_stands_while_it_answers_and_streams(it: Driven) -> None:
    """Without streams it is dropped at once; a worker that registers again keeps it."""
    assert it.observe({A: UP, B: REFUSED}, alive=[]) == [DropConnection(A), DropConnection(B)]
    streams = UP._replace(streams=1)
    assert it.observe({A: streams}, alive=[]) == [PingWorker(A)]
    it.tell(PingResult(A, answered=True))
    assert it.observe({A: streams}, alive=[]) == [PingWorker(A)]
    it.tell(PingResult(A, answered=False))
    assert not it.observe({A: streams}, alive=[], registered=[A])
    assert it.observe({A: streams}, alive=[]) == [PingWorker(A)]
    it.tell(PingResult(A, answered=False))
    assert it.observe({A: streams}, alive=[]) == [DropConnection(A)]


@pytest.mark.parametrize(("stream", "leases"), [(ROUTING, 2), (KV, 2), (LOAD, 1), (JOBS, 1)])
def test_a_silent_source_is_over_after_its_leases(it: Driven, stream: str, leases: int) -> None:
    """A message more begins the time anew."""
    source = SilentSource(stream, "r", 5)  # type: ignore[arg-type]
    more = source._replace(messages_seen=6)
    assert not it.observe({}, alive=[], silent=[source])
    assert not it.observe({}, alive=[], silent=[more], after_ms=leases * LEASE_MS)
    assert not it.observe({}, alive=[], silent=[more], after_ms=leases * LEASE_MS - 1)
    assert it.observe({}, alive=[], silent=[more], after_ms=1) == [WriteEnd((source.stream,), "r", NO_WORD, 6)]


def test_so_many_ends_are_written_at_once(it: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others follow when these are in the log."""
    monkeypatch.setattr(failure_detector, "WRITES_MAX", 2)
    silent = [SilentSource(ROUTING, f"{number}", 0) for number in range(3)]
    assert len(silent) <= WRITES_MAX
    it.observe({}, alive=[], silent=silent)
    first = it.observe({}, alive=[], silent=silent, after_ms=2 * LEASE_MS)
    assert [end.source for end in first if isinstance(end, WriteEnd)] == ["0", "1"]
    assert not it.observe({}, alive=[], silent=silent)
    it.tell(EndWritten(ROUTING, "0"))
    (third,) = it.observe({}, alive=[], silent=silent[1:])
    assert third == WriteEnd((ROUTING,), "2", NO_WORD, 0)


def test_a_tick_changes_nothing(it: Driven) -> None:
    it.observe({A: REFUSED})
    assert it.detector.due_us is None
    assert not it.detector.step(TICK, it.now_us)
    assert it.detector.suspected == {A}


def test_a_source_of_another_key_is_left_alone(it: Driven) -> None:
    """It is suspected, so that no request goes there; while it sends messages, no end, no ping and no connection
    follow."""
    silent = [SilentSource(LOAD, A, 3)]
    for messages in range(3 * FOREIGN_LEASES):
        assert not it.observe({A: REFUSED}, after_ms=LEASE_MS, silent=silent, foreign={A: messages})
    assert it.detector.suspected == {A}
    assert it.observe({A: REFUSED}, silent=silent), "the chain fits again"


def test_a_silent_source_is_judged_though_its_chain_does_not_fit(it: Driven) -> None:
    """A message of it was changed, maybe: a dead source cannot show its key by a next one."""
    silent = [SilentSource(ROUTING, B, 2)]
    it.observe({A: REFUSED}, silent=silent, foreign={A: 5, B: 2})
    assert not it.observe({A: REFUSED}, after_ms=FOREIGN_LEASES * LEASE_MS - 1, silent=silent, foreign={A: 5, B: 2})
    found = it.observe({A: REFUSED}, after_ms=1, silent=silent, foreign={A: 6, B: 2})
    assert found == [WriteEnd((ROUTING,), B, NO_WORD, 2)]
    assert it.observe({A: REFUSED}, after_ms=FOREIGN_LEASES * LEASE_MS, foreign={A: 6}) == end_of(A)
