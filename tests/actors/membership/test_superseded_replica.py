"""Replicas that are written off: who may do that, and how one goes on that lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.membership import failure_detector
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import ReplicaLost, RequestFinished, RequestRouted, SettingsChanged
from core.ids import SourceId, StreamName, StreamSeq, new_id
from core.prompt import Prompt
from core.subjects import LOAD, ROUTING, kv_stream, subject
from projections.folds.state import Applied
from tests.actors.world import NAMESPACE, collect, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Observations come often, so that tests wait little."""
    monkeypatch.setattr(failure_detector, "OBSERVE_EVERY_S", 0.02)
    yield


async def test_words_that_were_not_folded_yet_refute_an_end() -> None:
    """A replica that is not registered speaks; whoever judges it has not read on since."""
    async with world() as it:
        router = await it.router()
        who, last = new_id(), StreamSeq(0)
        where = subject(NAMESPACE, ROUTING, who)
        for n in range(3):
            messages_seen = encode_message(
                SourceId(who), n, CHAIN_START, 1, [encode_event(SettingsChanged(revision=1, settings={}))]
            )
            last = await it.log.append(ROUTING, where, messages_seen, f"{who}:{n}", last)
        losses, end = router.liveness_monitor.loss_log, ReplicaLost(by="x", reason="test")
        assert not await losses.append(ROUTING, who, end, messages_seen=2)
        assert await losses.append(ROUTING, who, end, messages_seen=3)


async def test_a_replica_written_off_goes_on_under_a_new_id() -> None:
    """What it has in flight is said again under the new id, and ends there; nothing is decided under the old one."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        before, known_as = router.publisher.id, list[str]()
        router.membership.on_new_id = known_as.append
        stream = generate(router, "sim", request(range(40), max_tokens=2000, id="long"))
        await anext(stream)
        await it.settled(router)
        await it.write_off(router, ROUTING, before)
        await collect(router, request(range(40), id="after"))  # its next word is refused
        await eventually(lambda: router.publisher.id != before, "a new life")
        assert known_as == [router.publisher.id]
        await collect(router, request(range(40), id="new"))
        outputs = [output async for output in stream]
        assert outputs[-1].finish == "length"
        await it.settled(router)
        fold = router.state.routing
        assert before in fold.ended
        assert not fold.in_flight_load.busy
        assert not router.publisher.pending_events.in_flight_load.busy
        ends = [event.request for event in await it.told(ROUTING, RequestFinished)]
        assert ends.count("long") == ends.count("new") == 1
        assert "new" in [event.request for event in await it.told(ROUTING, RequestRouted)]
        await eventually(
            lambda: [c.key for c in it.store.below("replicas/")] == [f"replicas/{router.publisher.id}"], "the new entry"
        )


async def test_a_replica_goes_on_anew_as_soon_as_it_reads_its_own_end() -> None:
    """Not only at its next word: its fold has nothing of it any more, and decisions would count what ended as less."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        stream = generate(router, "sim", request(range(40), max_tokens=2000, id="long"))
        await anext(stream)
        await it.settled(router)
        before, least = router.publisher.id, list[int]()
        folded = router.runner._on_applied

        def watched(applied: Applied) -> None:
            folded(applied)
            candidates = router.view().candidates(Prompt(bytes(4), 16, 0))
            least.extend(min(each.active_requests, each.active_blocks) for each in candidates)

        router.runner._on_applied = watched
        await it.write_off(router, ROUTING, before)
        await eventually(lambda: before in router.state.routing.ended, "its end to be folded")
        assert router.publisher.id != before
        await stream.aclose()
        await it.settled(router)
        assert min(least) >= 0


@pytest.mark.parametrize("stream", [LOAD, kv_stream(0)])
async def test_a_worker_that_goes_on_under_another_id_ends_in_every_stream(stream: StreamName) -> None:
    """Its end was written in one; what was restored may have lost the other, and would keep the old id for ever."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        old = worker.publisher
        assert old is not None
        await eventually(lambda: old.id in router.state.loads.reports, "a load report")
        await it.write_off(router, stream, old.id)
        old.restate()
        await eventually(lambda: worker.publisher is not old, "another id")
        await eventually(
            lambda: [member.worker for member in router.state.alive()] == [worker.current_publisher().id], "one life"
        )
        await eventually(lambda: old.id not in router.state.loads.chains, "the end of its load reports")
        await it.ready(router)
        await collect(router, request(range(40)))
