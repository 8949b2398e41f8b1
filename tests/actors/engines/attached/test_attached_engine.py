"""An attached engine against a small server: refusals, broken answers, restarts, lost events, and its bounds."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import zmq
from tokenizers import Tokenizer

from actors.engines.attached import attached_engine, call_checks
from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.attached.vllm_profile import read_metrics
from actors.engines.engine import CacheChange, CacheGap, CacheRemoved, CacheStored, TransferFailed
from actors.kv_cache.cache_mirror import CacheMirror
from actors.transport import server_client
from actors.transport.server_client import ServerAddress, ServerGone
from actors.worker.engine_watchdog import wait_until_dead
from core.errors import CallerError, ContrailError, EngineDead, PeerError, Refused, Unavailable
from core.generation import TASK_EMBED, GenerateRequest, Guided, Output, Sampling, TokenLogprobs
from core.ids import RequestId, new_id
from core.kv_transfer import KvPull
from core.models import GenerationFailed
from core.prompt import tokens_to_bytes
from streams.embedded.loopback_ports import free_port
from tests.actors.engines.kv_events.test_kv_events import removed, stored
from tests.contracts.engine import HASH_SEED
from tests.fixtures.cable import Cable
from tests.fixtures.certificate import Authority
from tests.fixtures.eventually import eventually
from tests.fixtures.fake_vllm_server import BLOCK_SIZE, BLOCKS, CONTEXT, FakeVllmServer

CUT_S = 0.4
"""The time for which the connection of the cache events is broken …"""
CUT_BATCHES = 80
"""… and the batches that are published in that time."""
LIVE_BLOCKS = 30
"""Blocks that the cache of that server holds."""
LATE_BATCHES, LATE_KEPT = 10_000, 200
"""Batches before an engine is attached, and those of them that the server still has."""


@pytest.fixture
async def server(tiny_checkpoint: Path) -> AsyncIterator[FakeVllmServer]:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    server = FakeVllmServer(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, str(tiny_checkpoint))
    await server.open()
    yield server
    await server.close()


@pytest.fixture
async def changes() -> list[CacheChange]:
    return []


@pytest.fixture
async def engine(server: FakeVllmServer, changes: list[CacheChange]) -> AsyncIterator[AttachedEngine]:
    engine = AttachedEngine("tiny", ServerOptions(server.url, slots=8))
    await engine.start(changes.append)
    yield engine
    await engine.stop()


def request(*tokens: int, max_tokens: int = 3, **sampling: Any) -> GenerateRequest:
    chosen = Sampling(max_tokens=max_tokens, **sampling)
    return GenerateRequest(id=RequestId(new_id()), tokens=tokens_to_bytes(tokens or (5, 6)), sampling=chosen)


async def outputs_of(engine: AttachedEngine, asked: GenerateRequest) -> list[Output]:
    return [output async for output in engine.generate(asked)]


async def refusal_of(server: FakeVllmServer, **options: Any) -> str:
    """The sentence with which an engine does not attach it."""
    engine = AttachedEngine("tiny", ServerOptions(server.url, **options))
    with pytest.raises(CallerError) as caught:
        await engine.start(lambda _: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_serves(engine: AttachedEngine, server: FakeVllmServer, changes: list[CacheChange]) -> None:
    """Facts come from the server, tokens go both ways, and the cached tokens come with the last output."""
    info = engine.info
    assert (info.engine, info.model, info.slots) == ("vllm 0.32.0, attached", "tiny", 8)
    assert (info.block_size, info.capacity_blocks, info.context_max) == (BLOCK_SIZE, BLOCKS, CONTEXT)
    assert info.model_path == server.root
    outputs = await outputs_of(engine, request(*range(40)))
    assert [output.tokens for output in outputs] == [(40,), (41,), (42,)]
    assert [output.finish for output in outputs] == [None, None, "length"]
    assert [output.cached_tokens for output in outputs] == [None, None, 7]
    stored = [change for change in changes if isinstance(change, CacheStored)]
    await eventually(lambda: len([each for each in changes if isinstance(each, CacheStored)]) == 2, "its blocks")
    assert stored[0].cache_salt, "the trial has a salt of its own"
    await engine.check()


async def test_unknown_cached_tokens(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """A server that does not tell how much was cached leaves that unknown."""
    server.details = False
    assert [output.cached_tokens for output in await outputs_of(engine, request())] == [None, None, None]


async def test_everything_of_a_request_is_sent(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """Each sampling parameter goes to the server by its own name, the defaults, too: it may have others."""
    chosen = Sampling(
        max_tokens=2, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop_token_ids=(1, 2), ignore_eos=True,
        min_tokens=1, presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, logit_bias=((4, 1.5),),
        allowed_token_ids=(9,), bad_words=("no",), guided=Guided(regex="a+"),
    )  # fmt: skip
    asked = msgspec.structs.replace(request(8, 9), sampling=chosen, cache_salt="salt", priority=4)
    await outputs_of(engine, asked)
    expected = {
        "model": "served", "prompt": [8, 9], "request_id": asked.id, "stream": True, "return_token_ids": True,
        "stream_options": {"include_usage": True}, "max_tokens": 2, "temperature": 0.5,
        "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "stop_token_ids": [1, 2], "ignore_eos": True,
        "min_tokens": 1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "repetition_penalty": 1.1,
        "logit_bias": {"4": 1.5}, "allowed_token_ids": [9], "bad_words": ["no"],
        "structured_outputs": {"regex": "a+"}, "cache_salt": "salt", "priority": 4,
    }  # fmt: skip
    assert server.bodies[-1] == expected
    left_out = {"logprobs", "prompt_logprobs"}
    named = {"guided": "structured_outputs"}
    assert {named.get(name, name) for name in Sampling.__struct_fields__} - left_out <= expected.keys()
    await outputs_of(engine, request())
    plain = server.bodies[-1]
    assert (plain["temperature"], plain["top_p"], plain["top_k"], plain["repetition_penalty"]) == (1.0, 1.0, 0, 1.0)
    assert not {"cache_salt", "priority", "seed", "logprobs"} & plain.keys()


async def test_room_for_an_answer(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """An answer is as long as the context allows; a prompt without room for one is refused here."""
    await outputs_of(engine, request(*range(CONTEXT - 2), max_tokens=50))
    assert server.bodies[-1]["max_tokens"] == 2
    with pytest.raises(CallerError, match=f"{CONTEXT} tokens"):
        await outputs_of(engine, request(*range(CONTEXT)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task": TASK_EMBED}, "no embeddings"),
        ({"sampling": Sampling(max_tokens=1, prompt_logprobs=0)}, "prompt_logprobs"),
        ({"sampling": Sampling(max_tokens=1, guided=Guided(regex="a", grammar="b"))}, "one thing"),
    ],
)
async def test_refused_requests(engine: AttachedEngine, change: dict[str, Any], sentence: str) -> None:
    """A request for what the server cannot do is refused, and nothing of it is left out in silence."""
    with pytest.raises(CallerError, match=sentence):
        await outputs_of(engine, msgspec.structs.replace(request(), **change))
    assert engine.load().running == 0


async def test_no_blocks_are_fetched(engine: AttachedEngine) -> None:
    """A pull fails as one that could not be made."""
    with pytest.raises(TransferFailed):
        await anext(engine.generate(request(), cast(KvPull, object())))


def model(**fields: Any) -> bytes:
    one = {"id": "served", "root": "/models/a", "parent": None, "max_model_len": CONTEXT, "owned_by": "vllm"}
    return json.dumps({"data": [one | fields]}).encode()


def sources(**fields: Any) -> bytes:
    one = {
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"
    }  # fmt: skip
    return json.dumps({"0": one | fields}).encode()


TWO_MODELS = json.dumps({"data": [{"id": name, "root": name, "owned_by": "vllm"} for name in "ab"]}).encode()


@pytest.mark.parametrize(
    ("path", "answer", "sentence"),
    [
        ("/version", (404, b"{}"), "no vLLM server"),
        ("/version", (200, b"<html>"), "no vLLM server"),
        ("/version", (200, b"[]"), "no vLLM server"),
        ("/v1/models", (401, b"{}"), "--server-key-file"),
        ("/v1/models", (200, b'{"data": []}'), "serves no model"),
        ("/v1/models", (200, TWO_MODELS), "--server-model: a, b"),
        ("/v1/models", (200, model(max_model_len=None)), "how long a prompt"),
        ("/v1/models", (200, model(root="meta/unknown")), "--tokenizer"),
        ("/tokenize", (200, b'{"tokens": [1, 2, 3]}'), "not that of the server's model"),
        ("/tokenize", (500, b""), "does not tokenize"),
        ("/metrics", (200, b"up 1\n"), "--disable-log-stats"),
        ("/kv_event_sources", (404, b"{}"), "vLLM 0.32"),
        ("/kv_event_sources", (200, b"{}"), "--kv-events-config '{"),
        ("/kv_event_sources", (200, sources(publisher="null")), "--kv-events-config '{"),
        ("/kv_event_sources", (200, sources(replay_endpoint=None)), "--kv-events-config '{"),
        ("/kv_event_sources", (200, sources(endpoint="inproc://cache")), "tcp://*:PORT"),
        ("/kv_event_sources", (200, b'{"0": {}, "1": {}}'), "2 data-parallel ranks: attach a worker for each, with"),
        ("/kv_event_sources", (200, b'{"0": {}, "2": {}}'), "--kv-events-config '{"),
        ("/kv_event_sources", (200, b'{"0": 1}'), "--kv-events-config '{"),
        ("/v1/completions", (404, b"{}"), "does not serve this model"),
        ("/v1/completions", (400, b'{"error": {"message": "no prompts of ids"}}'), "no prompts of ids"),
    ],
)
async def test_refused_servers(server: FakeVllmServer, path: str, answer: tuple[int, bytes], sentence: str) -> None:
    """A server that cannot be attached is refused in one sentence that says what to change."""
    server.answers[path] = answer
    assert sentence in await refusal_of(server)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"block_size": "None"}, "does not say its block size"),
        ({"block_size": 0}, "does not say its block size"),
        ({"blocks": "None"}, "how many blocks"),
        ({"block_size": 32}, "32 tokens, and its cache events say 16"),
    ],
)
async def test_refused_block_sizes(server: FakeVllmServer, numbers: dict[str, Any], sentence: str) -> None:
    """A block size that is absent or that the events contradict."""
    server.numbers |= numbers
    assert sentence in await refusal_of(server)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("127.0.0.1:8000", "write http://HOST:PORT"),
        ("ftp://host:8000", "write http://HOST:PORT"),
        ("http://", "without a path"),
        ("http://host:8000/v1", "without a path"),
        ("http://me:secret@host:8000", "login"),
        ("http://host:99999", "no port"),
    ],
)
def test_refused_addresses(url: str, sentence: str) -> None:
    """What is no root of a server is refused, and a password is not repeated."""
    with pytest.raises(CallerError, match=sentence) as caught:
        ServerAddress.parse(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8000/", "http://host:8000"),
        ("https://host", "https://host:443"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses(url: str, expected: str) -> None:
    """Ports have the scheme's default."""
    assert str(ServerAddress.parse(url)) == expected


async def test_a_server_that_is_away() -> None:
    """It may come: that is no refusal."""
    engine = AttachedEngine("tiny", ServerOptions(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(Unavailable, match="cannot be reached"):
        await engine.start(lambda _: None)


async def test_no_event_arrives(server: FakeVllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial finds that events do not come from the server that answers."""
    monkeypatch.setattr(attached_engine, "TRIAL_EVENTS_S", 0.2)
    server.tell_events = False
    assert "no cache event of it arrived at tcp://127.0.0.1:" in await refusal_of(server)


async def test_the_first_event_is_lost(server: FakeVllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that did not stand yet at the first trial stands at a later one."""
    monkeypatch.setattr(attached_engine, "TRIAL_EVENTS_S", 0.2)
    publisher, store = server._publisher, server._store
    lost = server._publisher = server._context.socket(zmq.PUB)  # has no subscriber

    async def once(tokens: list[int], salt: str | None) -> None:
        await store(tokens, salt)
        server._publisher = publisher

    monkeypatch.setattr(server, "_store", once)
    changes: list[CacheChange] = []
    engine = AttachedEngine("tiny", ServerOptions(server.url))
    await engine.start(changes.append)
    assert [change.blocks for change in changes if isinstance(change, CacheStored)] == [(1,), (2,)]
    assert len(server.bodies) == 2
    await engine.stop()
    lost.close(linger=0)


async def test_hybrid_models(server: FakeVllmServer) -> None:
    """Several kinds of attention, or one of which prefixes cannot be told."""
    server.event_fields = {"kv_cache_spec_kind": "sliding_window"}
    assert "kinds of attention" in await refusal_of(server)
    server.event_fields = {}
    server.further_events = [stored(group_idx=1, kv_cache_spec_kind="mamba")]
    assert "kinds of attention" in await refusal_of(server)


async def test_several_servers(server: FakeVllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes with several starts behind one address, or with none at all."""
    starts = iter([1.5, 1.5, 2.5, 1.5, 1.5, 1.5])
    plain = server._plain

    def balanced(path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/metrics":
            server.numbers["started_s"] = next(starts)
        return plain(path, body)

    monkeypatch.setattr(server, "_plain", balanced)
    assert "balances over several servers" in await refusal_of(server)
    monkeypatch.undo()
    server.answers["/metrics"] = (200, plain("/metrics", b"")[1].replace(b"process_start", b"other"))
    assert "--api-server-count 1" in await refusal_of(server)


async def test_a_rank_of_a_data_parallel_server(server: FakeVllmServer) -> None:
    """Its events, its numbers, and requests that name it; a server with one rank is not told."""
    server.rank, server.numbers["running"], server.numbers["blocks"] = 1, 3.0, 2 * (BLOCKS + 1)
    assert "has 2 data-parallel ranks" in await refusal_of(server)
    assert "no data-parallel rank 2: it has 2, numbered from 0" in await refusal_of(server, rank=2)
    server.ranks_asked.clear()
    engine = AttachedEngine("tiny", ServerOptions(server.url, rank=1))
    await engine.start(lambda _: None)
    assert (engine.info.group, engine.info.block_size) == (server.url, BLOCK_SIZE)
    assert engine.info.capacity_blocks == BLOCKS
    assert (engine.info.server, engine.info.rank) == (server.url, 1)
    assert engine.load().running == 3
    await outputs_of(engine, request())
    await engine.stop()
    assert server.ranks_asked == ["1"] * 2
    server.rank = 0
    assert "no data-parallel rank 1: it has 1" in await refusal_of(server, rank=1)
    alone = AttachedEngine("tiny", ServerOptions(server.url, rank=0))
    await alone.start(lambda _: None)
    await alone.stop()
    assert (alone.info.group, server.ranks_asked[2:]) == ("", [None])
    assert (alone.info.server, alone.info.rank) == (server.url, None)


async def test_key_and_choice_of_model(server: FakeVllmServer) -> None:
    """The key goes with every request; a model is chosen by name, and an adapter is none."""
    root = server.root
    adapter = {"id": "alpha", "root": "/a", "parent": "served", "max_model_len": None}
    data = json.loads(model(root=root))["data"] + [adapter]
    server.answers["/v1/models"] = (200, json.dumps({"data": data}).encode())
    assert "is an adapter" in await refusal_of(server, model="alpha")
    assert "serves no model 'beta'; it serves served, alpha" in await refusal_of(server, model="beta")
    server.asked.clear()
    engine = AttachedEngine("tiny", ServerOptions(server.url, key="k1", model="served", tokenizer=root))
    await engine.start(lambda _: None)
    await engine.stop()
    assert all(line.endswith(" Bearer k1") for line in server.asked)
    assert "k1" not in repr(engine) + repr(ServerOptions(server.url, key="k1"))
    with pytest.raises(CallerError, match="characters"):
        AttachedEngine("tiny", ServerOptions(server.url, key="a\r\nb"))


async def test_https(server: FakeVllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind TLS, the server's certificate is checked; requests are aborted likewise."""
    authority = Authority(tmp_path)
    issued = authority.issue("server", "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(issued.cert, issued.key)
    await server.close()
    secured = FakeVllmServer(server._tokenize, server.root)
    await secured.open(tls)
    with pytest.raises(Unavailable, match="certificate"):
        await AttachedEngine("tiny", ServerOptions(secured.url)).start(lambda _: None)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    engine = AttachedEngine("tiny", ServerOptions(secured.url))
    await engine.start(lambda _: None)
    secured.token_delay_s = 0.05
    async with aclosing(engine.generate(request(max_tokens=200))) as outputs:  # type: ignore[type-var]
        await anext(outputs)
    await eventually(lambda: secured.running == 0, "the end", timeout_s=5)
    await engine.stop()
    await secured.close()


async def test_priorities(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """A server that does not schedule by priority gets none."""
    refuses = b'{"error": {"message": "Got priority 1 but Priority scheduling is not enabled.", "code": 400}}'
    complete = server._complete

    async def without(reader: Any, writer: Any, body: dict[str, Any]) -> None:
        if "priority" in body:
            server._reply(writer, 400, refuses)
        else:
            await complete(reader, writer, body)

    server._complete = without  # type: ignore[method-assign]
    plain = AttachedEngine("tiny", ServerOptions(server.url))
    await plain.start(lambda _: None)
    outputs = await outputs_of(plain, msgspec.structs.replace(request(), priority=3))
    assert outputs[-1].finish == "length"
    await plain.stop()


def raw(body: bytes, *, status: int = 200, chunked: bool = False) -> bytes:
    how = b"Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}".encode()
    return f"HTTP/1.1 {status} OK\r\n".encode() + how + b"\r\n\r\n" + body


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def choice(*tokens: int, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"token_ids": list(tokens), **fields}]}


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        (b"SSH-2.0-x\r\n", PeerError, "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200, PeerError, "headers"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000, PeerError, "line without an end"),
        (b"", EngineDead, "hung up"),
        (raw(b"xyz\r\n", chunked=True), PeerError, "chunk without a size"),
        (raw(b"ff\r\ndata", chunked=True), EngineDead, "hung up"),
        (raw(sse(choice(1))), EngineDead, "in the middle"),
        (raw(b"data: {\n\n"), PeerError, "none of a completion"),
        (raw(b"data: [DONE]\n\n"), PeerError, "without a reason"),
        (raw(sse({"choices": [{"text": "a"}]})), PeerError, "without the ids of its tokens"),
        (raw(sse(choice(1, finish_reason="abort"))), EngineDead, "aborted"),
        (raw(sse(choice(1, finish_reason="error"))), GenerationFailed, "broke off: error"),
        (raw(sse({"error": {"message": "EngineCore failed", "code": 500}})), GenerationFailed, "EngineCore failed"),
        (raw(sse({"error": {"message": "no such thing", "code": 400}})), CallerError, "no such thing"),
        (raw(b'{"error": {"message": "too long: 9 tokens"}}', status=400), CallerError, "too long: 9 tokens"),
        (raw(b"<html>", status=400), CallerError, "status 400"),
        (raw(b"{}", status=401), Refused, "key"),
        (raw(b"{}", status=404), Refused, "model"),
        (raw(b"{}", status=503), Unavailable, "no more requests"),
        (raw(b"{}", status=500), GenerationFailed, "failed on this request"),
    ],
)
async def test_broken_answers(
    server: FakeVllmServer, engine: AttachedEngine, answer: bytes, kind: type[ContrailError], sentence: str
) -> None:
    """Each answer that is no completion is an error of the right party, and the engine goes on."""
    server.raw = answer
    with pytest.raises(kind, match=sentence) as caught:
        await outputs_of(engine, request())
    assert kind is not PeerError or type(caught.value) is PeerError
    server.raw = None
    assert (await outputs_of(engine, request()))[-1].finish == "length"
    assert engine.load().running == 0


async def test_a_guided_answer_without_an_end(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """No token is left that fits: that is the caller's guide."""
    server.raw = raw(sse({"error": {"message": "Internal", "code": 500}}))
    with pytest.raises(CallerError, match="no token that fits"):
        await outputs_of(engine, request(guided=Guided(json_object=True)))


async def test_an_end_without_its_usage(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """An answer that is whole stands, though the server hung up behind it."""
    server.raw = raw(sse(choice(1), choice(2, finish_reason="stop")))
    outputs = await outputs_of(engine, request())
    assert [(output.tokens, output.finish) for output in outputs] == [((1,), None), ((2,), "stop")]


async def test_logprobs(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """Tokens are named by their ids; the likeliest stand in order, wherever the chosen one is."""
    top = {"token_id:7": -3.0, "token_id:1": -0.5, "token_id:2": -1.0}
    found = {"tokens": ["token_id:7"], "token_logprobs": [-3.0], "top_logprobs": [top]}
    server.raw = raw(sse(choice(7, finish_reason="length", logprobs=found)) + b"data: [DONE]\n\n")
    (output,) = await outputs_of(engine, request(logprobs=2))
    assert output.logprobs == (TokenLogprobs(7, -3.0, ((1, -0.5), (2, -1.0))),)
    body = server.bodies[-1]
    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (2, True)
    for wrong in (None, {**found, "token_logprobs": []}, {**found, "top_logprobs": [{"a": -1.0}]}):
        server.raw = raw(sse(choice(7, finish_reason="length", logprobs=wrong)))
        with pytest.raises(PeerError, match="logprobs"):
            await outputs_of(engine, request(logprobs=2))


async def test_bounds_of_an_answer(
    server: FakeVllmServer, engine: AttachedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies and events have a size, and questions a time."""
    monkeypatch.setattr(server_client, "BODY_BYTES_MAX", 100)
    monkeypatch.setattr(server_client, "EVENT_BYTES_MAX", 100)
    server.answers["/health"] = (200, b"a" * 101)
    with pytest.raises(PeerError, match="longer than"):
        await engine._client.get("/health", 5)
    server.raw = raw(b"data: " + b"a" * 200)
    with pytest.raises(PeerError, match="longer than"):
        await outputs_of(engine, request())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = server_client.ServerClient(ServerAddress.parse(address))
        for ask in (client.get("/health", 0.1), client.post("/tokenize", b"{}", 0.1)):
            with pytest.raises(ServerGone, match=r"within 0\.1 s"):
                await ask


async def test_hanging_up_aborts(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """The server sees within 0.2 s that an iterator was closed, or its task cancelled."""
    server.token_delay_s = 0.05

    async def closed() -> None:
        async with aclosing(engine.generate(request(max_tokens=200))) as outputs:  # type: ignore[type-var]
            await anext(outputs)

    async def cancelled() -> None:
        task = asyncio.create_task(outputs_of(engine, request(max_tokens=200)))
        await eventually(lambda: server.running == 1, "the request")
        task.cancel()
        await asyncio.wait([task])

    for way in (closed, cancelled):
        await way()
        begun = time.monotonic()
        await eventually(lambda: server.running == 0, "the end", timeout_s=5)
        assert time.monotonic() - begun < 0.2
        assert engine.load().running == 0


async def test_stop_ends_requests(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """Requests under way fail as with a dead engine, later ones at once; stopping again does nothing."""
    server.token_delay_s = 0.05
    task = asyncio.create_task(outputs_of(engine, request(max_tokens=200)))
    await eventually(lambda: engine.load().running == 1, "the request")
    await engine.stop()
    with pytest.raises(EngineDead):
        await task
    with pytest.raises(EngineDead, match="not attached"):
        await outputs_of(engine, request())
    await engine.stop()


async def test_stop_while_a_request_connects(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """It is not sent any more."""
    task = asyncio.create_task(outputs_of(engine, request(max_tokens=1)))
    await asyncio.sleep(0)
    assert not engine._client._open
    before = len(server.bodies)
    await engine.stop()
    with pytest.raises(EngineDead):
        await task
    assert len(server.bodies) == before


async def test_load(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """Requests of others count beside our own, and our own at once."""
    server.numbers |= {"running": 3, "steps": 12}
    await eventually(lambda: engine.load().running == 3, "a reading")
    load = engine.load()
    assert (load.waiting, load.blocks_used, load.blocks_total, load.steps) == (0, BLOCKS // 4, BLOCKS, 12)
    server.token_delay_s = 0.05
    task = asyncio.create_task(outputs_of(engine, request(max_tokens=3)))
    await asyncio.sleep(0)
    assert engine.load().running == 4
    await task
    assert engine.load().running == 3


async def test_numbers_are_read_twice_a_second(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """A reading costs the server 5 ms."""
    before = server.asked.count("GET /metrics")
    await asyncio.sleep(2.2)
    assert 2 <= server.asked.count("GET /metrics") - before <= 5


@pytest.mark.parametrize("how", ["start time", "events", "replay"])
async def test_a_restart_is_seen(
    server: FakeVllmServer, engine: AttachedEngine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """By the start of the process, by a number that returns, or by a replay that lacks the newest batch."""
    if how == "replay":
        monkeypatch.setattr(attached_engine, "REREAD_EVERY_S", 0.1)
        await engine.stop()
        engine = AttachedEngine("tiny", ServerOptions(server.url))
        await engine.start(lambda _: None)
    await engine.check()
    server.restart(2.5 if how == "start time" else 1.5)
    if how == "events":
        await server.publish({"type": "AllBlocksCleared"})

    async def dead() -> bool:
        try:
            await engine.check()
        except EngineDead as error:
            return "started again" in str(error)
        return False

    async with asyncio.timeout(3):
        while not await dead():
            await asyncio.sleep(0.05)
    await engine.stop()


async def test_successors(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """A server that was started again has a successor with an empty cache; two in turn are several servers, and another
    model is refused."""
    changes: list[CacheChange] = []
    await outputs_of(engine, request(*range(3 * BLOCK_SIZE)))
    await engine.stop()
    server.restart(2.5)
    second = engine.successor()
    await second.start(changes.append)
    assert [change.blocks for change in changes if isinstance(change, CacheStored)] == [(5,)], "its trial alone"
    await second.stop()
    server.restart(3.5)
    third = second.successor()
    await third.start(lambda _: None)
    await third.stop()
    server.restart(1.5)
    with pytest.raises(CallerError, match="balances over several servers"):
        await third.successor().start(lambda _: None)
    server.restart(4.5)
    server.answers["/v1/models"] = (200, model(root="/models/other"))
    after = third.successor()
    after._options = after._options._replace(tokenizer=server.root)
    with pytest.raises(CallerError, match="now serves /models/other"):
        await after.start(lambda _: None)


async def test_lost_events_are_found(
    server: FakeVllmServer, engine: AttachedEngine, changes: list[CacheChange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that the subscription lost comes by replay, though none comes behind it; one that is held no more is a
    gap."""
    monkeypatch.setattr(attached_engine, "REREAD_EVERY_S", 0.1)
    await engine.stop()
    second = AttachedEngine("tiny", ServerOptions(server.url))
    await second.start(changes.append)
    publisher = server._publisher
    server._publisher = server._context.socket(zmq.PUB)  # nobody subscribed to it
    await outputs_of(second, request(*range(2 * BLOCK_SIZE)))
    await eventually(lambda: isinstance(changes[-1], CacheStored) and len(changes[-1].blocks) == 2, "the lost batch")
    for _ in range(3):
        await server.publish({"type": "AllBlocksCleared"})
    server.forget_events(server._sequence - 1)
    server._publisher.close(linger=0)
    server._publisher = publisher
    await eventually(lambda: any(isinstance(change, CacheGap) for change in changes), "the gap")
    await second.stop()


async def test_events_are_cut_off_under_load(server: FakeVllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of the cache events breaks for a while, under stores and evictions. Nothing is lost: the mirror
    holds what the server's cache holds."""
    monkeypatch.setattr(attached_engine, "REREAD_EVERY_S", 0.1)
    cable = Cable(server.endpoints[0].replace("tcp://*", "127.0.0.1"))
    await cable.mend()
    server.endpoints[0] = f"tcp://{cable.endpoint}"
    changes: list[CacheChange] = []
    engine = AttachedEngine("tiny", ServerOptions(server.url))
    await engine.start(changes.append)
    after_trial = len(changes)
    held = set[int]()

    async def load(first: int, count: int) -> None:
        for name in range(first, first + count):
            evicted = [removed(name - LIVE_BLOCKS)] if name - LIVE_BLOCKS in held else []
            held.difference_update({name - LIVE_BLOCKS})
            held.add(name)
            await server.publish(root_block(name), *evicted)
            await asyncio.sleep(CUT_S / CUT_BATCHES)

    await load(1000, CUT_BATCHES)
    await cable.cut()
    await load(1000 + CUT_BATCHES, CUT_BATCHES)
    await cable.mend()
    await load(1000 + 2 * CUT_BATCHES, CUT_BATCHES)
    await engine.settle()
    await engine.check()
    known = set[int]()
    for change in changes[after_trial:]:
        assert not isinstance(change, CacheGap)
        if isinstance(change, CacheStored):
            known.update(change.blocks)
        elif isinstance(change, CacheRemoved):
            known.difference_update(change.blocks)
    assert known == held
    assert len(held) == LIVE_BLOCKS
    await engine.stop()
    await cable.cut()


async def test_attached_late(server: FakeVllmServer) -> None:
    """The server has forgotten its first batches. What rests on them is not claimed; the rest is, and what is stored
    again is learned."""
    for name in range(LATE_BATCHES):
        await server.publish(root_block(name, parent=name - 1 if name % 2 else None))
    server.forget_events(LATE_BATCHES - LATE_KEPT + 1)
    changes: list[CacheChange] = []
    engine = AttachedEngine("tiny", ServerOptions(server.url))
    await engine.start(changes.append)
    mirror = CacheMirror(BLOCK_SIZE, HASH_SEED)
    for change in changes:
        mirror.apply(change)
    assert mirror.gaps == 1
    assert isinstance(changes[0], CacheGap)
    assert changes[0].detail.startswith(f"cache events 0 to {LATE_BATCHES - LATE_KEPT} were missed")
    assert mirror.reported == LATE_KEPT - 1 - 1 + 1  # without the block whose parent is forgotten; with the trial's
    learned = len(changes)
    await server.publish(root_block(LATE_BATCHES - LATE_KEPT))
    await engine.settle()
    for change in changes[learned:]:
        mirror.apply(change)
    assert mirror.reported == LATE_KEPT + 1  # that parent, and the block behind it
    await engine.stop()


def root_block(name: int, parent: int | None = None) -> dict[str, Any]:
    """One block of tokens of its own, at the start of a prompt or behind the parent."""
    tokens = [name * BLOCK_SIZE + at for at in range(BLOCK_SIZE)]
    return stored(
        block_hashes=[name], parent_block_hash=parent, token_ids=tokens, block_size=BLOCK_SIZE, extra_keys=[None]
    )


async def test_events_that_cannot_be_read_again(server: FakeVllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some replays without an answer nothing is known of the cache."""
    monkeypatch.setattr(attached_engine, "REREAD_EVERY_S", 0.05)
    engine = AttachedEngine("tiny", ServerOptions(server.url))
    await engine.start(lambda _: None)
    assert engine._feed is not None

    async def fails() -> None:
        raise Unavailable("no answer to a replay")

    monkeypatch.setattr(engine._feed, "reread", fails)
    await asyncio.sleep(0.05 * (attached_engine.REREAD_FAILURES_MAX + 3))
    with pytest.raises(EngineDead, match="cannot be read any more"):
        await engine.check()
    await engine.stop()


async def test_health(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """A server whose engine is dead says so; one that is away is asked twice."""
    server.answers["/health"] = (503, b"")
    with pytest.raises(EngineDead, match="503"):
        await engine.check()
    server._server.close()
    server.asked.clear()
    begun = time.monotonic()
    with pytest.raises(EngineDead, match="gone"):
        await engine.check()
    assert attached_engine.HEALTH_RETRY_S <= time.monotonic() - begun < 1
    assert attached_engine.HEALTH_TRIES * attached_engine.HEALTH_TIMEOUT_S < 30


async def test_a_server_that_hangs(server: FakeVllmServer, engine: AttachedEngine) -> None:
    """Requests wait, and neither outputs nor steps of the server come: the watchdog ends it. One with steps goes on."""
    server.numbers |= {"running": 1}

    def evidence() -> tuple[int, ...]:
        return (engine.load().steps,)

    stepping = asyncio.create_task(wait_until_dead(engine, evidence, 1.0))
    for step in range(8):
        server.numbers["steps"] = step
        await asyncio.sleep(0.3)
    assert not stepping.done()
    assert "hangs" in await asyncio.wait_for(stepping, 10)


def test_metrics_in_full() -> None:
    """Numbers are those of the rank; what is no number of a server is refused."""
    text = b"".join(
        f'vllm:{name}{{engine="{engine}"}} {value + engine}\n'.encode()
        for engine in (0, 1)
        for name, value in (("num_requests_running", 2.0), ("num_requests_waiting", 5.0), ("kv_cache_usage_perc", 0.5))
    )
    for rank in (0, 1):
        found = read_metrics(text, rank).numbers
        assert (found.running, found.waiting, found.start, found.steps) == (2 + rank, 5 + rank, None, 0)
    with pytest.raises(PeerError):
        read_metrics(text, 2)
    for wrong in (b"", text.replace(b"2.0", b"NaN"), text.replace(b"2.0", b"x")):
        with pytest.raises(PeerError):
            read_metrics(wrong)


def test_long_objections_are_cut() -> None:
    """A server repeats whole patterns in what it says."""
    body = json.dumps({"error": {"message": "no\n" + "a" * 1000}}).encode()
    text = str(call_checks.refusal(400, body))
    assert len(text) == call_checks.SENTENCE_MAX + 1
    assert text.startswith("no aaa")
