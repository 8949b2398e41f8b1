"""Clients that ask all the time and compare every answer with what one engine alone says."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Self

from actors.router.router import Router
from core.generation import GenerateRequest
from core.models import GenerationFailed, NoWorkers, Overloaded, UnknownModel
from tests.actors.disagg.disagg import alone
from tests.actors.world import request
from tests.output_stream import generate

REFUSALS = (NoWorkers, Overloaded, GenerationFailed, UnknownModel)
"""Clear errors that a client may get while things go wrong."""
ANSWERED_WITHIN_S = 20.0


class Load:
    """Some clients; each takes a prompt, half of them longer than the threshold, many with a start in common."""

    def __init__(self, router: Router, seed: int, clients: int = 4) -> None:
        self.answered = 0
        self.refused: list[str] = []
        self.wrong: list[str] = []
        self._router = router
        self._random = random.Random(seed)
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def more(self, answers: int) -> None:
        """Returns when so many more answers came."""
        wanted = self.answered + answers
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while self.answered < wanted:
                await asyncio.sleep(0.002)

    def prompt(self) -> GenerateRequest:
        """Some start, then tokens of its own."""
        start = [100 + self._random.randrange(6)] * self._random.choice((0, 16, 48, 200))
        own = [self._random.randrange(16, 4000) for _ in range(self._random.choice((5, 30, 120, 333)))]
        return request([*start, *own], max_tokens=self._random.choice((1, 4, 12)))

    async def _client(self) -> None:
        while not self._stop:
            await self.ask(self.prompt())

    async def ask(self, asked: GenerateRequest) -> None:
        """One answer, compared."""
        tokens: list[int] = []
        async with asyncio.timeout(ANSWERED_WITHIN_S):  # nothing waits for ever
            try:
                async for output in generate(self._router, "sim", asked):
                    tokens += output.tokens
            except REFUSALS as error:
                self.refused.append(str(error))
                await asyncio.sleep(0.01)
                return
        if tokens != await alone(asked):
            self.wrong.append(f"{asked.id}: {tokens}")
        self.answered += 1


async def cancelled(task: asyncio.Task[None]) -> None:
    """The task is over."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
