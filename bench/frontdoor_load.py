"""A closed-loop load generator for `bench.frontdoor`, a process of its own: `python -m bench.frontdoor_load` reads
its job from standard input, as one line of JSON, and prints the results in the same form.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import time
from contextlib import suppress
from typing import Any, cast

import msgspec
import uvloop

WARM_PART = 0.2
"""Share of the time in which requests do not count."""
LATE_S = 30.0
"""Longest wait for the last answers."""
FIRST = "1000, 1000"
"""The number of the first request. A body has it once before anything like it, as two ids of tokens or as a beginning
of its text, and every request has its own number there."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a load."""

    port: int
    bodies: list[str]
    clients: int
    seconds: float
    path: str = "/v1/chat/completions"
    requests: int = 0
    """So many are asked, and at least one by each client, if there is time; 0: as many as there is time for."""
    first: int = 0
    """The number of the first request, from 0."""
    quick_ack: bool = False
    """No delayed acknowledgements on our side: what a server without TCP_NODELAY does then."""


class Found(msgspec.Struct):
    """Results of a load; times in milliseconds."""

    requests: int = 0
    errors: int = 0
    """Other statuses than 200, connections that broke off before the answer's end, answers that did not come."""
    seconds: float = 0
    p50_ms: float = 0
    p99_ms: float = 0
    first_p50_ms: float = 0
    all_requests: int = 0
    """With those of the warm-up: what processor time is divided by."""
    cpu_s: float = 0


class Client(asyncio.Protocol):
    """One connection: a request, its answer to the end, the next request."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._left = -1
        self._chunked = False
        self._tail = b""
        self._began = self._first = 0.0
        self._waits = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._load.left(answered=not self._waits)

    def _next(self) -> None:
        assert self._transport is not None
        self._head, self._left, self._chunked, self._tail = b"", -1, False, b""
        self._first, self._waits = 0.0, True
        self._began = time.perf_counter()
        self._transport.write(self._load.request())

    def data_received(self, data: bytes) -> None:
        if self._load.job.quick_ack and self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if self._left < 0 and not self._chunked:
            data = self._headed(data)
        if self._chunked:
            self._chunk(data)
        elif self._left >= 0:
            self._left -= len(data)
            if not self._left:
                self._done()

    def _headed(self, data: bytes) -> bytes:
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if not found:
            return b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._load.found.errors += 1
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at >= 0:
            self._left = int(lower[at + 15 :].split(b"\r\n", 1)[0])
        else:
            self._chunked = True
        return rest

    def _chunk(self, data: bytes) -> None:
        if not self._first and b"data: " in data:
            self._first = time.perf_counter()
        self._tail = (self._tail + data)[-7:]
        if self._tail == b"\r\n0\r\n\r\n":
            self._done()

    def _done(self) -> None:
        now, self._waits = time.perf_counter(), False
        if self._load.done(self._began, self._first or now, now):
            self._next()
        elif self._transport is not None:
            self._transport.close()


class Load:
    """All clients, and what they found."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.found = Found()
        self._requests = [_request(job, body.encode()).partition(FIRST.encode()) for body in job.bodies]
        self._turn = job.first
        self._turns_end = job.first + job.requests if job.requests else sys.maxsize
        self._times: list[float] = []
        self._firsts: list[float] = []
        self._open = job.clients
        self._ended = asyncio.Event()

    def request(self) -> bytes:
        """The next one's bytes, like no other's."""
        before, _, after = self._requests[self._turn % len(self._requests)]
        number = _number(self._turn)
        self._turn += 1
        return b"%b%d, %d%b" % (before, *number, after)

    def done(self, began: float, first: float, now: float) -> bool:
        """An answer was read; whether there is to be another."""
        self.found.all_requests += 1
        if began >= self._warm:
            self.found.requests += 1
            self._times.append(now - began)
            self._firsts.append(first - began)
        return now < self._end and self._turn < self._turns_end

    def left(self, *, answered: bool) -> None:
        """A connection is gone."""
        self.found.errors += not answered
        self._open -= 1
        if not self._open:
            self._ended.set()

    async def run(self) -> Found:
        """Everything that was asked for."""
        loop, job = asyncio.get_running_loop(), self.job
        start = time.perf_counter()
        self._warm, self._end = start + job.seconds * WARM_PART, start + job.seconds
        made = [await loop.create_connection(lambda: Client(self), "127.0.0.1", job.port) for _ in range(job.clients)]
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), job.seconds + LATE_S)
        for transport, _ in made:
            transport.abort()  # those that are left wait for an answer
        await self._ended.wait()
        self.found.seconds = time.perf_counter() - self._warm
        times, firsts = sorted(self._times) or [0.0], sorted(self._firsts) or [0.0]
        self.found.p50_ms = times[len(times) // 2] * 1000
        self.found.p99_ms = times[int(len(times) * 0.99)] * 1000
        self.found.first_p50_ms = firsts[len(firsts) // 2] * 1000
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.found.cpu_s = used.ru_utime + used.ru_stime
        return self.found


def numbered(body: str, number: int) -> str:
    """The body as the request of that number, from 0 on, has it; as long as all others."""
    before, _, after = body.partition(FIRST)
    return "{}{}, {}{}".format(before, *_number(number), after)


def _number(number: int) -> tuple[int, int]:
    """Always of four digits each; small enough for ids of tokens up to some three million."""
    return 1000 + number // 1000, 1000 + number % 1000


def _request(job: Job, body: bytes) -> bytes:
    head = (
        f"POST {job.path} HTTP/1.1\r\nhost: 127.0.0.1:{job.port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _main() -> Any:
    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    return msgspec.to_builtins(await Load(job).run())


if __name__ == "__main__":
    print(json.dumps(uvloop.run(_main())), flush=True)
