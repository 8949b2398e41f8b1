"""A run whose outputs are asked for: however it ends for the reader, it ends, and knows why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import pytest

from actors.transport.output_stream import output_stream
from api.openai.generation import merge_streams
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


@pytest.mark.parametrize("several", [False, True])
async def test_a_cancellation_goes_on_with_its_reason(several: bool) -> None:
    """Who waited for a worker says in the log why it waits no longer: a deadline is no client that hung up."""
    endless = Endless()

    def outputs() -> AsyncGenerator[Output, None]:
        return (
            merge_streams([output_stream(endless.run), output_stream(endless.run)])
            if several
            else output_stream(endless.run)
        )

    async def read() -> None:
        async with aclosing(outputs()) as found:
            async for _ in found:
                pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    reading.cancel(WHY)
    with suppress(asyncio.CancelledError):
        await reading
    assert endless.reasons == [(WHY,)] * (2 if several else 1)


async def test_closing_needs_no_reason() -> None:
    """Who has enough closes, and the run has ended then."""
    endless = Endless()
    async with aclosing(output_stream(endless.run)) as found:
        assert await anext(found) == Output(tokens=(1,))
    assert endless.reasons == [()]
