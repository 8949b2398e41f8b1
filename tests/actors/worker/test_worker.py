"""A worker's life: how it starts, drains, rejoins and ends, with every plane away once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from actors.membership import worker_publisher as worker_publisher_module
from actors.membership.registration import advertised_address
from actors.worker import engine_watchdog
from actors.worker import worker as worker_module
from actors.worker.model_files import tokenizer_files
from actors.worker.worker import Worker
from core.errors import CallerError, EngineDead
from core.events import CacheRestated, LoadReported, RequestMigrated, WorkerJoined, WorkerLeft, WorkerLost
from core.ids import WorkerId
from core.models import GenerationFailed, NoWorkers
from core.subjects import LOAD, ROUTING, kv_stream
from tests.actors.scripted_engine import ScriptedEngine
from tests.actors.world import collect, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate

KV = kv_stream(0)


def worker_id(worker: Worker) -> WorkerId:
    assert worker.publisher is not None
    return worker.publisher.id


async def test_it_is_ready_when_the_log_knows_it() -> None:
    """Not while the log is away, not when it drains, not when the log takes nothing more from it."""
    async with world() as it:
        it.log.away = True  # type: ignore[attr-defined]
        worker = await it.worker("a")
        await asyncio.sleep(0.05)
        assert not worker.ready
        it.log.away = False  # type: ignore[attr-defined]
        await eventually(lambda: worker.ready, "readiness")
        assert worker.publisher is not None
        worker.publisher.kv.ended = True
        assert not worker.ready
        worker.publisher.kv.ended = False
        worker.port.draining = True
        assert not worker.ready


@pytest.mark.parametrize("away", ["log", "registry", "both"])
async def test_stop_is_bounded_whatever_is_away(away: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is gone and the port closed in time; who comes back finds the rest out by itself."""
    monkeypatch.setattr(worker_publisher_module, "LEAVE_TIMEOUT_S", 0.1)
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        if away != "registry":
            it.log.away = True  # type: ignore[attr-defined]
        if away != "log":
            it.registries["a"].away = True
        began = time.monotonic()
        await worker.stop("test")
        assert time.monotonic() - began < 2
        with pytest.raises(EngineDead):
            await worker.engine.check()
        assert not worker.port._connections
        it.log.away = False  # type: ignore[attr-defined]
        await eventually(lambda: not router.fleet.connected(worker_id(worker)), "it is left out")
        del it.workers["a"]


async def test_an_engine_that_does_not_end_holds_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After ENGINE_STOP_TIMEOUT_S the worker ends without it, and says so."""
    monkeypatch.setattr(worker_module, "ENGINE_STOP_TIMEOUT_S", 0.05)
    async with world() as it:
        engine = ScriptedEngine()
        engine.stop_s = 60
        worker = await it.worker("a", engine=engine)
        await worker.stop("test")
        assert "did not end within 0.05 s" in caplog.text
        del it.workers["a"]


async def test_what_is_in_flight_finishes_while_it_drains() -> None:
    """Also with the registry away; what comes meanwhile goes to another worker, unseen by clients."""
    async with world() as it:
        a = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        stream = generate(router, "sim", request(range(60), max_tokens=1500))
        await anext(stream)
        it.registries["a"].away = True
        await it.worker("b")
        await it.ready(router, 2)
        stopping = asyncio.create_task(a.stop("test"))
        answers = await asyncio.gather(*(collect(router, request(range(i, i + 60))) for i in range(8)))
        assert all(len(tokens) == 8 for tokens, _ in answers)
        outputs = [output async for output in stream]
        assert outputs[-1].finish == "length"
        await stopping
        assert [event.reason for event in await it.told(KV, WorkerLeft)] == ["test"]
        del it.workers["a"]


async def test_draining_has_an_end() -> None:
    """What does not finish within the bound is handed on, which is an error if there is nobody else."""
    async with world() as it:
        worker = await it.worker("a", drain_timeout_s=0.05)
        router = await it.router()
        await it.ready(router)
        stream = generate(router, "sim", request(range(60), max_tokens=100_000))
        await anext(stream)
        await worker.stop("test")
        with pytest.raises(GenerationFailed):
            async for _ in stream:
                pass
        del it.workers["a"]


async def test_a_worker_written_off_while_it_leaves_stays_gone() -> None:
    """It does not join again under a new id."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await it.write_off(router, KV, worker_id(worker))
        await worker.stop("test")
        await asyncio.sleep(0)
        assert len(await it.told(KV, WorkerJoined)) == 1
        assert not it.store.below("workers/")
        del it.workers["a"]


async def test_a_worker_written_off_goes_on_without_the_registry() -> None:
    """It joins again in the log at once, and registers when the registry is back; the old entry is gone then."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await collect(router, request(range(100)))
        before, known_as = worker_id(worker), list[str]()
        assert worker.membership is not None
        worker.membership.on_new_id = known_as.append
        it.registries["a"].away = True
        await it.write_off(router, KV, before)
        assert worker.publisher is not None
        worker.publisher.restate()
        await eventually(lambda: worker_id(worker) != before, "a new life")
        await it.settled(router)
        it.registries["a"].away = False
        await eventually(lambda: router.fleet.connected(worker_id(worker)), "the new registration")
        await eventually(lambda: [c.key for c in it.store.below("workers/")] == [f"workers/{worker_id(worker)}"], "one")
        assert known_as == [worker_id(worker)]
        _, outputs = await collect(router, request(range(100)))
        assert max(o.cached_tokens or 0 for o in outputs) == 96


async def test_a_dead_engine_ends_its_worker() -> None:
    """Its streams go on elsewhere, it leaves with the reason, nothing is drained."""
    async with world() as it:
        a = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        stream = generate(router, "sim", request(range(60), max_tokens=4000))
        await anext(stream)
        await it.worker("b")
        await it.ready(router, 2)
        a.engine.crash("out of memory")  # type: ignore[attr-defined]
        assert [output async for output in stream][-1].finish == "length"
        (moved,) = await it.told(ROUTING, RequestMigrated)
        assert "out of memory" in moved.reason
        answers = await asyncio.gather(*(collect(router, request(range(i, i + 60))) for i in range(8)))
        assert all(len(tokens) == 8 for tokens, _ in answers)
        reason = await a.serve()
        assert reason.startswith("engine dead: ")
        await a.stop(reason, drain=False)
        assert "out of memory" in (await it.told(KV, WorkerLeft))[0].reason
        del it.workers["a"]


async def test_an_engine_that_cannot_say_whether_it_lives_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A health check without an answer within CHECK_TIMEOUT_S ends the worker."""
    monkeypatch.setattr(engine_watchdog, "CHECK_TIMEOUT_S", 0.05)
    async with world() as it:
        engine = ScriptedEngine()
        engine.health = asyncio.Event
        worker = await it.worker("a", engine=engine)
        assert await worker.serve() == "engine dead: no answer for 0.05 s"


async def test_an_engine_that_hangs_holds_only_what_it_has() -> None:
    """Until it is found out its requests wait, or until their clients leave; the others go where less is open."""
    async with world() as it:
        a = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await it.worker("b")
        await it.ready(router, 2)
        a.engine.hang()  # type: ignore[attr-defined]
        tasks = [asyncio.create_task(collect(router, request(range(i * 99, i * 99 + 60)))) for i in range(20)]
        await eventually(lambda: sum(task.done() for task in tasks) >= 10, "the other one serves")
        await eventually(lambda: a.port.streams == sum(not task.done() for task in tasks), "the rest waits")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await eventually(lambda: not a.port.streams, "nobody waits on it")
        await eventually(lambda: not len(router.publisher.pending_events), "the log has it all")
        assert not router.state.routing.in_flight_load.busy


async def test_a_start_that_fails_leaves_nothing() -> None:
    """A port that is taken is one sentence; the engine is stopped, the log and the registry never heard of it."""
    async with world() as it:
        first = await it.worker("a")
        port = int(first.address.rpartition(":")[2])
        engine = ScriptedEngine()
        stopped = asyncio.Event()
        engine.stop = lambda: _set(stopped)  # type: ignore[method-assign]
        with pytest.raises(CallerError, match=f"cannot listen on 127.0.0.1:{port} .*choose another port"):
            await it.worker("b", engine=engine, listen_port=port)
        assert stopped.is_set()
        assert len(it.store.below("workers/")) == 1


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_a_start_that_is_given_up_leaves_nothing() -> None:
    """Cancelled in its last step, it takes back what it had said."""
    async with world() as it:
        entered = asyncio.Event()

        async def hang(_key: str, _value: bytes) -> None:
            entered.set()
            await asyncio.Event().wait()

        it.registry("a").register = hang  # type: ignore[assignment]
        starting = asyncio.create_task(it.worker("a"))
        await entered.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert len(await it.told(KV, WorkerLeft)) == len(await it.told(KV, WorkerJoined)) == 1
        assert not it.store.below("workers/")


async def test_a_lost_track_is_found_again() -> None:
    """A replica that missed a message asks for a restatement; asked more often than the bound, the worker is silent."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await collect(router, request(range(100)))
        await it.settled(router)
        member = router.state.member(worker_id(worker))
        assert member is not None
        member.chain.head = bytes(16)  # as if another message had come before: the next one does not follow
        await collect(router, request(range(500, 600)))
        await it.settled(router)
        assert member.cache_known
        said = len(await it.told(KV, CacheRestated))
        assert said == 1
        for _ in range(5):
            worker.restate()
        await it.settled(router)
        assert len(await it.told(KV, CacheRestated)) == said


async def test_the_whole_cache_is_said_now_and_then() -> None:
    """Without being asked, and who joined late knows it all then."""
    async with world() as it:
        worker = await it.worker("a", restate_every_s=0.05)
        router = await it.router()
        await it.ready(router)
        await collect(router, request(range(100)))
        await eventually(lambda: worker.publisher.kv.n_acked > 6, "restatements")  # type: ignore[union-attr]
        await it.settled(router)
        assert len(await it.told(KV, CacheRestated)) > 1
        assert len(await it.told(KV, WorkerJoined)) > 1


async def test_load_is_reported_on_change_and_as_a_sign_of_life() -> None:
    """While the log is away reports do not pile up."""
    async with world() as it:
        worker = await it.worker("a")
        await eventually(lambda: worker.publisher.load.n_acked > 0, "the first report")  # type: ignore[union-attr]
        it.log.away = True  # type: ignore[attr-defined]
        for _ in range(20):
            worker._totals["prompt_tokens"] += 1
            worker.reports.report()  # type: ignore[union-attr]
        assert worker.publisher is not None
        assert worker.publisher.load.depth == 1
        it.log.away = False  # type: ignore[attr-defined]
        worker.port.draining = True
        await eventually(lambda: worker.publisher.load.idle, "the log has it")  # type: ignore[union-attr]
        worker.reports.report()  # type: ignore[union-attr]
        await eventually(lambda: worker.publisher.load.idle, "the log has it")  # type: ignore[union-attr]
        assert (await it.told(LOAD, LoadReported))[-1].draining
        worker.port.draining = False


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_worker_keeps_to_the_partition_of_its_id(partitions: int) -> None:
    """Also for its end; replicas follow every partition there is."""
    async with world() as it:
        await it.log.ensure([kv_stream(partition) for partition in range(partitions)])
        workers = [await it.worker(f"w-{i}", partitions=partitions) for i in range(5)]
        router = await it.router()
        await it.ready(router, 5)
        for worker in workers:
            stream = kv_stream(int(worker_id(worker), 16) % partitions)
            assert worker_id(worker) in router.state.kv[stream].alive
        dead = await it.crash("w-0")
        it.store.expire(f"workers/{dead}")
        await eventually(lambda: not router.state.member(dead).alive, "it is lost")  # type: ignore[union-attr]
        assert len(await it.told(kv_stream(int(dead, 16) % partitions), WorkerLost)) == 1


async def test_one_worker_that_drains_is_no_worker() -> None:
    """Refused with 503 after the tries that there are."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        worker.port.draining = True
        with pytest.raises(NoWorkers):
            await collect(router, request(range(40)))
        worker.port.draining = False


def test_where_others_reach_it() -> None:
    """What was given, whole or in part, and the listening address else."""
    assert advertised_address("", "127.0.0.1", 80) == "127.0.0.1:80"
    assert advertised_address("", "::1", 80) == "[::1]:80"
    assert advertised_address("host", "0.0.0.0", 80) == "host:80"
    assert advertised_address("host:90", "0.0.0.0", 80) == "host:90"


def test_without_a_model_folder_there_is_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Least of all one that lies where the process happens to stand."""
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    monkeypatch.chdir(tmp_path)
    assert tokenizer_files("") == {}
    assert tokenizer_files(str(tmp_path)) == {"tokenizer.json": b"{}"}
    (tmp_path / "chat_template.jinja").symlink_to("/proc/self/mem")
    with pytest.raises(CallerError, match="cannot read the tokenizer"):
        tokenizer_files(str(tmp_path))
