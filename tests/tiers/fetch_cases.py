"""Cases of blocks that are fetched from another worker: whole, damaged on the way, and from sources that die."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple
from unittest.mock import patch

import msgspec

from actors.engines.engine import CacheChange
from actors.engines.vllm.vllm_args import FetchTier
from actors.kv_fetch import block_server
from actors.kv_fetch.fetch_protocol import checksum
from actors.router.router import Router
from core.events import RequestRouted
from core.generation import GenerateRequest
from core.ids import WorkerId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.prefix_fetch import FETCHES_MAX
from tests.actors.engines.vllm.test_fetch_tier import (
    BLOCK_BYTES,
    BLOCKS,
    DEVICE_BLOCKS,
    HOST_BLOCKS,
    KEY,
    LENGTH,
    SIZE,
    WORSE_S,
    Relay,
    address,
    fetching,
)
from tests.actors.kv_pool.test_shared_disk import levels
from tests.actors.world import World, world
from tests.contracts.engine import Answer, prompt, request
from tests.fixtures.eventually import eventually
from tests.output_stream import generate
from tests.tiers.case_result import CaseResult
from tests.tiers.counted_engine import MILLI, Bench, CountedEngine, TimedAnswer, Watch, cold_of, timed
from tests.tiers.host_cases import check
from tests.tiers.source_relay import SourceRelay

_logger = logging.getLogger(__name__)

BAD_BLOCK = 5
SHARED_BLOCKS, OWN_TOKENS = 47, 1400
"""Of two prompts that begin alike: too long a rest to wait for on the worker that has the start."""
KILLED_AFTER_BYTES = 10 * BLOCK_BYTES
"""Less than half of a fetch has come."""
TRIES_MAX = 5
"""Pairs of prompts until a fetch is decided on."""
LEFT_ALONE_S = 30.0
"""A source is asked again before."""
WARM, WARM_BLOCKS = 32, (8, 60)
"""Prompts by which the router learns what computing costs, and their blocks in turn."""


def fetching_engine(bench: Bench, kind: type[CountedEngine] = CountedEngine) -> CountedEngine:
    """An engine that fetches, and has its blocks fetched."""
    arguments = {"max_model_len": 3200, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
    tier = FetchTier("127.0.0.1", KEY, bench.folder)
    return kind("tiny", str(bench.model), arguments, host_tier_bytes=HOST_BLOCKS * BLOCK_BYTES, fetch_tier=tier)


async def fetch(bench: Bench) -> AsyncIterator[CaseResult]:
    """Two engines of one kind."""
    source, reader = fetching_engine(bench), fetching_engine(bench)
    try:
        await source.start()
        await reader.start()
        yield await _fetched(bench, source, reader)
        yield await _damaged(bench, source, reader, is_checked=True)
        yield await _damaged(bench, source, reader, is_checked=False)
    finally:
        await reader.stop()
        await source.stop()


async def _fetched(bench: Bench, source: CountedEngine, reader: CountedEngine) -> CaseResult:
    case = CaseResult("fetched from another worker")
    watch = Watch(case, reader)
    for _ in range(bench.rounds):
        asked = request(prompt(LENGTH), 8)
        cold = await timed(source, asked)
        check(case, cold, await timed(reader, fetching(asked, address(source).port)), BLOCKS * SIZE)
    return await watch.end()


async def _damaged(bench: Bench, source: CountedEngine, reader: CountedEngine, *, is_checked: bool) -> CaseResult:
    """A byte of each value of one block changes on the way. Its checksum is that of the block as it was, or, as if no
    end looked at it, that of the block as it comes."""
    name = "a block damaged on the way" + ("" if is_checked else ", the checksum's check switched off")
    case = CaseResult(name, is_wrong_expected=not is_checked)
    watch = Watch(case, reader)
    for _ in range(bench.rounds):
        relay, asked, sent = Relay(address(source), BAD_BLOCK), request(prompt(LENGTH), 32), list[bytes]()
        cold = await timed(source, asked)

        def of_good(seed: int, name: bytes, block: bytearray, sent: list[bytes] = sent) -> int:
            sent.append(name)
            is_bad = len(sent) == BAD_BLOCK + 1
            return checksum(seed, name, bytearray(value ^ 0x40 for value in block) if is_bad else block)

        with patch.object(block_server, "checksum", of_good if is_checked else checksum):
            found = await timed(reader, fetching(asked, relay.server.port))
        relay.close()
        if is_checked:
            check(case, cold, found, BAD_BLOCK * SIZE)
        else:  # blocks that come late are computed: some texts may be right
            case.add(is_right=found.tokens == cold.tokens, waited_ms=found.first_ms)
        case.refused["checksum"] += is_checked and found.cached == BAD_BLOCK * SIZE
    if not is_checked:
        case.notes.append("wrong texts are what must be seen")
    return await watch.end()


class Fault(NamedTuple):
    """Something that happens to a source in a fetch."""

    name: str
    after_bytes: int
    signal: signal.Signals

    @property
    def kills(self) -> bool:
        return self.signal is signal.SIGKILL


FAULTS = (
    Fault("the source stopped in a fetch", KILLED_AFTER_BYTES, signal.SIGSTOP),
    Fault("the source killed with -9 in a fetch", KILLED_AFTER_BYTES, signal.SIGKILL),
    Fault("the source killed with -9 before the handshake", 0, signal.SIGKILL),
)


async def stopped(bench: Bench) -> AsyncIterator[CaseResult]:
    """Two workers behind a router, each behind a relay; the source's processes are stopped, and go on later."""
    async for case in _sources(bench, [fault for fault in FAULTS if not fault.kills]):
        yield case


async def sources(bench: Bench) -> AsyncIterator[CaseResult]:
    """The same, and the source is killed. Its worker is replaced by a new one."""
    async for case in _sources(bench, [fault for fault in FAULTS if fault.kills]):
        yield case


async def _sources(bench: Bench, faults: list[Fault]) -> AsyncIterator[CaseResult]:
    async with world() as it:
        site = Site(bench, it)
        await site.start("decode-0")
        await site.start("decode-1")
        site.router = await it.router(settings=RoutingSettings(policy="time", hold_max_ms=0))
        await it.ready(site.router, workers=2)
        for number in range(WARM):
            await site.answer(request(prompt(WARM_BLOCKS[number % 2] * SIZE), 2))
        for fault in faults:
            yield await _faults(bench, site, fault)


class RelayedEngine(CountedEngine):
    """Names the port of a relay as its own."""

    relay: SourceRelay

    async def start(self, on_cache: Callable[[CacheChange], None] | None = None) -> None:
        """As CountedEngine."""
        await super().start(on_cache)
        at = address(self)
        self.relay = SourceRelay(at.host, at.port)
        self.info = self.info._replace(fetch=msgspec.structs.replace(at, port=self.relay.port))

    async def stop(self) -> None:
        """As CountedEngine."""
        self.relay.close()
        await super().stop()


class Site:
    """Two workers that fetch from each other through relays, and a router."""

    router: Router

    def __init__(self, bench: Bench, it: World) -> None:
        self._bench, self.it = bench, it

    async def start(self, name: str) -> None:
        """The worker serves."""
        await self.it.worker(name, engine=fetching_engine(self._bench, RelayedEngine))

    def engine(self, name: str) -> RelayedEngine:
        """That of the worker."""
        engine = self.it.workers[name].engine
        assert isinstance(engine, RelayedEngine)
        return engine

    def name_of(self, worker: str) -> str:
        """The worker's name."""
        return next(name for name, each in self.it.workers.items() if each.current_publisher().id == worker)

    async def answer(self, asked: GenerateRequest) -> TimedAnswer:
        """Through the router, under the request's own id."""
        began, first_ms, tokens, cached = time.monotonic(), 0.0, list[int](), None
        async for output in generate(self.router, "tiny", asked):
            if not tokens:
                first_ms = (time.monotonic() - began) * MILLI
            tokens += output.tokens
            cached = output.cached_tokens if output.cached_tokens is not None else cached
        return TimedAnswer(Answer(tuple(tokens), None, cached), first_ms)

    async def routed(self, asked: GenerateRequest) -> list[RequestRouted]:
        """The decisions on the request, in order."""
        await eventually(lambda: self.router.publisher.outbox.idle, "decisions are in the log")
        return [event for event in await self.it.told(ROUTING, RequestRouted) if event.request == asked.id]

    async def begin(self) -> tuple[bytes, WorkerId]:
        """The start of prompts, and the worker that has it; the router knows that."""
        start = prompt(SHARED_BLOCKS * SIZE)
        asked, whole = request(start, 2), request(start + prompt(5))
        await self.answer(asked)
        holder = WorkerId((await self.routed(asked))[-1].worker)
        worker = self.it.workers[self.name_of(holder)]
        await eventually(lambda: levels(self.router, worker, whole)[-1] >= SHARED_BLOCKS, "its blocks are known")
        return start, holder

    def is_left_alone(self, source: WorkerId) -> bool:
        """Nothing is fetched from it now: a fetch failed, or it is gone."""
        busy = self.router.scheduler.fetches.busy(self.it.clock.monotonic_us())
        return busy.get(source) == FETCHES_MAX or source not in self.router.state.fetchers()

    async def replace(self, source: WorkerId) -> None:
        """The worker, whose engine was killed, is gone; another one of its name serves."""
        name = self.name_of(source)
        dead = await self.it.crash(name)
        self.it.store.expire(f"workers/{dead}")
        await eventually(lambda: source not in self.router.state.fetchers(), "the log has its end", LEFT_ALONE_S)
        await self.start(name)
        await self.it.ready(self.router, workers=2)


async def _faults(bench: Bench, site: Site, fault: Fault) -> CaseResult:
    """Each time: a prompt's start lies on one worker; two prompts go on from there at once, and one of them is to be
    computed on the other worker, behind a fetch. The wait is compared with that without a cache, before
    and, where the two were answered, after."""
    case, over_ms = CaseResult(fault.name), 0.0
    for _ in range(bench.kills):
        for _ in range(TRIES_MAX):
            found = await _fault(site, fault, case)
            if found is not None:
                over_ms = max(over_ms, found)
                break
        else:
            case.expect(condition=False, sentence=f"no fetch was decided on in {TRIES_MAX} pairs of prompts")
    case.notes.append(f"first token at most {over_ms:.0f} ms above cold")
    return case


async def _fault(site: Site, fault: Fault, case: CaseResult) -> float | None:
    """By how much the fetched prompt's first token came later than cold, in milliseconds; None if none was fetched."""
    start, source = await site.begin()
    name = site.name_of(source)
    engine, (other,) = site.engine(name), [site.engine(each) for each in site.it.workers if each != name]
    asked = [request(start + prompt(OWN_TOKENS), 8) for _ in range(2)]
    cold = await asyncio.gather(*(cold_of(each, what) for each, what in zip((engine, other), asked, strict=True)))
    struck, pids = asyncio.Event(), engine._processes.pids
    loop, failed = asyncio.get_running_loop(), site.router.scheduler.fetches.failed

    def strike() -> None:
        for pid in pids:
            os.kill(pid, fault.signal)
        loop.call_soon_threadsafe(struck.set)

    engine.relay.plan(fault.after_bytes, strike)
    answering = [asyncio.create_task(site.answer(each)) for each in asked]
    try:
        await asyncio.wait([asyncio.create_task(struck.wait()), answering[1]], return_when=asyncio.FIRST_COMPLETED)
        if not struck.is_set():
            await asyncio.gather(*answering)
            _logger.warning("no fetch: %s", [await site.routed(each) for each in asked])
            return None
        fetched = await answering[1]
        is_left_alone = site.is_left_alone(source)
    finally:
        if struck.is_set() and not fault.kills:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    plain = await answering[0]
    at = [site.engine(site.name_of((await site.routed(each))[-1].worker)) for each in asked]
    after = await asyncio.gather(*(cold_of(each, what) for each, what in zip(at, asked, strict=True)))
    cold_ms = [each[1].first_ms for each in (cold, after)]
    over_ms = fetched.first_ms - max(cold_ms)  # other programs have the machine in turns
    is_right = [plain.tokens, fetched.tokens] == [each.tokens for each in cold]
    case.add(is_right=is_right, waited_ms=fetched.first_ms)
    _logger.warning(
        "%s: %.0f ms, cold %s, %d cached, on one worker: %s",
        fault.name,
        fetched.first_ms,
        cold_ms,
        fetched.cached,
        at[0] is at[1],
    )
    case.found["p2p"] += fetched.cached // SIZE
    case.expect(over_ms <= WORSE_S * MILLI, f"the first token came {over_ms:.0f} ms later than cold")
    case.expect(is_left_alone, "the source was not left alone afterwards")
    case.expect(site.router.scheduler.fetches.failed > failed, "the fetch was not counted as failed")
    if fault.kills:
        await site.replace(source)
    else:
        await eventually(lambda: not site.is_left_alone(source), "the source is asked again", LEFT_ALONE_S)
    return over_ms
