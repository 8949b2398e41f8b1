"""The laws that chaos checks can be broken, and are told then: a judge that never finds anything is worth nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import pytest

from core.codec import CHAIN_START, digest, encode_event, encode_message
from core.events import (
    Event,
    LoadReported,
    Points,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReported,
    RequestFinished,
    RequestRouted,
    WorkerJoined,
    WorkerLost,
)
from core.ids import SourceId, StreamName, StreamSeq
from core.subjects import LOAD, ROUTING, kv_stream, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import EventLog, Record
from streams.outbox.journal_recovery import REASON as TOLD_BY_JOURNAL
from streams.topology import Topology
from tests.chaos.record import LogRecord, read_record
from tests.chaos.reports import Reports

KEY = b"k" * 32
WORKER, REPLICA, DEAD = "a" * 16, "b" * 16, "d" * 16
JOINED = WorkerJoined(
    name="w", model="m", role="decode", engine="e", block_size=1, capacity_blocks=1, context_max=1, address="a"
)
LOST = WorkerLost(by=REPLICA, reason="test")


class Writer:
    """A small log, message by message."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.heads: dict[tuple[str, str], tuple[int, bytes]] = {}

    def say(self, stream: str, who: str, *events: Event, source: str = "") -> bytes:
        """The next message of the source; returns its head."""
        n, head = self.heads.get((stream, source or who), (0, CHAIN_START))
        payload = encode_message(SourceId(source or who), n, head, 0, [encode_event(event) for event in events])
        head = digest(payload, KEY)
        self.heads[stream, source or who] = (n + 1, head)
        seq = StreamSeq(sum(record.stream == stream for record in self.records) + 1)
        self.records.append(Record(StreamName(stream), seq, 0, f"contrail.ns.{stream}.{who}", payload))
        return head


def routed(request: str, attempt: int = 0) -> RequestRouted:
    """A decision."""
    return RequestRouted(
        request=request,
        attempt=attempt,
        model="m",
        prompt_tokens=1,
        block_size=1,
        hashes=b"",
        policy="kv",
        settings_revision=0,
        decide_version=1,
        seed=0,
        now_ms=0,
        cursor={},
        worker=WORKER,
        candidates=b"",
        columns={},
        candidates_total=1,
        excluded={},
        blocks=1,
        prefill_tokens=1,
        predicted_cached_tokens=0,
        digest="",
    )


def finished(request: str) -> RequestFinished:
    """The end of its first attempt."""
    return RequestFinished(
        request=request,
        attempt=0,
        outcome="stop",
        prompt_tokens=1,
        output_tokens=1,
        cached_tokens=0,
        ttft_ms=1,
        duration_ms=1,
    )


def good() -> Writer:
    """A log in which every law holds: one worker, one replica, one request; and a replica that was killed in the middle
    of another, whose journal was told behind its end."""
    log = Writer()
    log.say("kv_0", WORKER, JOINED)
    log.say("routing", REPLICA, ReplicaJoined(name="r", version="1"))
    log.say("routing", REPLICA, routed("one"))
    log.say("routing", REPLICA, finished("one"))
    head = log.say("kv_0", WORKER, JOINED)
    report = LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=1, kv_n=2, kv_head=head)
    log.say("load", WORKER, report)
    log.say("routing", DEAD, ReplicaJoined(name="d", version="1"))
    log.say("routing", DEAD, ReplicaLost(by=REPLICA, reason="test"), source=f"{DEAD}-lost")
    log.say("routing", DEAD, routed("broken off"))
    log.say("routing", DEAD, ReplicaLeft(reason=TOLD_BY_JOURNAL))
    return log


def found(log: Writer) -> list[str]:
    """What every law says of it; `one` was answered, both sources are alive."""
    record = LogRecord(log.records, KEY)
    alive = {WORKER, REPLICA}
    return [
        *record.broken_chains(),
        *record.stored_twice(),
        *record.foreign_messages(),
        *record.ends_told_twice(),
        *record.ends_missing(alive),
        *record.decisions_missing(["one"]),
        *record.finishes_missing(alive),
        *record.heads_unknown(),
    ]


def _lose_a_message(log: Writer) -> None:
    del log.records[2]


def _lose_the_last_kv_message(log: Writer) -> None:
    del log.records[4]


def _store_twice(log: Writer) -> None:
    log.records.append(log.records[-1])


def _change_a_message(log: Writer) -> None:
    log.records[2] = log.records[2]._replace(payload=log.records[2].payload.replace(b"one", b"two"))


def _write_for_another(log: Writer) -> None:
    log.say("kv_0", WORKER, JOINED, source=REPLICA)


def _end_who_lives(log: Writer) -> None:
    log.say("kv_0", WORKER, LOST, source=f"{WORKER}-lost")


def _speak_after_the_end(log: Writer) -> None:
    log.say("kv_0", "e" * 16, JOINED)
    log.say("kv_0", "e" * 16, LOST, source=f"{'e' * 16}-lost")
    log.say("kv_0", "e" * 16, JOINED)


def _leave_with_a_request(log: Writer) -> None:
    log.say("routing", "f" * 16, ReplicaJoined(name="f", version="1"))
    log.say("routing", "f" * 16, routed("left open"))
    log.say("routing", "f" * 16, ReplicaLeft(reason="asked to"))


def _go_without_a_word(log: Writer) -> None:
    log.say("kv_0", "c" * 16, JOINED)


def _decide_twice(log: Writer) -> None:
    log.say("routing", REPLICA, routed("one"))


def _skip_an_attempt(log: Writer) -> None:
    log.say("routing", REPLICA, routed("one", attempt=2))


def _never_finish(log: Writer) -> None:
    log.say("routing", REPLICA, routed("other"))


BREAKS = {
    _lose_a_message: "breaks in chains",
    _lose_the_last_kv_message: "acknowledged kv messages that the log has not",
    _store_twice: "messages stored twice",
    _change_a_message: "answered requests without their decisions",
    _write_for_another: "messages where they should not be",
    _speak_after_the_end: "messages where they should not be",
    _leave_with_a_request: "attempts without their one end",
    _end_who_lives: "ends that do not fit",
    _go_without_a_word: "is gone without an end",
    _decide_twice: "decisions told twice",
    _skip_an_attempt: "answered requests without their decisions",
    _never_finish: "attempts without their one end",
}


def test_a_whole_log_breaks_no_law() -> None:
    """Nothing is found where nothing is wrong."""
    assert found(good()) == []


@pytest.mark.parametrize(("harm", "told"), BREAKS.items(), ids=[harm.__name__.strip("_") for harm in BREAKS])
def test_a_broken_law_is_told(harm: Callable[[Writer], None], told: str) -> None:
    """Whatever is done to the log, the law that it breaks says so."""
    log = good()

    harm(log)

    assert any(told in sentence for sentence in found(log))


async def _grow(log: EventLog, namespace: str) -> None:
    """Appends without end a message of kv, one of load that names it, and a report that names that one."""
    written, ends = Writer(), dict[str, StreamSeq]()

    async def append(stream: StreamName, who: str, event: Event) -> bytes:
        head = written.say(stream, who, event)
        end, payload = ends.get(stream, StreamSeq(0)), written.records[-1].payload
        ends[stream] = await log.append(stream, subject(namespace, stream, who), payload, f"{who}:{end}", end)
        return head

    while True:
        kv_head = await append(kv_stream(0), WORKER, JOINED)
        kv_n, _ = written.heads[kv_stream(0), WORKER]
        load = LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=1, kv_n=kv_n, kv_head=kv_head)
        load_head = await append(LOAD, WORKER, load)
        points = Points(0, (ends[LOAD],), bytes(8), load_head)
        await append(ROUTING, REPLICA, ReplicaReported(fold_version=1, points={LOAD: points}))


async def test_a_log_that_grows_while_it_is_read_breaks_no_law(nats_server: EmbeddedNats) -> None:
    """Each message that a report names is read, though it was appended when the reading had begun."""
    namespace = f"t-{secrets.token_hex(6)}"
    topology = Topology(max_bytes=10**8)
    log = await JetStreamLog.connect([nats_server.url], namespace, topology, nats_server.credentials)
    await log.ensure([kv_stream(0), LOAD, ROUTING])
    growing = asyncio.create_task(_grow(log, namespace))
    reports = 0
    for _ in range(10):
        record = await read_record(log, KEY)
        assert record.heads_unknown() + Reports(record).heads_unknown() == []
        reports = Reports(record).points
    growing.cancel()
    await asyncio.wait([growing])
    await log.close()
    assert reports > 0
