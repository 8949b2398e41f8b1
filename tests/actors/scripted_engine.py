"""An engine whose every output a test decides, and the worker's side of a port around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from actors.engines.engine import BlockTransfer, CacheChange, EngineInfo, EngineLoad
from actors.engines.engine_adapters import EngineAdapters
from actors.transport.frames import (
    AdapterChanged,
    BlocksErased,
    EraseBlocks,
    Generate,
    LoadAdapter,
    PoolContent,
    UnloadAdapter,
    Welcome,
)
from core.generation import GenerateRequest, Output
from core.kv_transfer import KvPull

WORKER = "00000000000000aa"


class ScriptedEngine:
    """Each request waits for what the test puts into its script: outputs, or the error that ends it."""

    def __init__(self, model: str = "sim") -> None:
        self.info = EngineInfo("scripted", model, "", 16, 100, 4096)
        self.transfer: BlockTransfer | None = None
        self.adapters: EngineAdapters | None = None
        self.scripts: dict[str, asyncio.Queue[Output | Exception]] = {}
        self.asked: list[GenerateRequest] = []
        """What it was asked for."""
        self.ended: list[str] = []
        """Ids of requests that are over, however."""
        self.health: Callable[[], object] | None = None
        """Called by `check`."""
        self.stop_s = 0.0
        """How long it takes to end."""

    def script(self, request: str) -> asyncio.Queue[Output | Exception]:
        return self.scripts.setdefault(request, asyncio.Queue())

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        pass

    async def generate(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
        self.asked.append(request)
        script = self.script(request.id)
        try:
            while True:
                item = await script.get()
                await asyncio.sleep(0)  # as a step takes its time, the loop turns between two outputs
                if isinstance(item, Exception):
                    raise item
                yield item
                if item.finish is not None:
                    return
        finally:
            self.ended.append(request.id)

    def load(self) -> EngineLoad:
        return EngineLoad(running=0, waiting=0, blocks_used=0, blocks_total=100)

    async def check(self) -> None:
        if self.health is not None:
            answer = self.health()
            if isinstance(answer, asyncio.Event):
                await answer.wait()

    async def settle(self) -> None:
        pass

    async def stop(self) -> None:
        await asyncio.sleep(self.stop_s)


class ScriptedHost:
    """What a port needs of its worker."""

    def __init__(self) -> None:
        self.engine: Any = ScriptedEngine()
        self.worker = WORKER
        self.keeps_prompts = False
        self.tokenizer: dict[str, bytes] = {"tokenizer.json": b"{}"}
        self.restated = 0
        self.reused: list[tuple[int, int]] = []
        self.frames: list[object] = []
        """Those of prefill workers."""

    def welcome(self) -> Welcome:
        model, keeps = self.engine.info.model, self.keeps_prompts
        return Welcome(worker=self.worker, name="w", model=model, keeps_prompts=keeps)

    def restate(self) -> None:
        self.restated += 1

    def cached(self) -> bytes:
        return bytes(8)

    def files(self) -> dict[str, bytes]:
        return self.tokenizer

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        found: AsyncIterator[Output] = self.engine.generate(frame.request)
        return found

    def on_frame(self, connection: object, frame: object) -> None:
        self.frames.append(frame)

    async def change_adapter(self, frame: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        return AdapterChanged(fault="this host has no adapters")

    async def pool_content(self) -> PoolContent:
        return PoolContent()

    async def erase_blocks(self, frame: EraseBlocks) -> BlocksErased:
        return BlocksErased(fault=f"this host has no pool {frame.pool}")

    def on_disconnect(self, connection: object) -> None:
        pass

    def served(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.reused.append((prompt_tokens, cached_tokens))
