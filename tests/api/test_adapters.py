"""Adapters (LoRA) as models of the API, over workers with simulated engines; their decisions are proved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router import adapter_catalog
from actors.router.router import Router
from actors.transport.frames import UnloadAdapter
from actors.worker import adapter_placement, worker_adapters
from actors.worker.adapter_placement import holders as holders_of
from actors.worker.worker import Worker
from api.app import create_app
from api.auth.access_policy import AccessPolicy
from api.openai.adapter_routes import OperatorAccess
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.clock import SystemClock
from core.errors import CallerError
from core.events import AdapterLoaded, AdapterUnloaded, RequestRejected, RequestRouted, WorkerJoined
from core.models import UnknownModel
from core.subjects import ROUTING, kv_stream
from replay.recording.recording import Recording
from replay.verify.verify import VerifyResult, verify
from tests.actors.router.test_skewed_clocks import WrongClock
from tests.actors.world import FAST, KEY, NAMESPACE, World, world
from tests.api.scripted import files
from tests.api.test_served_names import asked_at
from tests.fixtures.adapter_folder import adapter_folder
from tests.fixtures.eventually import eventually
from tests.replay.recorded import archived

KV = kv_stream(0)
PROMPT = "a" * 100
BLOCKS = 96
"""Tokens of the prompt that a cache can have."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


async def worker(it: World, folder: Path, name: str, **adapters: str) -> Worker:
    settings = dataclasses.replace(FAST, model_path=str(folder), vocab=300)
    return await it.worker(name, engine=SimulatedEngine("tiny", settings, adapters=adapters))


async def ask(http: httpx.AsyncClient, model: str) -> dict[str, Any]:
    answer = await http.post("/v1/completions", json={"model": model, "prompt": PROMPT, "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["model"] == model
    return found


def cached(answer: dict[str, Any]) -> int:
    return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0))


async def proved(it: World, folder: Path) -> VerifyResult:
    path = await archived(it.log, NAMESPACE, KEY, folder / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    assert (found.holds, found.different, found.refusals.different) == (True, 0, 0)
    return found


async def holders(router: Router, name: str, workers: int) -> str:
    """The id of the adapter of that name, once so many workers serve it."""
    await eventually(
        lambda: any((each.name, each.workers) == (name, workers) for each in router.card("tiny").adapters), name
    )
    return next(each.id for each in router.card("tiny").adapters if each.name == name)


async def test_adapters_beside_plain_requests(folder: Path, tmp_path: Path) -> None:
    """Two adapters on two workers, and the model itself: listed with their parent, each with its own text and blocks,
    and each sent to a worker that has it. All decisions follow from the log."""
    sql, law = adapter_folder(tmp_path / "sql", b"sql"), adapter_folder(tmp_path / "law", b"law")
    async with world() as it:
        first = await worker(it, folder, "a", sql=sql)
        second = await worker(it, folder, "b", law=law)
        router = await it.router()
        await it.ready(router, 2)
        ids = {name: await holders(router, name, 1) for name in ("sql", "law")}
        async with asked_at(router) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            shown = (await http.get("/v1/models/sql")).json()
            texts = set()
            for _ in range(2):
                for model in ("tiny", "sql", "law"):
                    answer = await ask(http, model)
                    await it.settled(router)
                    texts.add((model, answer["choices"][0]["text"]))
                    assert cached(answer) == (BLOCKS if (model, "again") in texts else 0)
                    texts.add((model, "again"))
            refused = await http.post("/v1/embeddings", json={"model": "sql", "input": "a"})
            unknown = await http.post("/v1/completions", json={"model": "tax", "prompt": "a"})
        assert [(each["id"], each["parent"], each["root"]) for each in listed] == [
            ("tiny", None, "tiny"), ("law", "tiny", ids["law"]), ("sql", "tiny", ids["sql"]),
        ]  # fmt: skip
        assert (shown["parent"], shown["root"], shown["workers"]) == ("tiny", ids["sql"], 1)
        assert len({text for _, text in texts}) == 4  # three texts, and "again"
        assert (refused.status_code, unknown.status_code) == (400, 404)
        routed = await it.told(ROUTING, RequestRouted)
        places = {(event.adapter, event.worker) for event in routed if event.adapter}
        assert first.publisher is not None
        assert second.publisher is not None
        assert places == {(ids["sql"], first.publisher.id), (ids["law"], second.publisher.id)}
        assert {event.model for event in routed} == {"tiny"}
        assert (await proved(it, tmp_path)).verified == 6


async def test_the_last_one_is_known_by_the_broker_s_time(folder: Path, tmp_path: Path) -> None:
    """Also where the clock of the first worker's machine is an hour ahead."""
    old, new = adapter_folder(tmp_path / "old", b"old"), adapter_folder(tmp_path / "new", b"new")
    async with world() as it:
        it.clock = WrongClock(3_600_000)
        await worker(it, folder, "a", sql=old)
        it.clock = SystemClock()
        b = await worker(it, folder, "b", sql=new)
        router = await it.router()
        await it.ready(router, 2)
        assert b.adapters is not None
        assert await holders(router, "sql", 1) == b.adapters.all()[0].id


async def test_other_weights_under_one_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded while the worker serves: the log has it, the next request gets the new weights and finds nothing of the
    old ones' cache. Unloaded, the name is unknown."""
    monkeypatch.setattr(worker_adapters, "UNLOAD_GRACE_S", 0.0)
    sql = adapter_folder(tmp_path / "sql", b"one")
    async with world() as it:
        a = await worker(it, folder, "a", sql=sql)
        router = await it.router()
        await it.ready(router)
        before = await holders(router, "sql", 1)
        assert a.adapters is not None
        async with asked_at(router) as http:
            old = await ask(http, "sql")
            await it.settled(router)
            adapter_folder(tmp_path / "sql", b"two")
            loaded = await a.adapters.load("sql", sql)
            assert (await a.adapters.load("sql", sql)) == loaded  # its content is served already
            await eventually(lambda: router.card("sql").adapter.id == loaded.id, "the new one")  # type: ignore[union-attr]
            new = await ask(http, "sql")
            assert (cached(new), new["choices"][0]["text"] == old["choices"][0]["text"]) == (0, False)
            engine = a.engine.adapters
            assert engine is not None
            await eventually(lambda: [copy.id for copy in engine.served()] == [loaded.id], "the old one is gone")
            await a.adapters.unload("sql")
            with pytest.raises(CallerError, match="no adapter 'sql' is loaded"):
                await a.adapters.unload("sql")
            await eventually(lambda: not router.card("tiny").adapters, "none")
            with pytest.raises(UnknownModel):
                router.card("sql")
        (joined,) = await it.told(KV, WorkerJoined)
        assert [each.id for each in joined.adapters or ()] == [before]
        (event,) = await it.told(KV, AdapterLoaded)
        assert (event.name, event.digest, event.rank) == ("sql", loaded.digest, 8)
        assert [each.digest for each in await it.told(KV, AdapterUnloaded)] == [loaded.digest]
        assert (await proved(it, tmp_path)).verified == 2


async def test_the_only_holder_dies(folder: Path, tmp_path: Path) -> None:
    """Then its name is known and away: 503. It is served again by the first worker that has it."""
    sql = adapter_folder(tmp_path / "sql", b"sql")
    async with world() as it:
        await worker(it, folder, "a", sql=sql)
        await worker(it, folder, "b")
        router = await it.router()
        await it.ready(router, 2)
        adapter = await holders(router, "sql", 1)
        async with asked_at(router) as http:
            await ask(http, "sql")
            died = await it.crash("a")
            it.store.expire(f"workers/{died}")
            await eventually(lambda: router.card("sql").adapter.workers == 0, "it is away")  # type: ignore[union-attr]
            answer = await http.post("/v1/completions", json={"model": "sql", "prompt": PROMPT})
            assert (answer.status_code, "1 other adapter" in answer.text) == (503, True)
            await ask(http, "tiny")
            await worker(it, folder, "c", sql=sql)
            assert await holders(router, "sql", 1) == adapter
            await it.ready(router, 2)
            assert cached(await ask(http, "sql")) == 0
        (refused,) = await it.told(ROUTING, RequestRejected)
        assert (refused.adapter, refused.model) == (adapter, "tiny")
        found = await proved(it, tmp_path)
        assert (found.verified, found.refusals.verified) == (3, 1)


async def test_two_digests_under_one_name(folder: Path, tmp_path: Path) -> None:
    """The one that was loaded last counts, and only its workers get requests. A worker that joins anew under another
    id says all that it serves."""
    old, new = adapter_folder(tmp_path / "old", b"old"), adapter_folder(tmp_path / "new", b"new")
    async with world() as it:
        a = await worker(it, folder, "a")
        b = await worker(it, folder, "b")
        assert a.adapters is not None
        assert b.adapters is not None
        router = await it.router()
        await it.ready(router, 2)
        first = await b.adapters.load("sql", old)
        assert await holders(router, "sql", 1) == first.id
        last = await a.adapters.load("sql", new)
        last_is_later = (last.loaded_ms, last.digest) > (first.loaded_ms, first.digest)
        await eventually(lambda: len(router.state.serving()) == 2, "both")
        expected = last if last_is_later else first
        await eventually(lambda: router.card("sql").adapter.id == expected.id, "one of them")  # type: ignore[union-attr]
        assert router.card("sql").adapter.workers == 1  # type: ignore[union-attr]
        assert b.publisher is not None
        was = b.publisher.id
        await it.write_off(router, KV, was)
        await eventually(lambda: b.publisher is not None and b.publisher.id != was, "another id")
        await eventually(lambda: len(router.state.serving()) == 2, "both again")
        joins = [each for each in await it.told(KV, WorkerJoined) if each.name == "b"]
        assert [[one.id for one in each.adapters or ()] for each in joins] == [[], [first.id]]


async def test_names_that_are_away_have_a_bound(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWAY_MAX: the oldest is forgotten."""
    monkeypatch.setattr(adapter_catalog, "AWAY_MAX", 1)
    one, two = adapter_folder(tmp_path / "one", b"one"), adapter_folder(tmp_path / "two", b"two")
    async with world() as it:
        await worker(it, folder, "a", one=one)
        await worker(it, folder, "b", two=two)
        router = await it.router()
        await it.ready(router, 2)
        for name in ("one", "two"):
            await holders(router, name, 1)
        for name in ("a", "b"):
            await it.workers.pop(name).stop("test", drain=False)
            await eventually(lambda: len(router.state.serving()) == len(it.workers), "it left")
            router.card("tiny")
        assert [each.name for each in router.card("tiny").adapters] == ["two"]


TOKEN = {"x-contrail-operator-token": "secret"}


async def test_an_operator_changes_adapters(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On all workers, or on those that are named. Errors have the API's form, and say which worker refused."""
    monkeypatch.setattr(worker_adapters, "UNLOAD_GRACE_S", 0.0)
    sql = adapter_folder(tmp_path / "sql", b"sql")
    async with world() as it:
        for name in ("a", "b"):
            await worker(it, folder, name)
        router = await it.router()
        await it.ready(router, 2)
        app = create_app(
            router, FrontendMetrics(), ApiSettings(), policy=AccessPolicy(keyring=None),
            operators=OperatorAccess(router, "secret"),
        )  # fmt: skip
        server = HttpServer(app, bind("127.0.0.1", 0))
        async with httpx.AsyncClient(base_url=f"http://{await server.start()}", headers=TOKEN) as http:

            async def change(what: str, **body: Any) -> httpx.Response:
                return await http.post(f"/v1/{what}_lora_adapter", json={"lora_name": "sql", **body})

            missing = await http.post("/v1/load_lora_adapter", json={}, headers={"x-contrail-operator-token": ""})
            wrong = await http.post("/v1/load_lora_adapter", json={}, headers={"x-contrail-operator-token": "guess"})
            assert (missing.status_code, wrong.status_code) == (401, 403)
            assert missing.json()["error"]["code"] == "operator_token_missing"
            one = await change("load", lora_path=sql, workers=["b"])
            assert one.status_code == 200, one.text
            adapter = one.json()["workers"]["b"]
            assert await holders(router, "sql", 1) == adapter
            await ask(http, "sql")  # at once
            both = (await change("load", lora_path=sql, base="tiny")).json()
            assert both == {"lora_name": "sql", "workers": {"a": adapter, "b": adapter}}
            await holders(router, "sql", 2)
            for body, fault in (
                ({"lora_path": str(tmp_path / "none")}, "a: the adapter in"),
                ({"lora_path": sql, "workers": ["c"]}, "has no worker 'c'; there are: a, b"),
                ({"lora_path": sql, "lora_name": "tiny"}, "a model is called 'tiny'"),
                ({"lora_path": sql, "lora_name": "a@b"}, "the name of an adapter has"),
                ({"lora_path": sql, "base": "other"}, "the model 'other' does not exist"),
            ):
                refused = await change("load", **body)
                assert refused.status_code in {400, 404}
                assert fault in refused.json()["error"]["message"]
            assert (await change("unload", workers=["a"])).json()["workers"] == {"a": adapter}
            await holders(router, "sql", 1)
            assert (await change("unload")).json()["workers"] == {"b": adapter}
            await eventually(lambda: not router.card("tiny").adapters, "none")
            assert "serves an adapter 'sql'" in (await change("unload")).json()["error"]["message"]
        await server.stop(grace_s=1)
        assert len(await it.told(KV, AdapterLoaded)) == len(await it.told(KV, AdapterUnloaded)) == 2
        assert (await proved(it, tmp_path)).verified == 1


async def test_placed_adapters_outlive_their_worker(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is on one of three workers. The others load what a lost worker alone had, leave the rest where it is, and
    answer; a worker of its name takes its own back. An operator cannot change them."""
    monkeypatch.setattr(adapter_placement, "SETTLE_S", 0.05)
    monkeypatch.setattr(worker_adapters, "UNLOAD_GRACE_S", 0.0)
    names = [f"lora-{number}" for number in range(6)]
    catalog = {name: adapter_folder(tmp_path / name, name.encode()) for name in names}
    settings = dataclasses.replace(FAST, model_path=str(folder), vocab=300)

    def where(it: World) -> dict[str, list[str]]:
        found = {name: worker.adapters for name, worker in it.workers.items()}
        return {name: [each.name for each in own.all()] for name, own in found.items() if own is not None}

    def planned(*workers: str) -> dict[str, list[str]]:
        return {each: [name for name in names if holders_of(name, workers, 1) == [each]] for each in workers}

    async with world() as it:

        async def start(name: str) -> Worker:
            engine = SimulatedEngine("tiny", settings)
            return await it.worker(name, engine=engine, adapter_catalog=catalog, adapter_replicas=1)

        for each in ("a", "b", "c"):
            await start(each)
        all_three = planned("a", "b", "c")
        assert all(all_three.values())
        await eventually(lambda: where(it) == all_three, "each is placed")
        router = await it.router()
        await it.ready(router, 3)
        for name in names:
            await holders(router, name, 1)
        fault = (await it.workers["a"].change_adapter(UnloadAdapter(name=names[0]))).fault
        assert "places this adapter" in fault
        async with asked_at(router) as http:
            await ask(http, all_three["a"][0])
            lost = await it.crash("a")
            it.store.expire(f"workers/{lost}")
            await eventually(lambda: where(it) == planned("b", "c"), "loaded elsewhere")
            await it.write_off(router, KV, lost)
            await holders(router, all_three["a"][0], 1)
            await ask(http, all_three["a"][0])
            await start("a")
            await eventually(lambda: where(it) == all_three, "its own are back")
        routed = [event for event in await it.told(ROUTING, RequestRouted) if event.adapter]
        assert len({event.worker for event in routed}) == 2
        await it.settled(router)
        assert (await proved(it, tmp_path)).verified == 2
