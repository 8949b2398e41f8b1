"""Who is found lost, and who is not: leases, connections and the log, each of which can be wrong alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from actors.membership import failure_detector
from actors.router import liveness_monitor
from actors.router.router import Router
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import (
    CacheCleared,
    Event,
    LoadReported,
    SettingsChanged,
    WorkerJoined,
    WorkerLost,
)
from core.events import ReplicaLost as Lost
from core.ids import SourceId, StreamName, StreamSeq, WorkerId, new_id
from core.models import GenerationFailed
from core.subjects import LOAD, ROUTING, kv_stream, subject
from tests.actors.world import LEASE_MS, NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate

KV = kv_stream(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Observations come often, so that tests wait little."""
    monkeypatch.setattr(failure_detector, "OBSERVE_EVERY_S", 0.02)
    monkeypatch.setattr(liveness_monitor, "PING_TIMEOUT_S", 0.2)
    yield


async def freeze(it: World, name: str) -> WorkerId:
    """The worker does nothing any more, as under SIGSTOP; its connections stand."""
    worker = it.workers[name]
    assert worker.publisher is not None
    assert worker.port._server is not None
    worker.engine.hang()  # type: ignore[attr-defined]
    await worker.publisher.end()
    worker.port._server.close()  # else what it had not yet accepted would be answered
    for connection in worker.port._connections:
        assert connection._transport is not None
        connection._transport.pause_reading()
    return worker.publisher.id


def worker_id(it: World, name: str) -> WorkerId:
    presence = it.workers[name].publisher
    assert presence is not None
    return presence.id


async def looks(router: Router, times: int = 3) -> None:
    """The router has observed its workers that often."""
    seen, observe = 0, router.liveness_monitor._observe

    def counted() -> failure_detector.Observed:
        nonlocal seen
        seen += 1
        return observe()

    router.liveness_monitor._observe = counted  # type: ignore[method-assign]
    await eventually(lambda: seen >= times, "observations")
    router.liveness_monitor._observe = observe  # type: ignore[method-assign]


async def test_a_worker_without_a_lease_that_answers_is_never_lost() -> None:
    """It is suspected, and used if there is nobody else; when it registers again all is well."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        worker = worker_id(it, "a")
        it.store.expire(f"workers/{worker}")
        await eventually(lambda: worker in router.failure_detector.suspected, "suspicion")
        await asyncio.sleep(2 * LEASE_MS / 1000)
        await looks(router)
        tokens, _ = await collect(router, request(range(40)))
        assert len(tokens) == 8
        assert not await it.told(KV, WorkerLost)
        await it.workers["a"].membership.register({})  # type: ignore[union-attr]
        await eventually(lambda: not router.failure_detector.suspected, "the end of the suspicion")


async def test_a_frozen_worker_is_lost_and_its_streams_end() -> None:
    """A connection that stands proves nothing: without lease and without answer it is lost, and nobody waits on it."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        stream = generate(router, "sim", request(range(40), max_tokens=100_000))
        await anext(stream)
        worker = await freeze(it, "a")
        it.store.expire(f"workers/{worker}")
        with pytest.raises(GenerationFailed):
            async for _ in stream:
                pass
        await eventually(lambda: not router.state.member(worker).alive, "the loss is folded")  # type: ignore[union-attr]
        assert [event.reason for event in await it.told(KV, WorkerLost)] == ["no lease, no answer"]
        await eventually(lambda: worker not in router.fleet.clients, "its link is gone")


async def test_an_open_stream_is_trusted_over_the_log() -> None:
    """Another replica wrote a worker off: tokens go on, it joins again, and the old connection goes with the stream."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        before = worker_id(it, "a")
        stream = generate(router, "sim", request(range(40), max_tokens=2000))
        await anext(stream)
        await it.write_off(router, KV, before)
        await it.workers["a"].membership.unregister()  # type: ignore[union-attr]
        await eventually(lambda: worker_id(it, "a") != before, "a new life")
        await eventually(lambda: worker_id(it, "a") in router.fleet.registered, "it is registered")
        await looks(router)
        outputs = [output async for output in stream]
        assert outputs[-1].finish == "length"
        await eventually(lambda: set(router.fleet.clients) == {worker_id(it, "a")}, "the old connection is gone")


async def test_more_than_half_at_once_is_the_registrys_fault() -> None:
    """For a lease time nobody is suspected; after it, those that TCP finds dead too are lost, and only those."""
    async with world() as it:
        for name in "abcd":
            await it.worker(name)
        router = await it.router()
        await it.ready(router, 4)
        dead = await it.crash("a")
        for worker in (dead, *(worker_id(it, name) for name in "bc")):
            it.store.expire(f"workers/{worker}")
        await eventually(lambda: len(router.fleet.registered) == 1, "all three vanish")
        await looks(router)
        assert not router.failure_detector.suspected
        assert not await it.told(KV, WorkerLost)
        await eventually(lambda: not router.state.member(dead).alive, "the dead one is lost")  # type: ignore[union-attr]
        await asyncio.sleep(2 * LEASE_MS / 1000)
        assert len(await it.told(KV, WorkerLost)) == 1


async def test_a_registry_that_is_away_makes_nobody_suspect() -> None:
    """A worker that dies meanwhile is left out by its connection, and lost when the registry is back."""
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        router = await it.router()
        await it.ready(router, 2)
        it.registries["frontend-0"].away = True
        dead = await it.crash("a")
        it.store.expire(f"workers/{dead}")
        await it.worker("c")  # it registers, but the router cannot hear of it
        await eventually(lambda: router.state.member(worker_id(it, "c")), "the new one is in the log")
        await asyncio.sleep(2 * LEASE_MS / 1000)
        await looks(router)
        assert not router.failure_detector.suspected
        assert not await it.told(KV, WorkerLost)
        await asyncio.gather(*(collect(router, request(range(i, i + 40))) for i in range(4)))
        it.registries["frontend-0"].away = False
        await eventually(lambda: len(router.state.alive()) == 2, "the dead one is lost")
        await it.ready(router, 2)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
async def test_a_worker_of_an_earlier_run_is_lost(address: str) -> None:
    """In the log, never in the registry, silent on TCP: after a lease time it is over, though nobody saw it die."""
    async with world() as it:
        worker = WorkerId(new_id())
        joined = WorkerJoined(
            name="old", model="sim", role="decode", engine="e", block_size=16, capacity_blocks=1, context_max=1,
            address=address, partition=0,
        )  # fmt: skip
        payload = encode_message(SourceId(worker), 0, CHAIN_START, 0, [encode_event(joined)])
        await it.log.append(KV, subject(NAMESPACE, KV, worker), payload, f"{worker}:0", StreamSeq(0))
        routers = [await it.router(f"frontend-{i}") for i in range(2)]
        for router in routers:
            await eventually(lambda router=router: router.state.member(worker), "it is folded")  # type: ignore[misc]
            await eventually(lambda router=router: not router.state.alive(), "it is lost")  # type: ignore[misc]
        assert len(await it.told(KV, WorkerLost)) == 1
        await eventually(lambda: not any(router.fleet.clients for router in routers), "no replica tries to reach it")


async def test_an_end_is_written_when_the_log_is_back() -> None:
    """While the log is away nothing can be said; it is said later, once."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        dead = await it.crash("a")
        it.log.away = True  # type: ignore[attr-defined]
        it.store.expire(f"workers/{dead}")
        await asyncio.sleep(2 * LEASE_MS / 1000)
        it.log.away = False  # type: ignore[attr-defined]
        await eventually(lambda: not router.state.alive(), "it is lost")
        assert len(await it.told(KV, WorkerLost)) == 1


async def test_a_replica_that_dies_is_lost_once_and_its_requests_with_it() -> None:
    """What it had in flight weighs on nobody any more, in every fold."""
    async with world() as it:
        await it.worker("a")
        routers = [await it.router(f"frontend-{i}") for i in range(3)]
        for router in routers:
            await it.ready(router)
        stream = generate(routers[0], "sim", request(range(40), max_tokens=100_000))
        await anext(stream)
        await eventually(lambda: routers[1].state.routing.in_flight_load.busy, "it is seen to be busy")
        dead = await it.crash_router("frontend-0")
        with pytest.raises(GenerationFailed):
            async for _ in stream:
                pass
        it.store.expire(f"replicas/{dead}")
        for router in routers[1:]:
            await eventually(lambda router=router: dead in router.state.routing.ended, "its end")  # type: ignore[misc]
            assert not router.state.routing.in_flight_load.busy
        assert len(await it.told(ROUTING, Lost)) == 1


async def test_a_replica_that_speaks_is_not_lost() -> None:
    """Its registration is gone, but its decisions come: it is the registry that lost it."""
    async with world() as it:
        await it.worker("a")
        routers = [await it.router(f"frontend-{i}") for i in range(2)]
        for router in routers:
            await it.ready(router)
        it.store.expire(f"replicas/{routers[0].publisher.id}")
        for _ in range(12):
            await asyncio.sleep(LEASE_MS / 4000)
            await collect(routers[0], request(range(40)))
        assert not await it.told(ROUTING, Lost)
        replica = routers[0].publisher.id
        await eventually(lambda: replica in routers[1].state.routing.ended, "silent it is lost")


async def test_a_lost_worker_leaves_nothing_in_any_fold() -> None:
    """Its end is written on its load subject too, once, whoever judges it; every fold has a tombstone and no part."""
    async with world() as it:
        await it.worker("a")
        routers = [await it.router(f"frontend-{i}") for i in range(2)]
        for router in routers:
            await it.ready(router)
        dead = worker_id(it, "a")
        await eventually(lambda: dead in routers[0].state.loads.reports, "a load report")
        await it.crash("a")
        it.store.expire(f"workers/{dead}")
        for router in routers:
            await eventually(lambda router=router: dead in router.state.loads.ended, "the end of its reports")  # type: ignore[misc]
            assert dead not in router.state.kv[KV].members
            assert dead not in router.state.loads.chains
            assert router.state.digest_of(KV) == router.state.digest_of(LOAD) == 0
        assert len(await it.told(KV, WorkerLost)) == len(await it.told(LOAD, WorkerLost)) == 1


async def test_the_end_of_load_reports_is_written_by_whoever_is_left() -> None:
    """The one who wrote the worker off died in between; reports of a worker that no kv stream knows end likewise."""
    async with world() as it:
        unknown, half = WorkerId(new_id()), WorkerId(new_id())
        for worker in (unknown, half):
            await append_as(it, LOAD, worker, LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=1))
        await append_as(it, KV, f"{half}-lost", WorkerLost(by="x", reason="test"), about=half)
        router = await it.router()
        await eventually(lambda: {unknown, half} <= router.state.loads.ended.keys(), "both ends")
        assert not router.state.loads.chains
        assert len(await it.told(LOAD, WorkerLost)) == 2


async def test_who_never_joined_as_far_as_we_know_is_lost_in_time() -> None:
    """The log's head was cut: a worker and a replica of which the word of joining is gone, and that say nothing."""
    async with world() as it:
        worker, replica = WorkerId(new_id()), new_id()
        await append_as(it, KV, worker, CacheCleared(reason="late"), n=5)
        await append_as(it, ROUTING, replica, SettingsChanged(revision=1, settings={}), n=5)
        router = await it.router()
        await eventually(lambda: worker in router.state.kv[KV].members, "it is folded")
        assert router.state.incomplete == 2
        await eventually(lambda: worker in router.state.kv[KV].ended, "the worker is lost")
        await eventually(lambda: replica in router.state.routing.ended, "the replica is lost")
        assert router.state.incomplete == 0


async def test_a_registered_worker_that_never_joined_is_not_lost() -> None:
    """It lives, and will restate itself."""
    async with world() as it:
        worker = WorkerId(new_id())
        await append_as(it, KV, worker, CacheCleared(reason="late"), n=5)
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        router.fleet.registered[worker] = router.fleet.registered[worker_id(it, "a")]
        await asyncio.sleep(4 * LEASE_MS / 1000)
        await looks(router)
        assert worker in router.state.kv[KV].members


async def test_a_leaving_worker_leaves_both_streams() -> None:
    """It says so itself, in each."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        left = worker_id(it, "a")
        await it.workers.pop("a").stop("done", drain=False)
        await eventually(lambda: left in router.state.kv[KV].ended and left in router.state.loads.ended, "its ends")
        assert router.state.loads.ended[left] == "left: done"
        assert not await it.told(LOAD, WorkerLost)


async def test_a_damaged_last_word_does_not_keep_an_end_from_being_written() -> None:
    """What stands last on the subject of a lost worker cannot be read: the end follows it all the same."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await collect(router, request(range(40)))
        await it.settled(router)
        dead = await it.crash("a")
        where = subject(NAMESPACE, KV, dead)
        last = await it.log.last(KV, where)
        assert last is not None
        it.log.rewrite(KV, last.seq, b"damaged")  # type: ignore[attr-defined]
        it.store.expire(f"workers/{dead}")
        await eventually(lambda: dead in router.state.kv[KV].ended, "it is lost")


async def append_as(it: World, stream: StreamName, source: str, event: Event, *, n: int = 0, about: str = "") -> None:
    """One message of somebody who is not there."""
    where = subject(NAMESPACE, stream, about or source)
    payload = encode_message(SourceId(source), n, CHAIN_START, 0, [encode_event(event)])
    await it.log.append(stream, where, payload, f"{source}:{n}", StreamSeq(0))


async def test_observing_goes_on_after_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    """An observation that fails is logged with its trace, and the next one comes."""
    async with world() as it:
        router = await it.router()
        observe, failed = router.liveness_monitor._observe, 0

        def fail() -> failure_detector.Observed:
            nonlocal failed
            failed += 1
            raise ZeroDivisionError

        router.liveness_monitor._observe = fail  # type: ignore[method-assign]
        await eventually(lambda: failed > 1, "failures")
        router.liveness_monitor._observe = observe  # type: ignore[method-assign]
        assert "failed by a defect" in caplog.text
        assert "ZeroDivisionError" in caplog.text
