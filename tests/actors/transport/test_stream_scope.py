"""A stream that is read hears why its reader ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from actors.transport.output_stream import StreamScope


class Stream:
    def __init__(self, fails: Exception | None = None) -> None:
        self.heard: list[str] = []
        self.fails = fails

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            if self.fails is not None:
                raise self.fails  # noqa: TRY301 - heard below as any other
            yield 2
        except BaseException as error:
            self.heard.append(type(error).__name__)
            raise
        finally:
            self.heard.append("over")


async def read(stream: Stream, error: BaseException | None, *, after: int = 1) -> None:
    async with StreamScope(stream.items()) as items:
        async for item in items:
            if item == after:
                if error is not None:
                    raise error
                return


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (KeyError("x"), ["KeyError", "over"]),
        (asyncio.CancelledError("why"), ["CancelledError", "over"]),
        (None, ["GeneratorExit", "over"]),
        (StopAsyncIteration(), ["GeneratorExit", "over"]),
    ],
)
async def test_why_the_reader_ended_is_heard(error: BaseException | None, heard: list[str]) -> None:
    """What the reader raised; a reader that wants no more, or whose error would mean an end in there, only closes."""
    stream = Stream()
    if error is None:
        await read(stream, None)
    else:
        with pytest.raises(type(error)) as found:
            await read(stream, error)
        assert found.value is error
    assert stream.heard == heard


async def test_the_streams_own_error_is_its_readers() -> None:
    """Once; and a stream that was read to its end is left alone."""
    failing = Stream(ValueError("own"))
    with pytest.raises(ValueError, match="own"):
        await read(failing, None, after=9)
    assert failing.heard == ["ValueError", "over"]
    whole = Stream()
    await read(whole, None, after=9)
    assert whole.heard == ["over"]
