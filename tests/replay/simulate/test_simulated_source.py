"""A source of the simulation: chains as real sources make them."""

from __future__ import annotations

from core.codec import CHAIN_START, JSON_START, digest
from core.events import BlocksRemoved, Event, WorkerLeft
from core.prompt import hashes_to_bytes
from core.subjects import owner
from replay.recording.recording import RecordedFrame
from replay.simulate.simulated_log import AT_ONCE, KEY, KV, START_MS, SimulatedLog, SimulatedSource
from replay.simulate.virtual_time import Agenda
from streams.log import Record

WORKER = "00000000000000aa"


class Kept:
    """In an archive's place: every record that was written."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def open(self, *_: object) -> None:
        pass

    def add(self, record: Record) -> None:
        self.records.append(record)


def records_of(*batches: list[Event]) -> tuple[list[RecordedFrame], list[Record]]:
    kept = Kept()
    log = SimulatedLog(Agenda(), kept)  # type: ignore[arg-type]  # all that it is asked for
    reader, source = log.reader(0), SimulatedSource(log, KV, WORKER)
    for batch in batches:
        source.append(batch)
    return list(reader.until(0)), kept.records


def gone(blocks: int) -> BlocksRemoved:
    return BlocksRemoved(hashes=hashes_to_bytes(range(blocks)))


def test_messages_make_a_chain() -> None:
    """Each has the number and names the digest of the one before; one message for what is said at once."""
    frames, records = records_of([gone(1), gone(2)], [gone(3)], [])

    assert [(frame.seq, frame.message.n, frame.message.events) for frame in frames if frame.message] == [
        (1, 0, (gone(1), gone(2))),
        (2, 1, (gone(3),)),
    ]
    heads = [digest(record.payload, KEY.chain_key) for record in records]
    assert [frame.head for frame in frames] == heads
    assert [frame.message.prev for frame in frames if frame.message] == [CHAIN_START, heads[0]]
    assert {(record.stream, owner(record.subject), record.time_ms) for record in records} == {(KV, WORKER, START_MS)}


def test_events_of_low_rate_can_be_read() -> None:
    """As JSON, like those of a real source; with others among them they are not."""
    _, records = records_of([WorkerLeft(reason="it ended")], [gone(1), WorkerLeft(reason="it ended")])

    assert [record.payload[:1] == JSON_START for record in records] == [True, False]


def test_messages_are_bounded() -> None:
    """In bytes and in events; what does not fit goes into the next, and the chain holds."""
    large = gone(8000)  # four of them fit

    frames, records = records_of([large] * 9, [gone(0)] * (AT_ONCE.events_max + 1))

    assert [len(frame.message.events) for frame in frames if frame.message] == [4, 4, 1, AT_ONCE.events_max, 1]
    assert max(len(record.payload) for record in records) <= AT_ONCE.message_bytes_max
    assert [frame.message.n for frame in frames if frame.message] == list(range(5))
