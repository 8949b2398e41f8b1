"""The simulated engine: the step function of `actors.engines.step`, driven by a clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from actors.engines.engine import CacheChange, EngineInfo, EngineLoad
from actors.engines.simulated_settings import SimulatedSettings
from actors.engines.step import Abort, EngineState, Input, Submit, load_of, refuse, step
from core.clock import Clock, SystemClock
from core.errors import EngineDead
from core.generation import GenerateRequest, Output
from core.ids import RequestId

__all__ = ["SimulatedEngine", "SimulatedSettings"]

_logger = logging.getLogger(__name__)


class SimulatedEngine:
    """An engine without a language model: real in everything that a worker sees, but for the sense of its answers."""

    def __init__(self, model: str, settings: SimulatedSettings | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or SimulatedSettings()
        self.info = EngineInfo(
            engine="simulated",
            model=model,
            model_path=self.settings.model_path,
            block_size=self.settings.block_size,
            capacity_blocks=self.settings.capacity_blocks,
            context_max=self.settings.context_max,
        )
        self._clock = clock or SystemClock()
        self._state = EngineState(self.settings)
        self._accepted = 0
        self._inputs: list[Input] = []
        self._streams: dict[RequestId, _TokenStream] = {}
        self._wake = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._dead: str | None = "it was not started"
        self._on_cache: Callable[[CacheChange], None] = lambda _change: None

    def __repr__(self) -> str:
        return f"<SimulatedEngine {self.info.model} {'dead: ' + self._dead if self._dead else self._state}>"

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        """The engine serves; `on_cache` is called for every change of its cache."""
        assert self._driver is None
        self._on_cache = on_cache
        self._dead = None
        self._driver = asyncio.create_task(self._drive(), name=f"simulated engine {self.info.model}")

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        """New tokens as they come, all that are ready at once; closing the iterator aborts within a step."""
        await self.check()
        refuse(self.settings, request)
        self._accepted += 1
        own_id = RequestId(f"{request.id}-{self._accepted}")  # a request that is sent again is another one
        stream = self._streams[own_id] = _TokenStream()
        self._tell(Submit(msgspec.structs.replace(request, id=own_id)))
        try:
            while not stream.finished:
                yield await stream.next()
        finally:
            del self._streams[own_id]
            if not stream.finished:
                self._tell(Abort(own_id))

    def load(self) -> EngineLoad:
        """The engine's numbers now; what was submitted and not looked at yet is waiting."""
        load = load_of(self._state)
        return load._replace(waiting=load.waiting + sum(isinstance(item, Submit) for item in self._inputs))

    async def check(self) -> None:
        """Returns unless the engine is dead; that it hangs is not to be seen here."""
        if self._dead is not None:
            raise EngineDead(f"the simulated engine is dead: {self._dead}")

    async def settle(self) -> None:
        """Every cache change was told when it was made."""

    async def stop(self) -> None:
        """Nothing is computed any more; what still ran breaks off with EngineDead."""
        self._die("it was stopped")
        if self._driver is not None:
            await asyncio.wait([self._driver])

    def crash(self, reason: str = "it crashed as a test wanted") -> None:
        """Fault: the engine is dead from now on, with all that runs in it."""
        self._die(reason)

    def hang(self) -> None:
        """Fault: nothing is computed any more, and nobody is told; `check` finds nothing wrong."""
        if self._driver is not None:
            self._driver.cancel()

    def _tell(self, item: Input) -> None:
        self._inputs.append(item)
        self._wake.set()

    async def _drive(self) -> None:
        try:
            while True:
                await self._pause(self._advance())
        except Exception as error:  # whatever it was, the engine is gone and says so to all who wait
            _logger.exception("the simulated engine %s died", self.info.model)
            self._die(repr(error))

    def _advance(self) -> int | None:
        """The engine is where it should be now; returns when to look again."""
        inputs, self._inputs = self._inputs, []
        self._wake.clear()
        result = step(self._state, self._now_us(), inputs)
        for change in result.changes:
            self._on_cache(change)
        for own_id, output in result.outputs:
            if own_id in self._streams:
                self._streams[own_id].put(output)
        return result.due_us

    async def _pause(self, due_us: int | None) -> None:
        if due_us is None:
            await self._wake.wait()
            return
        wait_s = (due_us - self._now_us()) / 1e6 / self.settings.time_scale
        try:
            # not wait_for: up to Python 3.11 it may swallow a cancellation
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._wake.wait()
        except TimeoutError:
            pass  # nothing came before it was due

    def _now_us(self) -> int:
        return int(self._clock.monotonic_ms() * 1000 * self.settings.time_scale)

    def _die(self, reason: str) -> None:
        self._dead = self._dead or reason
        if self._driver is not None:
            self._driver.cancel()
        for stream in self._streams.values():
            stream.fail(EngineDead(f"the simulated engine died: {self._dead}"))


class _TokenStream:
    """Tokens on their way to one reader; never more than its request's max_tokens."""

    def __init__(self) -> None:
        self.finished = False
        """The reader has had the last output."""
        self._tokens: list[int] = []
        self._finish: str | None = None
        self._cached_tokens: int | None = None
        self._error: EngineDead | None = None
        self._ready = asyncio.Event()

    def put(self, output: Output) -> None:
        self._tokens += output.tokens
        self._finish = output.finish
        if output.cached_tokens is not None:
            self._cached_tokens = output.cached_tokens
        self._ready.set()

    def fail(self, error: EngineDead) -> None:
        self._error = error
        self._ready.set()

    async def next(self) -> Output:
        """All that is ready, at least one token; EngineDead once what came before it has been read."""
        await self._ready.wait()
        if not self._tokens and self._finish is None and self._error is not None:
            raise self._error
        output = Output(tokens=tuple(self._tokens), finish=self._finish, cached_tokens=self._cached_tokens)
        self.finished = output.finish is not None
        self._tokens, self._cached_tokens = [], None
        if self._error is None:
            self._ready.clear()
        return output
