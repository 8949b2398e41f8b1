"""Several streams as one, in the order in which they get on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

from actors.transport.output_stream import StreamScope
from core.failure import reason_for

WAITING_MAX = 32
"""Items of all streams together that wait for the reader; then the streams wait, too."""

STARTED_AT_ONCE = 8
"""Streams that begin in one turn of the event loop: each may take a millisecond to find its worker."""

Item = TypeVar("Item")


class _Over:
    """One stream has ended: with this error, or well."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Every item of every stream. The first error of one ends all, and so does closing, or being cancelled, for the
    same reason: then all streams are closed.

    Costs a task per stream, and a queue's passage per item.
    """
    queue: asyncio.Queue[Item | _Over] = asyncio.Queue(WAITING_MAX)
    tasks: list[asyncio.Task[None]] = []
    why: tuple[Any, ...] = ()
    try:
        for stream in streams:
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            tasks.append(asyncio.create_task(_pump(stream, queue)))
        left = len(tasks)
        while left:
            item = await queue.get()
            if not isinstance(item, _Over):
                yield item
            elif item.error is not None:
                raise item.error  # noqa: TRY301 - the others end for its reason
            else:
                left -= 1
    except asyncio.CancelledError as error:
        why = error.args
        raise
    except Exception as error:
        why = reason_for(error)
        raise
    finally:
        for task in tasks:
            task.cancel(*why)
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[Item, None], queue: asyncio.Queue[Item | _Over]) -> None:
    try:
        async with StreamScope(stream):
            async for item in stream:
                await queue.put(item)
    except Exception as error:  # noqa: BLE001 - whatever it is, the reader raises it
        await queue.put(_Over(error))
    else:
        await queue.put(_Over())
