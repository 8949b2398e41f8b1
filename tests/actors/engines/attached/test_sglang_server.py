"""An attached engine against a small server that speaks as SGLang does: facts, requests, events, refusals."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from actors.engines.attached import attached_engine
from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.generate_call import GenerateReader
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.engine import CacheChange, CacheStored
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import CallerError, ContrailError, EngineDead, PeerError, Unavailable
from core.generation import GenerateRequest, Guided, Output, Sampling, TokenLogprobs
from core.ids import RequestId, new_id
from core.models import GenerationFailed
from core.prompt import Prompt, hashes_from_bytes, scope_bytes, tokens_to_bytes
from tests.fixtures.eventually import eventually
from tests.fixtures.fake_sglang_server import FakeSglangServer
from tests.fixtures.fake_vllm_server import BLOCK_SIZE, BLOCKS, CONTEXT

SEED = 3


@pytest.fixture(params=["maps", "arrays"])
async def server(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> AsyncIterator[FakeSglangServer]:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    server = FakeSglangServer(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        str(tiny_checkpoint),
        arrays=request.param == "arrays",
    )
    await server.open()
    yield server
    await server.close()


@pytest.fixture
async def changes() -> list[CacheChange]:
    return []


@pytest.fixture
async def engine(server: FakeSglangServer, changes: list[CacheChange]) -> AsyncIterator[AttachedEngine]:
    engine = AttachedEngine("tiny", ServerOptions(server.url, slots=8))
    await engine.start(changes.append)
    yield engine
    await engine.stop()


def asked(tokens: list[int], max_tokens: int = 3, salt: str | None = None, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        id=RequestId(new_id()),
        tokens=tokens_to_bytes(tokens),
        sampling=Sampling(max_tokens=max_tokens, **sampling),
        cache_salt=salt,
    )


async def outputs_of(engine: AttachedEngine, request: GenerateRequest) -> list[Output]:
    return [output async for output in engine.generate(request)]


async def test_serves(engine: AttachedEngine, server: FakeSglangServer) -> None:
    """The kind is found by asking; tokens go both ways, told since the start or since the last event, and cached tokens
    come with the first."""
    info = engine.info
    assert (info.engine, info.assumed, info.model_path) == ("sglang 0.5.23, attached", False, server.root)
    assert (info.block_size, info.capacity_blocks, info.context_max) == (BLOCK_SIZE, BLOCKS, CONTEXT)
    for incremental in (False, True):
        server.incremental = incremental
        outputs = await outputs_of(engine, asked([*range(40)], 4))
        assert [output.tokens for output in outputs] == [(40,), (41,), (42,), (43,)]
        assert [output.finish for output in outputs] == [None, None, None, "length"]
        assert [output.cached_tokens for output in outputs] == [32 if incremental else 0, None, None, None]
    await engine.check()


async def test_the_mirror_follows_the_cache(
    engine: AttachedEngine, server: FakeSglangServer, changes: list[CacheChange]
) -> None:
    """Over requests with evictions, answers included, the mirror holds the prefixes that the server held; predicted
    tokens are those that the server tells. Salts are told apart where events have them, and refused where not."""
    server.capacity = 24
    mirror, fresh, applied = CacheMirror(BLOCK_SIZE, SEED), random.Random(3), 0
    trunks = [[fresh.randrange(200) for _ in range(fresh.randrange(2, 6) * BLOCK_SIZE)] for _ in range(4)]
    salts = [None] if server.arrays else [None, "one", "two"]
    for _ in range(25):
        tokens, salt = fresh.choice(trunks) + [fresh.randrange(200) for _ in range(20)], fresh.choice(salts)
        prompt = Prompt(tokens_to_bytes(tokens), BLOCK_SIZE, SEED, scope_bytes(None, salt))
        held = set(mirror.held("device"))
        depth = next(
            (at for at, each in enumerate(hashes_from_bytes(prompt.hashes())) if each not in held), prompt.blocks
        )
        outputs = await outputs_of(engine, asked(tokens, 20, salt))
        assert outputs[0].cached_tokens == min(depth, prompt.blocks_reusable) * BLOCK_SIZE
        await engine.settle()
        for change in changes[applied:]:
            mirror.apply(change)
        applied = len(changes)
        expected = {
            Prompt(tokens_to_bytes(prefix), BLOCK_SIZE, SEED, scope_bytes(None, of)).key(len(prefix) // BLOCK_SIZE)
            for of, prefix in server.held
        }
        assert set(mirror.held("device")) == expected
    assert mirror.strangers == 0
    if server.arrays:
        with pytest.raises(CallerError, match="apart: leave cache_salt out"):
            await outputs_of(engine, asked([1, 2], salt="one"))


async def test_everything_of_a_request_is_sent(server: FakeSglangServer, engine: AttachedEngine) -> None:
    """Each sampling parameter goes by SGLang's name, the defaults, too; never an extra key, nor a priority."""
    request = asked(
        [8, 9], 2, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop_token_ids=(1, 2), ignore_eos=True,
        min_tokens=1, presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, logit_bias=((4, 1.5),),
        guided=Guided(regex="a+"), logprobs=2,
    )  # fmt: skip
    server.raw = b"HTTP/1.1 500 said\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(GenerationFailed):
        await outputs_of(engine, msgspec.structs.replace(request, priority=4))
    assert server.bodies[-1] == {
        "rid": request.id, "input_ids": [8, 9], "stream": True, "return_logprob": True, "top_logprobs_num": 2,
        "sampling_params": {
            "max_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "sampling_seed": 3,
            "stop_token_ids": [1, 2], "ignore_eos": True, "min_new_tokens": 1, "presence_penalty": 0.2,
            "frequency_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"4": 1.5}, "regex": "a+",
        },
    }  # fmt: skip
    server.raw = None
    await outputs_of(engine, asked([8, 9], guided=Guided(json_object=True)))
    plain = server.bodies[-1]["sampling_params"]
    assert (plain["top_k"], plain["json_schema"]) == (-1, '{"type": "object"}')
    for wrong in ({"bad_words": ("a",)}, {"allowed_token_ids": (1,)}, {"guided": Guided(choices=("a", "b"))}):
        with pytest.raises(CallerError, match="SGLang"):
            await outputs_of(engine, asked([8, 9], **wrong))


async def refusal_of(server: FakeSglangServer, **options: Any) -> str:
    """The sentence with which an engine does not attach it."""
    engine = AttachedEngine("tiny", ServerOptions(server.url, **options))
    with pytest.raises(CallerError) as caught:
        await engine.start(lambda _: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ({"kv_events": None, "kv_events_config": None}, '"format": "dynamo"}\', or attach it with `cache: assumed`'),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"disaggregation_mode": "prefill"}, "one half"),
        ({"max_total_num_tokens": None}, "max_total_num_tokens"),
        ({"version": None}, "no SGLang server"),
        ({"model_path": "hub/name"}, "--tokenizer"),
    ],
)
async def test_refused_servers(server: FakeSglangServer, info: dict[str, Any], sentence: str) -> None:
    """A server that cannot be attached is refused in one sentence that says what to change."""
    server.info |= info
    assert sentence in await refusal_of(server)


async def test_refused_manners(server: FakeSglangServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No metrics, no replay, blocks of one token, several kinds of attention, events that come from elsewhere, several
    servers."""
    server.answers["/metrics"] = (404, b"")
    assert "--enable-metrics" in await refusal_of(server)
    sliding = b'sglang:max_total_num_tokens_swa{tp_rank="0"} 9\n'
    server.answers["/metrics"] = (200, server._plain("/metrics", b"")[1] + sliding)
    assert "kinds of attention" in await refusal_of(server)
    del server.answers["/metrics"]
    told = server.kv_events()
    server.info["kv_events"] = told | {"replay_endpoint_port_base": None}
    assert "cannot replay" in await refusal_of(server)
    server.info["kv_events"] = told | {"block_size": 1}
    assert "--page-size 16" in await refusal_of(server)
    server.info["kv_events"] = told
    server.tell_events = False
    monkeypatch.setattr(attached_engine, "TRIAL_EVENTS_S", 0.05)
    assert "no cache event of it arrived" in await refusal_of(server)
    seeds = iter(range(100))
    plain = server._plain

    def balanced(path: str, body: bytes) -> tuple[int, bytes]:
        server.info["random_seed"] = next(seeds)
        return plain(path, body)

    monkeypatch.setattr(server, "_plain", balanced)
    assert "balances over several servers" in await refusal_of(server)


async def test_load(server: FakeSglangServer, engine: AttachedEngine) -> None:
    """The numbers are those of the first scheduler, of all priorities together."""
    server.numbers |= {"running": 3, "waiting": 2, "steps": 12}
    await eventually(lambda: engine.load().running == 3, "a reading")
    load = engine.load()
    assert (load.waiting, load.blocks_used, load.blocks_total, load.steps) == (2, BLOCKS // 4, BLOCKS, 17)


async def test_a_rank(server: FakeSglangServer) -> None:
    """A rank's sockets are as many ports on, its numbers have its label, and requests name it."""
    server.rank, server.numbers["running"] = 1, 4
    server.info |= {"dp_size": 2, "kv_events": server.kv_events()}
    assert "2 data-parallel ranks" in await refusal_of(server)
    engine = AttachedEngine("tiny", ServerOptions(server.url, rank=1))
    await engine.start(lambda _: None)
    assert (engine.info.rank, engine.info.group, engine.load().running) == (1, server.url, 4)
    await outputs_of(engine, asked([1, 2]))
    assert server.bodies[-1]["routed_dp_rank"] == 1
    await engine.stop()


async def test_aborts(server: FakeSglangServer, engine: AttachedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is closed is aborted by a call and by hanging up; of too many at once by hanging up alone, and one
    that ends by neither."""
    await outputs_of(engine, asked([1, 2]))
    server.token_delay_s = 0.05
    request = asked([3, 4], 200)
    async with aclosing(engine.generate(request)) as outputs:  # type: ignore[type-var]
        await anext(outputs)
    await eventually(lambda: server.aborted == [request.id], "the call")
    await eventually(lambda: server.running == 0, "the end")
    monkeypatch.setattr(attached_engine, "ABORTS_MAX", 0)
    async with aclosing(engine.generate(asked([5, 6], 200))) as outputs:  # type: ignore[type-var]
        await anext(outputs)
    await eventually(lambda: server.running == 0, "the end")
    assert server.aborted == [request.id]


async def test_pairs_of_tokens(server: FakeSglangServer) -> None:
    """A cache that is keyed by pairs is refused at the trial; events of others that cannot be told are not."""
    server.pairs = True
    assert "by pairs of tokens" in await refusal_of(server)
    server.pairs = False
    server.further_events = [{"type": "BlockStored", "block_hashes": [9], "medium": "EXTERNAL"}]
    engine = AttachedEngine("tiny", ServerOptions(server.url))
    await engine.start(lambda _: None)
    await engine.stop()


async def test_a_new_start(server: FakeSglangServer, engine: AttachedEngine) -> None:
    """Events that begin anew end the engine; its successor has an empty cache."""
    await engine.check()
    server.restart()
    await server.insert([*range(BLOCK_SIZE)])

    async def dead() -> bool:
        try:
            await engine.check()
        except EngineDead as error:
            return "started again" in str(error)
        return False

    for _ in range(100):
        if await dead():
            break
    assert await dead()
    await engine.stop()
    found: list[CacheChange] = []
    successor = engine.successor()
    await successor.start(found.append)
    assert sum(len(change.blocks) for change in found if isinstance(change, CacheStored)) == 2
    await successor.stop()


def answer(ids: list[int], count: int, **meta: Any) -> bytes:
    return json.dumps({"output_ids": ids, "meta_info": {"completion_tokens": count, **meta}}).encode()


def test_logprobs() -> None:
    """Of the newest tokens, whether the server repeats the earlier ones or not."""
    pairs = [[-0.5, 7, None], [-1.5, 8, None]]
    best = [[[-0.5, 7, None], [-2.0, 9, None]], [[-0.25, 9, None], [-1.5, 8, None]]]
    expected = (TokenLogprobs(8, -1.5, ((9, -0.25), (8, -1.5)), 2),)
    for ids, logs, top in (([7, 8], pairs, best), ([8], pairs[1:], best[1:])):
        reader = GenerateReader(Sampling(max_tokens=3, logprobs=2))
        reader.read(answer([7], 1, output_token_logprobs=pairs[:1], output_top_logprobs=best[:1]))
        output = reader.read(answer(ids, 2, output_token_logprobs=logs, output_top_logprobs=top))
        assert output is not None
        assert (output.tokens, output.logprobs) == ((8,), expected)
    with pytest.raises(PeerError, match="logprobs"):
        GenerateReader(Sampling(max_tokens=3, logprobs=1)).read(answer([7], 1))


@pytest.mark.parametrize(
    ("data", "kind", "sentence"),
    [
        (b"{", PeerError, "none of an answer"),
        (b'{"text": "a"}', PeerError, "output_ids"),
        (answer([1], 3), PeerError, "counts 3 tokens"),
        (b'{"error": {"message": "too long", "code": 400}}', CallerError, "too long"),
        (answer([], 0, finish_reason={"type": "abort", "message": "by hand"}), EngineDead, "by hand"),
        (answer([], 0, finish_reason={"type": "abort", "status_code": 503}), Unavailable, "no more"),
        (answer([], 0, finish_reason={"type": "abort", "message": "bad", "status_code": 400}), CallerError, "bad"),
        (answer([], 0, finish_reason={"type": "abort", "status_code": 500}), GenerationFailed, "failed"),
        (answer([], 0, finish_reason={"type": "melted"}), GenerationFailed, "melted"),
    ],
)
def test_broken_answers(data: bytes, kind: type[ContrailError], sentence: str) -> None:
    """Each event that is none of an answer is an error of the right party."""
    with pytest.raises(kind, match=sentence) as caught:
        GenerateReader(Sampling(max_tokens=3)).read(data)
    assert type(caught.value) is kind
