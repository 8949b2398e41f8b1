"""Visitors: clients of four kinds that never try again, so that whatever goes wrong at a front end is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from tests.chaos.client import ConnectionBroke, HttpConnection
from tests.chaos.load import BROKE, OK, TIMED_OUT, judged

STREAM, PLAIN, FRESH, KEPT = "stream", "plain", "fresh", "kept"
KINDS = (STREAM, PLAIN, FRESH, KEPT)
"""Long streams; answers that come whole; a connection for each request; one connection with pauses between."""
TOKENS = {STREAM: 200, PLAIN: 60, FRESH: 4, KEPT: 4}
PAUSE_S = {STREAM: 0.05, PLAIN: 0.05, FRESH: 0.02, KEPT: 0.3}
FAILURES_KEPT = 20


class Visit(NamedTuple):
    """One request."""

    kind: str
    outcome: str
    detail: str
    at_s: float
    took_s: float


class Visitors:
    """`each` clients of each kind, until stopped."""

    def __init__(self, host: str, port: int, each: int, model: str = "tiny") -> None:
        self.visits: list[Visit] = []
        self._host, self._port, self._model = host, port, model
        self._stopping = asyncio.Event()
        self._numbers = count()
        self._tasks = [asyncio.create_task(self._client(kind)) for kind in KINDS for _ in range(each)]

    @property
    def failures(self) -> list[Visit]:
        """Those that did not get their whole answer."""
        return [visit for visit in self.visits if visit.outcome != OK]

    def counts(self) -> dict[str, Counter[str]]:
        """How many ended how, by kind."""
        return {kind: Counter(visit.outcome for visit in self.visits if visit.kind == kind) for kind in KINDS}

    async def stop(self) -> None:
        """No request is under way any more."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def _client(self, kind: str) -> None:
        connection = HttpConnection(self._host, self._port)
        try:
            while not self._stopping.is_set():
                await self._visit(kind, connection)
                if kind == FRESH:
                    await connection.close()
                await asyncio.sleep(PAUSE_S[kind])
        finally:
            await connection.close()

    async def _visit(self, kind: str, connection: HttpConnection) -> None:
        name = f"{kind}-{next(self._numbers)}"
        body: dict[str, Any] = {"model": self._model, "prompt": f"why {name}?", "max_tokens": TOKENS[kind]}
        if kind == STREAM:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        clock: Callable[[], float] = asyncio.get_running_loop().time
        at_s = clock()
        try:
            outcome, detail = judged(await connection.post("/v1/completions", body, name), body)
        except ConnectionBroke as error:
            outcome, detail = BROKE, str(error)
        except TimeoutError:
            outcome, detail = TIMED_OUT, ""
        self.visits.append(Visit(kind, outcome, detail, at_s, clock() - at_s))
