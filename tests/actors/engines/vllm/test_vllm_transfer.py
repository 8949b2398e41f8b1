"""Blocks between two real vLLM engines: the text is right, the counters agree, and what goes wrong leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
import zmq

from actors.engines.engine import BlockTransfer, CacheEmptied, Engine, TransferFailed
from actors.engines.tiny_model import HEAD_DIM, KV_HEADS, LAYERS
from actors.engines.vllm import vllm_side_channel
from actors.engines.vllm.vllm_engine import VllmEngine
from actors.engines.vllm.vllm_side_channel import Sizes, ask
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import EngineDead
from core.generation import GenerateRequest
from core.kv_transfer import Expected, KvAddress, KvBlocks, KvPull, mismatch
from tests.contracts import transfer as contract
from tests.contracts.engine import HASH_SEED, Answer, Started, answer_to, prompt, request, until_idle
from tests.contracts.transfer import TransferContract
from tests.fixtures.engines import KEEP_MS, Pair, RecordedEngine
from tests.fixtures.eventually import eventually
from tests.fixtures.listeners import listeners
from tests.fixtures.local_user import LocalUser

FLOAT32_BYTES = 4
NOBODY = {"engine_id": "nobody", "port": 1}
"""An address where nobody listens: vLLM gives up after 5 s."""
CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            continue
        print(path)
"""
"""Connects to each unix socket, and prints the paths of those that answer."""
LISTENING = "00010000"
QUESTION_TIMEOUT_MS = 2000
"""An answer to a stranger would come sooner."""


def moving(engine: Engine) -> BlockTransfer:
    assert engine.transfer is not None
    return engine.transfer


async def pulled(pair: Pair, asked: GenerateRequest, blocks: KvBlocks, **elsewhere: Any) -> Answer:
    """The decode engine's whole answer with these blocks."""
    address = msgspec.structs.replace(moving(pair.prefill).address, **elsewhere)
    return await answer_to(pair.decode, asked, KvPull(address, blocks))


async def alone(pair: Pair, asked: GenerateRequest, salt: str = "alone") -> Answer:
    """The same computed by the decode engine itself, in a cache of its own."""
    return await answer_to(pair.decode, msgspec.structs.replace(asked, cache_salt=salt))


async def both_idle(pair: Pair) -> None:
    """Neither runs anything, and no block is used or held."""
    for engine in pair:
        await until_idle(engine)
        await eventually(lambda engine=engine: engine.load().blocks_used == 0)  # type: ignore[misc]
        await eventually(lambda engine=engine: moving(engine).totals().held == 0)  # type: ignore[misc]


class TestVllmTransfer(TransferContract):
    @pytest.fixture
    async def pair(self, vllm_pair: Pair) -> AsyncIterator[contract.Pair]:
        yield contract.Pair(*(Started(engine, engine.changes) for engine in vllm_pair))


@pytest.mark.parametrize("length", [10, 96, 100, 1000, 3000])
async def test_text_and_counters(vllm_pair: Pair, length: int) -> None:
    """Pulled, the answer is the one that the engine would have given; the engine's counters say what moved."""
    prefill, decode = moving(vllm_pair.prefill), moving(vllm_pair.decode)
    asked = request(prompt(length), 12)
    before = decode.totals()
    blocks, cached = await prefill.prefill(asked)
    assert prefill.still_held(blocks)
    assert prefill.totals().held == 1
    assert vllm_pair.prefill.load().blocks_used == len(blocks.ids[0])
    assert (blocks.tokens, cached) == (length, 0)
    answer = await pulled(vllm_pair, asked, blocks)
    assert prefill.still_held(blocks)
    after = decode.totals()
    moved = -(-length // vllm_pair.decode.info.block_size)
    assert (after.pulls - before.pulls, after.blocks - before.blocks) == (1, moved)
    assert after.bytes - before.bytes == moved * decode.address.block_bytes
    assert answer == (await alone(vllm_pair, asked))
    assert answer.cached_tokens == 0
    await both_idle(vllm_pair)
    assert after.failures == before.failures


async def test_partly_cached(vllm_pair: Pair) -> None:
    """Only blocks that the cache lacks are moved, at least the last; on the prefill side the cache serves too."""
    size, decode = vllm_pair.decode.info.block_size, moving(vllm_pair.decode)
    start = prompt(3 * size)
    longer = request(start + prompt(50), 8)
    await answer_to(vllm_pair.decode, request(start, 2))
    for asked, here, moved in ((request(start, 8), 2 * size, 1), (longer, 3 * size, 2)):
        blocks, _ = await moving(vllm_pair.prefill).prefill(asked)
        before = decode.totals().blocks
        answer = await pulled(vllm_pair, asked, blocks)
        assert answer.cached_tokens == here
        assert decode.totals().blocks - before == moved
        assert answer.tokens == (await alone(vllm_pair, asked)).tokens
    again, cached = await moving(vllm_pair.prefill).prefill(longer)
    assert cached == (len(longer.tokens) // 4 - 1) // size * size
    await moving(vllm_pair.decode).decline(KvPull(moving(vllm_pair.prefill).address, again))
    await both_idle(vllm_pair)


async def test_several_at_once(vllm_pair: Pair) -> None:
    """Pulls beside each other and beside answers that are computed here do not disturb each other."""
    asked = [request(prompt(60 + 40 * i), 20) for i in range(8)]
    held = await asyncio.gather(*(moving(vllm_pair.prefill).prefill(one) for one in asked[:5]))
    answers = await asyncio.gather(
        *(pulled(vllm_pair, one, blocks) for one, (blocks, _) in zip(asked, held, strict=False)),
        *(answer_to(vllm_pair.decode, one) for one in asked[5:]),
    )
    for one, answer in zip(asked, answers, strict=True):
        assert answer.tokens == (await alone(vllm_pair, one)).tokens
    await both_idle(vllm_pair)


async def test_foreign_blocks_are_not_noticed(vllm_pair: Pair) -> None:
    """Another prompt's blocks give wrong text, now and later, without an error; `mismatch` would have refused them.

    `forget` heals that, is told, and requests that run meanwhile answer as if nothing had been.
    """
    decode, size = vllm_pair.decode, vllm_pair.decode.info.block_size
    one, other = request(prompt(100), 8), request(prompt(100), 8)
    right = (await alone(vllm_pair, other)).tokens
    blocks, _ = await moving(vllm_pair.prefill).prefill(one)
    assert (await pulled(vllm_pair, other, blocks)).tokens != right
    poisoned = await answer_to(decode, other)
    assert poisoned.cached_tokens == 96
    assert poisoned.tokens != right
    layout = moving(decode).address.layout
    expected = Expected("other's digest", "tiny", size, layout, 100)
    assert "prompt" in mismatch(expected, digest="one's", model="tiny", block_size=size, layout=layout, blocks=blocks)
    long = [request(prompt(60 + i), 100) for i in range(4)]
    undisturbed = [answer.tokens for answer in await asyncio.gather(*(alone(vllm_pair, each) for each in long))]
    running = [asyncio.create_task(answer_to(decode, each)) for each in long]
    await eventually(lambda: decode.load().running == len(long))
    told = len(decode.changes)
    await moving(decode).forget()
    assert not any(task.done() for task in running), "they were to be in the middle"
    await decode.settle()
    assert CacheEmptied() in decode.changes[told:]
    healed = await answer_to(decode, other)
    assert (healed.tokens, healed.cached_tokens) == (right, 0)
    assert [(await task).tokens for task in running] == undisturbed
    await both_idle(vllm_pair)


async def test_forget_in_an_idle_engine_is_told(vllm_pair: Pair) -> None:
    """What a mirror holds of an idle engine is empty at once."""
    decode = vllm_pair.decode
    await answer_to(decode, request(prompt(100)))
    await moving(decode).forget()
    await decode.settle()
    mirror = CacheMirror(decode.info.block_size, HASH_SEED)
    for change in decode.changes:
        mirror.apply(change)
    assert not list(mirror.held("device"))


async def test_pull_from_nobody(vllm_pair: Pair) -> None:
    """A pull that fails makes no token and leaves nothing in the cache; the lease of what nobody fetched ends.

    `forget` meanwhile waits for it, and pulls to come wait for `forget`.
    """
    prefill, decode = moving(vllm_pair.prefill), moving(vllm_pair.decode)
    asked = request(prompt(100), 8)
    await decode.forget()  # the handshake of a pull that was given up before this may fail up to 5 s later
    before, kept = decode.totals(), prefill.totals()
    blocks, _ = await prefill.prefill(asked)
    failing = asyncio.create_task(pulled(vllm_pair, asked, blocks, **NOBODY))
    await asyncio.sleep(0.2)
    forgetting = asyncio.create_task(decode.forget())
    await asyncio.sleep(0.2)
    assert not forgetting.done()
    with pytest.raises(TransferFailed):
        await failing
    await forgetting
    assert decode.totals()._replace(failures=0) == before._replace(failures=0)
    assert decode.totals().failures == before.failures + 1
    answer = await answer_to(vllm_pair.decode, asked)
    assert answer == await alone(vllm_pair, asked)
    assert answer.cached_tokens == 0
    assert not prefill.still_held(blocks)
    await eventually(lambda: prefill.totals().expired == kept.expired + 1, timeout_s=KEEP_MS / 1000)
    await both_idle(vllm_pair)


async def test_cancelled_prefill_holds_nothing(vllm_pair: Pair) -> None:
    """A prefill given up in the middle frees its blocks at once, not with a lease."""
    prefill = moving(vllm_pair.prefill)
    expired = prefill.totals().expired
    prefilling = asyncio.create_task(prefill.prefill(request(prompt(3000))))
    await asyncio.sleep(0.15)
    prefilling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await prefilling
    await both_idle(vllm_pair)
    assert prefill.totals().expired == expired


async def test_addresses(vllm_pair: Pair) -> None:
    """Both say the same of their blocks, each who it is; a block's bytes are those of keys and values in all layers."""
    one, other = (moving(engine).address for engine in vllm_pair)
    assert one.layout == other.layout
    assert "CPU_ATTN" in one.layout
    assert one.engine_id != other.engine_id
    assert one.port != other.port
    size = vllm_pair.prefill.info.block_size
    assert one.block_bytes == other.block_bytes == 2 * KV_HEADS * HEAD_DIM * FLOAT32_BYTES * LAYERS * size
    assert one.transport == "shared_memory"


async def test_idle_engines_leave_the_cores(vllm_pair: Pair) -> None:
    """The thread that polls without a pause has the lowest priority; the one that computes may use every core."""
    for engine in vllm_pair:
        (pid,) = engine._processes.pids  # one process schedules and computes
        worker = psutil.Process(pid)
        assert worker.cpu_affinity() == psutil.Process().cpu_affinity()
        priorities = [os.getpriority(os.PRIO_PROCESS, thread.id) for thread in worker.threads()]
        assert priorities.count(19) == 1


async def test_engines_of_one_machine_are_reached_by_no_other_machine_and_no_other_user(
    vllm_pair: Pair, local_user: LocalUser
) -> None:
    """UCX would listen on every interface, and vLLM put its sockets into a folder that is open to all."""
    pids = [str(pid) for engine in vllm_pair for pid in engine._processes.pids]
    hosts = {host for pid in pids for host, _ in listeners(int(pid))}
    assert hosts == {"127.0.0.1"}
    paths = list(_unix_listeners([*pids, "self"]))
    assert paths
    for path in paths:
        assert Path(path).parent.stat().st_mode & 0o077 == 0, path
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(path)
    assert local_user.run(CONNECT, *paths) == ""


async def test_a_stranger_learns_nothing_from_the_side_channel_and_does_not_end_it(
    vllm_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own answers every question with the way to the engine's memory, and ends at the first malformed one."""
    address = moving(vllm_pair.prefill).address
    question = msgspec.msgpack.encode((b"get_meta_msg", 0, 0))
    with monkeypatch.context() as soon:
        soon.setattr(vllm_side_channel, "ASK_TIMEOUT_MS", QUESTION_TIMEOUT_MS)
        answer, malformed, other_key = await asyncio.gather(
            asyncio.to_thread(_answer_without_key, address, question),
            asyncio.to_thread(_answer_without_key, address, b"GET / HTTP/1.0"),
            asyncio.to_thread(ask, address.host, address.port, Sizes(1, 1, 1), b"another key"),
            return_exceptions=True,
        )
    assert (answer, malformed) == (b"", b""), "the engine told a stranger how to reach its memory"
    assert isinstance(other_key, EngineDead)
    facts = await asyncio.to_thread(ask, address.host, address.port, Sizes(1, 1, 1), b"")
    assert facts.engine_id == address.engine_id


def _unix_listeners(pids: list[str]) -> Iterator[str]:
    """Paths of the unix sockets that the processes listen on."""
    inodes = {str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING and f"socket:[{fields[6]}]" in inodes and not fields[-1].startswith("@"):
            yield fields[-1]


def _answer_without_key(address: KvAddress, question: bytes) -> bytes:
    """The answer to a client without a key; empty if none comes."""
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.linger = 0
        client.rcvtimeo = QUESTION_TIMEOUT_MS
        client.connect(f"tcp://{address.host}:{address.port}")
        client.send(question)
        try:
            return client.recv_multipart()[0]
        except zmq.Again:
            return b""


async def test_two_pulls_of_one_id() -> None:
    """Two clients may name their requests alike: each is counted by itself, and one's end is not the other's."""
    engine = VllmEngine("tiny", "anywhere", {}, moves_blocks="decode")
    assert engine._transfer is not None
    gates = {b"one_": asyncio.Event(), b"two_": asyncio.Event()}
    names: list[str] = []

    async def results(asked: GenerateRequest, _: Mapping[str, Any] | None) -> AsyncGenerator[Any]:
        names.append(asked.id)
        await gates[asked.tokens].wait()
        completion = SimpleNamespace(finish_reason="length", token_ids=[1], logprobs=None)
        yield SimpleNamespace(outputs=[completion], prompt_logprobs=None, metrics=None)

    engine._results = results  # type: ignore[method-assign, assignment]
    address = KvAddress(engine_id="e", host="h", port=1, layout="l", block_bytes=1, transport="tcp")
    pull = KvPull(address, KvBlocks(request="r", ids=((1,),), tokens=1))
    asked = [msgspec.structs.replace(request(tokens), id="same") for tokens in gates]
    first, second = (asyncio.create_task(answer_to(engine, one, pull)) for one in asked)
    await eventually(lambda: len(names) == 2)
    assert names[0] != names[1]
    engine._transfer._cached.update({names[0]: 32, names[1]: 64})
    gates[b"one_"].set()
    assert (await first).cached_tokens == 32
    assert not engine._transfer._quiet.is_set(), "blocks are on their way"
    gates[b"two_"].set()
    assert (await second).cached_tokens == 64
    assert engine._transfer._quiet.is_set()


async def test_tcp_and_engines_that_die(
    vllm_pair: Pair, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With UCX_TLS=tcp blocks come as well. A prefill engine that dies says so, and what it held cannot be pulled;
    one that dies in the middle of an answer fails it.

    The last test of this pair: it ends both engines. One for all, since each engine takes long to start.
    """
    monkeypatch.setenv("UCX_TLS", "tcp")
    await vllm_pair.decode.stop()
    decode = RecordedEngine("tiny", str(tiny_checkpoint), {"max_model_len": 4096}, moves_blocks="decode")
    await decode.start()
    assert (decode.info.block_size, decode.info.model_path) == (32, str(tiny_checkpoint))
    try:
        await _tcp_and_a_dead_peer(Pair(vllm_pair.prefill, decode))
        await _dead_in_mid_answer(decode)
    finally:
        await decode.stop()


async def _tcp_and_a_dead_peer(pair: Pair) -> None:
    assert moving(pair.decode).address.transport == "tcp"
    assert moving(pair.decode).address.layout == moving(pair.prefill).address.layout
    first, second = request(prompt(1000), 12), request(prompt(100), 12)
    blocks, _ = await moving(pair.prefill).prefill(first)
    assert (await pulled(pair, first, blocks)).tokens == (await alone(pair, first)).tokens
    blocks, _ = await moving(pair.prefill).prefill(second)
    prefilling = asyncio.create_task(moving(pair.prefill).prefill(request(prompt(3000))))
    await asyncio.sleep(0.1)
    pids = cast("list[int]", pair.prefill._processes.pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDead):
        await prefilling
    with pytest.raises(TransferFailed):
        await pulled(pair, second, blocks)
    answer = await answer_to(pair.decode, second)
    assert answer.cached_tokens == 0
    assert answer.tokens == (await alone(pair, second)).tokens
    await pair.prefill.stop()
    assert not any(map(psutil.pid_exists, pids))
    with pytest.raises(EngineDead):
        await moving(pair.prefill).forget()
    with pytest.raises(EngineDead):
        await moving(pair.prefill).prefill(second)


async def _dead_in_mid_answer(engine: RecordedEngine) -> None:
    """It fails its requests and checks, and stops clean, twice."""
    stream = engine.generate(request(prompt(30), 4000))
    await anext(stream)
    assert engine.load().running == 1
    pids = cast("list[int]", engine._processes.pids)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(EngineDead):
        async for _ in stream:
            pass
    with pytest.raises(EngineDead):
        await engine.check()
    with pytest.raises(EngineDead):
        await engine.settle()
    await engine.stop()
    await engine.stop()
    assert not any(map(psutil.pid_exists, pids))
