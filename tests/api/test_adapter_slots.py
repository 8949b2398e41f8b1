"""Adapters (LoRA) that workers load at the first request for them: the load is in the decision, and all is proved."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from actors.engines.engine_adapters import AdapterCopy, EngineAdapters
from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.router.adapter_loads import LOAD_US
from actors.worker.worker import Worker
from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.errors import CallerError
from core.events import AdapterEvicted, AdapterLoaded, AdapterUnloaded, RequestFinished, RequestRouted, WorkerJoined
from core.subjects import ROUTING, kv_stream
from replay.explain.explain import explain
from replay.recording.recording import Recording
from tests.actors.world import FAST, KEY, NAMESPACE, World, world
from tests.api.scripted import files
from tests.api.test_adapters import BLOCKS, ask, cached, holders, proved
from tests.api.test_served_names import asked_at
from tests.fixtures.adapter_folder import adapter_folder
from tests.fixtures.eventually import eventually
from tests.replay.recorded import archived

KV = kv_stream(0)
NAMES = ("law", "sql", "tax")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    return {name: adapter_folder(tmp_path / name, name.encode()) for name in NAMES}


async def worker(it: World, folder: Path, name: str, catalog: Mapping[str, str], slots: int = 1) -> Worker:
    settings = dataclasses.replace(FAST, model_path=str(folder), vocab=300)
    engine = SimulatedEngine("tiny", settings)
    return await it.worker(name, engine=engine, adapter_catalog=catalog, adapter_slots=slots)


def loaded(worker: Worker) -> list[str]:
    assert worker.adapters is not None
    assert worker.adapters.slots is not None
    return [each.partition("@")[0] for each in worker.adapters.slots.loaded]


async def test_loaded_at_the_first_request(folder: Path, tmp_path: Path, catalog: dict[str, str]) -> None:
    """The first request for an adapter pays for the load, the next ones go to the worker that has it. A worker with a
    free slot is cheaper than one that has to let another adapter go."""
    async with world() as it:
        for name in ("a", "b"):
            await worker(it, folder, name, catalog)
        router = await it.router()
        await it.ready(router, 2)
        ids = {name: await holders(router, name, 2) for name in NAMES}
        async with asked_at(router) as http:
            for name in ("sql", "sql", "law", "sql", "law"):
                await ask(http, name)
                await it.settled(router)
            assert sorted(loaded(it.workers["a"]) + loaded(it.workers["b"])) == ["law", "sql"]
            assert not await it.told(KV, AdapterEvicted)
            await ask(http, "tax")
            await it.settled(router)
            await ask(http, "tiny")
            await it.settled(router)
        routed = await it.told(ROUTING, RequestRouted)
        first, again, other, back, further, third, plain = routed
        workers = {each.publisher.id for each in it.workers.values() if each.publisher is not None}
        assert first.held == dict.fromkeys(workers, LOAD_US)
        assert {*again.held} == workers - {first.worker}
        assert (again.worker, back.worker) == (first.worker, first.worker)
        assert other.held == {first.worker: 2 * other.held[other.worker], other.worker: other.held[other.worker]}
        assert further.worker == other.worker != first.worker
        assert {*third.held} == workers
        assert len({*third.held.values()}) == 1
        assert plain.held == {}
        assert [each.adapter for each in routed[:-1]] == [ids[n] for n in ("sql", "sql", "law", "sql", "law", "tax")]
        (evicted,) = await it.told(KV, AdapterEvicted)
        assert evicted.name == {first.worker: "sql", other.worker: "law"}[third.worker]
        loads = await it.told(KV, AdapterLoaded)
        assert [event.name for event in loads] == ["sql", "law", "tax"]
        joined = await it.told(KV, WorkerJoined)
        said = {(each.adapter_slots, sum(one.cold is True for one in each.adapters or ())) for each in joined}
        assert said == {(1, 3)}
        assert (await proved(it, tmp_path)).verified == 7
        with Recording.open(await archived(it.log, NAMESPACE, KEY, tmp_path / "again"), KEY) as recording:
            told = [explain(recording, event.request, whole=True) for event in routed]
        shown = render(explain_text(told[0]))
        attempts = [each.attempts[0] for each in told]
        assert [each.loads_adapter for each in attempts] == [True, False, True, False, False, True, False]
        assert [each.adapter for each in attempts] == [event.adapter or "" for event in routed]
        assert f"{first.adapter}, which {attempts[0].worker_name} had to load first" in shown


async def test_its_blocks_are_found_when_it_is_back(folder: Path, tmp_path: Path, catalog: dict[str, str]) -> None:
    """An eviction leaves the cache as it is, and the next load finds the adapter's blocks, as predicted."""
    async with world() as it:
        a = await worker(it, folder, "a", catalog)
        router = await it.router()
        await it.ready(router)
        await holders(router, "sql", 1)
        async with asked_at(router) as http:
            hits = []
            for name in ("sql", "law", "sql", "law"):
                hits.append(cached(await ask(http, name)))
                await it.settled(router)
        assert hits == [0, 0, BLOCKS, BLOCKS]
        assert loaded(a) == ["law"]
        routed = {event.request: event for event in await it.told(ROUTING, RequestRouted)}
        for event in await it.told(ROUTING, RequestFinished):
            assert event.cached_tokens == routed[event.request].predicted_cached_tokens
        assert (await proved(it, tmp_path)).verified == 4


async def test_a_worker_that_cannot_load_it(folder: Path, tmp_path: Path, catalog: dict[str, str]) -> None:
    """Declines, and the request goes to the other one. The worker announces that adapter no more, and serves others."""

    async def refuse(copy: AdapterCopy) -> None:
        if copy.name == "sql":
            raise CallerError("rank 512 is greater")

    async with world() as it:
        a = await worker(it, folder, "a", catalog)
        assert isinstance(a.engine.adapters, EngineAdapters)
        a.engine.adapters._attach = refuse
        router = await it.router()
        await it.ready(router)
        await holders(router, "sql", 1)
        async with asked_at(router) as http:
            answer = await http.post("/v1/completions", json={"model": "sql", "prompt": "a"})
            assert answer.status_code == 503, answer.text
            await ask(http, "law")
            await worker(it, folder, "b", catalog)
            await it.ready(router, 2)
            await eventually(lambda: router.card("sql").adapter.workers == 1, "one is left")  # type: ignore[union-attr]
            await ask(http, "sql")
        (gone,) = await it.told(KV, AdapterUnloaded)
        assert gone.name == "sql"
        ended = [event.outcome for event in await it.told(ROUTING, RequestFinished)]
        assert ended[0] == "declined"
        assert ended[-2:] == ["length", "length"]
        await it.settled(router)
        await proved(it, tmp_path)


async def test_a_worker_under_another_id(folder: Path, catalog: dict[str, str]) -> None:
    """It restates what it has loaded, and what it would load."""
    async with world() as it:
        a = await worker(it, folder, "a", catalog, slots=2)
        router = await it.router()
        await it.ready(router)
        await holders(router, "sql", 1)
        async with asked_at(router) as http:
            await ask(http, "sql")
        assert a.publisher is not None
        was = a.publisher.id
        await it.settled(router)
        await it.write_off(router, KV, was)
        await eventually(lambda: a.publisher is not None and a.publisher.id != was, "another id")
        await eventually(lambda: len(router.state.serving()) == 1, "it is back")
        last = (await it.told(KV, WorkerJoined))[-1]
        assert {each.name: each.cold is True for each in last.adapters or ()} == {
            "law": True, "sql": False, "tax": True
        }  # fmt: skip
