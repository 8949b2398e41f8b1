"""A journal against a plain list, under any history of use and kills."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streams.outbox.backlog import EventCounts, OutboxLimits, SealedMessage
from tests.streams.left import acknowledge, left_journal, new_journal, seal_next
from tests.streams.source import SOURCE, said


class JournalMachine(RuleBasedStateMachine):
    """What waits and what is in flight, beside what the file would give to a successor."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / f"{SOURCE}.journal"
        self.waiting: list[str] = []
        self.sealed: SealedMessage | None = None
        self.covered: list[str] = []
        """The events of the message in flight."""
        self.dropped: list[str] = []
        """Dropped while the message in flight was in memory only."""
        self.count = 0
        self.acked = 0
        self.lost = 0
        """Events that were dropped."""

    @initialize(capacity=st.sampled_from([1024, 2048, 8192]), events_max=st.integers(1, 9))
    def make(self, capacity: int, events_max: int) -> None:
        self.limits = OutboxLimits(events_max=events_max, message_bytes_max=900, journal_events_max=30)
        self.journal = new_journal(self.path.parent, capacity, self.limits)

    @rule(size=st.integers(0, 300), restated=st.booleans())
    def put(self, size: int, restated: bool) -> None:
        name = f"{self.count} " + "x" * size
        taken = self.journal.restate(said(name)) if restated else self.journal.offer(said(name))
        assert taken or self.journal.events or self.sealed or size > 100, "an empty ring takes a small event"
        if taken:
            self.count += 1
            self.waiting.append(name)

    @precondition(lambda self: self.waiting and self.sealed is None)
    @rule()
    def seal(self) -> None:
        self.sealed = seal_next(self.journal)
        self.covered, self.waiting = self.waiting[: self.sealed.events], self.waiting[self.sealed.events :]
        assert 1 <= len(self.covered) <= self.limits.events_max
        assert len(self.sealed.payload) <= 900 or len(self.covered) == 1

    @precondition(lambda self: self.sealed is not None)
    @rule()
    def acknowledge(self) -> None:
        assert self.sealed is not None
        self.acked += 1
        acknowledge(self.journal, self.sealed, self.acked)
        self.sealed, self.covered, self.dropped = None, [], []

    @rule()
    def clear(self) -> None:
        assert self.journal.clear() == EventCounts(len(self.waiting), 0)
        self.lost += len(self.waiting)
        if self.sealed is not None and not self.journal.standing.sealed_at:
            self.dropped += self.waiting
        self.waiting = []

    @rule()
    def kill(self) -> None:
        """The process is gone; what had no room as a message is events again, with what was dropped behind it."""
        self.journal.close(delete=False)
        self.journal = left_journal(self.path, self.limits)
        if self.sealed is not None and self.journal.in_flight() is None:
            self.waiting = self.covered + self.dropped + self.waiting
            self.lost -= len(self.dropped)
            self.sealed, self.covered, self.dropped = None, [], []
        assert self.journal.in_flight() == self.sealed

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "journal"):
            held = self.journal.held
            assert (self.journal.events, held.events) == (len(self.waiting), len(self.waiting))
            assert 0 <= held.bytes <= held.capacity_bytes
            assert self.journal.standing.n_acked == self.acked
            counts = self.journal.decision_counts
            assert (counts.dropped_others if counts else 0) == self.lost
            assert (self.journal.encoded_bytes == 0) == (not self.waiting)

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.drain()
            self.journal.close(delete=True)
        self._folder.cleanup()

    def drain(self) -> None:
        """All that waits comes out, in order, once."""
        if self.sealed is not None:
            self.acknowledge()
        while self.waiting:
            self.seal()
            assert self.sealed is not None
            self._check_names(self.sealed)
            self.acknowledge()

    def _check_names(self, sealed: SealedMessage) -> None:
        for name in self.covered:
            assert name.encode() in sealed.payload


TestJournalModel = JournalMachine.TestCase
TestJournalModel.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
