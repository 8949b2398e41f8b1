"""A replica with real workers on simulated engines: what it decides, says, and survives."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from actors.router.routed_request import Phase
from actors.router.router import Router
from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.codec import decode_message
from core.events import RequestFinished, RequestMigrated, RequestPrefilled, RequestRejected, RequestRouted, WorkerLost
from core.events.routing import RequestQueued
from core.ids import StreamSeq
from core.models import GenerationFailed, NoWorkers, UnknownModel
from core.settings import RoutingSettings
from core.subjects import ROUTING, kv_stream
from projections.folds.state import State
from replay.explain.explain import explain
from tests.actors.world import FAST, KEY, NAMESPACE, Discarding, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate
from tests.replay.recorded import recorded


async def events_of(it: World, stream: str) -> list[object]:
    """Every event of the stream, in order."""
    return [
        event
        async for record in it.log.read(stream, StreamSeq(1))  # type: ignore[arg-type]
        for event in decode_message(record.payload).events
    ]


async def test_request_goes_where_its_prefix_is() -> None:
    """From the second turn on a conversation stays on its worker, and the prediction is what the engine says."""
    async with world() as it:
        for name in ("a", "b"):
            await it.worker(name)
        router = await it.router()
        await eventually(lambda: router.ready()[0], "ready")
        prompts = {talk: [talk * 100 + i for i in range(40)] for talk in range(1, 4)}
        used: dict[int, set[str]] = {talk: set() for talk in prompts}
        for turn in range(5):
            for talk, prompt in prompts.items():
                tokens, outputs = await collect(router, request(prompt, id=f"t{talk}-{turn}"))
                cached = [o.cached_tokens for o in outputs if o.cached_tokens is not None]
                assert (cached[0] > 0) == (turn > 0)
                prompts[talk] = [*prompt, *tokens, turn + 7, talk + 7]
                await it.settled(router)
        for event in await events_of(it, ROUTING):
            if isinstance(event, RequestRouted):
                used[int(event.request[1])].add(event.worker)
                predicted = {(event.request, event.attempt): event.predicted_cached_tokens}
            elif isinstance(event, RequestPrefilled):
                assert predicted[event.request, event.attempt] == event.cached_tokens
        assert all(len(workers) == 1 for workers in used.values())


async def test_fold_from_zero_equals_live() -> None:
    """The log folded from its start gives the digest of the live replica."""
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        router = await it.router()
        await eventually(lambda: router.ready()[0], "ready")
        await asyncio.gather(*(collect(router, request(range(i, i + 70))) for i in range(20)))
        await it.settled(router)
        fresh = State(KEY.chain_key)
        for stream, (epoch, seq) in router.state.cursor.items():
            fresh.open(stream, epoch)
            async for record in it.log.read(stream, StreamSeq(1)):
                if record.seq <= seq:
                    fresh.apply(stream, record.seq, record.subject, record.payload)
        assert fresh.cursor == router.state.cursor
        assert fresh.digest == router.state.digest


async def test_every_routed_request_has_one_end() -> None:
    """RequestFinished comes exactly once per attempt, also when the client goes away; nothing stays in flight."""
    async with world() as it:
        await it.worker("a", settings=FAST)
        router = await it.router()
        await eventually(lambda: router.ready()[0], "ready")
        await collect(router, request(range(50), id="whole"))
        stream = generate(router, "sim", request(range(60), max_tokens=500, id="left"))
        await anext(stream)
        await stream.aclose()
        satisfied = generate(router, "sim", request(range(70), max_tokens=500, id="stopped"), lambda: "stop")
        await anext(satisfied)
        await satisfied.aclose()
        await eventually(lambda: not it.workers["a"].engine.load().running, "the engine stopped")
        await it.settled(router)
        ends = {e.request: e.outcome for e in await events_of(it, ROUTING) if isinstance(e, RequestFinished)}
        assert ends == {"whole": "length", "left": "abort", "stopped": "stop"}
        assert not router.view().state.routing.in_flight_load.busy
        assert not router.publisher.pending_events.in_flight_load.busy


async def test_dead_worker_is_left_out_at_once_and_lost_once() -> None:
    """After a crash the next request goes to the other worker; WorkerLost stands in the log once, from two replicas."""
    async with world() as it:
        a, _ = await it.worker("a"), await it.worker("b")
        routers = [await it.router(f"frontend-{i}") for i in range(2)]
        for router in routers:
            await connected(router, 2)
        await asyncio.gather(*(collect(routers[i % 2], request(range(i, i + 40))) for i in range(6)))
        dead = await it.crash("a")
        for i in range(4):
            await collect(routers[i % 2], request(range(500 + i, 560 + i)))
        it.store.expire(f"workers/{dead}")
        await eventually(lambda: all(r.state.member(dead).ended for r in routers), "the loss is known")  # type: ignore[union-attr]
        lost = [e for e in await events_of(it, kv_stream(0)) if isinstance(e, WorkerLost)]
        assert len(lost) == 1
        assert all(not r.state.index.held(dead) for r in routers)
        assert a.engine is not None


async def connected(router: Router, workers: int) -> None:
    """The router can use that many workers."""
    await eventually(lambda: sum(card.workers for card in router.models()) == workers, f"{workers} workers")


async def test_an_answer_goes_on_elsewhere_when_its_worker_dies(tmp_path: Path) -> None:
    """The client sees neither a repeated nor a missing token, and the log says where it went on."""
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        router = await it.router()
        await it.ready(router, 2)
        whole, _ = await collect(router, request(range(60), max_tokens=2000))
        outputs = []
        async for output in generate(router, "sim", request(range(60), max_tokens=2000)):
            outputs.append(output)
            if len(outputs) == 3:
                by_id = {str(w.publisher.id): name for name, w in it.workers.items() if w.publisher}
                await it.crash(by_id[next(iter(router.scheduler.running)).worker])
        assert [token for output in outputs for token in output.tokens] == whole
        assert [output.cached_tokens for output in outputs if output.cached_tokens is not None] == [
            outputs[0].cached_tokens
        ]
        (moved,) = await it.told(ROUTING, RequestMigrated)
        routed = [e for e in await it.told(ROUTING, RequestRouted) if e.request == moved.request]
        assert [(e.attempt, e.prompt_tokens) for e in routed] == [(0, 60), (1, 60 + moved.told_tokens)]
        assert (moved.attempt, moved.worker) == (1, routed[0].worker)
        recording = await recorded(it.log, NAMESPACE, KEY, tmp_path / "log")
    with recording:
        told = explain(recording, moved.request)
    assert [attempt.told_tokens for attempt in told.attempts] == [0, moved.told_tokens]
    assert f"goes on  behind {moved.told_tokens} tokens" in render(explain_text(told))


async def test_unfinished_stream_fails_and_untouched_one_moves() -> None:
    """The only worker dies after its first token: the request fails; before it, another worker takes over unseen."""
    async with world() as it:
        await it.worker("a", settings=FAST)
        router = await it.router()
        await eventually(lambda: router.ready()[0], "ready")
        stream = generate(router, "sim", request(range(60), max_tokens=3000))
        await anext(stream)
        await it.crash("a")
        with pytest.raises(GenerationFailed):
            async for _ in stream:
                pass
        with pytest.raises(NoWorkers):
            await collect(router, request(range(60), tenant="team"))
        await it.worker("b")
        await eventually(lambda: router.ready()[0], "ready")
        tokens, _ = await collect(router, request(range(60)))
        assert len(tokens) == 8
        await it.settled(router)
        assert "team" in {e.tenant for e in await events_of(it, ROUTING) if isinstance(e, RequestRejected)}


async def test_worker_written_off_comes_back_under_a_new_id() -> None:
    """Lost is final: a living worker that finds its end in the log joins again with its cache restated."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router(settings=RoutingSettings(hold_max_ms=0))
        await eventually(lambda: router.ready()[0], "ready")
        await collect(router, request(range(100)))
        await it.settled(router)
        assert worker.publisher is not None
        before = worker.publisher.id
        await it.write_off(router, kv_stream(0), before)
        # at once, while the router still takes it for alive: the worker's next word is refused
        await router.run("sim", request(range(300)), Discarding())
        await eventually(lambda: worker.publisher is not None and worker.publisher.id != before, "a new life")
        await it.settled(router)
        member = router.state.member(before)
        assert member is not None
        assert member.ended
        _, outputs = await collect(router, request(range(100)))
        assert max(o.cached_tokens or 0 for o in outputs) == 96


async def test_two_models_keep_apart() -> None:
    """Each request reaches only its own model's workers; one model without workers is refused alone."""
    async with world() as it:
        await it.worker("a", model="left")
        await it.worker("b", model="right")
        router = await it.router()
        await eventually(lambda: len(router.models()) == 2 and router.ready()[0], "both models")
        for _ in range(3):
            await collect(router, request(range(40)), "left")
            await collect(router, request(range(40)), "right")
        with pytest.raises(UnknownModel):
            await collect(router, request(range(40)), "middle")
        gone = await it.crash("b")
        await eventually(lambda: not router.card("right").workers, "right is gone")
        with pytest.raises(NoWorkers):
            await collect(router, request(range(40)), "right")
        assert router.ready().waiting_for == {"model right": "no worker is connected"}
        it.store.expire(f"workers/{gone}")
        await eventually(lambda: router.ready().degraded == {"model right": "no worker is connected"}, "left is served")
        assert router.ready().ready
        await collect(router, request(range(40)), "left")
        await it.settled(router)
        routed = [e for e in await events_of(it, ROUTING) if isinstance(e, RequestRouted)]
        by_model = {model: {e.worker for e in routed if e.model == model} for model in ("left", "right")}
        assert len(by_model["left"]) == len(by_model["right"]) == 1
        assert not by_model["left"] & by_model["right"]


async def test_a_request_waits_while_the_log_has_lost_the_joins() -> None:
    """The workers' stream was made anew, and their worker has not restated itself yet: the request is not refused."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await eventually(lambda: router.ready()[0], "ready")
        worker._restated_ms = it.clock.monotonic_ms()  # it was asked just now, and hears no other for ten seconds
        it.log.remake(kv_stream(0))  # type: ignore[attr-defined]
        await eventually(lambda: not router.state.alive(), "the fold of the new stream")
        asked = asyncio.create_task(collect(router, request(range(40))))
        await eventually(lambda: [each.phase for each in router.scheduler.requests.values()] == [Phase.WAITING], "wait")
        worker.current_publisher().restate()
        tokens, _ = await asked
        assert len(tokens) == 8
        assert not [event for event in await events_of(it, ROUTING) if isinstance(event, RequestRejected)]


async def test_a_model_without_workers_is_served_where_a_planner_starts_them() -> None:
    """Also by a replica that never saw a worker: it is ready, it lists the model by all its names, and requests wait
    for the first worker."""
    from_zero: dict[str, Any] = {"from_zero": frozenset({"sim"})}
    async with world() as it:
        early = await it.router("frontend-0", **from_zero)
        with pytest.raises(NoWorkers, match="start one"):
            await collect(early, request(range(40)))
        assert not early.ready().ready
        await it.worker("a", aliases=("other",))
        await it.ready(early)
        await eventually(lambda: any(key.endswith("/card") for key in it.store._keys), "the model is kept")
        await it.workers.pop("a").stop("the fleet is idle")
        router = await it.router("frontend-1", **from_zero)
        stranger = await it.router("frontend-2")
        await eventually(lambda: router.ready()[0] and not early.state.alive(), "ready")
        assert not early.ready().degraded
        assert not stranger.ready().ready
        for each in (early, router):
            (card,) = each.models()
            assert (card.name, card.workers, card.further_names) == ("sim", 0, ("other",))
            assert each.model_of("other") == "sim"
            assert card.files == early.card("sim").files
        asked = [asyncio.create_task(collect(each, request(range(40)))) for each in (early, router)]
        await eventually(lambda: early.scheduler.waiting == router.scheduler.waiting == 1, "both wait")
        await it.worker("b", settings=dataclasses.replace(FAST, context_max=4096))
        for tokens, _ in await asyncio.gather(*asked):
            assert len(tokens) == 8
        await eventually(lambda: router.card("sim").context_max == 4096, "the model is learned from the worker")
        assert [each.why for each in await events_of(it, ROUTING) if isinstance(each, RequestQueued)] == [
            "no_worker"
        ] * 2


async def test_log_away_fails_no_request() -> None:
    """While the log is away requests are served from the last known state; afterwards index and caches agree."""
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        router = await it.router()
        await eventually(lambda: router.ready()[0], "ready")
        await collect(router, request(range(100)))
        it.log.away = True  # type: ignore[attr-defined]
        results = await asyncio.gather(*(collect(router, request(range(i, i + 90))) for i in range(30)))
        assert all(len(tokens) == 8 for tokens, _ in results)
        it.log.away = False  # type: ignore[attr-defined]
        await it.settled(router)
        assert router.state.incomplete == 0


async def test_live_settings_count_from_the_next_decision() -> None:
    """A setting changed in the registry is said in the log before the first decision under it; a bad one is refused."""
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        router = await it.router(settings=RoutingSettings(policy="round-robin"))
        await eventually(lambda: router.ready()[0], "ready")
        it.store.put("settings/routing", b'{"policy": "least-loaded"}')
        it.store.put("settings/routing", b'{"policy": "no such"}')
        await eventually(lambda: router.settings.policy == "least-loaded", "the new policy")
        await collect(router, request(range(40)))
        await it.settled(router)
        names = [type(e).__name__ for e in await events_of(it, ROUTING)]
        assert names.count("SettingsChanged") == 2
        assert names.index("RequestRouted") > max(i for i, n in enumerate(names) if n == "SettingsChanged")
