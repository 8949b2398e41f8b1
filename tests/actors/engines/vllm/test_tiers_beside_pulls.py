"""KV tiers beside remote prefill, on real engines: blocks that came too late reach no tier, those in time reach all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest_asyncio

from actors.engines.engine import BlockTransfer, Engine
from actors.engines.vllm.vllm_args import DiskTier
from core.generation import GenerateRequest
from core.ids import new_id
from core.kv_transfer import KvPull
from tests.actors.engines.vllm.test_host_tier import BLOCK_BYTES, SIZE, Depth, Followed
from tests.contracts.engine import Answer, answer_to, prompt, request
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually

REPEATS = int(os.environ.get("CONTRAIL_TIERS_BESIDE_PULLS", "2"))
"""Prompts of each kind. By hand, 20: set the variable of that name."""
KEEP_MS = 1000
DEVICE_BLOCKS, HOST_BLOCKS = 64, 640
ARGUMENTS = {"max_model_len": 1024, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
BLOCKS = 10
LENGTH = BLOCKS * SIZE + 5
CACHED = BLOCKS * SIZE
AT_ONCE = 2
"""Prompts that the prefill engine holds."""
ANSWER = 12
"""Tokens: enough steps for a pull to be confirmed in the middle."""
DISK_BYTES = 4 << 30


class Engines(NamedTuple):
    """`alone` has no tiers; blocks of `prefill` are pulled by `decode`, which has a host and a disk in `folder`."""

    alone: RecordedEngine
    prefill: RecordedEngine
    decode: RecordedEngine
    folder: Path


class Asked(NamedTuple):
    """A prompt, and the text of an engine that computed it alone."""

    request: GenerateRequest
    cold: tuple[int, ...]

    @property
    def again(self) -> GenerateRequest:
        """The same prompt as a new request."""
        return msgspec.structs.replace(self.request, id=new_id())


def moving(engine: Engine) -> BlockTransfer:
    assert engine.transfer is not None
    return engine.transfer


def with_tiers(
    model: Path, folder: Path, moves_blocks: str, kind: type[RecordedEngine] = RecordedEngine
) -> RecordedEngine:
    more: dict[str, Any] = {"host_tier_bytes": HOST_BLOCKS * BLOCK_BYTES}
    tier = DiskTier(folder, DISK_BYTES, b"k" * 32)
    return kind("tiny", str(model), ARGUMENTS, moves_blocks=moves_blocks, disk_tier=tier, **more)


@pytest_asyncio.fixture(loop_scope="session")
async def engines(tiny_checkpoint: Path, vllm_engine: RecordedEngine, tmp_path: Path) -> AsyncIterator[Engines]:
    folder = tmp_path / "kv"
    prefill = RecordedEngine("tiny", str(tiny_checkpoint), ARGUMENTS, moves_blocks="prefill", keep_ms=KEEP_MS)
    decode = with_tiers(tiny_checkpoint, folder, "decode")
    try:
        await prefill.start()
        await decode.start()
        yield Engines(vllm_engine, prefill, decode, folder)
    finally:
        await decode.stop()
        await prefill.stop()


async def new_prompts(it: Engines, count: int) -> list[Asked]:
    asked = [request(prompt(LENGTH), ANSWER) for _ in range(count)]
    return [Asked(each, (await answer_to(it.alone, each)).tokens) for each in asked]


async def prefilled(it: Engines, asked: Iterable[Asked]) -> list[KvPull]:
    held = [(await moving(it.prefill).prefill(each.again))[0] for each in asked]
    return [KvPull(moving(it.prefill).address, blocks) for blocks in held]


async def pushed_out(engine: RecordedEngine) -> None:
    """Nothing of before is on the device."""
    for _ in range(1 + DEVICE_BLOCKS // BLOCKS):
        await answer_to(engine, request(prompt(LENGTH), 1))


async def pulled_too_late(it: Engines, asked: Iterable[Asked]) -> list[KvPull]:
    """The answers of the decode engine are wrong: what it pulled was given up and written over before."""
    asked = list(asked)
    pulls = await prefilled(it, asked)
    await eventually(lambda: not moving(it.prefill).totals().held, "the end of the leases", 30)
    await asyncio.sleep(2 * KEEP_MS / 1000)  # `held` counts a margin; and a busy machine is late
    await pushed_out(it.prefill)
    for each, pull in zip(asked, pulls, strict=True):
        assert (await answer_to(it.decode, each.again, pull)).tokens != each.cold, "the blocks were still there"
    return pulls


async def pulled_in_time(it: Engines, asked: Asked) -> KvPull:
    """Confirmed with the first token, as a decode worker does; the text is right."""
    (pull,) = await prefilled(it, [asked])
    tokens: list[int] = []
    async with aclosing(it.decode.generate(asked.again, pull)) as outputs:  # type: ignore[type-var]
        async for output in outputs:
            if not tokens:
                await moving(it.decode).confirm(pull)
            tokens += output.tokens
    assert tuple(tokens) == asked.cold
    return pull


async def quiet(it: Engines) -> int:
    """Files on the disk, once nothing is written."""
    before = None
    while (counts := it.decode.disk_counts()) != before:
        before = counts
        await asyncio.sleep(0.5)
    return len(list(it.folder.glob("*.kv")))


def right(asked: Asked, cached: int) -> Answer:
    return Answer(asked.cold, "length", cached)


async def test_pulled_blocks_in_slower_tiers(engines: Engines, tiny_checkpoint: Path) -> None:
    """One run for all: engines take long to start."""
    late = await _late_ones_reach_no_tier(engines)
    in_time = await _those_in_time_reach_all(engines)
    await _forgetting_takes_what_was_written_meanwhile(engines)
    (believed,) = await _unchecked_they_poison_all_tiers(engines)
    loads = engines.decode.disk_counts()["loads"]
    assert loads == 0, "the host had them"
    sums = engines.decode.info.tier_loads
    assert sums is not None
    assert sums()["host"].blocks >= 2 * REPEATS * BLOCKS, "statistics of one connector among several"
    assert moving(engines.decode).totals().pulls == 2 * REPEATS + 2
    await engines.decode.stop()
    other = with_tiers(tiny_checkpoint, engines.folder, "")
    await other.start()
    try:
        for each in [*late, *in_time]:
            assert await answer_to(other, each.again) == right(each, CACHED)
        answer = await answer_to(other, believed.again)
        assert answer.cached_tokens == CACHED
        assert answer.tokens != believed.cold, "the seal does not know what was pulled"
        assert other.disk_counts()["loads"] == BLOCKS * (2 * REPEATS + 1)
    finally:
        await other.stop()


async def _late_ones_reach_no_tier(it: Engines) -> list[Asked]:
    """Neither with the request that pulled them, nor with one that finds them on the device. Forgotten and computed
    again, the prompts leave the device and are loaded from the host: their text is that of cold."""
    asked, followed, files = await new_prompts(it, REPEATS), Followed(it.decode), await quiet(it)
    for first in range(0, REPEATS, AT_ONCE):
        some = asked[first : first + AT_ONCE]
        await pulled_too_late(it, some)
        for each in some:
            poisoned = await answer_to(it.decode, each.again)
            assert poisoned.cached_tokens == CACHED
            assert poisoned.tokens != each.cold
            assert await followed.depth(each.request) == Depth(CACHED, CACHED)
    assert await quiet(it) == files, "wrong blocks on the disk"
    await pushed_out(it.decode)
    for each in asked:
        assert await followed.depth(each.request) == Depth(0, 0), "wrong blocks on the host"
    await moving(it.decode).forget()
    for each in asked:
        assert await answer_to(it.decode, each.again) == right(each, 0)
    await pushed_out(it.decode)
    for each in asked:
        assert await followed.depth(each.request) == Depth(0, CACHED)
        assert await answer_to(it.decode, each.again) == right(each, CACHED)
    return asked


async def _those_in_time_reach_all(it: Engines) -> list[Asked]:
    """Each block is on the disk before its prompt comes again; pushed out, it is loaded from the host."""
    asked, followed, files = await new_prompts(it, REPEATS), Followed(it.decode), await quiet(it)
    for each in asked:
        await pulled_in_time(it, each)
    assert await quiet(it) == files + BLOCKS * REPEATS
    await pushed_out(it.decode)
    for each in asked:
        assert await followed.depth(each.request) == Depth(0, CACHED)
        assert await answer_to(it.decode, each.again) == right(each, CACHED)
    return asked


async def _forgetting_takes_what_was_written_meanwhile(it: Engines) -> None:
    """With a pull open, other prompts are stored as ever; once it is forgotten they are on no tier, and those of before
    are on the disk."""
    (before, open_one, meanwhile), followed = await new_prompts(it, 3), Followed(it.decode)
    await answer_to(it.decode, before.again)
    files = await quiet(it)
    await pulled_too_late(it, [open_one])
    await answer_to(it.decode, meanwhile.again)
    assert await quiet(it) == files + BLOCKS
    await moving(it.decode).forget()
    assert await quiet(it) == files
    assert await followed.depth(before.request) == Depth(0, 0)
    assert await answer_to(it.decode, meanwhile.again) == right(meanwhile, 0)
    assert followed.mirror.strangers == 0


async def _unchecked_they_poison_all_tiers(it: Engines) -> list[Asked]:
    """A pull that came too late and is confirmed all the same: its wrong text comes from the host."""
    asked, files = await new_prompts(it, 1), await quiet(it)
    (pull,) = await pulled_too_late(it, asked)
    await moving(it.decode).confirm(pull)
    assert (await answer_to(it.decode, asked[0].again)).cached_tokens == CACHED
    await pushed_out(it.decode)
    assert await quiet(it) > files + BLOCKS
    answer = await answer_to(it.decode, asked[0].again)
    assert answer.cached_tokens == CACHED
    assert answer.tokens != asked[0].cold
    return asked
