"""A source restates itself by the measured retention of its stream, and after each loss in it."""

from __future__ import annotations

from actors.membership.restatement_schedule import RESTATED_SHARE, RestatementSchedule
from core.clock import ManualClock
from core.ids import Epoch, StreamSeq
from streams.log import StreamState
from streams.log_watch import POLL_EVERY_S

EVERY_S = 1000.0
SOURCE = "8000000000000000"
"""Its first restatement comes after half of an interval."""
KIB = 1024


class Scheduled:
    """A source on a stream whose states are made up."""

    def __init__(self, **state: int) -> None:
        self.clock = ManualClock(0)
        self.reasons: list[str] = []
        self.now = StreamState(Epoch(1), StreamSeq(1), StreamSeq(0), 0, 0)
        self.schedule = RestatementSchedule(SOURCE, self.clock, self.reasons.append, every_s=EVERY_S)
        self.poll(**state)

    def poll(self, after_s: float = POLL_EVERY_S, **state: int) -> list[str]:
        """The reasons to restate at one more poll, at the stream with these changes."""
        self.clock.advance(round(after_s * 1000))
        self.now = self.now._replace(**state)  # type: ignore[arg-type]
        before = len(self.reasons)
        self.schedule.check(self.now)
        return self.reasons[before:]


def full(last: int, bytes_max: int, **state: int) -> dict[str, int]:
    """A stream of messages of one KiB."""
    return {"last_seq": last, "messages": last, "bytes": last * KIB, "bytes_max": bytes_max, **state}


def test_each_loss_calls_for_a_restatement_at_once() -> None:
    """A deletion, a rollback, a new stream, and a purge of the last restatement; the same poll again calls for none."""
    it = Scheduled(**full(100, 0))
    for change, reason in (
        ({"deleted": 1}, "deleted"),
        ({"last_seq": 90}, "rolled back"),
        ({"epoch": 2, "last_seq": 95}, "made anew"),
        ({"first_seq": 97, "last_seq": 96, "messages": 0, "bytes": 0}, "does not have the last restatement"),
        ({"deleted": 2}, "deleted"),
    ):
        (found,) = it.poll(**change)
        assert reason in found
        assert it.poll() == []


def test_deletions_before_the_source_began_are_none_of_its_losses() -> None:
    """The first poll is what later ones are compared with; fewer deletions than before are no loss."""
    it = Scheduled(**full(100, 0), deleted=7)
    assert it.poll() == it.poll(deleted=3) == []
    assert it.poll(deleted=4)


def test_the_interval_follows_the_age() -> None:
    """Half an interval for this source, then whole ones."""
    it = Scheduled()
    assert it.poll(EVERY_S / 2 - POLL_EVERY_S - 1) == []
    assert it.poll(1)
    assert it.poll(EVERY_S - 1) == []
    assert it.poll(1)


def test_the_interval_follows_the_bytes() -> None:
    """A quarter of the limit, half of it for the first: so a log at its limit holds the last three restatements."""
    limit = 400 * KIB
    it, restated, last = Scheduled(**full(0, limit)), list[int](), 0
    for last in range(10, 2000, 10):
        kept = min(last, 400)
        state = full(last, limit, first_seq=last - kept + 1) | {"messages": kept, "bytes": kept * KIB}
        if it.poll(0.1, **state):
            restated.append(last)
    share = round(RESTATED_SHARE * 400)
    assert restated == list(range(share // 2, last + 1, share))
    assert sum(seq > last - 400 for seq in restated) >= 3


def test_a_stream_without_a_limit_is_restated_by_age_alone() -> None:
    """However much is written."""
    it = Scheduled()
    assert it.poll(**full(10**9, 0)) == []
