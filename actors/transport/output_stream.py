"""A generation as an asynchronous generator (`output_stream`), and the block in which it is read (`StreamScope`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from actors.transport.output_buffer import OutputBuffer
from core.failure import reason_for
from core.generation import Output, Take

Item = TypeVar("Item")


class StreamScope(Generic[Item]):
    """As `contextlib.aclosing`, but an error of the block is raised in the stream, where that waits for its reader: so
    the stream can tell a reader that failed from one that wants no more."""

    def __init__(self, stream: AsyncGenerator[Item, None]) -> None:
        self._stream = stream

    async def __aenter__(self) -> AsyncGenerator[Item, None]:
        return self._stream

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GeneratorExit | StopIteration | StopAsyncIteration):
            await self._stream.aclose()  # these mean something else in there
            return
        try:
            await self._stream.athrow(error)
        except StopAsyncIteration:
            pass  # it had ended, mostly by this very error
        except BaseException as raised:
            if raised is not error:
                raise


async def output_stream(run: Callable[[Take], Coroutine[Any, Any, None]]) -> AsyncGenerator[Output, None]:
    """Outputs as they come; what comes faster than it is read is merged.

    Raises what `run` raises, once all before it was read; closing it cancels the run and waits for its end, and so does
    a cancellation, for the same reason, and a failure that its reader raises in it (`actors.transport.output_stream`).
    Costs a task, and waking up for every output.
    """
    gathered, news = OutputBuffer(), asyncio.Event()
    why: tuple[Any, ...] = ()

    def take(output: Output) -> bool:
        gathered.add(output)
        news.set()
        return True

    running = asyncio.create_task(run(take))
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
            running.exception()  # raised above; or nobody wants to hear of it any more
