"""The simulated log: who reads what when."""

from __future__ import annotations

import pytest

from core.codec import CHAIN_START, encode_event, encode_message
from core.events import CacheCleared
from core.ids import SourceId
from core.subjects import LOAD
from replay.recording.recording import RecordedFrame
from replay.simulate.options import Options
from replay.simulate.simulated_log import KV, UNREAD_MAX, LogReader, SimulatedLog
from replay.simulate.simulation import simulate
from replay.simulate.virtual_time import Agenda
from tests.replay.simulate.families import ENGINE, families

WORKER = "00000000000000aa"


def test_a_reader_lags() -> None:
    """It has a message when its lag has passed, not a microsecond before; others may have it sooner."""
    agenda = Agenda()
    log = SimulatedLog(agenda, None)
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


def test_who_does_not_read_for_long_is_told_to() -> None:
    """When so many messages wait that it has by now; those that it is still to get are not counted. Told or not, it
    reads the same."""
    agenda = Agenda()
    log = SimulatedLog(agenda, None)
    waited: list[int] = []
    payload = encode_message(SourceId(WORKER), 0, CHAIN_START, 0, [encode_event(CacheCleared())])
    slow, fast = log.reader(300), log.reader(0, lambda: waited.append(len(list(fast.until(agenda.now_us)))))

    log.begun = True
    for _ in range(2 * UNREAD_MAX + 1):
        log.append(KV, WORKER, payload, b"1")
    assert waited == [UNREAD_MAX] * 2
    assert len(list(fast.until(0))) == 1
    assert list(slow.until(299)) == []
    assert len(list(slow.until(300))) == 2 * UNREAD_MAX + 1


def test_idle_workers_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long nobody decides anything, replicas fold what workers say now and then; the log has it all."""
    unread: list[int] = []
    put = LogReader.put

    def counted(reader: LogReader, now_us: int, frame: RecordedFrame, *, begun: bool) -> None:
        put(reader, now_us, frame, begun=begun)
        unread.append(len(reader))

    monkeypatch.setattr(LogReader, "put", counted)
    first, second = families(2)
    options = Options(workers=32, engine=ENGINE, replicas=2)
    found = simulate(options, [first, second._replace(at_us=700_000_000)]).served

    assert [each.first_us > 0 for each in found] == [True, True]
    assert len(unread) > 2 * 2 * UNREAD_MAX
    assert max(unread) < UNREAD_MAX
