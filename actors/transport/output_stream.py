"""A generation as an asynchronous generator (`output_stream`), and the block in which it is read (`StreamScope`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from actors.transport.output_buffer import OutputBuffer
from core.failure import reason_for
from core.generation import Output, OutputConsumer

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


class BufferedConsumer:
    """Keeps outputs until their reader takes them; `news` is set with each."""

    def __init__(self, outcome: Callable[[], str | None], on_routed: Callable[[str], None]) -> None:
        self.outcome = outcome
        self.on_routed = on_routed
        self.outputs = OutputBuffer()
        self.news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<BufferedConsumer {self.outputs!r}>"

    def on_output(self, output: Output) -> bool:
        """Always wants more."""
        self.outputs.add(output)
        self.news.set()
        return True


async def output_stream(
    run: Callable[[OutputConsumer], Coroutine[Any, Any, None]],
    outcome: Callable[[], str | None] = lambda: None,
    on_routed: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[Output, None]:
    """Outputs as they come; what comes faster than it is read is merged. The reader's `outcome` and `on_routed` are
    those of the consumer that `run` gets.

    Raises what `run` raises, once all before it was read; closing it cancels the run and waits for its end, and so does
    a cancellation, for the same reason, and a failure that its reader raises in it (`actors.transport.output_stream`).
    Costs a task, and waking up for every output.
    """
    consumer = BufferedConsumer(outcome, on_routed)
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
            running.exception()  # raised above; or nobody wants to hear of it any more
