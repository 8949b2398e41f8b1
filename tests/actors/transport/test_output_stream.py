"""A run whose outputs are asked for: however it ends for the reader, it ends, and knows why."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from actors.transport.output_stream import output_stream
from core.generation import Output, OutputConsumer

WHY = TimeoutError("the deadline")


class Endless:
    """A run that says one thing, and then waits until it is cancelled."""

    def __init__(self) -> None:
        self.reasons: list[tuple[object, ...]] = []

    async def run(self, consumer: OutputConsumer) -> None:
        consumer.on_output(Output(tokens=(1,)))
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            self.reasons.append(error.args)
            raise


async def test_a_cancellation_goes_on_with_its_reason() -> None:
    """Who waited for a worker says in the log why it waits no longer: a deadline is no client that hung up."""
    endless = Endless()

    async def read() -> None:
        async with aclosing(output_stream(endless.run)) as found:
            async for _ in found:
                pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    reading.cancel(WHY)
    with suppress(asyncio.CancelledError):
        await reading
    assert endless.reasons == [(WHY,)]


async def test_closing_needs_no_reason() -> None:
    """Who has enough closes, and the run has ended then."""
    endless = Endless()
    async with aclosing(output_stream(endless.run)) as found:
        assert await anext(found) == Output(tokens=(1,))
    assert endless.reasons == [()]
