"""The answer to a request as an asynchronous generator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from actors.router.router import Router
from actors.transport.output_buffer import OutputBuffer
from core.failure import reason_for
from core.generation import GenerateRequest, Output, OutputConsumer


class BufferedConsumer:
    """Keeps outputs until their reader takes them; `news` is set with each."""

    def __init__(self, outcome: Callable[[], str | None]) -> None:
        self.outcome = outcome
        self.outputs = OutputBuffer()
        self.news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<BufferedConsumer {self.outputs!r}>"

    def on_output(self, output: Output) -> bool:
        """Always wants more."""
        self.outputs.add(output)
        self.news.set()
        return True

    def on_routed(self, worker_name: str) -> None:
        """Its reader names no worker."""

    def intake(self) -> None:
        """Its requests come from no client."""


def generate(
    router: Router, model: str, request: GenerateRequest, outcome: Callable[[], str | None] = lambda: None
) -> AsyncGenerator[Output, None]:
    """The router's answer as it comes; closing the generator cancels the request."""
    return output_stream(lambda consumer: router.run(model, request, consumer), outcome)


async def output_stream(
    run: Callable[[OutputConsumer], Coroutine[Any, Any, None]],
    outcome: Callable[[], str | None] = lambda: None,
) -> AsyncGenerator[Output, None]:
    """Outputs as they come; what comes faster than it is read is merged. `outcome` is that of the consumer.

    Raises what `run` raises, once all before it was read; closing it cancels the run and waits for its end, and so does
    a cancellation, for the same reason, and a failure that its reader raises in it.
    Costs a task, and waking up for every output.
    """
    consumer = BufferedConsumer(outcome)
    gathered, news = consumer.outputs, consumer.news
    why: tuple[Any, ...] = ()

    running = asyncio.create_task(run(consumer))
    running.add_done_callback(lambda _: news.set())
    try:
        while gathered or not running.done():
            if gathered:
                yield gathered.take()
            else:
                news.clear()
                await news.wait()
        await running
    except asyncio.CancelledError as error:
        why = error.args
        raise
    except Exception as error:
        why = reason_for(error)  # for nothing, if it is the run's own
        raise
    finally:
        running.cancel(*why)
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # raised above, or the reader has left
