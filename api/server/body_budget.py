"""Memory for the bodies of all requests that are read at the same time: bounded, and no tenant has all of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple, Self

from api.server.caller import effective_tenant
from api.server.errors import RETRY_AFTER_S, ApiError

FREE_BYTES_MAX = 64 * 1024
"""Shorter bodies are not counted: connections are bounded, and most requests are short."""
BODIES_MAX = 16
"""Bodies of the largest size that are read and tokenized at once; one tenant may have half of them."""
WAIT_S = 10.0
"""A body waits so long for memory, then it is refused."""


class _Waiter(NamedTuple):
    tenant: str | None
    size: int
    admitted: asyncio.Future[None]


class BodyBudget:
    """Bytes of bodies in memory; requests wait in their order for their share."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._of_tenant: Counter[str | None] = Counter()
        self._waiting: list[_Waiter] = []

    def __repr__(self) -> str:
        return f"<BodyBudget {self._held} of {self._bytes_max} bytes held, {len(self._waiting)} waiting>"

    @property
    def held(self) -> int:
        """Bytes of the bodies that are in memory, or are being read."""
        return self._held

    async def acquire(self, size: int, tenant: str | None) -> None:
        """So many bytes are the caller's until it releases them; ApiError 503 if none are free for too long."""
        if not self._waiting and self._fits(size, tenant):
            self._take(size, tenant)
            return
        waiter = _Waiter(tenant, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(WAIT_S):
                await waiter.admitted
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.admitted.done() and not waiter.admitted.cancelled():
                self.release(size, tenant)
            if isinstance(error, TimeoutError):
                raise _too_many() from None
            raise

    def release(self, size: int, tenant: str | None) -> None:
        """So many bytes are free again."""
        self._held -= size
        self._of_tenant[tenant] -= size
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        self._admit()

    def _fits(self, size: int, tenant: str | None) -> bool:
        share = self._bytes_max if tenant is None else self._bytes_max // 2
        return self._held + size <= self._bytes_max and self._of_tenant[tenant] + size <= share

    def _take(self, size: int, tenant: str | None) -> None:
        self._held += size
        self._of_tenant[tenant] += size

    def _admit(self) -> None:
        """Bodies that wait are read, in their order, but for those of a tenant that has its share."""
        left = list[_Waiter]()
        for waiter in self._waiting:
            if waiter.admitted.done():  # its request is over, and hears so in this turn of the loop
                continue
            if self._fits(waiter.size, waiter.tenant):
                self._take(waiter.size, waiter.tenant)
                waiter.admitted.set_result(None)
            else:
                left.append(waiter)
        self._waiting = left


def _too_many() -> ApiError:
    text = "too many large request bodies are being read: try again"
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return ApiError(503, text, type="server_error", code="overloaded", headers=headers)


class BodyLease:
    """The share of one request, from its `with` statement on; empty for a short body."""

    __slots__ = ("_budget", "_size", "_tenant")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0
        self._tenant: str | None = None

    def __repr__(self) -> str:
        return f"<BodyLease of {self._size} bytes>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(0)

    async def grow(self, size: int) -> None:
        """The body may have so many bytes."""
        if size > FREE_BYTES_MAX and self._size < size:
            self._tenant = effective_tenant(None)
            await self._budget.acquire(size - self._size, self._tenant)
            self._size = size

    def shrink(self, size: int) -> None:
        """The body has no more than so many bytes."""
        if self._size > size:
            self._budget.release(self._size - size, self._tenant)
            self._size = size
