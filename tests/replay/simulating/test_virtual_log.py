"""The simulated log: who reads what when."""

from __future__ import annotations

from core.codec import CHAIN_START, encode_event, encode_message
from core.events import CacheCleared
from core.ids import SourceId
from core.subjects import LOAD
from replay.simulating.agenda import Agenda
from replay.simulating.virtual_log import KV, VirtualLog

WORKER = "00000000000000aa"


def test_a_reader_lags() -> None:
    """It has a message when its lag has passed, not a microsecond before; others may have it sooner."""
    agenda = Agenda()
    log = VirtualLog(agenda, None)
    slow, fast = log.reader(300), log.reader(0)
    payload = encode_message(SourceId(WORKER), 0, CHAIN_START, 0, [encode_event(CacheCleared())])

    log.append(KV, WORKER, payload, b"1")
    log.begun = True
    for at_us, stream, head in ((1000, KV, b"2"), (1100, LOAD, b"3")):
        agenda.put(at_us, lambda stream=stream, head=head: log.append(stream, WORKER, payload, head))  # type: ignore[misc]
        agenda.advance()

    assert [frame.head for frame in fast.until(1100)] == [b"1", b"2", b"3"]
    assert [frame.head for frame in slow.until(1299)] == [b"1"]  # what stood there before the run had begun
    assert [(frame.head, frame.seq) for frame in slow.until(1300)] == [(b"2", 2)]
    assert [(frame.head, frame.seq) for frame in slow.until(1400)] == [(b"3", 1)]
    assert log.messages == 3
