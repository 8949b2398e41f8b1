"""What a replica says: every attempt ends once, whatever happens to client, worker, log and registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from actors.membership import routing_publisher
from actors.membership import routing_publisher as publisher_module
from actors.router.router import Router
from core.errors import CallerError, Refused, Unavailable
from core.events import (
    LocalChanged,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    SettingsChanged,
)
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId, StreamName, StreamSeq
from core.models import GenerationFailed, NoWorkers
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.state import State
from streams.memory.memory_log import MemoryLog
from streams.outbox.backlog import MemoryBacklog, OutboxLimits
from tests.actors.scripted_engine import ScriptedEngine
from tests.actors.world import KEY, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate


def answer(router: Router, asked: GenerateRequest) -> AsyncGenerator[Output, None]:
    return generate(router, "sim", asked)


async def scripted(it: World) -> tuple[Router, ScriptedEngine]:
    """A router with one worker whose every token a test gives."""
    engine = ScriptedEngine()
    await it.worker("a", engine=engine)
    router = await it.router()
    await it.ready(router)
    return router, engine


async def outcomes(it: World, router: Router) -> list[tuple[str, int, str]]:
    """Every end that was said, once all is in the log and nothing is in flight."""
    await it.settled(router)
    assert not router.scheduler.running
    assert not router.state.routing.in_flight_load.busy
    assert not router.publisher.pending_events.in_flight_load.busy
    ended = await it.told(ROUTING, RequestFinished)
    assert len(ended) == len(await it.told(ROUTING, RequestRouted))
    return [(event.request, event.attempt, event.outcome) for event in ended]


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("way", ["cancel", "aclose", "throw"])
async def test_a_client_that_leaves_is_said_once(way: str, tokens: int) -> None:
    """Before the first token or after it: said once, and the engine stops. A reader that fails is an error."""
    async with world() as it:
        router, engine = await scripted(it)
        stream = answer(router, request(range(40), id="x"))
        for _ in range(tokens):
            engine.script("x").put_nowait(Output(tokens=(1,), cached_tokens=0))
            await anext(stream)
        if way == "cancel" or not tokens:
            reading = asyncio.create_task(stream.__anext__())
            await eventually(lambda: it.workers["a"].port.streams, "it is being served")
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
        elif way == "aclose":
            await stream.aclose()
        else:
            with pytest.raises(KeyError):
                await stream.athrow(KeyError())
        await stream.aclose()
        await eventually(lambda: engine.ended == ["x"], "the engine stopped")
        assert await outcomes(it, router) == [("x", 0, "error" if way == "throw" and tokens else "abort")]
        assert len(await it.told(ROUTING, RequestPrefilled)) == tokens


async def test_a_caller_s_error_is_not_tried_again() -> None:
    """The engine's refusal is the client's answer, and the worker is not blamed."""
    async with world() as it:
        router, engine = await scripted(it)
        engine.script("x").put_nowait(CallerError("too long"))
        with pytest.raises(CallerError, match="too long"):
            await collect(router, request(range(40), id="x"))
        assert await outcomes(it, router) == [("x", 0, "error")]
        assert not router.fleet._failed_ms


async def test_an_attempt_that_fails_before_the_first_token_is_made_again() -> None:
    """Each attempt has its own routing and its own end; with no worker left after the last, the client hears 503."""
    async with world() as it:
        router, engine = await scripted(it)
        for item in (Unavailable("full"), Output(tokens=(1,), finish="stop")):
            engine.script("x").put_nowait(item)
        tokens, _ = await collect(router, request(range(40), id="x"))
        assert tokens == [1]
        for _ in range(3):
            engine.script("y").put_nowait(Unavailable("full"))
        with pytest.raises(NoWorkers, match="3 workers failed"):
            await collect(router, request(range(40), id="y"))
        engine.script("z").put_nowait(Output(tokens=(1,)))
        for _ in range(5):
            engine.script("z").put_nowait(Unavailable("full"))
        with pytest.raises(GenerationFailed, match=r"5 workers broke off, the last one: .*full"):
            await collect(router, request(range(40), id="z"))
        assert await outcomes(it, router) == [
            ("x", 0, "worker_lost"), ("x", 1, "stop"),
            *(("y", attempt, "worker_lost") for attempt in range(3)),
            *(("z", attempt, "worker_lost") for attempt in range(5)),
        ]  # fmt: skip


async def test_a_decision_that_the_log_lost_and_takes_again_counts_until_its_end() -> None:
    """The log stored it without an acknowledgement, and went back. Its end alone counted, as less than no load."""
    async with world() as it:
        router, engine = await scripted(it)
        await it.settled(router)
        log, end = it.log, (await it.log.state(ROUTING)).last_seq
        assert isinstance(log, MemoryLog)
        log.acks_to_lose = 1000
        stream = answer(router, request(range(40), id="x"))
        engine.script("x").put_nowait(Output(tokens=(1,), cached_tokens=0))
        await anext(stream)
        await eventually(lambda: router.state.cursor[ROUTING].seq > end, "the decision was read back")
        log.acks_to_lose, log.full = 0, True
        log.cut(ROUTING, end)
        await eventually(lambda: router.runner.rebuilds, "a fold without it")
        assert in_flight(router) == 1
        await stream.aclose()
        await eventually(lambda: not router.scheduler.running, "it is over")
        assert in_flight(router) == 0
        log.full = False
        assert await outcomes(it, router) == [("x", 0, "abort")]


def in_flight(router: Router) -> int:
    """Requests in flight on all workers, as a decision counts them."""
    loads = router.state.routing.in_flight_load, router.publisher.pending_events.in_flight_load
    return sum(busy.requests for load in loads for busy in load.busy.values())


async def test_one_id_twice_at_a_time_is_two_requests() -> None:
    """The second gets a name of its own; after the first has ended, the id is free again."""
    async with world() as it:
        router, engine = await scripted(it)
        first = answer(router, request(range(40), id="x"))
        engine.script("x").put_nowait(Output(tokens=(1,)))
        assert (await anext(first)).tokens == (1,)
        second = asyncio.create_task(collect(router, request(range(40), id="x")))
        await eventually(lambda: len(router.scheduler.running) == 2, "both are under way")
        (other,) = {each.id for each in router.scheduler.running} - {"x"}
        engine.script(other).put_nowait(Output(tokens=(2,), finish="stop"))
        assert (await second)[0] == [2]
        await first.aclose()
        await eventually(lambda: engine.ended == [other, "x"], "the first has ended")
        engine.script("x").put_nowait(Output(tokens=(3,), finish="stop"))
        assert (await collect(router, request(range(40), id="x")))[0] == [3]
        assert [outcome for *_, outcome in await outcomes(it, router)] == ["stop", "abort", "stop"]


async def test_a_request_that_cannot_be_sent_leaves_no_trace() -> None:
    """Longer than a frame: the caller's error, no decision in the log, nothing in flight."""
    async with world() as it:
        router, _ = await scripted(it)
        long = GenerateRequest(id=RequestId("x"), tokens=bytes(17 << 20), sampling=Sampling(max_tokens=1))
        with pytest.raises(CallerError, match="at most"):
            await collect(router, long)
        assert await outcomes(it, router) == []


@pytest.mark.parametrize("pending_max", [routing_publisher.PENDING_EVENTS_MAX, 10])
async def test_events_dropped_while_the_log_is_away_are_made_good(
    monkeypatch: pytest.MonkeyPatch, pending_max: int
) -> None:
    """The outbox overflows; afterwards the fold has exactly what is in flight, and a fold from zero agrees.

    So it is when even what is ahead of the log had to be forgotten, which keeps it bounded.
    """
    monkeypatch.setattr(routing_publisher, "PENDING_EVENTS_MAX", pending_max)
    async with world() as it:
        router, engine = await scripted(it)
        limits = OutboxLimits(pending_events_max=20)
        router.publisher.outbox._backlog = MemoryBacklog(limits)
        it.log.away = True  # type: ignore[attr-defined]
        for number in range(30):
            engine.script(f"x{number}").put_nowait(Output(tokens=(1,), finish="stop"))
            await collect(router, request(range(40), id=f"x{number}"))
        long = answer(router, request(range(80), id="long"))
        engine.script("long").put_nowait(Output(tokens=(1,)))
        await anext(long)
        assert router.publisher.outbox.counts.overflows
        appending = limits.pending_events_max  # at most, sealed in one message before the others had to wait
        assert len(router.publisher.pending_events) <= max(pending_max, appending + limits.pending_events_max + 1)
        it.log.away = False  # type: ignore[attr-defined]
        await eventually(lambda: router.publisher.outbox.idle, "the log has the restatement")
        engine.script("behind").put_nowait(Output(tokens=(1,), finish="stop"))
        await collect(router, request(range(40), id="behind"))  # one of two equal restatements stays until the next
        await it.settled(router)
        replica = router.state.routing.replicas[router.publisher.id]
        assert list(replica.in_flight) == [("long", 0)]
        assert replica.joined is not None
        assert replica.settings
        assert sum(busy.requests for busy in router.state.routing.in_flight_load.busy.values()) == 1
        await long.aclose()
        await it.settled(router)
        assert not router.state.routing.in_flight_load.busy
        fresh = State(KEY.chain_key)
        for stream, (epoch, seq) in router.state.cursor.items():
            fresh.open(stream, epoch)
            async for record in it.log.read(stream, StreamSeq(1)):
                if record.seq <= seq:
                    fresh.apply(stream, record.seq, record.subject, record.payload)
        assert fresh.digest == router.state.digest


async def test_a_log_that_refuses_for_good_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go on, what is kept of them stays bounded, and whoever looks sees that nothing is recorded any more."""
    monkeypatch.setattr(routing_publisher, "PENDING_EVENTS_MAX", 10)
    async with world() as it:
        router, engine = await scripted(it)
        append = it.log.append

        async def refuse(stream: StreamName, *rest: Any) -> StreamSeq:
            if stream == ROUTING:
                raise Refused("no right to publish")
            return await append(stream, *rest)

        monkeypatch.setattr(it.log, "append", refuse)
        for number in range(30):
            engine.script(f"x{number}").put_nowait(Output(tokens=(1,), finish="stop"))
            await collect(router, request(range(40), id=f"x{number}"))
            await eventually(lambda: router.publisher.outbox.error, "the refusal, after the first one")
        readiness = router.ready()
        assert not readiness.ready
        assert readiness.waiting_for["log"] == "takes nothing of this replica any more: no right to publish"
        await eventually(lambda: router.publisher.outbox.away_s > 0, "the time since then")
        assert len(router.publisher.pending_events) <= 13


async def test_a_history_that_was_replaced_is_told_again() -> None:
    """Streams made anew hold, soon after, who is there and what is in flight; requests go on."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        stream = answer(router, request(range(60), max_tokens=3000, id="long"))
        await anext(stream)
        await it.settled(router)
        for name in router.state.cursor:
            it.log.remake(name)  # type: ignore[attr-defined]
        it.workers["a"].publisher.restate()  # type: ignore[union-attr]  # else it looks for its end every ten seconds
        router.publisher.publish_local({"stale": frozenset()})
        await eventually(lambda: router.runner.resets == 3, "the resets")
        await it.ready(router)
        outputs = [output async for output in stream]
        assert outputs[-1].finish == "length"
        await collect(router, request(range(60)))
        await it.settled(router)
        assert router.state.routing.replicas[router.publisher.id].joined is not None
        assert not router.state.routing.in_flight_load.busy
        assert router.state.incomplete == 0


async def test_only_changes_of_what_we_alone_know_are_said() -> None:
    """Worker by worker, and its end too; a restatement says what stands."""
    async with world() as it:
        router, _ = await scripted(it)
        worker = router.state.alive()[0].worker
        router.publisher.publish_local(router.view().local)
        router.fleet.on_request_failed(worker)
        for _ in range(3):
            router.publisher.publish_local(router.view().local)
        router.publisher.restate([router.scheduler.restatement("test")])
        router.fleet._failed_ms.clear()
        for _ in range(3):
            router.publisher.publish_local(router.view().local)
        await it.settled(router)
        said = [event.reasons for event in await it.told(ROUTING, LocalChanged) if event.worker == worker]
        assert said[-3:] == [("failed",), ("failed",), ()]
        assert router.state.routing.replicas[router.publisher.id].local == {}


@pytest.mark.parametrize("away", ["log", "registry"])
async def test_stop_is_bounded_whatever_is_away(away: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection and no task is left in time."""
    monkeypatch.setattr(publisher_module, "LEAVE_TIMEOUT_S", 0.1)
    async with world() as it:
        router, _ = await scripted(it)
        if away == "log":
            it.log.away = True  # type: ignore[attr-defined]
        else:
            it.registries["frontend-0"].away = True
        began = time.monotonic()
        await it.routers.pop("frontend-0").stop("test")
        assert time.monotonic() - began < 2
        await eventually(lambda: not it.workers["a"].port._connections, "no connection is left")
        assert not router._tasks
        it.log.away = False  # type: ignore[attr-defined]
        assert len(await it.told(ROUTING, ReplicaLeft)) == (away == "registry")


async def test_a_clean_end_is_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    """What the replica itself wrote last is read back, and no reason for a warning."""
    async with world() as it:
        router, _ = await scripted(it)
        leave = router.publisher.leave

        async def and_read(reason: str) -> None:
            await leave(reason)
            await eventually(lambda: router.publisher.id in router.state.routing.ended, "its own end is folded")

        router.publisher.leave = and_read  # type: ignore[method-assign]
        await it.routers.pop("frontend-0").stop("test")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_a_start_without_the_registry_leaves_nothing() -> None:
    """Unavailable is said, and nothing goes on in the background."""
    async with world() as it:
        it.registry("frontend-0").away = True
        before = asyncio.all_tasks()
        with pytest.raises(Unavailable):
            await it.router()
        assert asyncio.all_tasks() == before


async def test_whoever_writes_our_end_while_we_leave_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica does not come back under a new id."""
    async with world() as it:
        router, _ = await scripted(it)
        leave = router.publisher.leave

        async def too_late(reason: str) -> None:
            await it.write_off(router, ROUTING, router.publisher.id)
            await leave(reason)

        monkeypatch.setattr(router.publisher, "leave", too_late)
        await it.routers.pop("frontend-0").stop("test")
        assert len(await it.told(ROUTING, ReplicaJoined)) == 1
        assert not it.store.below("replicas/")


async def test_settings_are_what_was_configured_and_the_registry_over_it() -> None:
    """Nonsense is refused and changes nothing; what is missing stays as configured; a deletion takes all back."""
    async with world() as it:
        router = await it.router(settings=RoutingSettings(policy="kv", request_weight_m=7000))
        live = router.live_settings
        for revision, bad in enumerate((b"", b"[]", b"null", b"3", b'{"policy": "none"}', b'{"request_weight": 1e9}')):
            it.store.put("settings/routing", bad)
            it.store.put("settings/routing.bak", b'{"policy": "random"}')
            await asyncio.sleep(0)
            assert (live.current, live.revision) == (RoutingSettings(policy="kv", request_weight_m=7000), 0), revision
        it.store.put("settings/routing", b'{"policy": "random"}')
        await eventually(lambda: router.settings == RoutingSettings(policy="random", request_weight_m=7000), "a change")
        it.registries["frontend-0"].away = True
        it.store.put("settings/routing", b'{"policy": "round-robin"}')
        await asyncio.sleep(0)
        assert router.settings.policy == "random"
        it.registries["frontend-0"].away = False
        await eventually(lambda: router.settings.policy == "round-robin", "what was missed")
        it.store.delete("settings/routing")
        await eventually(lambda: router.settings.policy == "kv", "what was configured")
        await it.settled(router)
        said = [event.settings["policy"] for event in await it.told(ROUTING, SettingsChanged)]
        assert said == ["kv", "random", "round-robin", "kv"]


async def test_a_part_that_fails_is_said_where_people_look(caplog: pytest.LogCaptureFixture) -> None:
    """A replica with a defect is not ready."""
    async with world() as it:
        router, _ = await scripted(it)

        async def fail() -> None:
            raise ZeroDivisionError

        router._spawn(fail())
        await eventually(lambda: not router.ready()[0], "it is not ready")
        assert "ZeroDivisionError" in router.ready()[1]["router"]
        assert "a part of the router failed" in caplog.text


async def test_all_that_counts_is_said_now_and_then() -> None:
    """Who we are, our settings, our requests, what we alone know: a log whose head was cut is whole after that."""
    async with world() as it:
        engine = ScriptedEngine()
        await it.worker("a", engine=engine)
        router = await it.router(restate_every_s=0.05)
        await it.ready(router)
        stream = answer(router, request(range(40), id="x"))
        engine.script("x").put_nowait(Output(tokens=(1,)))
        await anext(stream)

        def restated() -> bool:
            part = router.state.routing.replicas[router.publisher.id]
            return part.chain.n_next > 6 and list(part.in_flight) == [("x", 0)]

        await eventually(restated, "restatements")
        await stream.aclose()
        assert len(await it.told(ROUTING, ReplicaJoined)) > 1
        assert any(event.requests == ("x",) for event in await it.told(ROUTING, ReplicaRestated))
