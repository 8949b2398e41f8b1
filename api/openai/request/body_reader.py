"""Reader of request bodies: bounded in memory over all requests, checked, and decoded one body per turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

import msgspec

from api.openai.request.validation import decode
from api.server.body_budget import BODIES_MAX, BodyBudget, BodyLease
from api.server.exchange import HttpExchange
from api.server.json_limits import (
    STRUCTURE_MAX,
    UNCHECKED_BYTES_MAX,
    check_json_size,
    is_plainly_small,
    json_decoder,
)
from api.server.limits import ApiSettings
from api.tokenizer.tokenizer_pool import TokenizerPool

Body = TypeVar("Body", bound=msgspec.Struct)


class EventLoopThrottle:
    """Serves callers in their order. The number of waiting callers is bounded by the requests in flight."""

    def __init__(self) -> None:
        self._taken = False
        """True if a piece of work has begun in the present turn of the loop."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<EventLoopThrottle {len(self._waiting)} waiting>"

    async def acquire(self) -> None:
        """A turn of the loop in which nothing else of this has begun: what follows without waiting has it."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            return
        self._taken = True
        loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its request is over
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._taken = False


class BodyIntake:
    """Bounds that the bodies of all routes share."""

    def __init__(self, settings: ApiSettings, pool: TokenizerPool) -> None:
        self.bytes_max = settings.body_bytes_max
        self._pool = pool
        self.inline_bytes_max = settings.inline_bytes_max
        """A longer body gets a turn of the loop for itself: decoding it takes milliseconds."""
        self._budget = BodyBudget(BODIES_MAX * settings.body_bytes_max)
        self._throttle = EventLoopThrottle()

    def __repr__(self) -> str:
        return f"<BodyIntake {self._budget}, {self._throttle}>"

    def lease(self) -> BodyLease:
        """A lease on memory for one body."""
        return BodyLease(self._budget)

    async def check(self, raw: bytes | bytearray, structure_max: int | None) -> None:
        """ApiError for JSON that holds more than a request may."""
        # in a thread the loop goes on between two of its steps, each of which is one call of the library
        await self._pool.run_if_large(lambda: check_json_size(raw, structure_max), len(raw))

    async def acquire_turn(self) -> None:
        """The caller has a turn of the loop for itself."""
        await self._throttle.acquire()


class BodyReader(Generic[Body]):
    """Reads the bodies of one route."""

    def __init__(self, kind: type[Body], intake: BodyIntake) -> None:
        self._decoder = json_decoder(kind)
        self._intake = intake
        self._structure_max = None if getattr(kind, "holds_token_ids", False) else STRUCTURE_MAX

    async def read(self, exchange: HttpExchange, lease: BodyLease) -> tuple[Body, int]:
        """The request's body, and its size in bytes. ApiError for one that is too large or not valid,
        ClientDisconnected for half of one."""
        raw = await exchange.read_body(self._intake.bytes_max, lease)
        size = len(raw)
        if size > UNCHECKED_BYTES_MAX and not is_plainly_small(raw):
            await self._intake.check(raw, self._structure_max)
        if size > self._intake.inline_bytes_max:
            await self._intake.acquire_turn()
        return decode(self._decoder, raw), size
