"""What `bench.size` counts of a real broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bench.size import KINDS, _held
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import LoadReported
from core.ids import SourceId, StreamSeq
from core.subjects import JOBS, LOAD, ROUTING, SNAPSHOTS, kv_stream, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.topology import Topology

SOURCE = SourceId("0123456789abcdef")
TOPOLOGY = Topology(max_bytes=1 << 28)


async def test_every_stream_of_a_deployment_may_be_there(nats_server: EmbeddedNats) -> None:
    """Those that do not grow with requests are left out."""
    given = nats_server.credentials
    where: Any = SimpleNamespace(nats=[nats_server.url], nats_credentials=lambda _: given, namespace="sizes")
    log = await JetStreamLog.connect(where.nats, where.namespace, TOPOLOGY, given)
    try:
        await log.ensure([kv_stream(0), kv_stream(1), ROUTING, LOAD, JOBS, SNAPSHOTS])
        event = encode_event(LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=0))
        payload = encode_message(SOURCE, 0, CHAIN_START, 0, [event])
        await log.append(LOAD, subject(where.namespace, LOAD, SOURCE), payload, "1", StreamSeq(0))
        held = await _held(where)
    finally:
        await log.close()
    assert held.keys() == set(KINDS)
    assert held["kv"] == held[ROUTING] == (0, 0)
    assert held[LOAD][1] == 1
    assert held[LOAD][0] > len(payload)
