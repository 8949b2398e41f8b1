"""Workers that cost nothing, for `bench.frontdoor`: real ones but for their engines, which make tokens out of thin air.

`python -m bench.frontdoor_worker DATA MODEL_FOLDER WORKERS PACE_MS STEPS INTERVAL` joins the deployment with that data
folder, says "ready", and ends when its standard input does. PACE_MS 0 gives an answer at once and whole; above, one
token of every stream that often, of all workers in one moment if STEPS is `together`, else one after the other. Tokens
are told at once, or the first one, and so many together from there on, as vLLM does under its `stream_interval`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import uvloop

from actors.engines.engine import BlockTransfer, CacheChange, EngineInfo, EngineLoad
from actors.engines.engine_adapters import EngineAdapters
from actors.worker.worker import Worker, WorkerOptions
from api.config.deployment_ref import find_by_data_folder
from api.process.planes import open_planes
from core.clock import SystemClock
from core.generation import GenerateRequest, Output
from core.kv_transfer import KvPull
from streams.jetstream.broker_accounts import WORKER

MODEL = "bench"
TOKEN = 300
"""Any that is text."""


TOGETHER, APART = "together", "apart"


class Pace(NamedTuple):
    """Of workers that make tokens."""

    ms: float
    """From one step to the next; 0 for none, and answers that come at once and whole."""
    steps: str = APART
    """TOGETHER, or APART: each as far behind the one before it as behind the next."""

    def places(self, workers: int) -> list[float]:
        """Offset of each worker's ticks from the pace's start, as a share of the pace."""
        return [0.0 if self.steps == TOGETHER else number / workers for number in range(workers)]


async def ticks(pace_s: float, place: float) -> AsyncIterator[None]:
    """A tick every `pace_s`, for ever, by the loop's clock, so that the offsets between tickers stay constant.

    Ticks that are late by more than one are left out.
    """
    loop = asyncio.get_running_loop()
    at_s = (loop.time() // pace_s + 1 + place) * pace_s
    while True:
        await asyncio.sleep(max(0.0, at_s - loop.time()))
        yield
        at_s = following(at_s, loop.time(), pace_s)


def following(at_s: float, now_s: float, pace_s: float) -> float:
    """When the tick after that of `at_s` is due: at the same place between others, and not before the last that should
    have been."""
    return at_s + pace_s * max(1, (now_s - at_s) // pace_s)


class FreeEngine:
    """Tokens at no cost, and no cache."""

    transfer: BlockTransfer | None = None
    adapters: EngineAdapters | None = None

    def __init__(self, folder: str, pace_s: float, interval: int, place: float) -> None:
        """`place`: how far behind the pace's start it ticks, in parts of the pace."""
        self.info = EngineInfo(
            engine="free", model=MODEL, model_path=folder, block_size=16, capacity_blocks=65_536, context_max=65_536,
            slots=4096,
        )  # fmt: skip
        self._pace_s = pace_s
        self._interval = interval
        self._place = place
        self._running = 0
        self._tick: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:  # noqa: ARG002  # there is no cache
        """It ticks, if it is to."""
        if self._pace_s:
            self._task = asyncio.create_task(self._ticks())

    async def _ticks(self) -> None:
        async for _ in ticks(self._pace_s, self._place):
            tick, self._tick = self._tick, asyncio.get_running_loop().create_future()
            tick.set_result(None)

    async def generate(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
        """As many tokens as were asked for."""
        assert pull is None
        self._running += 1
        try:
            count = request.sampling.max_tokens
            if not self._pace_s:
                yield Output(tokens=(TOKEN,) * count, finish="length", cached_tokens=0)
                return
            sent = 0
            for made in range(1, count + 1):
                await self._tick
                finish = "length" if made == count else None
                if finish or not sent or made - sent == self._interval:
                    new = (TOKEN,) * (made - sent)
                    yield Output(tokens=new, finish=finish, cached_tokens=None if sent else 0)
                    sent = made
        finally:
            self._running -= 1

    def load(self) -> EngineLoad:
        """As many as there are."""
        return EngineLoad(running=self._running, waiting=0, blocks_used=0, blocks_total=65_536)

    async def check(self) -> None:
        """It is always well."""

    async def settle(self) -> None:
        """There is nothing to tell."""

    async def stop(self) -> None:
        """It ticks no more."""
        if self._task is not None:
            self._task.cancel()


async def serve(data: Path, folder: str, workers: int, pace: Pace, interval: int) -> None:
    """Until standard input ends."""
    connection = find_by_data_folder(data)
    async with AsyncExitStack() as stack:
        for number, place in enumerate(pace.places(workers)):
            both = await stack.enter_async_context(open_planes(connection, WORKER))
            options = WorkerOptions(namespace=connection.namespace, name=f"free-{number}")
            engine = FreeEngine(folder, pace.ms / 1000, interval, place)
            worker = Worker(options, engine, both.log, both.registry, SystemClock(), connection.key)
            await worker.start({})
            stack.push_async_callback(worker.stop, "measured", drain=False)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    data, folder, workers, pace_ms, steps, interval = sys.argv[1:]
    uvloop.run(serve(Path(data), folder, int(workers), Pace(float(pace_ms), steps), int(interval)))
