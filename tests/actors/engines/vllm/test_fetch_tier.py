"""Blocks of one vLLM engine in another: the text is that of cold, and a bad source costs time alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio

from actors.engines.tiny_model import HEAD_DIM, KV_HEADS, LAYERS
from actors.engines.vllm.vllm_args import DiskTier, FetchTier
from actors.kv_fetch import block_server
from actors.kv_fetch.block_client import BlockClient
from actors.kv_fetch.block_server import BlockServer
from actors.kv_fetch.fetch_facts import FETCH_FILE, FetchFacts, write_fetch
from actors.kv_fetch.fetch_protocol import checksum
from core.clock import SystemClock
from core.errors import CallerError
from core.generation import GenerateRequest
from core.ids import new_id
from core.kv_transfer import FetchAddress, FetchSource
from core.prompt import TOKEN_BYTES
from tests.actors.engines.vllm.test_disk_tier import quiet
from tests.contracts.engine import Answer, answer_to, prompt, request
from tests.fixtures.engines import RecordedEngine
from tests.tiers.counted_engine import CountedEngine

DEVICE_BLOCKS, HOST_BLOCKS, SIZE = 128, 512, 32
BLOCK_BYTES = SIZE * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
"""Of the tiny model in float32."""
KEY = b"f" * 32
BLOCKS = 20
LENGTH = BLOCKS * SIZE + 5
REPEATS = 20
WORSE_S = 3.0
"""A dead source may cost so much."""
SMALL_DEVICE_BLOCKS, SMALL_HOST_BLOCKS = 64, 96
"""Of the engine with a disk."""
OWN = 8
"""Leading blocks of a prompt that are on that disk."""
PROMPTS = int(os.environ.get("CONTRAIL_TIERS_BESIDE_FETCHES", "2"))
"""Prompts of each kind over a disk. By hand, 20: set the variable of that name."""


class FetchingPair(NamedTuple):
    """Two engines of one kind, which fetch from each other."""

    source: CountedEngine
    reader: CountedEngine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FetchingPair]:
    tier = FetchTier("127.0.0.1", KEY, tmp_path_factory.mktemp("digests"))
    arguments = {"max_model_len": 3200, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
    host_bytes = HOST_BLOCKS * BLOCK_BYTES
    source, reader = (
        CountedEngine("tiny", str(tiny_checkpoint), arguments, host_tier_bytes=host_bytes, fetch_tier=tier)
        for _ in range(2)
    )
    try:
        await source.start()
        await reader.start()
        yield FetchingPair(source, reader)
    finally:
        await reader.stop()
        await source.stop()


def address(of: RecordedEngine) -> FetchAddress:
    assert of.info.fetch is not None
    return of.info.fetch


def fetching(asked: GenerateRequest, port: int, blocks: int = BLOCKS, own_blocks: int = 0) -> GenerateRequest:
    """The same request under another id, with a source."""
    named = msgspec.structs.replace(asked, id=request(b"").id)
    source = FetchSource(host="127.0.0.1", port=port, blocks=blocks, own_blocks=own_blocks)
    return msgspec.structs.replace(named, fetch=source)


async def test_a_prompt_that_was_fetched_has_the_text_of_cold(pair: FetchingPair) -> None:
    """Twenty times, whole prompts and parts of them; what came is in the reader's own caches then. In vLLM's own
    statistics it came from another engine."""
    port, before, came = address(pair.source).port, pair.reader.hits.copy(), 0
    for number in range(REPEATS):
        asked, blocks = request(prompt(LENGTH), 8), BLOCKS - number % 4
        cold = await answer_to(pair.source, asked)
        fetched = await answer_to(pair.reader, fetching(asked, port, blocks))
        assert (fetched.tokens, fetched.cached_tokens) == (cold.tokens, blocks * SIZE)
        assert cold.cached_tokens == 0
        came += blocks * SIZE
    await pair.reader.settle()
    assert pair.reader.hits - before == {"p2p": came}
    again = await answer_to(pair.reader, msgspec.structs.replace(asked, id=request(b"").id))
    assert (again.tokens, again.cached_tokens) == (cold.tokens, BLOCKS * SIZE)


async def test_both_say_the_same_kind(pair: FetchingPair) -> None:
    """And each its own port."""
    one, other = address(pair.source), address(pair.reader)
    assert (one.kind, one.block_bytes, one.load_blocks) == (other.kind, BLOCK_BYTES, HOST_BLOCKS // 2)
    assert one.port != other.port


async def test_a_tenants_salt_keeps_its_blocks_apart(pair: FetchingPair) -> None:
    """The salt is part of a block's name: neither finds the other's."""
    plain = request(prompt(LENGTH), 8)
    salted = request(plain.tokens, 8, cache_salt="tenant")
    cold = await answer_to(pair.source, plain)
    other = await answer_to(pair.reader, fetching(salted, address(pair.source).port))
    assert (other.tokens, other.cached_tokens) == (cold.tokens, 0)
    own = await answer_to(pair.source, msgspec.structs.replace(salted, id=request(b"").id))
    assert own.cached_tokens == 0


async def test_what_the_source_does_not_have_is_computed(pair: FetchingPair) -> None:
    """All of it, and a tail: the router's word is not more than that."""
    asked = request(prompt(LENGTH), 8)
    nothing = await answer_to(pair.reader, fetching(asked, address(pair.source).port))
    assert nothing.cached_tokens == 0
    short = request(prompt(LENGTH), 8)
    longer = request(short.tokens + prompt(10 * SIZE), 8)
    await answer_to(pair.source, short)
    part = await answer_to(pair.reader, fetching(longer, address(pair.source).port, BLOCKS + 10))
    cold = await answer_to(pair.source, longer)
    assert (part.tokens, part.cached_tokens) == (cold.tokens, BLOCKS * SIZE)


async def test_a_dead_source_costs_little(pair: FetchingPair) -> None:
    """Nothing listens there, or a process that was stopped: the text is that of cold, and the first token late by less
    than WORSE_S."""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            closed = gone.getsockname()[1]
        for port in (closed, stopped.getsockname()[1]):
            asked = request(prompt(LENGTH), 8)
            began = time.monotonic()
            cold = await answer_to(pair.source, asked)
            took_s, began = time.monotonic() - began, time.monotonic()
            found = await answer_to(pair.reader, fetching(asked, port))
            assert (found.tokens, found.cached_tokens) == (cold.tokens, 0)
            assert time.monotonic() - began < took_s + WORSE_S


async def test_a_source_that_is_stopped_and_goes_on_writes_nothing(pair: FetchingPair) -> None:
    """Its process stands still with the request half answered, and wakes up when the reader has long computed."""
    asked = [request(prompt(LENGTH), 8) for _ in range(3)]
    cold = [await answer_to(pair.source, each) for each in asked]
    (process,) = [pid for pid in pair.source._processes.pids if pid != os.getpid()][:1]
    port = address(pair.source).port
    os.kill(process, signal.SIGSTOP)
    try:
        found = [await answer_to(pair.reader, fetching(each, port)) for each in asked]
    finally:
        os.kill(process, signal.SIGCONT)
    assert [each.tokens for each in found] == [each.tokens for each in cold]
    assert {each.cached_tokens for each in found} == {0}
    await asyncio.sleep(0.5)
    for each, expected in zip(asked, cold, strict=True):
        again = await answer_to(pair.reader, msgspec.structs.replace(each, id=request(b"").id))
        assert again.tokens == expected.tokens


class Relay:
    """A source between the two, which changes a byte of the block numbered `bad`."""

    def __init__(self, of: FetchAddress, bad: int) -> None:
        kind = bytes.fromhex(of.kind)
        self._client = BlockClient(KEY, kind, of.block_bytes, SystemClock())
        self._address, self._bad, self._number = (of.host, of.port), bad, -1
        self.server = BlockServer("127.0.0.1", KEY, kind, of.block_bytes, self)

    def copy(self, name: bytes, into: bytearray) -> bool:
        until_ms = SystemClock().monotonic_ms() + 2000
        done, _ = self._client.fetch(self._address, [name], [memoryview(into)], until_ms)
        self._number += 1
        if self._number == self._bad:
            into[:] = bytes(value ^ 0x40 for value in into)
        return done == 1

    def close(self) -> None:
        self.server.close()
        self._client.close()


async def test_a_block_that_is_damaged_on_the_way_is_computed(
    pair: FetchingPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks before it count. Without the check, the text is wrong: the check is no formality."""
    for is_checked in (True, False):
        relay = Relay(address(pair.source), bad=5)
        asked = request(prompt(LENGTH), 32)
        cold = await answer_to(pair.source, asked)
        good: list[int] = []

        def of_good(seed: int, name: bytes, block: bytearray, good: list[int] = good) -> int:
            good.append(0)
            if len(good) == 6:
                return checksum(seed, name, bytearray(value ^ 0x40 for value in block))
            return checksum(seed, name, block)

        if is_checked:
            monkeypatch.setattr(block_server, "checksum", of_good)
        else:
            monkeypatch.setattr(block_server, "checksum", checksum)
        found = await answer_to(pair.reader, fetching(asked, relay.server.port))
        relay.close()
        if is_checked:
            assert (found.tokens, found.cached_tokens) == (cold.tokens, 5 * SIZE)
        else:
            assert found.cached_tokens == BLOCKS * SIZE
            assert found.tokens != cold.tokens


async def test_blocks_of_other_weights_are_refused(pair: FetchingPair) -> None:
    """Their kind is another: nothing is fetched, and the text is that of cold."""

    class Never:
        def copy(self, name: bytes, into: bytearray) -> bool:
            raise AssertionError("it was asked for a block")

    server = BlockServer("127.0.0.1", KEY, bytes(16), BLOCK_BYTES, Never())
    asked = request(prompt(LENGTH), 8)
    cold = await answer_to(pair.source, asked)
    found = await answer_to(pair.reader, fetching(asked, server.port))
    server.close()
    assert (found.tokens, found.cached_tokens) == (cold.tokens, 0)


def test_a_host_smaller_than_the_device_is_refused(pair: FetchingPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has the nearest copy of a block alone."""
    numbers = pair.reader._numbers._replace(blocks_total=HOST_BLOCKS + 1)
    monkeypatch.setattr(pair.reader, "_numbers", numbers)
    with pytest.raises(CallerError, match="host tier must hold all of the device's 513 blocks, and it holds 512"):
        pair.reader._fetch_address()


def test_a_hybrid_model_does_not_fetch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its blocks are in no index. One sentence says that at the start."""
    tier = FetchTier("127.0.0.1", KEY, tmp_path)
    engine = CountedEngine("tiny", str(tmp_path), {}, host_tier_bytes=1 << 20, fetch_tier=tier)
    engine._feed = SimpleNamespace(folder=str(tmp_path))
    write_fetch(tmp_path / FETCH_FILE, FetchFacts(1, "00" * 16, BLOCK_BYTES, 4, 8, 2))
    assert engine._fetch_address() is None
    assert "tiny neither fetches blocks nor has them fetched, because its engine has 2 kinds of caches" in caplog.text


async def test_a_disk_beside_fetches(pair: FetchingPair, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """One run for all, as engines take long to start: each block comes from the tier that its decision counted, and
    what was fetched lies on the disk, for a new process without fetches."""
    disk = DiskTier(tmp_path / "decode-0", 4 << 30, b"k" * 32)
    host_bytes = SMALL_HOST_BLOCKS * BLOCK_BYTES
    arguments = {"max_model_len": 1024, "num_gpu_blocks_override": SMALL_DEVICE_BLOCKS + 1}
    more: dict[str, Any] = {"host_tier_bytes": host_bytes, "disk_tier": disk}
    both = CountedEngine("tiny", str(tiny_checkpoint), arguments, **more, fetch_tier=pair.reader._fetch_tier)
    it = Beside(pair.source, both, disk.folder)
    await both.start()
    try:
        assert both.info.pool is not None
        assert address(both).kind == address(pair.source).kind, "the disk is no part of the kind"
        assert address(both).load_blocks == both.info.pool.load_blocks == SMALL_HOST_BLOCKS // 4
        fetched = await _what_was_fetched_lies_on_the_disk(it)
        mixed = await _each_tier_gives_what_was_counted(it)
        await _what_went_from_the_disk_is_fetched(it)
        await _a_slow_disk_is_not_read(it, mixed)
    finally:
        await both.stop()
    alone = CountedEngine("tiny", str(tiny_checkpoint), arguments, **more)
    await alone.start()
    try:
        for asked, cold in [*fetched, *mixed]:
            again = msgspec.structs.replace(asked, id=new_id())
            assert await answer_to(alone, again) == cold._replace(cached_tokens=BLOCKS * SIZE)
        assert alone.refused() == Counter()
        assert alone.disk_counts()["loads"] == 2 * PROMPTS * BLOCKS
    finally:
        await alone.stop()


class Beside(NamedTuple):
    """`source` has no disk; `reader` fetches, and has a disk in `folder`."""

    source: CountedEngine
    reader: CountedEngine
    folder: Path

    @property
    def port(self) -> int:
        return address(self.source).port


async def push_out(engine: CountedEngine) -> None:
    """Neither device nor host has anything of before; the disk has it."""
    await quiet(engine)
    for _ in range(1 + SMALL_HOST_BLOCKS // BLOCKS):
        await answer_to(engine, request(prompt(LENGTH), 1))
    await quiet(engine)


async def found(it: Beside, asked: GenerateRequest, cold: Answer) -> Counter[str]:
    """The blocks by source that the reader's answer took; its text is that of cold."""
    before = it.reader.hits.copy()
    answer = await answer_to(it.reader, asked)
    await it.reader.settle()
    taken = +it.reader.blocks_since(before)
    assert answer == cold._replace(cached_tokens=taken.total() * SIZE)
    return taken


async def _prompts(it: Beside) -> list[tuple[GenerateRequest, Answer]]:
    """Prompts that the source has computed, with its answers."""
    asked = [request(prompt(LENGTH), 8) for _ in range(PROMPTS)]
    return [(each, await answer_to(it.source, each)) for each in asked]


async def _what_was_fetched_lies_on_the_disk(it: Beside) -> list[tuple[GenerateRequest, Answer]]:
    """Once each, like what was computed: pushed out, the prompts come from there."""
    prompts = await _prompts(it)
    for asked, cold in prompts:
        files = len(list(it.folder.glob("*.kv")))
        assert await found(it, fetching(asked, it.port), cold) == {"p2p": BLOCKS}
        await quiet(it.reader)
        assert len(list(it.folder.glob("*.kv"))) == files + BLOCKS
    await push_out(it.reader)
    for asked, cold in prompts:
        assert await found(it, msgspec.structs.replace(asked, id=new_id()), cold) == {"disk": BLOCKS}
    return prompts


async def _each_tier_gives_what_was_counted(it: Beside) -> list[tuple[GenerateRequest, Answer]]:
    """The first blocks lie on the reader's disk, and the source has all. Those that are counted as the reader's own
    are read from its disk, and the others from the source, also if the disk has them."""
    prompts = await _prompts(it)
    for asked, _ in prompts:
        start = asked.tokens[: OWN * SIZE * TOKEN_BYTES]
        await answer_to(it.reader, request(start, 1))
    await push_out(it.reader)
    for asked, cold in prompts:
        assert await found(it, fetching(asked, it.port, own_blocks=OWN), cold) == {"disk": OWN, "p2p": BLOCKS - OWN}
    await push_out(it.reader)
    for asked, cold in prompts:
        assert await found(it, fetching(asked, it.port), cold) == {"p2p": BLOCKS}
    return prompts


async def _what_went_from_the_disk_is_fetched(it: Beside) -> None:
    """The decision counted it on the disk; the source has it, too."""
    for asked, cold in await _prompts(it):
        before = set(it.folder.glob("*.kv"))
        await answer_to(it.reader, request(asked.tokens[: OWN * SIZE * TOKEN_BYTES], 1))
        await push_out(it.reader)
        files = sorted(before ^ set(it.folder.glob("*.kv")), key=lambda file: file.stat().st_mtime_ns)
        files[0].unlink()
        taken = await found(it, fetching(asked, it.port, own_blocks=OWN), cold)
        assert taken == {"disk": OWN - 1, "p2p": BLOCKS - OWN + 1}


async def _a_slow_disk_is_not_read(it: Beside, prompts: list[tuple[GenerateRequest, Answer]]) -> None:
    """All comes from the source then, though the disk has all. Through a slow host nothing comes."""
    for skipped, taken in (("disk", {"p2p": BLOCKS}), ("host", {})):
        await push_out(it.reader)
        for asked, cold in prompts:
            skipping = msgspec.structs.replace(fetching(asked, it.port, own_blocks=OWN), skip_tiers=(skipped,))
            assert await found(it, skipping, cold) == taken
