"""vLLM as an engine: the contract, and what only the real one can show."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
from msgspec import UNSET
from tokenizers import Tokenizer

from actors.engines.engine import CacheGap, CacheRemoved, CacheStored, TransferFailed
from actors.engines.engine_profiler import EngineFacts, EngineProfiler
from actors.engines.tiny_model import HEAD_DIM, KV_HEADS, LAYERS
from actors.engines.vllm import vllm_args
from actors.engines.vllm.vllm_engine import VllmEngine, parse_flags
from actors.engines.vllm.vllm_side_channel import PORT_VARIABLE
from actors.kv_cache.cache_mirror import CacheMirror
from core.clock import SystemClock
from core.errors import CallerError, EngineDead, Unavailable
from core.ids import new_id
from core.kv_transfer import KvAddress, KvBlocks, KvPull
from core.prompt import Prompt, scope_bytes, tokens_from_bytes, tokens_to_bytes
from tests.contracts.engine import HASH_SEED, Answer, EngineContract, Started, answer_to, prompt, request, until_idle
from tests.fixtures.engines import BLOCKS, RecordedEngine, adapter_ids, make_adapter

TOKEN_KV_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
"""What a token of the tiny model takes in the cache, keys and values in float32."""


class TestVllmEngine(EngineContract):
    @pytest.fixture
    async def started(self, vllm_engine: RecordedEngine) -> AsyncIterator[Started]:
        yield Started(vllm_engine, vllm_engine.changes)


async def test_scopes(vllm_engine: RecordedEngine) -> None:
    """Two adapters and two salts over the same tokens make nine caches, in the engine and in its mirror."""
    size = vllm_engine.info.block_size
    asked = prompt(3 * size + 5)
    scopes = list(product((None, *adapter_ids(vllm_engine)), (None, "one", "two")))
    before = len(vllm_engine.changes)
    for expected in (0, 3 * size):
        for adapter, salt in scopes:
            sent = msgspec.structs.replace(request(asked, 2, cache_salt=salt), adapter=adapter)
            assert (await answer_to(vllm_engine, sent)).cached_tokens == expected, (adapter, salt)
    await vllm_engine.settle()
    mirror = CacheMirror(size, HASH_SEED)
    for change in vllm_engine.changes[before:]:
        mirror.apply(change)
    held = set(mirror.held("device"))
    for adapter, salt in scopes:
        whole = Prompt(asked, size, HASH_SEED, scope_bytes(adapter, salt))
        assert {whole.key(depth) for depth in (1, 2, 3)} <= held, (adapter, salt)


def test_temporary_files_lie_in_its_own_folder(vllm_engine: RecordedEngine) -> None:
    """The file by which its processes meet, for one: the folder goes, whatever ends the engine."""
    assert list(Path(vllm_engine._feed.folder).glob("vllm_dist_*"))


async def test_adapters_speak_differently(vllm_engine: RecordedEngine) -> None:
    """Each adapter changes the greedy answer, so a cache shared by mistake would show."""
    asked = request(prompt(20), 8)
    answers = {
        (await answer_to(vllm_engine, msgspec.structs.replace(asked, adapter=adapter))).tokens
        for adapter in (None, *adapter_ids(vllm_engine))
    }
    assert len(answers) == 3


async def test_other_weights_under_the_same_name_and_path(vllm_engine: RecordedEngine, tmp_path: Path) -> None:
    """Files that are replaced are another adapter: its answer is that of an engine that never had the first one, and
    it finds nothing of the first one's cache. What was loaded does not change with its files."""
    adapters = vllm_engine.adapters
    assert adapters is not None
    asked = request(prompt(3 * vllm_engine.info.block_size + 5), 12)

    async def answer(adapter: str) -> Answer:
        return await answer_to(vllm_engine, msgspec.structs.replace(asked, adapter=adapter))

    first = await adapters.load("gamma", str(make_adapter(tmp_path / "gamma", 7)))
    cold = await answer(first.id)
    make_adapter(tmp_path / "gamma", 8)
    assert (await answer(first.id)).tokens == cold.tokens
    second = await adapters.load("gamma", str(tmp_path / "gamma"))
    assert (second.name, second.digest == first.digest, second.number) == ("gamma", False, first.number + 1)
    changed = await answer(second.id)
    assert changed.cached_tokens == 0
    twin = await adapters.load("delta", str(make_adapter(tmp_path / "delta", 8)))  # the same weights, never cached
    again = await answer(twin.id)
    assert (again.cached_tokens, again.tokens) == (0, changed.tokens)
    assert changed.tokens != cold.tokens
    for copy in (first, second, twin):
        await adapters.unload(copy.id)
        assert not copy.folder.exists()
        with pytest.raises(Unavailable, match="not served here any more"):
            await answer(copy.id)
    back = await adapters.load("gamma", str(make_adapter(tmp_path / "gamma", 7)))
    assert (back.id, back.number) == (first.id, twin.number + 1)
    assert (await answer(back.id)) == cold._replace(cached_tokens=3 * vllm_engine.info.block_size)
    await adapters.unload(back.id)


async def test_an_adapter_that_goes_and_comes_back(vllm_engine: RecordedEngine, tmp_path: Path) -> None:
    """A staged one that is attached, detached and attached again has the same text, and finds its own blocks."""
    adapters = vllm_engine.adapters
    assert adapters is not None
    copy = await adapters.stage("epsilon", str(make_adapter(tmp_path / "epsilon", 9)))
    size = vllm_engine.info.block_size
    asked = msgspec.structs.replace(request(prompt(2 * size + 1), 6), adapter=copy.id)
    with pytest.raises(Unavailable):
        await answer_to(vllm_engine, asked)
    answers = []
    for _ in range(2):
        await adapters.attach(copy.id)
        answers.append(await answer_to(vllm_engine, asked))
        await adapters.detach(copy.id)
    assert answers[0].tokens == answers[1].tokens
    assert [answer.cached_tokens for answer in answers] == [0, 2 * size]
    await adapters.unload(copy.id)


async def test_an_adapter_that_does_not_fit(vllm_engine: RecordedEngine, tmp_path: Path) -> None:
    """vLLM's objection in a sentence; nothing is left of it, and the engine goes on."""
    adapters = vllm_engine.adapters
    assert adapters is not None
    folder = make_adapter(tmp_path / "large", 1)
    configuration = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(configuration | {"r": 512}))
    before = adapters.served()
    with pytest.raises(CallerError, match="refuses the adapter large"):
        await adapters.load("large", str(folder))
    assert adapters.served() == before
    await vllm_engine.check()


async def test_full_cache(vllm_engine: RecordedEngine) -> None:
    """With the cache full, equal prompts in parallel and evictions all the time, the mirror predicts real reuse."""
    size, fresh = vllm_engine.info.block_size, random.Random(20)
    mirror = CacheMirror(size, HASH_SEED)
    applied, peak = 0, 0
    compared = []
    trunks = [prompt(fresh.randrange(4, 12) * size) for _ in range(16)]
    for _ in range(12):
        batch = [fresh.choice(trunks) + prompt(fresh.randrange(1, 4 * size)) for _ in range(12)]
        answers = asyncio.gather(*(answer_to(vllm_engine, request(one, 24)) for one in batch * 2))
        while not answers.done():
            await asyncio.sleep(0.005)
            peak = max(peak, vllm_engine.load().blocks_used)
        await answers
        for trunk in fresh.sample(trunks, 3):
            await vllm_engine.settle()
            for change in vllm_engine.changes[applied:]:
                mirror.apply(change)
            applied = len(vllm_engine.changes)
            sent = request(trunk + prompt(fresh.randrange(1, size)), 2)
            predicted = _reusable(mirror, sent.tokens)
            compared.append((predicted, (await answer_to(vllm_engine, sent)).cached_tokens))
    assert [predicted for predicted, _ in compared] == [real for _, real in compared]
    assert len({real for _, real in compared}) > 3
    assert peak >= 0.99 * BLOCKS
    stored, removed = _copies(vllm_engine)
    assert max(stored.values()) > 1, "no block had several copies"
    assert removed.total() > 2 * BLOCKS, "little was evicted"
    assert not any(isinstance(change, CacheGap) for change in vllm_engine.changes)
    assert mirror.strangers == 0


def _reusable(mirror: CacheMirror, tokens: bytes) -> int:
    """Tokens of the prompt that the mirror says are cached; what it holds must be closed under prefixes."""
    held = set(mirror.held("device"))
    whole = Prompt(tokens, mirror.block_size, HASH_SEED)
    depths = [depth for depth in range(1, whole.blocks_reusable + 1) if whole.key(depth) in held]
    assert depths == list(range(1, len(depths) + 1))
    return len(depths) * mirror.block_size


def _copies(engine: RecordedEngine) -> tuple[Counter[int], Counter[int]]:
    """How often each block came and went."""
    stored = Counter(name for change in engine.changes if isinstance(change, CacheStored) for name in change.blocks)
    removed = Counter(name for change in engine.changes if isinstance(change, CacheRemoved) for name in change.blocks)
    return stored, removed


async def test_greedy_as_vllm_itself(vllm_engine: RecordedEngine, tiny_checkpoint: Path) -> None:
    """Greedy tokens and text are what vLLM's own generate gives for the same prompt."""
    vllm, llm = vllm_engine._vllm, vllm_engine._llm
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    for length in (7, 64, 200):
        asked = prompt(length)
        ours = await answer_to(vllm_engine, request(asked, 40, ignore_eos=False, cache_salt=new_id()))
        chosen = vllm.SamplingParams(temperature=0, max_tokens=40)
        given = {"type": "token", "prompt_token_ids": tokens_from_bytes(asked), "cache_salt": new_id()}
        async for result in llm.generate(given, chosen, new_id()):
            own = result.outputs[0]
        assert ours.tokens == tuple(own.token_ids)
        text = tokenizer.decode(list(ours.tokens), skip_special_tokens=True)
        # vLLM holds back a last character that is cut, and begins with the prompt's end if that was cut itself
        assert own.text.endswith(text.rstrip("\ufffd"))


async def test_seed(vllm_engine: RecordedEngine) -> None:
    """The same seed gives the same random answer, another seed another one."""
    asked = prompt(20)
    answers = [
        (await answer_to(vllm_engine, request(asked, 8, temperature=1.0, seed=seed))).tokens for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize(
    ("tokens", "sampling"),
    [
        ([], {}),
        ([4096], {}),
        ([1], {"temperature": -1.0}),
        ([1], {"top_p": 0.0}),
        ([1], {"min_tokens": 9}),
        ([1], {"stop_token_ids": (2**40,)}),
    ],
)
async def test_refused(vllm_engine: RecordedEngine, tokens: list[int], sampling: dict[str, Any]) -> None:
    """What the engine cannot do is the caller's error in a sentence, and the engine goes on."""
    with pytest.raises(CallerError, match=" "):
        await answer_to(vllm_engine, request(tokens_to_bytes(tokens), 4, **sampling))
    await vllm_engine.check()


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("tiny", {"no_such_argument": 1}, "no_such_argument"),
        ("tiny", {"max_model_len": "long"}, "max_model_len"),
        ("tiny", {"max_model_len": 1 << 30}, "max_model_len"),
        ("tiny", {"kv_events_config": {}}, "kv_events_config"),
        ("tiny", {"data_parallel_size": 2}, "data_parallel_size"),
        ("/no/such/model", {}, "/no/such/model"),
    ],
)
async def test_bad_arguments(tiny_checkpoint: Path, model: str, arguments: dict[str, Any], said: str) -> None:
    """An engine that cannot be started as asked says why, and leaves no process."""
    before = set(psutil.Process().children(recursive=True))
    path = str(tiny_checkpoint) if model == "tiny" else model
    with pytest.raises(CallerError, match=said):
        await RecordedEngine("tiny", path, arguments).start()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    ("arguments", "port_is_free", "said"),
    [({"kv_transfer_config": {}}, True, "kv_transfer_config"), ({}, False, PORT_VARIABLE)],
)
async def test_cannot_move_blocks(
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    port_is_free: bool,
    said: str,
) -> None:
    """An engine that is to move blocks and cannot says so before anything starts; vLLM would hang on a port in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if not port_is_free:
            monkeypatch.setenv(PORT_VARIABLE, str(server.getsockname()[1]))
        before = set(psutil.Process().children(recursive=True))
        with pytest.raises(CallerError, match=said):
            await RecordedEngine("tiny", str(tiny_checkpoint), arguments, moves_blocks="prefill").start()
        assert set(psutil.Process().children(recursive=True)) <= before


async def test_moves_no_blocks(vllm_engine: RecordedEngine) -> None:
    """An engine that was not made for it has no transfer, fails a pull as such, and goes on."""
    assert vllm_engine.transfer is None
    assert vllm_engine.info.slots == 32
    address = KvAddress(engine_id="e", host="127.0.0.1", port=1, layout="", block_bytes=1, transport="tcp")
    pull = KvPull(address, KvBlocks(request="r", ids=((1,),), tokens=20))
    asked = request(prompt(20))
    with pytest.raises(TransferFailed):
        await anext(vllm_engine.generate(asked, pull))
    assert (await answer_to(vllm_engine, asked)).finish == "length"


def test_flags() -> None:
    """vLLM's own flags become engine arguments; what is not given is left out, what is wrong is said."""
    assert parse_flags(["--max-model-len", "4k", "--enable-lora"]) == {"max_model_len": 4000, "enable_lora": True}
    with pytest.raises(CallerError, match="--nope"):
        parse_flags(["--nope"])


async def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vLLM one sentence says what to install."""
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.async_llm", None)
    with pytest.raises(CallerError, match="--engine simulated"):
        await VllmEngine("tiny", "anywhere", {}).start(lambda _: None)


async def test_start_timeout(tiny_checkpoint: Path) -> None:
    """A start that takes too long ends in time with all its processes. A spawned process imports for longer than
    that."""
    before = set(psutil.Process().children(recursive=True))
    engine = VllmEngine("tiny", str(tiny_checkpoint), {}, start_timeout_s=3.0)
    with pytest.raises(EngineDead, match="within 3 s"):
        await engine.start(lambda _: None)
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in left if "resource_tracker" not in " ".join(process.cmdline())]


async def test_a_context_that_the_machine_cannot_hold(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is larger than a small model's, the context is what it holds, and the engine serves."""
    long = shutil.copytree(tiny_checkpoint, tmp_path / "long")
    config = json.loads((long / "config.json").read_text())
    (long / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}))
    engine = RecordedEngine("long", str(long), {})
    grow, share_bytes = vllm_args.grow_cache, 320 << 20
    machine_bytes = vllm_args.CACHE_SHARE_CPU * share_bytes
    monkeypatch.setattr(vllm_args, "grow_cache", lambda config, _: grow(config, machine_bytes))
    try:
        await engine.start()
        held = engine.info.context_max
        assert held == engine.info.capacity_blocks * engine.info.block_size
        assert held == share_bytes // TOKEN_KV_BYTES - engine.info.block_size  # but vLLM's own block
        assert (await answer_to(engine, request(prompt(40)))).finish == "length"
        with pytest.raises(CallerError, match=str(held)):
            await answer_to(engine, request(prompt(held)))
    finally:
        await engine.stop()


async def test_interrupt_at_the_terminal(vllm_engine: RecordedEngine) -> None:
    """Ctrl-C reaches every process that runs there, and is for whoever owns the engine: its answers go on."""
    stream = vllm_engine.generate(request(prompt(20), 200))
    await anext(stream)
    for pid in vllm_engine._processes.pids:
        os.kill(pid, signal.SIGINT)
    assert [output async for output in stream][-1].finish == "length"
    assert (await answer_to(vllm_engine, request(prompt(20)))).finish == "length"


def test_configured_as_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM has its defaults for batches of this hardware only for who says what it is to be."""
    told: list[object] = []

    def configured(context: object = None) -> SimpleNamespace:
        told.append(context)
        return SimpleNamespace(structured_outputs_config=SimpleNamespace(reasoning_parser=""))

    engine = VllmEngine("tiny", "anywhere", {})
    engine._feed = SimpleNamespace(events_endpoint="", replay_endpoint="", buffer_steps=1)
    engine._vllm = SimpleNamespace(
        AsyncEngineArgs=lambda **_: SimpleNamespace(create_engine_config=configured),
        KVEventsConfig=dict,
        UsageContext=SimpleNamespace(OPENAI_API_SERVER="server"),
        current_platform=SimpleNamespace(is_cpu=lambda: False),
    )
    engine._configure()
    assert told == ["server"]


async def test_abort_under_load(vllm_engine: RecordedEngine) -> None:
    """Requests that are given up in the middle leave nothing running and no cache change untold."""

    async def give_up(after: int) -> None:
        stream = vllm_engine.generate(request(prompt(100), 300))
        for _ in range(after):
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    await asyncio.gather(*(give_up(after) for after in range(1, 7)))
    await until_idle(vllm_engine)
    await vllm_engine.settle()
    told = len(vllm_engine.changes)
    await vllm_engine.settle()
    assert len(vllm_engine.changes) == told


async def test_its_speed_can_be_measured(vllm_engine: RecordedEngine) -> None:
    """Longer prompts take longer, none of them from the cache; nothing runs on behind the measurement."""
    it = vllm_engine.info
    facts = EngineFacts(it.engine, it.model, it.block_size, it.context_max, it.block_size * it.capacity_blocks, 4)
    profiler = EngineProfiler(vllm_engine, facts, SystemClock(), prompt_max=1024)

    found = await profiler.measure(12, "2026-11-29T20:00:00.000Z")

    assert found.room_tokens == it.block_size * BLOCKS
    prefill = {point.tokens: point.us for point in found.prefill}
    assert prefill[1024] > 2 * prefill[32]
    capacity = found.capacity()
    assert capacity.decode_requests is not UNSET
    assert capacity.decode_requests[:2] == (1, 2)
    assert 0 < capacity.decode_us[0] < 1_000_000
    await until_idle(vllm_engine)
