"""Path: how many files and functions of the product a request, a cache event and a decision pass on their way.

One front end, one worker with the simulated engine and a log in memory live in this process, joined by real TCP. A
profiler notes each function of the product that is entered. A change of file is one entered function that stands in
another file than the one before it. The log and the registry in memory stand in for the broker and are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx

from actors.engines.engine import CacheChange, CacheStored
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from actors.engines.tiny_model import ensure_tiny_checkpoint
from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router.router import Router, RouterOptions
from actors.worker.worker import Worker, WorkerOptions
from api.app import create_app
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from bench.figures import Figure, main
from core.clock import SystemClock
from core.ids import WorkerId
from core.keys import DeploymentKey
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream
from replay.session import ReplaySession
from streams.archive.archive_export import archive
from streams.archive.archive_writer import ArchiveWriter
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.snapshot_store import SnapshotStore

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "streams", "projections", "actors", "replay", "api")
STAND_INS = ("streams/memory",)
NAMESPACE, MODEL = "path", "tiny"
KEY = DeploymentKey(bytes(32))
STREAMS = [kv_stream(0), LOAD, ROUTING]
PROMPT_WORDS, ANSWER_TOKENS, WARM_UP = 60, 8, 20
BLOCK_SIZE = 16
STILL_S = 0.3
"""So long nothing is on its way before something is counted."""
STORED_S = 0.05
"""Between looks if the router has folded an event of the worker; the worker has its answer from the log as soon."""
STORED_LOOKS = 200
TIMES = 5
"""Each path is gone so often; the one with the fewest calls has the least of what happens beside it."""
CHAT: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": ANSWER_TOKENS, "temperature": 0}


class Followed:
    """The functions of the product that were entered, in their order."""

    def __init__(self, worker: tuple[str, int] | None = None) -> None:
        """`worker` is where the worker listens."""
        self.entered: list[tuple[str, CodeType]] = []
        self.sent_at = 0
        """Functions entered until the first frame for a worker was written."""
        self._worker = worker
        self._files: dict[str, str | None] = {}

    def note(self, frame: FrameType, what: str, _argument: object) -> None:
        """A profile function of `sys.setprofile`."""
        if what != "call":
            return
        code = frame.f_code
        file = self._file(code.co_filename)
        if file is not None:
            self.entered.append((file, code))
        elif not self.sent_at and code.co_name == "write" and code.co_filename.endswith("selector_events.py"):
            transport = frame.f_locals["self"]
            if transport.get_extra_info("peername") == self._worker:
                self.sent_at = len(self.entered)

    def _file(self, name: str) -> str | None:
        """From the root; None unless it is the product's."""
        if name not in self._files:
            path = Path(name)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix()
            ours = inside and inside.startswith(tuple(f"{it}/" for it in PACKAGES)) and not inside.startswith(STAND_INS)
            self._files[name] = inside if inside and ours else None
        return self._files[name]

    def figures(self, what: str, end: int | None = None) -> Iterator[Figure]:
        """Files, functions and changes of file of what was entered before `end`."""
        entered = self.entered[:end]
        files = [file for file, _ in entered]
        changes = sum(a != b for a, b in pairwise(files))
        yield Figure(f"{what}: files", len(set(files)), "")
        yield Figure(f"{what}: functions", len({code for _, code in entered}), "")
        yield Figure(f"{what}: changes of file", changes, "", note=f"{len(entered)} calls")


@contextmanager
def followed(worker: tuple[str, int] | None = None) -> Iterator[Followed]:
    """Functions entered inside the context are recorded."""
    path = Followed(worker)
    sys.setprofile(path.note)
    try:
        yield path
    finally:
        sys.setprofile(None)


class _Engine(SimulatedEngine):
    """Its owner's callback for changes of the cache may be called from outside."""

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        self.on_cache = on_cache
        await super().start(on_cache)


class Deployment:
    """All of it in one process."""

    def __init__(self, folder: Path) -> None:
        clock, store = SystemClock(), MemoryRegistryStore()
        self.log = MemoryLog(NAMESPACE, clock)
        self.metrics = FrontendMetrics()
        self.engine = engine = _Engine(
            MODEL,
            SimulatedSettings(
                model_path=str(folder), prefill_us_per_token=1, eos_every=0, block_size=BLOCK_SIZE, capacity_blocks=4096
            ),
        )
        self.worker = Worker(
            WorkerOptions(namespace=NAMESPACE, name="decode-0"), engine, self.log, MemoryRegistry(store), clock, KEY
        )
        self.router = Router(
            RouterOptions(namespace=NAMESPACE, name="frontend-0"),
            self.log,
            MemoryRegistry(store),
            clock,
            KEY,
            RoutingSettings(),
            self.metrics.decided,
        )
        self.server = HttpServer(create_app(self.router, self.metrics, ApiSettings()), bind("127.0.0.1", 0))

    async def still(self) -> None:
        """Everything said is in the log and folded."""
        await asyncio.sleep(STILL_S)
        publisher = self.worker.publisher
        assert publisher is not None
        while not (publisher.kv.idle and publisher.load.idle and self.router.publisher.outbox.idle):  # noqa: ASYNC110 - three sources
            await asyncio.sleep(STILL_S)

    def held(self) -> int:
        """Blocks of the worker that the router's index knows."""
        assert self.worker.publisher is not None
        return len(self.router.state.index.held(WorkerId(self.worker.publisher.id)))


@asynccontextmanager
async def deployed(folder: Path) -> AsyncIterator[Deployment]:
    """Started, ready, and ended."""
    it = Deployment(folder)
    await it.log.ensure(STREAMS)
    await it.worker.start({})
    await it.router.start({})
    await it.server.start()
    try:
        while not (it.router.ready().ready and any(card.workers for card in it.router.models())):  # noqa: ASYNC110 - as a probe
            await asyncio.sleep(0.02)
        yield it
    finally:
        await it.server.stop(1)
        await it.router.stop("measured")
        await it.worker.stop("measured", drain=False)


async def chat(http: httpx.AsyncClient, number: int) -> None:
    """One streamed chat, read to its end."""
    words = " ".join(f"word{(number * 7 + at) % 50}" for at in range(PROMPT_WORDS))
    body = {**CHAT, "messages": [{"role": "user", "content": f"{number} {words}"}]}
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_lines():
            pass


async def measured(folder: Path) -> tuple[list[Figure], Path]:
    """The chat's and the cache event's figures, and an export of the log."""
    async with deployed(folder / "model") as it:
        host, _, port = it.worker.address.rpartition(":")
        async with httpx.AsyncClient(base_url=f"http://{it.server.address}", timeout=30) as http:
            for number in range(WARM_UP):
                await chat(http, number)
            talks = []
            for number in range(WARM_UP, WARM_UP + TIMES):
                await it.still()
                with followed((host, int(port))) as path:
                    await chat(http, number)
                talks.append(path)
        caches = [await stored(it, number) for number in range(TIMES)]
        talked, cached = (min(paths, key=lambda it: len(it.entered)) for paths in (talks, caches))
        figures = [
            *talked.figures("a streamed chat"),
            *talked.figures("from its socket to the worker's frame", talked.sent_at),
            *cached.figures("a cache event, from the engine to the index"),
        ]
        file = folder / "path.clog"
        writer = ArchiveWriter(file, NAMESPACE, KEY.chain_key, "bench.path", 0)
        await archive(it.log, SnapshotStore(it.log, NAMESPACE, KEY.chain_key), writer)
        writer.finish(writer.contents(0, 0))
        return figures, file


async def stored(it: Deployment, number: int) -> Followed:
    """A new block came into the router's index; no request was on its way."""
    await it.still()
    before, cursor = it.held(), it.router.state.cursor[STREAMS[0]]
    tokens = tuple(range(1_000 * number, 1_000 * number + BLOCK_SIZE))
    with followed() as path:
        it.engine.on_cache(CacheStored((number,), None, tokens, BLOCK_SIZE, "device", None, None, indexable=True))
        for _ in range(STORED_LOOKS):
            await asyncio.sleep(STORED_S)
            if it.router.state.cursor[STREAMS[0]] != cursor:  # read without a call of the product
                break
        await asyncio.sleep(STORED_S)
    if it.held() == before:
        raise AssertionError(f"the block was not in the index after {STORED_LOOKS} looks")
    return path


def verified(file: Path) -> Followed:
    """Every decision of the recording, made again from it."""
    with ReplaySession.open(file) as session, followed() as path:
        if not (result := session.verify()).holds:
            raise AssertionError(f"the recording does not verify: {result}")
    return path


def measure(_options: argparse.Namespace) -> Iterator[Figure]:
    """Each path once, warm."""
    with tempfile.TemporaryDirectory(prefix="contrail-path-") as name:
        folder = Path(name)
        ensure_tiny_checkpoint(folder / "model", lambda _: None)
        figures, file = asyncio.run(measured(folder))
        figures += verified(file).figures("decisions verified from an export")
    yield from figures


if __name__ == "__main__":
    main("path", measure)
