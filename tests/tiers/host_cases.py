"""Cases of the host tier: blocks that left the device, scopes beside each other, adapters that change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from core.generation import GenerateRequest
from tests.actors.engines.vllm.test_host_tier import BLOCK_BYTES, CONTEXT, DEVICE_BLOCKS, HOST_BLOCKS, SIZE
from tests.contracts.engine import prompt, request
from tests.fixtures.engines import adapter_ids, make_adapter
from tests.tiers.case_result import CaseResult
from tests.tiers.counted_engine import Bench, CountedEngine, TimedAnswer, Watch, cold_of, timed

BLOCKS = 20
LENGTH = BLOCKS * SIZE + 5
PROMPTS_OFF = DEVICE_BLOCKS // BLOCKS + 1
"""New prompts that leave nothing of before on the device."""


async def host(bench: Bench) -> AsyncIterator[CaseResult]:
    """A small device and a larger host."""
    arguments = {"max_model_len": CONTEXT, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
    more = {"adapters": bench.adapters(), "host_tier_bytes": HOST_BLOCKS * BLOCK_BYTES}
    engine = CountedEngine("tiny", str(bench.model), arguments, **more)
    await engine.start()
    try:
        yield await _from_host(bench, engine)
        yield await scopes(
            bench, engine, "a salted tenant and an adapter beside a plain request, host", BLOCKS, BLOCKS, push_off
        )
        yield await _other_adapter(bench, engine)
    finally:
        await engine.stop()


async def _from_host(bench: Bench, engine: CountedEngine) -> CaseResult:
    case, batch = CaseResult("left the device, from the host"), (HOST_BLOCKS - DEVICE_BLOCKS) // BLOCKS - 3
    asked = [request(prompt(LENGTH), 16) for _ in range(bench.rounds)]
    for at in range(0, len(asked), batch):
        some = asked[at : at + batch]
        cold = [await timed(engine, each) for each in some]
        await push_off(engine)
        watch = Watch(case, engine)
        for each, first in zip(some, cold, strict=True):
            check(case, first, await timed(engine, each), BLOCKS * SIZE)
        await watch.end()
    return case


async def push_off(engine: CountedEngine) -> None:
    """The device has nothing of before."""
    for _ in range(PROMPTS_OFF):
        await timed(engine, request(prompt(LENGTH), 2))


def check(case: CaseResult, cold: TimedAnswer, again: TimedAnswer, cached: int) -> None:
    """One more round: the text is that of cold, and so many tokens came from caches."""
    case.add(is_right=again.tokens == cold.tokens, waited_ms=again.first_ms)
    case.expect(again.cached == cached, f"{again.cached} tokens were cached instead of {cached}")


async def scopes(
    bench: Bench,
    engine: CountedEngine,
    name: str,
    blocks: int,
    adapted_blocks: int,
    push: Callable[[CountedEngine], Awaitable[None]],
) -> CaseResult:
    """The same tokens plain, salted and with an adapter, and behind a `push` again and under another salt: each finds
    its own blocks alone, so many of them; `adapted_blocks` of an adapter's."""
    case, adapter = CaseResult(name), adapter_ids(engine)[0]
    watch = Watch(case, engine)
    for _ in range(bench.rounds):
        plain = request(prompt(blocks * SIZE + 5), 8)
        salted = msgspec.structs.replace(plain, cache_salt="one")
        adapted = msgspec.structs.replace(plain, adapter=adapter)
        first = [await timed(engine, each) for each in (plain, salted, adapted)]
        case.expect(not any(each.cached for each in first), "a first request in its scope found blocks")
        case.expect(first[2].tokens != first[0].tokens, "an adapter changes nothing")
        await push(engine)
        other = await timed(engine, msgspec.structs.replace(plain, cache_salt="two"))
        case.expect((other.tokens, other.cached) == (first[0].tokens, 0), "another salt found blocks, or another text")
        again = [await timed(engine, each) for each in (plain, salted, adapted)]
        is_right = [each.tokens for each in again] == [each.tokens for each in first]
        case.add(is_right=is_right, waited_ms=max(each.first_ms for each in again))
        found = [each.cached // SIZE for each in again]
        case.expect(found == [blocks, blocks, adapted_blocks], f"{found} blocks were cached")
    return await watch.end()


async def _other_adapter(bench: Bench, engine: CountedEngine) -> CaseResult:
    """An adapter is loaded under one name from one folder, whose weights change again and again; each text is compared
    with the one under a new salt."""
    case, folder = CaseResult("other adapter weights at the same path"), bench.folder / "gamma"
    asked, kept = request(prompt(LENGTH), 8), dict[int, tuple[int, ...]]()
    watch = Watch(case, engine)
    for number in range(bench.rounds):
        seed = 10 + (number - 1 if number % 5 == 4 else number)  # now and then the weights of before come back
        adapted = await _loaded(engine, folder, seed, asked)
        found, cold = await timed(engine, adapted), await cold_of(engine, adapted)
        check(case, cold, found, BLOCKS * SIZE if seed in kept else 0)
        case.expect(seed in kept or found.tokens not in kept.values(), "other weights say the same")
        kept[seed] = found.tokens
        await push_off(engine)
        assert engine.adapters is not None
        await engine.adapters.unload(str(adapted.adapter))
    case.notes.append("every fifth time the weights of before: their blocks are found again")
    return await watch.end()


async def _loaded(engine: CountedEngine, folder: Path, seed: int, asked: GenerateRequest) -> GenerateRequest:
    """The request for the adapter in the folder, which has the weights of that seed."""
    assert engine.adapters is not None
    copy = await engine.adapters.load("gamma", str(make_adapter(folder, seed)))
    return msgspec.structs.replace(asked, adapter=copy.id)
