"""An engine that is nothing but its cache: prefixes of prompts, copies of blocks, evictions from any place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

from actors.engines.engine import (
    BlockTransfer,
    CacheChange,
    CacheEmptied,
    CacheGap,
    CacheRemoved,
    CacheStored,
    EngineInfo,
    EngineLoad,
)
from actors.engines.engine_adapters import EngineAdapters
from core.generation import GenerateRequest, Output
from core.keys import DeploymentKey
from core.kv_transfer import KvPull
from core.prompt import Prompt, tokens_from_bytes, tokens_to_bytes
from tests.simulation.options import Options

BLOCK_SIZE = 4
PREFILL_S = 0.01
"""Per block that is not cached."""
STEP_S = 0.05
MODEL = "sim"
KEY = DeploymentKey(bytes(32))


class CacheEngine:
    """An `Engine` whose time is the loop's and whose chances are the seed's."""

    def __init__(self, random_: random.Random, options: Options) -> None:
        self.info = EngineInfo(
            engine="simulated",
            model=MODEL,
            model_path="",
            block_size=BLOCK_SIZE,
            capacity_blocks=options.capacity_blocks,
            context_max=4096,
        )
        self.transfer: BlockTransfer | None = None
        self.adapters: EngineAdapters | None = None
        self._random = random_
        self._options = options
        self._held: dict[tuple[int, ...], int] = {}
        """Prefix of tokens to the block's name; the least recently used first."""
        self._names = 0
        self._running = 0
        self._on_cache: Callable[[CacheChange], None] = lambda _change: None

    def __repr__(self) -> str:
        return f"<CacheEngine {len(self._held)} blocks, {self._running} running>"

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        self._on_cache = on_cache

    async def generate(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
        assert pull is None
        tokens = tuple(tokens_from_bytes(request.tokens))
        self._running += 1
        try:
            cached = self._cached(tokens)
            await asyncio.sleep(PREFILL_S * (1 + len(tokens) // BLOCK_SIZE - cached))
            self._compute(tokens)
            yield Output(tokens=(1,), cached_tokens=cached * BLOCK_SIZE)
            for _ in range(request.sampling.max_tokens - 2):
                await asyncio.sleep(STEP_S)
                yield Output(tokens=(2,))
            await asyncio.sleep(STEP_S)
            self._maybe_gap()
            yield Output(tokens=(3,), finish="length")
        finally:
            self._running -= 1

    def load(self) -> EngineLoad:
        return EngineLoad(self._running, 0, len(self._held), self.info.capacity_blocks)

    async def check(self) -> None:
        """It never dies alone."""

    async def settle(self) -> None:
        """Changes are told when they are made."""

    async def stop(self) -> None:
        """It has no process."""

    def hashes(self) -> set[int]:
        """Our hashes of all blocks that it holds and that can be reached."""
        found: set[int] = set()
        for prefix in self._held:
            if all(each in self._held for each in self._prefixes(prefix)):
                found.add(Prompt(tokens_to_bytes(prefix), BLOCK_SIZE, KEY.hash_seed).key(len(prefix) // BLOCK_SIZE))
        return found

    def _prefixes(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [tokens[: end + BLOCK_SIZE] for end in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE)]

    def _cached(self, tokens: tuple[int, ...]) -> int:
        depth = 0
        for prefix in self._prefixes(tokens[:-1]):
            if prefix not in self._held:
                break
            depth += 1
        return depth

    def _compute(self, tokens: tuple[int, ...]) -> None:
        """The whole prompt is cached: missing blocks come in, and others leave for them."""
        parent: int | None = None
        wanted = self._prefixes(tokens)
        for prefix in wanted:
            name = self._held.pop(prefix, None)
            if name is None:
                self._evict(keep=set(wanted))
                name = self._names = self._names + 1
                last = prefix[-BLOCK_SIZE:]
                self._on_cache(CacheStored((name,), parent, last, BLOCK_SIZE, "device", None, None, indexable=True))
            self._held[prefix] = name
            parent = name

    def _evict(self, keep: set[tuple[int, ...]]) -> None:
        while len(self._held) >= self.info.capacity_blocks:
            victims = [prefix for prefix in self._held if prefix not in keep]
            if not victims:
                return
            victim = victims[0]
            if self._random.random() >= self._options.middle_evictions:
                while longer := [each for each in victims if each[: len(victim)] == victim and each != victim]:
                    victim = longer[-1]
            self._on_cache(CacheRemoved((self._held.pop(victim),), "device"))

    def _maybe_gap(self) -> None:
        draw = self._random.random()
        if draw < self._options.cache_gaps / 2:
            self._on_cache(CacheGap("events were lost"))
        elif draw < self._options.cache_gaps:
            self._held.clear()
            self._on_cache(CacheEmptied())
