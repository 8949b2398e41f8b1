"""The simulated engine: the step function of `actors.engines.simulated.engine_step`, driven by a clock."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING

import msgspec

from actors.engines.engine import BlockTransfer, CacheChange, EngineInfo, EngineLoad, TierLoads
from actors.engines.engine_adapters import AdapterCopy, EngineAdapters
from actors.engines.simulated.engine_state import Abort, Input, Submit
from actors.engines.simulated.engine_step import EngineState, check_request, load_of, step
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.engines.simulated.simulated_side_channel import SimulatedSideChannel, TcpSideChannel
from actors.engines.simulated.simulated_transfer import SimulatedTransfer
from actors.transport.output_buffer import OutputBuffer
from core.clock import Clock, SystemClock
from core.errors import CallerError, EngineDead, PeerError
from core.generation import TASK_EMBED, GenerateRequest, Output
from core.ids import RequestId
from core.kv_transfer import KvPull

if TYPE_CHECKING:
    from actors.engines.simulated.canned_replies import CannedReplies

__all__ = ["SimulatedEngine", "SimulatedSettings"]

_logger = logging.getLogger(__name__)


class SimulatedEngine:
    """An engine without a language model: real in everything that a worker sees, but for the sense of its answers."""

    def __init__(
        self,
        model: str,
        settings: SimulatedSettings | None = None,
        clock: Clock | None = None,
        channel: SimulatedSideChannel | None = None,
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        """`channel` moves blocks if the settings want that; TCP if there is none. `adapters` maps names of adapters to
        their folders, all served once it is up: each gives answers and blocks of its own. Of their files only the
        digest is read."""
        self.settings = settings or SimulatedSettings()
        if self.settings.disk_blocks:
            raise CallerError("engine_args: only `contrail simulate` has simulated disks yet: leave disk_blocks out")
        self.info = EngineInfo(
            engine="simulated",
            model=model,
            model_path=self.settings.model_path,
            block_size=self.settings.block_size,
            capacity_blocks=self.settings.capacity_blocks,
            context_max=self.settings.context_max,
            slots=self.settings.max_seqs,
            embedding_size=self.settings.embedding_dimensions,
            tier_loads=self._tier_loads if self.settings.host_blocks else None,
        )
        self.state = EngineState(self.settings)
        """Changed by steps only."""
        self.transfer: BlockTransfer | None = None
        self._moves: SimulatedTransfer | None = None
        if self.settings.transfer:
            where = self.settings.side_channel_host, self.settings.side_channel_port
            self.transfer = self._moves = SimulatedTransfer(self, channel or TcpSideChannel(*where))
        self.adapters: EngineAdapters | None = EngineAdapters()
        self._adapter_paths = dict(adapters or {})
        self._clock = clock or SystemClock()
        self._replies: CannedReplies | None = None
        self._accepted = 0
        self._inputs: list[Input] = []
        self._streams: dict[RequestId, _TokenStream] = {}
        self._taken: list[asyncio.Future[None]] = []
        """Futures that complete when the inputs were taken in."""
        self._wake = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._dead: str | None = "it was not started"
        self._on_cache: Callable[[CacheChange], None] = lambda _change: None

    def __repr__(self) -> str:
        return f"<SimulatedEngine {self.info.model} {'dead: ' + self._dead if self._dead else self.state}>"

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        """The engine serves; `on_cache` is called for every change of its cache.

        CallerError if its port is taken, or the tokenizer for its replies cannot be read.
        """
        assert self._driver is None
        if self.settings.replies:
            from actors.engines.simulated.canned_replies import CannedReplies  # noqa: PLC0415 - tokenizers, only if needed

            self._replies = await asyncio.to_thread(CannedReplies, self.settings)
        if self._moves is not None:
            await self._moves.open()
        assert self.adapters is not None
        for name, path in self._adapter_paths.items():
            await self.adapters.load(name, path)
        self._on_cache = on_cache
        self._dead = None
        self._driver = asyncio.create_task(self._drive(), name=f"simulated engine {self.info.model}")

    async def generate(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
        """New tokens as they come, all that are ready at once; closing the iterator aborts within a step.

        The holder of an accepted request's blocks is told when they need not be held any more: at the end
        at the latest.
        """
        with self._adapter_of(request):
            async with aclosing(self._generate(request, pull)) as outputs:
                async for output in outputs:
                    yield output

    def _adapter_of(self, request: GenerateRequest) -> AbstractContextManager[AdapterCopy | None]:
        if not request.adapter:
            return nullcontext()
        assert self.adapters is not None
        return self.adapters.using(request.adapter)

    async def _generate(self, request: GenerateRequest, pull: KvPull | None) -> AsyncGenerator[Output]:
        own = await self.accept(request)
        if pull is not None and self._moves is None:
            raise CallerError("this engine moves no blocks: start it with engine_args transfer=true")
        stream = self._streams[own.id] = _TokenStream()
        if pull is not None and self._moves is not None:
            self._moves.expect(own.id, pull, stream.fail)
        self.feed(Submit(own, pull=pull is not None, reply=self._reply_to(own)))
        try:
            while not stream.finished:
                yield await stream.next()
        finally:
            del self._streams[own.id]
            if not stream.finished:
                self.feed(Abort(own.id))
            if self._moves is not None:
                self._moves.dismiss(own.id)

    def load(self) -> EngineLoad:
        """The engine's numbers now; what was submitted and not looked at yet is waiting."""
        load = load_of(self.state)
        return load._replace(waiting=load.waiting + sum(isinstance(item, Submit) for item in self._inputs))

    def _tier_loads(self) -> dict[str, TierLoads]:
        """In real time."""
        scale, loads = self.settings.time_scale, self.state.loads_by(self.now_us())
        return {tier: TierLoads(each.blocks, round(each.us / scale)) for tier, each in loads.items()}

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
        if self.adapters is not None:
            self.adapters.close()

    def crash(self, reason: str = "it crashed as a test wanted") -> None:
        """Fault: the engine is dead from now on, with all that runs in it."""
        self._die(reason)

    def hang(self) -> None:
        """Fault: nothing is computed any more, without an error; `check` finds nothing wrong."""
        if self._driver is not None:
            self._driver.cancel()

    def _reply_to(self, request: GenerateRequest) -> tuple[int, ...]:
        if self._replies is None or request.task == TASK_EMBED:
            return ()
        return self._replies.to(request.tokens)

    async def accept(self, request: GenerateRequest) -> GenerateRequest:
        """The request under a name of our own: one that is sent again is another one. Errors as of `generate`."""
        await self.check()
        check_request(self.settings, request)
        self._accepted += 1
        return msgspec.structs.replace(request, id=RequestId(f"{request.id}-{self._accepted}"))

    def feed(self, item: Input) -> None:
        """The next step takes it in."""
        self._inputs.append(item)
        self._wake.set()

    async def taken(self) -> None:
        """All that was told before was taken in. EngineDead if it never will be."""
        await self.check()
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken.append(taken)
        self._wake.set()
        await taken

    def now_us(self) -> int:
        """The engine's time."""
        return int(self._clock.monotonic_ns() // 1_000_000 * 1000 * self.settings.time_scale)

    async def _drive(self) -> None:
        try:
            while True:
                await self._pause(self._advance())
        except Exception as error:  # by any error: the engine is gone, and all waiting callers get that
            _logger.exception("the simulated engine %s died", self.info.model)
            self._die(repr(error))

    def _advance(self) -> int | None:
        """The engine is where it should be now; returns when to look again."""
        inputs, self._inputs = self._inputs, []
        self._wake.clear()
        result = step(self.state, self.now_us(), inputs)
        for change in result.changes if self.settings.kv_events else ():
            self._on_cache(change)
        for own_id, output in result.outputs:
            if own_id in self._streams:
                self._streams[own_id].put(output)
        if self._moves is not None:
            self._moves.on_step(result)
        taken, self._taken = self._taken, []
        for waiting in taken:
            if not waiting.done():
                waiting.set_result(None)
        return result.due_us

    async def _pause(self, due_us: int | None) -> None:
        if due_us is None:
            await self._wake.wait()
            return
        # in whole milliseconds, as its time moves: a shorter wait would find nothing due, and wait again, hundreds of
        # times for an answer of 16 tokens
        wait_ms = math.ceil((due_us - self.now_us()) / 1000 / self.settings.time_scale)
        try:
            # not wait_for: up to Python 3.11 it may swallow a cancellation
            async with asyncio.timeout(max(0, wait_ms) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass  # nothing came before it was due

    def _die(self, reason: str) -> None:
        self._dead = self._dead or reason
        if self._driver is not None:
            self._driver.cancel()
        error = EngineDead(f"the simulated engine died: {self._dead}")
        for stream in self._streams.values():
            stream.fail(error)
        for taken in self._taken:
            if not taken.done():
                taken.set_exception(error)
        if self._moves is not None:
            self._moves.die(error)


class _TokenStream:
    """Tokens on their way to one reader; never more than its request's max_tokens."""

    def __init__(self) -> None:
        self.finished = False
        """The reader has had the last output."""
        self._gathered = OutputBuffer()
        self._error: PeerError | None = None
        self._ready = asyncio.Event()

    def put(self, output: Output) -> None:
        self._gathered.add(output)
        self._ready.set()

    def fail(self, error: PeerError) -> None:
        self._error = error
        self._ready.set()

    async def next(self) -> Output:
        """All that is ready; the error once what came before it has been read."""
        await self._ready.wait()
        if not self._gathered and self._error is not None:
            raise self._error
        output = self._gathered.take()
        self.finished = output.finish is not None
        if self._error is None:
            self._ready.clear()
        return output
