"""Threads that render and tokenize long texts beside the event loop, shared fairly."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any, NamedTuple, TypeVar

from api.server.caller import effective_tenant

Result = TypeVar("Result")
Proceed = Callable[[], None]
"""Work calls it between two steps: the event loop has its turn, and Abandoned is raised if the request is over."""

THREADS = max(3, min(8, os.cpu_count() or 1))
"""One for each core, within bounds: two for large bodies and one for others at least; with many of them the event loop
would wait for its turn among them."""
SMALL_BYTES_MAX = 64 * 1024
"""Work on larger bodies never has the last thread, …"""


class Abandoned(Exception):
    """The request is over: its work ends before its next step."""


class _Job(NamedTuple):
    tenant: str | None
    size: int
    admitted: asyncio.Future[None]


class TokenizerPool:
    """… and neither has work of one named tenant: small texts, and those of others, begin at once.

    Work begins in the order of arrival, but for what must leave the last thread to others. Jobs that wait are bounded
    by the server's connections.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="text")
        all_there = Barrier(threads)
        for _ in range(threads):
            # now, while nothing else is to be done: the loop waits for a thread that begins
            self._executor.submit(all_there.wait)
        self._running = 0
        self._of_tenant: Counter[str] = Counter()
        self._waiting: list[_Job] = []

    def __repr__(self) -> str:
        return f"<TokenizerPool {self._running} of {self._threads} threads busy, {len(self._waiting)} waiting>"

    async def run(self, work: Callable[[Proceed], Result], size: int, tenant: str | None = None) -> Result:
        """The result of `work`, or its exception, computed in a thread.

        `size` is that of the request's body in bytes, `tenant` the one that its headers name. Cancelled, it ends at
        once; the work ends before its next step, and has its thread until then.
        """
        loop = asyncio.get_running_loop()
        tenant = effective_tenant(tenant)
        job = _Job(tenant, size, loop.create_future())
        self._waiting.append(job)
        self._admit()
        try:
            await job.admitted
        except asyncio.CancelledError:
            if job.admitted.done() and not job.admitted.cancelled():
                self._leave(tenant)
            else:
                self._waiting.remove(job)
            raise
        over = Event()
        running = loop.run_in_executor(self._executor, _worked, work, _proceed(over))
        running.add_done_callback(lambda done: self._left(tenant, done))
        try:
            return await asyncio.shield(running)
        finally:
            over.set()
            del running  # a failure holds this frame, and the future the failure: the two would keep the request

    async def run_if_large(self, work: Callable[[], Result], size: int, tenant: str | None = None) -> Result:
        """The result of `work`, or its exception; computed in a thread if the body is so large that it takes long."""
        if size <= SMALL_BYTES_MAX:
            return work()
        return await self.run(lambda _proceed: work(), size, tenant)

    def _may_begin(self, job: _Job) -> bool:
        last = self._threads - 1
        if self._running < last:
            return job.tenant is None or self._of_tenant[job.tenant] < last
        return job.size <= SMALL_BYTES_MAX and (job.tenant is None or self._of_tenant[job.tenant] < last)

    def _admit(self) -> None:
        """Work that waits begins, as much of it as there are threads for."""
        at = 0
        while self._running < self._threads and at < len(self._waiting):
            job = self._waiting[at]
            if job.admitted.done() or not self._may_begin(job):  # done: its request is over, and removes it itself
                at += 1
                continue
            del self._waiting[at]
            self._running += 1
            if job.tenant is not None:
                self._of_tenant[job.tenant] += 1
            job.admitted.set_result(None)

    def _leave(self, tenant: str | None) -> None:
        self._running -= 1
        if tenant is not None:
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]
        self._admit()

    def _left(self, tenant: str | None, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # read: else asyncio warns of it where the request is over
        self._leave(tenant)


def _worked(work: Callable[[Proceed], Result], proceed: Proceed) -> Result:
    try:
        return work(proceed)
    except StopIteration as error:  # no future can hold it: its awaiter would wait for ever
        raise RuntimeError("the work raised StopIteration") from error


def _proceed(over: Event) -> Proceed:
    def proceed() -> None:
        time.sleep(0)  # else the interpreter lets the loop wait for 5 ms while words are looked up
        if over.is_set():
            raise Abandoned

    return proceed
