"""Adapters (LoRA) of attached servers: loaded and unloaded by the server's routes, and apart in its cache."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from actors.engines import engine_adapters, locked_folder
from actors.engines.attached import server_adapters
from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_adapters import home_of
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.engine import CacheChange, CacheStored
from actors.transport.server_client import ServerAddress
from core.errors import CallerError, Unavailable
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, new_id
from core.prompt import tokens_to_bytes
from tests.fixtures.adapter_folder import adapter_folder
from tests.fixtures.eventually import eventually
from tests.fixtures.fake_vllm_server import BLOCK_SIZE, FakeVllmServer


@pytest.fixture
async def server(tiny_checkpoint: Path) -> AsyncIterator[FakeVllmServer]:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    server = FakeVllmServer(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, str(tiny_checkpoint))
    server.adapters = {}
    await server.open()
    yield server
    await server.close()


def options(server: FakeVllmServer, folder: Path, **more: Any) -> ServerOptions:
    return ServerOptions(server.url, adapter_folder=str(folder))._replace(**more)


async def ask(engine: AttachedEngine, adapter: str | None, tokens: int = 2 * BLOCK_SIZE) -> None:
    asked = GenerateRequest(
        id=RequestId(new_id()), tokens=tokens_to_bytes(range(tokens)), sampling=Sampling(max_tokens=2), adapter=adapter
    )
    assert [output async for output in engine.generate(asked)]


async def test_loaded_under_their_ids(server: FakeVllmServer, tmp_path: Path) -> None:
    """From copies whose content their digests are of; requests and cache events have the ids. The server has none of
    them when the engine has stopped, and no copy is left."""
    sql = adapter_folder(tmp_path / "sql", b"sql")
    changes: list[CacheChange] = []
    engine = AttachedEngine("tiny", options(server, tmp_path), {"sql": sql})
    await engine.start(changes.append)
    assert engine.adapters is not None
    (copy,) = engine.adapters.served()
    assert server.adapters == {copy.id: str(copy.folder)}
    assert (copy.folder / "adapter_model.safetensors").read_bytes() == b"sql"
    for adapter in (None, copy.id):
        await ask(engine, adapter)
    assert [body["model"] for body in server.bodies[-2:]] == ["served", copy.id]
    await engine.settle()
    stored = [change for change in changes if isinstance(change, CacheStored)]
    assert [(change.adapter, change.indexable) for change in stored[-2:]] == [(None, True), (copy.id, True)]
    for refused in ("sql", "alpha", f"sql@{'0' * 32}"):
        with pytest.raises(Unavailable, match="is not served here"):
            await ask(engine, refused)
    await engine.stop()
    assert server.adapters == {}
    assert [path.name for path in tmp_path.iterdir()] == ["sql"]


async def test_loaded_and_unloaded_while_it_serves(server: FakeVllmServer, tmp_path: Path) -> None:
    """Other weights under one name and folder are another adapter. One that is loaded again lies where it lay."""
    engine = AttachedEngine("tiny", options(server, tmp_path))
    await engine.start(lambda _: None)
    assert engine.adapters is not None
    first = await engine.adapters.load("sql", adapter_folder(tmp_path / "sql", b"one"))
    second = await engine.adapters.load("sql", adapter_folder(tmp_path / "sql", b"two"))
    assert server.adapters == {each.id: str(each.folder) for each in (first, second)}
    await engine.adapters.unload(first.id)
    assert [*server.adapters] == [second.id]
    again = await engine.adapters.load("sql", adapter_folder(tmp_path / "sql", b"one"))
    assert (again.id, again.folder) == (first.id, first.folder)
    await engine.stop()


async def test_a_new_start_of_the_server(server: FakeVllmServer, tmp_path: Path) -> None:
    """It has them all before it serves here, those too that were loaded later, and at the same paths."""
    paths = {name: adapter_folder(tmp_path / name, name.encode()) for name in ("sql", "law", "tax")}
    engine = AttachedEngine("tiny", options(server, tmp_path), {name: paths[name] for name in ("sql", "law")})
    await engine.start(lambda _: None)
    assert engine.adapters is not None
    await engine.adapters.load("tax", paths["tax"])
    law = next(copy.id for copy in engine.adapters.served() if copy.name == "law")
    await engine.adapters.unload(law)
    before = dict(server.adapters or {})
    server.restart(2.5)
    server.adapters = None  # it does not take them yet
    await eventually(lambda: bool(engine._dead), "its end is seen")
    await engine.stop()
    second = engine.successor()
    with pytest.raises(CallerError, match="start the server with --enable-lora"):
        await second.start(lambda _: None)
    server.adapters = {}
    third = second.successor()
    await third.start(lambda _: None)
    assert server.adapters == before
    assert {name.partition("@")[0] for name in before} == {"sql", "tax"}
    await third.stop()


async def test_what_a_killed_worker_left(server: FakeVllmServer, tmp_path: Path) -> None:
    """The same adapter at the same path is taken as it is, and another path under its id is replaced. Of two workers
    with adapters of one server, the second one is refused."""
    sql = adapter_folder(tmp_path / "sql", b"sql")
    home = home_of(ServerAddress.parse(server.url), str(tmp_path))
    first = AttachedEngine("tiny", options(server, tmp_path), {"sql": sql})
    await first.start(lambda _: None)
    assert server.adapters
    with pytest.raises(CallerError, match="another worker has adapters of the same server"):
        await AttachedEngine("tiny", options(server, tmp_path), {"sql": sql}).start(lambda _: None)
    left = dict(server.adapters)
    await first.stop()
    for there in (left, dict.fromkeys(left, "/elsewhere")):
        server.adapters = dict(there)
        (home / "1").mkdir(parents=True)  # half a copy
        server.loads.clear()
        engine = AttachedEngine("tiny", options(server, tmp_path), {"sql": sql})
        await engine.start(lambda _: None)
        assert server.adapters == left
        assert len(server.loads) == (there is not left)
        await engine.stop()


async def test_loaded_at_requests(server: FakeVllmServer, tmp_path: Path) -> None:
    """The server has those alone that are attached. Its next start has these, and a worker stages them anew."""
    sql = adapter_folder(tmp_path / "sql", b"sql")
    engine = AttachedEngine("tiny", options(server, tmp_path))
    await engine.start(lambda _: None)
    assert engine.adapters is not None
    copy = await engine.adapters.stage("sql", sql)
    for _ in range(2):
        assert server.adapters == {}
        await engine.adapters.attach(copy.id)
        assert server.adapters == {copy.id: str(copy.folder)}
        await ask(engine, copy.id)
        await engine.adapters.detach(copy.id)
    await engine.adapters.attach(copy.id)
    await engine.stop()
    after = engine.successor()
    await after.start(lambda _: None)
    assert after.adapters is not None
    assert list(server.adapters or ()) == [copy.id]
    assert (await after.adapters.stage("sql", sql)).folder == copy.folder
    assert server.adapters == {}
    await after.stop()


async def test_others_unload_one(server: FakeVllmServer, tmp_path: Path) -> None:
    """The next request for it loads it again, once for all requests at the time."""
    engine = AttachedEngine("tiny", options(server, tmp_path), {"sql": adapter_folder(tmp_path / "sql", b"sql")})
    await engine.start(lambda _: None)
    assert engine.adapters is not None
    (copy,) = engine.adapters.served()
    server.adapters = {}
    await asyncio.gather(*(ask(engine, copy.id) for _ in range(4)))
    assert server.loads == [(copy.id, str(copy.folder))] * 2
    await engine.stop()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((404, b'{"detail":"Not Found"}'), "start the server with --enable-lora, and with VLLM_ALLOW_RUNTIME_LORA"),
        (
            (500, b'{"error":{"message":"LoRA rank 512 is\\ngreater"}}'),
            "does not load the adapter sql: LoRA rank 512 is",
        ),
        ((404, b'{"error":{"message":"No adapter found for <path>"}}'), "sql: No adapter found for <path>"),
    ],
    ids=["no route", "rank", "no file"],
)
async def test_refusals(server: FakeVllmServer, tmp_path: Path, answer: tuple[int, bytes], sentence: str) -> None:
    """One sentence, at the start and later; the server goes on with the others."""
    server.answers["/v1/load_lora_adapter"] = answer
    sql = adapter_folder(tmp_path / "sql", b"sql")
    with pytest.raises(CallerError) as caught:
        await AttachedEngine("tiny", options(server, tmp_path), {"sql": sql}).start(lambda _: None)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    engine = AttachedEngine("tiny", options(server, tmp_path))
    await engine.start(lambda _: None)
    assert engine.adapters is not None
    with pytest.raises(CallerError) as caught:
        await engine.adapters.load("sql", sql)
    assert sentence in str(caught.value)
    await ask(engine, None)
    await engine.stop()


async def test_servers_that_serve_none(server: FakeVllmServer, tmp_path: Path) -> None:
    """Those of other kinds, and those of several ranks."""
    sql = adapter_folder(tmp_path / "sql", b"sql")
    assumed = {"engine": "openai", "cache": "assumed"}
    plain = options(server, tmp_path, **assumed)._replace(cache_blocks=9)
    with pytest.raises(CallerError, match="serves no adapters here: leave them out"):
        await AttachedEngine("tiny", plain, {"sql": sql}).start(lambda _: None)
    engine = AttachedEngine("tiny", plain)
    await engine.start(lambda _: None)
    assert engine.adapters is None
    with pytest.raises(CallerError, match="serves no adapters here: sql@1 is none of its models"):
        await ask(engine, "sql@1")
    await engine.stop()
    server.rank = 1
    with pytest.raises(CallerError, match="several data-parallel ranks serves no adapters"):
        await AttachedEngine("tiny", options(server, tmp_path)._replace(rank=1), {"sql": sql}).start(lambda _: None)


async def test_an_assumed_cache(server: FakeVllmServer, tmp_path: Path) -> None:
    """Prompts of adapters have scopes of their own."""
    changes: list[CacheChange] = []
    chosen = options(server, tmp_path, cache="assumed")
    engine = AttachedEngine("tiny", chosen, {"sql": adapter_folder(tmp_path / "sql", b"sql")})
    await engine.start(changes.append)
    assert engine.adapters is not None
    (copy,) = engine.adapters.served()
    changes.clear()
    for adapter in (None, copy.id, copy.id):
        await ask(engine, adapter)
    stored = [change for change in changes if isinstance(change, CacheStored)]
    assert [(change.adapter, len(change.blocks)) for change in stored] == [(None, 2), (copy.id, 2)]
    await engine.stop()


async def test_a_folder_that_cannot_be_had(
    server: FakeVllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said in a sentence: it is not there, it is another user's, or it goes again and again."""
    sql = adapter_folder(tmp_path / "sql", b"sql")
    with pytest.raises(CallerError, match=r"copies of adapters cannot lie in .*: No such file"):
        await AttachedEngine("tiny", options(server, tmp_path / "none"), {"sql": sql}).start(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: -1)
        with pytest.raises(CallerError, match="it is another user's"):
            await AttachedEngine("tiny", options(server, tmp_path), {"sql": sql}).start(lambda _: None)
    tries: list[Path] = []
    locked = locked_folder.lock_folder

    def lost(folder: Path) -> int:
        tries.append(folder)
        lock = locked(folder)
        folder.rmdir()
        return lock

    with monkeypatch.context() as patch:
        patch.setattr(engine_adapters, "lock_folder", lost)
        with pytest.raises(CallerError, match="others remove it"):
            await AttachedEngine("tiny", options(server, tmp_path), {"sql": sql}).start(lambda _: None)
    assert len(tries) == engine_adapters.CLAIM_TRIES


async def test_a_server_that_does_not_answer(
    server: FakeVllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load ends after LOAD_TIMEOUT_S as one of a server that is away. An engine that stops waits UNLOAD_TIMEOUT_S."""
    monkeypatch.setattr(server_adapters, "LOAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr(server_adapters, "UNLOAD_TIMEOUT_S", 0.1)
    engine = AttachedEngine("tiny", options(server, tmp_path), {"sql": adapter_folder(tmp_path / "sql", b"sql")})
    await engine.start(lambda _: None)
    server.silent = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    assert engine.adapters is not None
    with pytest.raises(Unavailable, match=r"does not answer POST /v1/load_lora_adapter within 0\.1 s"):
        await engine.adapters.load("law", adapter_folder(tmp_path / "law", b"law"))
    async with asyncio.timeout(5):
        await engine.stop()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["law", "sql"]
