"""Whoever lost track of a source hears from it again, whatever became of the source's messages."""

from __future__ import annotations

import pytest

from actors.consistency import digest_exchange
from core.codec import decode_message
from core.events import ReplicaRestated
from core.ids import ReplicaId, StreamSeq
from core.subjects import ROUTING, kv_stream
from streams.memory.memory_log import MemoryLog
from tests.actors.world import World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate

KV = kv_stream(0)


@pytest.fixture(autouse=True)
def _quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_exchange, "REPORT_EVERY_MS", 200)


async def delete(it: World, stream: str, source: str, n: int) -> None:
    """One message of a source is gone from the log, as by the broker's own API."""
    assert isinstance(it.log, MemoryLog)
    async for record in it.log.read(stream, StreamSeq(1)):  # type: ignore[arg-type]
        message = decode_message(record.payload)
        if (message.source, message.n) == (source, n):
            it.log.delete(record.stream, record.seq)
            return
    raise AssertionError(f"{source} has no message {n} in {stream}")


async def test_a_replica_says_again_what_another_lost() -> None:
    """One that starts after a message of another was deleted becomes complete, and both have one digest."""
    async with world() as it:
        await it.worker("a")
        first = await it.router()
        await it.ready(first)
        stream = generate(first, "sim", request(range(60), max_tokens=30_000, id="long"))
        await anext(stream)
        await it.settled(first)
        await delete(it, ROUTING, first.publisher.id, 1)
        second = await it.router("frontend-1")
        await eventually(lambda: second.runner.caught_up, "the second has read the log")
        assert [(str(gap.source), gap.n_from, gap.n_to) for gap in second.state.gaps] == [
            (str(first.publisher.id), 1, 1)
        ]
        await eventually(lambda: second.state.incomplete == 0, "the second is complete")
        part = second.state.routing.replicas[ReplicaId(first.publisher.id)]
        assert list(part.in_flight) == [("long", 0)]
        assert any("lost track" in event.reason for event in await it.told(ROUTING, ReplicaRestated))
        await stream.aclose()
        await it.settled(first)
        await eventually(
            lambda: first.state.cursor == second.state.cursor and first.state.digest == second.state.digest,
            "one digest at one cursor",
        )


@pytest.mark.parametrize("lost", [0, 1], ids=["who it is", "what it stored"])
async def test_a_worker_is_asked_for_what_its_chain_lacks(lost: int) -> None:
    """Its cache is known again, to the one that lost it and to everybody; also to one that never heard who it is."""
    async with world() as it:
        worker = await it.worker("a")
        first = await it.router()
        await it.ready(first)
        for start in range(3):
            await collect(first, request(range(start, start + 60)))
            await it.settled(first)
        assert worker.publisher is not None
        await delete(it, KV, worker.publisher.id, lost)
        second = await it.router("frontend-1")
        await eventually(lambda: second.state.gaps_found == 1, "the gap is seen")
        await eventually(lambda: second.state.incomplete == 0, "the cache is known")
        await it.settled(second)
        assert second.background_tasks.restatement_requests.asked == 1
        assert first.background_tasks.restatement_requests.asked == 0
