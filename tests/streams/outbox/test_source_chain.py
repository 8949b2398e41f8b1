"""The machine of a chain, step by step: every answer of the log, in every order, and its times."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.codec import CHAIN_START, decode_message, digest, encode_event, encode_message
from core.errors import Refused, Unavailable, WrongSequence
from core.events import CacheCleared, WorkerLost
from core.ids import SourceId, StreamSeq
from core.machine import TICK
from streams.log import Record
from streams.outbox.backlog import OutboxLimits
from streams.outbox.source_chain import (
    Acknowledged,
    Append,
    AskRestatement,
    ChainCommand,
    ChainEvent,
    Close,
    Finish,
    LastRead,
    LogFailed,
    Put,
    ReadLast,
    Restated,
    SourceChain,
    Start,
    Stopped,
    Superseded,
)
from tests.streams.source import KEY, KV, RESTATED, SOURCE, SUBJECT, said

LIMITS = OutboxLimits(pace_s=0.01, retry_min_s=0.05, retry_max_s=1.0, idle_check_s=3.0)
AWAY = LogFailed(Unavailable("away"))
ENDED = encode_message(
    SourceId(f"{SOURCE}-lost"), 0, CHAIN_START, 0, [encode_event(WorkerLost(by="b" * 16, reason="silent"))]
)


def started(limits: OutboxLimits = LIMITS) -> SourceChain:
    chain = SourceChain(SUBJECT, SOURCE, KEY, limits)
    assert chain.step(Start(), 0) == ()
    return chain


def appended(chain: SourceChain, now_us: int) -> Append:
    """The one command of a Tick at that time."""
    (command,) = chain.step(TICK, now_us)
    assert isinstance(command, Append)
    return command


def record(seq: int, payload: bytes) -> Record:
    return Record(KV, StreamSeq(seq), 0, SUBJECT, payload)


def names(payload: bytes) -> list[str]:
    return [event.reason for event in decode_message(payload).events if isinstance(event, CacheCleared)]


def test_a_tick_comes_at_its_time() -> None:
    """An event starts a message at once; the next one starts a pace later; a Tick before that changes nothing."""
    chain = started()
    chain.step(Put(said(0)), 1000)
    assert chain.due_us == 1000
    assert names(appended(chain, 1000).payload) == ["0"]
    assert chain.due_us is None
    chain.step(Put(said(1)), 1500)
    chain.step(Acknowledged(StreamSeq(1)), 2000)
    assert chain.due_us == 11_000
    assert chain.step(TICK, 10_999) == ()
    chain.step(Put(said(2)), 10_999)
    assert names(appended(chain, 11_200).payload) == ["1", "2"]
    chain.step(Acknowledged(StreamSeq(2)), 12_000)
    assert chain.due_us == 12_000 + 3_000_000
    chain.step(Put(said(3)), 50_000)
    assert chain.due_us == 50_000


def test_a_message_says_when_it_was_sealed() -> None:
    """By the wall clock, whose distance from the machine's time the driver keeps."""
    chain = started()
    chain.wall_offset_ms = 1_000_000
    chain.step(Put(said(0)), 7_000)
    assert decode_message(appended(chain, 7_000).payload).sent_ms == 1_000_007


def test_three_hours_without_a_log() -> None:
    """The same bytes are offered again and again, at most `retry_max_s` apart, and nothing grows."""
    chain, now_us, offers = started(), 0, set[Append]()
    chain.step(Put(said(0)), 0)
    pauses: list[int] = []
    while now_us < 3 * 3_600_000_000:
        offers.add(appended(chain, now_us))
        chain.step(AWAY, now_us)
        assert chain.due_us is not None
        pauses.append(chain.due_us - now_us)
        now_us = chain.due_us
    assert pauses[:6] == [50_000, 100_000, 200_000, 400_000, 800_000, 1_000_000]
    assert max(pauses) == 1_000_000
    assert (len(offers), chain.depth, chain.counts.retried) == (1, 1, len(pauses))
    assert chain.away_us(now_us) == now_us
    appended(chain, now_us)
    chain.step(Acknowledged(StreamSeq(1)), now_us)
    assert (chain.away_us(now_us), chain.idle) == (0, True)
    chain.step(Put(said(1)), now_us)
    assert chain.due_us is not None
    appended(chain, chain.due_us)
    chain.step(AWAY, chain.due_us or now_us)
    assert chain.due_us == now_us + 50_000, "the pauses begin anew"


def test_a_log_that_refuses() -> None:
    """The chain stops with the error, is away from then on, and drops what is put."""
    chain = started()
    chain.step(Put(said(0)), 0)
    appended(chain, 0)
    error = Refused("too large")
    assert chain.step(LogFailed(error), 1000) == (Stopped(error),)
    assert (chain.error, chain.ended, chain.counts.refused, chain.due_us) == (error, True, 1, None)
    chain.step(Put(said(1)), 2000)
    assert (chain.depth, chain.counts.dropped_events) == (1, 1)
    assert chain.away_us(8000) == 7000


def test_an_append_is_offered_again_after_an_interruption() -> None:
    """With the same bytes, and without the pause that it was in."""
    chain = started()
    chain.step(Put(said(0)), 0)
    first = appended(chain, 0)
    chain.step(Put(said(1)), 0)
    for interrupted in (False, True):
        if interrupted:
            chain.step(AWAY, 10)
        chain.step(Start(), 20)
        assert appended(chain, 20) == first


def test_a_wrong_sequence_that_is_right() -> None:
    """The log says that the sequence is wrong, and then that nobody wrote: the append is made again after a pause."""
    chain = started()
    chain.step(Put(said(0)), 0)
    first = appended(chain, 0)
    assert chain.step(LogFailed(WrongSequence("1, not 0")), 0) == (ReadLast(),)
    assert chain.step(LastRead(None), 0) == ()
    assert chain.due_us == 50_000
    assert appended(chain, 50_000) == first


def test_finish_comes_instead_of_a_restatement() -> None:
    """Also if it is itself the event that finds no room."""
    for puts in (2, 3):
        chain = started(OutboxLimits(pending_events_max=2))
        for number in range(puts):
            chain.step(Put(said(number)), 0)
        chain.step(Finish(said("end")), 0)
        assert chain.step(TICK, 0) == ()
        assert names(appended(chain, 0).payload) == ["end"]


def test_closed() -> None:
    """Nothing is due any more, and what is put is dropped."""
    chain = started()
    chain.step(Put(said(0)), 0)
    chain.step(Close(), 0)
    chain.step(Put(said(1)), 0)
    assert (chain.ended, chain.due_us, chain.depth, chain.counts.dropped_events) == (True, None, 1, 1)


class ChainMachine(RuleBasedStateMachine):
    """A chain, a log of one subject that fails in every way, and an owner that restates."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = SourceChain(SUBJECT, SOURCE, KEY, OutboxLimits(events_max=3, pending_events_max=8))
        self.now_us = 0
        self.log: list[bytes] = []
        self.request: Append | ReadLast | None = None
        self.offered: Append | None = None
        """The message that is not acknowledged."""
        self.acknowledged: list[bytes] = []
        self.waiting: deque[str] = deque()
        """Events that are in no message."""
        self.dropped: set[str] = set()
        self.restatement_due = False
        self.count = 0
        self.feed(Start())

    def feed(self, event: ChainEvent) -> None:
        self.obey(self.chain.step(event, self.now_us))

    def obey(self, commands: object) -> None:
        assert isinstance(commands, tuple)
        assert len(commands) <= 1
        for command in commands:
            self.obey_one(command)

    def obey_one(self, command: ChainCommand) -> None:
        assert self.request is None, "one append or read in flight"
        match command:
            case Append():
                self.check_append(command)
                self.request = self.offered = command
            case ReadLast():
                self.request = command
            case AskRestatement():
                assert self.restatement_due
                self.restatement_due = False
                self.waiting.append(RESTATED.reason)
                self.feed(Restated([RESTATED]))
            case Superseded(found):
                assert found.payload == ENDED
                self.dropped.update(self.waiting)
                self.waiting.clear()
            case _:
                raise AssertionError(command)

    def check_append(self, append: Append) -> None:
        message = decode_message(append.payload)
        assert message.n == len(self.acknowledged)
        assert append.message_id == f"{SOURCE}:{message.n}"
        if self.offered is not None:
            assert append[:2] == self.offered[:2], "the same bytes until acknowledged"
            return
        assert not self.restatement_due, "a restatement comes before the next message"
        assert message.prev == (digest(self.acknowledged[-1], KEY) if self.acknowledged else CHAIN_START)
        sealed = [self.waiting.popleft() for _ in message.events]
        assert names(append.payload) == sealed
        assert 1 <= len(sealed) <= 3
        assert self.dropped.isdisjoint(sealed)

    def acknowledge(self, seq: int) -> None:
        assert self.offered is not None
        self.acknowledged.append(self.offered.payload)
        self.offered = None
        self.feed(Acknowledged(StreamSeq(seq)))

    @rule(count=st.integers(1, 6))
    def put(self, count: int) -> None:
        for _ in range(count):
            name, dropped, overflows = str(self.count), self.chain.drops, self.chain.counts.overflows
            self.count += 1
            self.feed(Put(said(name)))
            if self.chain.counts.overflows > overflows:
                self.dropped.update(each for each in [*self.waiting, name] if each != RESTATED.reason)
                self.waiting.clear()
                self.restatement_due = True
            elif dropped:
                self.dropped.add(name)
            else:
                self.waiting.append(name)

    @rule(later_us=st.sampled_from([0, 1000, 5000, 4_000_000]))
    def tick(self, later_us: int) -> None:
        self.now_us += later_us
        self.obey(self.chain.step(TICK, self.now_us))

    @precondition(lambda self: self.chain.ended is False)
    @rule()
    def restart(self) -> None:
        """The driver was interrupted: an answer on its way is lost."""
        self.request = None
        self.feed(Start())

    @precondition(lambda self: isinstance(self.request, Append))
    @rule(is_stored=st.booleans(), is_answered=st.booleans())
    def answer_append(self, is_stored: bool, is_answered: bool) -> None:
        assert isinstance(self.request, Append)
        request, self.request = self.request, None
        if not is_stored:
            self.feed(AWAY)
        elif request.expected_seq != len(self.log):
            self.feed(LogFailed(WrongSequence("another wrote, or the log was cut")))
        else:
            self.log.append(request.payload)
            if is_answered:
                self.acknowledge(len(self.log))
            else:
                self.feed(AWAY)

    @precondition(lambda self: isinstance(self.request, ReadLast))
    @rule(is_answered=st.booleans())
    def answer_read(self, is_answered: bool) -> None:
        self.request = None
        if not is_answered:
            self.feed(AWAY)
            return
        last = record(len(self.log), self.log[-1]) if self.log else None
        offered, n_acked, cuts = self.offered, self.chain.n_acked, self.chain.counts.cut
        if last is not None and offered is not None and last.payload == offered.payload:
            self.acknowledged.append(offered.payload)
            self.offered = None
        commands = self.chain.step(LastRead(last), self.now_us)
        assert self.chain.n_acked == n_acked + (offered is not self.offered)
        self.restatement_due = self.restatement_due or self.chain.counts.cut > cuts
        self.obey(commands)

    @precondition(lambda self: self.log and self.log[-1] != ENDED)
    @rule(keep=st.integers(0, 3))
    def cut(self, keep: int) -> None:
        """The log loses its last messages."""
        del self.log[min(keep, len(self.log) - 1) :]

    @rule()
    def end_by_another(self) -> None:
        if self.count > 25 and ENDED not in self.log:
            self.log.append(ENDED)

    @invariant()
    def counts_agree(self) -> None:
        assert self.chain.n_acked == self.chain.counts.stored == len(self.acknowledged)
        if self.chain.superseded is not None:
            assert self.request is None
            assert self.chain.due_us is None
            assert self.chain.drops
        elif not self.restatement_due:
            sealed = 0 if self.offered is None else len(decode_message(self.offered.payload).events)
            assert self.chain.depth == len(self.waiting) + sealed

    def teardown(self) -> None:
        """From any state, a log that answers has all in the end: in order, and nothing that was dropped."""
        for _ in range(200):
            if self.chain.ended or self.chain.idle:
                break
            if isinstance(self.request, Append):
                self.answer_append(is_stored=True, is_answered=True)
            elif self.request is not None:
                self.answer_read(is_answered=True)
            else:
                self.tick(4_000_000)
        assert self.chain.ended or self.chain.idle
        said_names = [name for payload in self.acknowledged for name in names(payload) if name != RESTATED.reason]
        assert said_names == sorted(set(said_names), key=int)
        assert self.dropped.isdisjoint(said_names)


TestChain = ChainMachine.TestCase
TestChain.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("in_flight", [True, False])
def test_an_end_by_another_stops_the_chain(in_flight: bool) -> None:
    """Whether it is found by an append or by a look at the end; what waits is dropped."""
    chain = started()
    if in_flight:
        chain.step(Put(said(0)), 0)
        appended(chain, 0)
        chain.step(Put(said(1)), 0)
        assert chain.step(LogFailed(WrongSequence("1, not 0")), 0) == (ReadLast(),)
    else:
        assert chain.step(TICK, 3_000_000) == (ReadLast(),)
    end = record(1, ENDED)
    assert chain.step(LastRead(end), 3_000_000) == (Superseded(end),)
    assert (chain.ended, chain.due_us, chain.counts.dropped_events) == (True, None, int(in_flight))
    assert chain.step(TICK, 9_000_000) == ()
