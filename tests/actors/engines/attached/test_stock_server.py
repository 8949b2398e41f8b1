"""A stock `vllm serve` as an engine: the contract, and what only a real server can show.

The contract is met but for these parts, each a test of its own here:

1. The count of cached tokens comes with the last tokens, and only with `--enable-prompt-tokens-details`.
2. The rank of a token is known only among the likeliest that were asked for.
3. There are no logprobs of a prompt.
4. A request counts as running until its last tokens were taken.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from actors.engines import engine as engine_module
from actors.engines.attached.attached_engine import AttachedEngine, trial_tokens
from actors.engines.attached.server_profile import ServerNumbers, ServerOptions
from actors.engines.attached.vllm_profile import read_metrics
from actors.engines.engine import CacheChange, CacheGap, CacheRemoved, Engine
from actors.kv_cache.cache_mirror import CacheMirror
from actors.transport.server_client import ServerAddress, ServerClient
from core.errors import CallerError, EngineDead
from core.prompt import tokens_to_bytes
from tests.contracts.engine import HASH_SEED, EngineContract, Started, answer_to, prompt, request, until_idle
from tests.contracts.engine_sampling import SamplingContract
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually
from tests.fixtures.vllm_server import BLOCK_SIZE, CONTEXT, KV_BLOCKS, VllmServer

DETAILS = "--enable-prompt-tokens-details"
STREAMS = 16


class Attached(NamedTuple):
    """An attached engine, and what it told of its cache."""

    engine: AttachedEngine
    changes: list[CacheChange]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tiny_checkpoint: Path) -> AsyncIterator[VllmServer]:
    """One server for all tests, which says how much of each prompt its cache had."""
    server = VllmServer(tiny_checkpoint, DETAILS)
    try:
        server.start()
        await server.ready()
        yield server
    finally:
        await asyncio.to_thread(server.close)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attached(server: VllmServer) -> AsyncIterator[Attached]:
    """One engine on it for all tests that leave it running."""
    changes: list[CacheChange] = []
    attached = Attached(AttachedEngine("tiny", ServerOptions(server.url, slots=32)), changes)
    await attached.engine.start(changes.append)
    yield attached
    await attached.engine.stop()


@pytest.fixture
def engine(attached: Attached) -> Engine:
    return attached.engine


async def _metrics_of(server: VllmServer) -> ServerNumbers:
    return read_metrics((await ServerClient(ServerAddress.parse(server.url)).get("/metrics", 10)).body).numbers


async def test_mirror_equals_that_of_an_engine_of_our_own(server: VllmServer, tiny_checkpoint: Path) -> None:
    """The same requests, with evictions, to a server and an engine with empty caches: the same answers, the same hits
    and the same blocks, digest for digest."""
    assert not (await _metrics_of(server)).steps, "no test before this one asks the server"
    changes: list[CacheChange] = []
    theirs = AttachedEngine("tiny", ServerOptions(server.url))
    await theirs.start(changes.append)
    arguments = {"max_model_len": CONTEXT, "num_gpu_blocks_override": KV_BLOCKS + 1, "block_size": BLOCK_SIZE}
    ours = RecordedEngine("tiny", str(tiny_checkpoint), arguments)
    await ours.start()
    mirrors = [CacheMirror(BLOCK_SIZE, HASH_SEED) for _ in range(2)]
    applied = [0, 0]
    try:
        trial = tokens_to_bytes(trial_tokens("another", BLOCK_SIZE))
        await answer_to(ours, request(trial, 1, cache_salt="trial"))  # as the attached one did
        fresh = random.Random(7)
        trunks = [prompt(fresh.randrange(2, 12) * BLOCK_SIZE) for _ in range(12)]
        salts = [None, "one", "two"]
        for step in range(60):
            tokens = fresh.choice(trunks) + prompt(fresh.randrange(1, 4 * BLOCK_SIZE))
            sent = request(tokens, fresh.randrange(1, 40), cache_salt=fresh.choice(salts))
            answers = [await answer_to(engine, sent) for engine in (theirs, ours)]
            assert answers[0].tokens == answers[1].tokens
            assert answers[0].cached_tokens == answers[1].cached_tokens
            if step % 10 < 9:
                continue
            both: list[tuple[Engine, list[CacheChange]]] = [(theirs, changes), (ours, ours.changes)]
            for number, (engine, told) in enumerate(both):
                await engine.settle()
                for change in told[applied[number] :]:
                    mirrors[number].apply(change)
                applied[number] = len(told)
            held = [sorted(mirror.held("device")) for mirror in mirrors]
            size = KV_BLOCKS if step > 20 else 0
            assert len(held[0]) >= size // 2
            # tokens and salts of the trials differ, and with them two hashes until they are evicted
            assert len(set(held[0]) ^ set(held[1])) in {0, 2}
        assert held[0] == held[1]
        assert sum(isinstance(change, CacheRemoved) for change in changes) > KV_BLOCKS
        assert [mirror.strangers for mirror in mirrors] == [0, 0]
    finally:
        await ours.stop()
        await theirs.stop()


class TestStockServer(EngineContract):
    @pytest.fixture
    async def started(self, attached: Attached) -> AsyncIterator[Started]:
        yield Started(attached.engine, attached.changes)

    async def test_cached_tokens_come_first(self, engine: Engine) -> None:
        """They come last."""
        outputs = [output async for output in engine.generate(request(prompt(20), 3))]
        assert [output.cached_tokens for output in outputs] == [None] * (len(outputs) - 1) + [0]


class TestSamplingOfStockServer(SamplingContract):
    @pytest.mark.parametrize("top", [0, 1, 5, 20])
    async def test_logprobs(self, engine: Engine, top: int) -> None:
        """As of every engine, but a rank is known only among the likeliest."""
        outputs = [output async for output in engine.generate(request(prompt(20), 6, logprobs=top))]
        logprobs = [one for output in outputs for one in output.logprobs]
        assert [one.token for one in logprobs] == [token for output in outputs for token in output.tokens]
        for one in logprobs:
            assert len(one.top) == top
            assert list(one.top) == sorted(one.top, key=lambda each: -each[1])
            assert not top or (one.rank, one.top[0]) == (1, (one.token, one.logprob))

    @pytest.mark.parametrize("top", [0, 1])
    async def test_prompt_logprobs(self, engine: Engine, top: int) -> None:
        """Refused in a sentence."""
        with pytest.raises(CallerError, match="prompt_logprobs"):
            await answer_to(engine, request(prompt(20), prompt_logprobs=top))

    async def test_too_much_of_a_prompt(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """All of it is: no logprobs of a prompt are told."""
        monkeypatch.setattr(engine_module, "PROMPT_LOGPROBS_MAX", 1 << 20)
        with pytest.raises(CallerError, match="prompt_logprobs"):
            await answer_to(engine, request(prompt(21), 2, prompt_logprobs=1))

    async def test_logprobs_of_tokens_that_waited(self, engine: Engine) -> None:
        """Tokens that were not taken for a while come with their logprobs. Until then the request counts as running."""
        stream = engine.generate(request(prompt(10), 12, logprobs=2))
        first = await anext(stream)
        await asyncio.sleep(0.5)
        assert engine.load().running + engine.load().waiting == 1
        outputs = [first, *[output async for output in stream]]
        logprobs = [one for output in outputs for one in output.logprobs]
        assert [one.token for one in logprobs] == [token for output in outputs for token in output.tokens]
        assert len(logprobs) == 12

    async def test_abort_with_logprobs(self, engine: Engine) -> None:
        """Closing the iterator ends the work here, too."""
        stream = engine.generate(request(prompt(40), 200, logprobs=5))
        assert (await anext(stream)).logprobs
        await stream.aclose()  # type: ignore[attr-defined]
        await until_idle(engine)


async def test_facts(attached: Attached) -> None:
    """The server says all that a worker needs."""
    info = attached.engine.info
    assert info.engine.startswith("vllm 0.")
    assert (info.block_size, info.capacity_blocks, info.context_max) == (BLOCK_SIZE, KV_BLOCKS, CONTEXT)
    assert not any(isinstance(change, CacheGap) for change in attached.changes)


async def test_hang_up_is_seen_at_once(attached: Attached, server: VllmServer) -> None:
    """0.2 s after the client hung up the server runs nothing; where others keep the processors busy, at the best of
    five times."""
    engine, waits = attached.engine, []
    for _ in range(5):
        stream = engine.generate(request(prompt(40), 2000))
        await anext(stream)
        begun = time.monotonic()
        await stream.aclose()  # type: ignore[attr-defined]
        while (await _metrics_of(server)).running:
            await asyncio.sleep(0.005)
        waits.append(time.monotonic() - begun)
    assert min(waits) < 0.2
    assert max(waits) < 5


async def test_a_late_engine_reads_the_whole_cache(attached: Attached, server: VllmServer) -> None:
    """Attached after all of that, another engine has the same mirror."""
    mirrors = [CacheMirror(BLOCK_SIZE, HASH_SEED) for _ in range(2)]
    late: list[CacheChange] = []
    second = AttachedEngine("tiny", ServerOptions(server.url))
    await second.start(late.append)
    try:
        await attached.engine.settle()
        for mirror, changes in zip(mirrors, (attached.changes, late), strict=True):
            for change in changes:
                mirror.apply(change)
        held = [set(mirror.held("device")) for mirror in mirrors]
        assert held[0] == held[1] != set()
    finally:
        await second.stop()


async def test_killed_under_streams(server: VllmServer, attached: Attached) -> None:
    """Streams end with EngineDead and tokens that are right. What becomes of them and of the server's next start is
    seen in `tests.e2e.test_attach`."""
    engine = attached.engine
    prompts = [prompt(2 * BLOCK_SIZE + number) for number in range(STREAMS)]
    whole = [(await answer_to(engine, request(each, 200))).tokens for each in prompts]
    parts: list[list[int]] = [[] for _ in prompts]

    async def read(number: int) -> None:
        async for output in engine.generate(request(prompts[number], 2000)):
            parts[number] += output.tokens

    streams = [asyncio.create_task(read(number)) for number in range(STREAMS)]
    await eventually(lambda: all(parts), "tokens of each")
    begun = time.monotonic()
    server.kill()
    ends = await asyncio.gather(*streams, return_exceptions=True)
    assert time.monotonic() - begun < 1
    assert {type(end) for end in ends} == {EngineDead}
    for part, answer in zip(parts, whole, strict=True):
        common = min(len(part), len(answer))
        assert tuple(part[:common]) == answer[:common]
    with pytest.raises(EngineDead):
        await engine.check()
