"""A generation for readers who ask for its outputs, instead of being told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from actors.gathered import Gathered
from core.failure import reason_for
from core.generation import Output, Take


async def pulled(run: Callable[[Take], Coroutine[Any, Any, None]]) -> AsyncGenerator[Output, None]:
    """Outputs as they come; what comes faster than it is read is merged.

    Raises what `run` raises, once all before it was read; closing it cancels the run and waits for its end, and so does
    a cancellation, for the same reason, and a failure that its reader raises in it (`actors.reading`). Costs a task,
    and waking up for every output.
    """
    gathered, news = Gathered(), asyncio.Event()
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
