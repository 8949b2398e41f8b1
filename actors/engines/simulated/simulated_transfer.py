"""Transfers of a simulated engine: blocks move as with vLLM over NIXL, with the same ways to get wrong text without an
error.

Pulled blocks go into the cache as they come, under the names of the puller's own tokens. That is wrong if the
blocks were let go before, or are another prompt's or of another size. A caller that wants right text checks before and
after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from actors.engines.engine import EngineInfo, TransferFailed, TransferTotals
from actors.engines.simulated.block_pool import NEVER_WRITTEN
from actors.engines.simulated.engine_state import (
    Abort,
    BlocksArrived,
    Fetch,
    Forget,
    Free,
    Input,
    PromptPrefilled,
    Submit,
)
from actors.engines.simulated.engine_step import EngineState, StepResult
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.engines.simulated.simulated_side_channel import SimulatedSideChannel
from core.errors import EngineDead
from core.generation import GenerateRequest
from core.ids import RequestId, new_id
from core.kv_transfer import KvAddress, KvBlocks, KvPull

MARGIN_MS = 100
"""Blocks whose time is over within so long are not said to be held."""
FORGET_TIMEOUT_S = 10.0
"""Bound on emptying the cache, after which the engine counts as dead; one step if it lives."""
RELEASE_TIMEOUT_S = 1.0
"""Bound on the release of blocks in an engine that hangs; their lease ends them afterwards."""

_logger = logging.getLogger(__name__)


class TransferHost(Protocol):
    """The part of an engine that its transfer uses."""

    info: EngineInfo
    settings: SimulatedSettings
    state: EngineState

    async def accept(self, request: GenerateRequest) -> GenerateRequest:
        """The request under a name of the engine's own."""

    def feed(self, item: Input) -> None:
        """The next step takes it in."""

    async def taken(self) -> None:
        """All that was told before was taken in."""

    def now_us(self) -> int:
        """The engine's time."""


class _Expected(NamedTuple):
    """A request of ours whose blocks come from elsewhere."""

    pull: KvPull
    fail: Callable[[TransferFailed], None]


class SimulatedTransfer:
    """Both sides of it: blocks held for others, and others' blocks fetched."""

    address: KvAddress

    def __init__(self, host: TransferHost, channel: SimulatedSideChannel) -> None:
        self.keep_ms = host.settings.keep_ms
        self._host = host
        self._channel = channel
        self._dead = False
        self._prefills: dict[RequestId, asyncio.Future[PromptPrefilled]] = {}
        self._expected: dict[RequestId, _Expected] = {}
        """Until their holder was told that they need not be held any more."""
        self._fetching: dict[RequestId, asyncio.Task[None]] = {}
        self._notifications: set[asyncio.Task[None]] = set()
        self._totals = TransferTotals()

    def __repr__(self) -> str:
        return f"<SimulatedTransfer {len(self._fetching)} fetched now, {self._host.state.held}>"

    async def open(self) -> None:
        """`address` is known, and others can pull. CallerError if the port is taken."""
        engine_id = new_id()
        host, port = await self._channel.open(engine_id, self)
        self.address = KvAddress(
            engine_id=engine_id,
            host=host,
            port=port,
            layout=self._host.settings.layout(self._host.info.model),
            block_bytes=self._host.settings.block_bytes,
            transport="simulated",
        )

    async def prefill(self, request: GenerateRequest) -> tuple[KvBlocks, int]:
        """The prompt's blocks, held from now on, and how many tokens came from the cache."""
        one_token = msgspec.structs.replace(request.sampling, max_tokens=1)
        own = await self._host.accept(msgspec.structs.replace(request, sampling=one_token))
        done = self._prefills[own.id] = asyncio.get_running_loop().create_future()
        self._host.feed(Submit(own, hold=True))
        try:
            prefilled = await done
        except BaseException:  # cancelled, too: these blocks are unknown elsewhere
            self._host.feed(Abort(own.id))
            raise
        finally:
            del self._prefills[own.id]
        blocks = KvBlocks(request=own.id, ids=(prefilled.blocks,), tokens=prefilled.tokens)
        return blocks, prefilled.cached_tokens

    def still_held(self, blocks: KvBlocks) -> bool:
        """True if the blocks were held until now or until fetched; not in the last MARGIN_MS of their lease."""
        until_us = self._host.state.held.until_us(RequestId(blocks.request))
        margin_us = MARGIN_MS * 1000 * self._host.settings.time_scale
        return not self._dead and until_us is not None and self._host.now_us() + margin_us < until_us

    async def release(self, blocks: KvBlocks) -> None:
        """They are free now, or within `keep_ms` if the engine hangs."""
        self.free(blocks.request, fetched=False)
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._host.taken()
        except (TimeoutError, EngineDead) as error:
            _logger.debug("the blocks of %s are let go of later: %s", blocks.request, error)

    async def decline(self, pull: KvPull) -> None:
        """Their holder was told that they will not be fetched, if it could be reached in time."""
        await self._notify_holder(pull, fetched=False)

    async def confirm(self, pull: KvPull) -> None:
        """Nothing: a simulated engine that moves blocks has no slower tiers."""

    async def forget(self) -> None:
        """Nothing that is in the cache now will be found. EngineDead, also if it hangs: it must not serve so."""
        self._host.feed(Forget())
        try:
            async with asyncio.timeout(FORGET_TIMEOUT_S):
                await self._host.taken()
        except TimeoutError as error:
            raise EngineDead(f"the simulated engine did not forget within {FORGET_TIMEOUT_S:g} s") from error

    def totals(self) -> TransferTotals:
        """O(prefills of the last `keep_ms`)."""
        held = self._host.state.held
        return self._totals._replace(expired=held.expired, held=held.held)

    def contents(self, ids: Sequence[int]) -> list[int]:
        """The contents of these blocks now, of any owner, for another engine."""
        return self._host.state.pool.contents(ids)

    def free(self, request: str, *, fetched: bool) -> None:
        """This request's blocks are held no longer from the next step on."""
        self._host.feed(Free(RequestId(request), fetched))

    def expect(self, id: RequestId, pull: KvPull, fail: Callable[[TransferFailed], None]) -> None:
        """The blocks that this request's prompt lacks are fetched there when a step asks for them; `fail` is called if
        they cannot be."""
        self._expected[id] = _Expected(pull, fail)

    def dismiss(self, id: RequestId) -> None:
        """This request is over: what is not fetched by now will not be, and its holder hears of that."""
        task = self._fetching.get(id)
        if task is not None:
            task.cancel()
        expected = self._expected.pop(id, None)
        if expected is not None and not self._dead:
            self._spawn(self._notify_holder(expected.pull, fetched=False))

    def on_step(self, result: StepResult) -> None:
        """The step's pulls are started, and its completed prefills are handed to their callers."""
        for fetch in result.fetches:
            if fetch.id in self._expected:  # else it was given up meanwhile
                task = self._fetching[fetch.id] = asyncio.create_task(self._fetch(fetch), name=fetch.id)
                task.add_done_callback(self._fetched)
        for prefilled in result.prefilled:
            waiting = self._prefills.get(prefilled.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(prefilled)

    def die(self, error: EngineDead) -> None:
        """No blocks are moved any more, and no other engine can reach this one."""
        self._dead = True
        self._channel.close()
        for task in (*self._fetching.values(), *self._notifications):
            task.cancel()
        for waiting in self._prefills.values():
            if not waiting.done():
                waiting.set_exception(error)

    async def _fetch(self, fetch: Fetch) -> None:
        pull, fail = self._expected[fetch.id]
        # as vLLM: the last blocks of those named are taken for the ones that are lacking
        ids = pull.blocks.ids[0][-fetch.blocks :] if pull.blocks.ids else ()
        try:
            contents = await self._channel.read(pull.address, ids)
        except TransferFailed as error:
            self._expected.pop(fetch.id, None)
            self._totals = self._totals._replace(failures=self._totals.failures + 1)
            fail(error)
            return
        self._expected.pop(fetch.id, None)
        self._count(len(ids))
        missing = [NEVER_WRITTEN] * (fetch.blocks - len(contents))
        self._host.feed(BlocksArrived(fetch.id, (*contents, *missing)))
        self._spawn(self._notify_holder(pull, fetched=True))

    def _fetched(self, task: asyncio.Task[None]) -> None:
        del self._fetching[RequestId(task.get_name())]

    def _count(self, blocks: int) -> None:
        totals = self._totals
        self._totals = totals._replace(
            pulls=totals.pulls + 1,
            blocks=totals.blocks + blocks,
            bytes=totals.bytes + blocks * self._host.settings.block_bytes,
        )

    async def _notify_holder(self, pull: KvPull, *, fetched: bool) -> None:
        try:
            await self._channel.free(pull.address, pull.blocks.request, fetched=fetched)
        except TransferFailed as error:  # their time ends at the holder's in any case
            _logger.debug("whoever holds blocks of %s does not know that it need not: %s", pull.blocks.request, error)

    def _spawn(self, notification: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(notification, name="tell a holder")
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)
