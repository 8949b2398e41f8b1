"""Reading: a stream that is read to its end, or closed; it hears why."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Reading(Generic[Item]):
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
