"""An event loop in virtual time, and processes on it that can be killed between any two steps.

1. Time stands still while anything can run, and jumps to the next timer when nothing can. There is no real I/O.
2. Every task and callback belongs to the process in whose context it was made. A killed process runs nothing any
   more, no `finally` and no `except` either, as after kill -9.
3. The order in which tasks that could run now do so is drawn from the seed; what one task does stays in order.
"""

from __future__ import annotations

import asyncio
import fcntl
import heapq
import random
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any

from streams.outbox.journal_file import JournalFile

WALL_START_MS = 1_800_000_000_000
"""What the wall clocks say when a world begins."""


class Stuck(Exception):
    """Nothing can ever run again, and what was waited for is not done."""


class Process:
    """What can be killed on its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        """Stopped by a signal: what it would do, it does when it goes on."""
        self.pauses = 0
        """How often it was."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.killed: list[asyncio.Task[Any]] = []
        """Its tasks when it was killed: kept, so that their `finally` blocks run only when the world is over."""
        self.files: list[JournalFile] = []
        """Journals that it opened: their locks go with it."""
        self.missed: list[asyncio.Handle] = []
        """What it did not live to do, or will do when it goes on."""

    def __repr__(self) -> str:
        return f"<Process {self.name}{'' if self.alive else ', dead'}>"

    def pause(self) -> None:
        """Nothing of it runs until `VirtualLoop.go_on`."""
        self.paused = True
        self.pauses += 1

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.alive = False
        for file in self.files:
            if file._descriptor >= 0:
                fcntl.flock(file._descriptor, fcntl.LOCK_UN)
        self.killed = [task for task in self.tasks if not task.done()]


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Timer(asyncio.TimerHandle):
    __slots__ = ("key",)

    def __init__(
        self,
        when: float,
        number: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.key = when, number

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer)
        return self.key < other.key


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs as fast as it can; `time()` is virtual seconds."""

    def __init__(self, order: random.Random | None = None) -> None:
        """`order` draws which of the tasks that can run goes first; without it they go in turn."""
        super().__init__()
        self.now_s = 0.0
        self.network: Any = None
        """What `create_server` and `create_connection` use."""
        self._order = order
        self._timers = 0
        self._selector = None

    def time(self) -> float:
        return self.now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers of one moment go off in the order in which they were set."""
        self._timers += 1
        timer = _Timer(max(when, self.now_s), self._timers, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """The task belongs to the process in whose context it is made."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.add(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Threads would bring back real time: the function runs at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_options: object
    ) -> Any:
        """A port in the world's network."""
        assert self.network is not None
        return self.network.listen(factory)

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_options: object
    ) -> Any:
        """A connection over the world's network."""
        assert self.network is not None
        return await self.network.connect(factory, port)

    def _write_to_self(self) -> None:
        """Nobody waits in a select."""

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Stuck("no timer and no callback is left")
            self.now_s = max(self.now_s, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        turn = list(ready)
        ready.clear()
        if self._order is not None and len(turn) > 1:
            _shuffle_tasks(turn, self._order)
        for handle in turn:
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is None or (process.alive and not process.paused):
                handle._run()
            else:
                process.missed.append(handle)

    def go_on(self, process: Process) -> None:
        """A paused process does what it would have done meanwhile, in the same order; nothing if it was killed."""
        process.paused = False
        if process.alive:
            self._ready.extend(process.missed)  # type: ignore[attr-defined]
            process.missed.clear()

    def bury(self, process: Process) -> None:
        """What a killed process did not live to do is done after all, so that its tasks can be taken down."""
        process.alive, process.paused = True, False
        self._ready.extend(process.missed)  # type: ignore[attr-defined]
        process.missed.clear()


def _shuffle_tasks(turn: list[Any], order: random.Random) -> None:
    """Steps of tasks change places among each other; plain callbacks keep theirs, whose order asyncio promises."""
    places = [place for place, handle in enumerate(turn) if _is_step(handle._callback)]
    if len(places) > 1:
        steps = [turn[place] for place in places]
        order.shuffle(steps)
        for place, handle in zip(places, steps, strict=True):
            turn[place] = handle


def _is_step(callback: object) -> bool:
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


class VirtualClock:
    """The loop's time, as `core.clock.Clock` has it; one machine's wall clock may differ from another's."""

    def __init__(self, loop: VirtualLoop, ahead_ms: int = 0) -> None:
        self._loop = loop
        self.ahead_ms = ahead_ms
        """How far its wall clock is ahead of the world's."""

    def wall_ms(self) -> int:
        return WALL_START_MS + self.ahead_ms + int(self._loop.now_s * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.now_s * 1000)

    def monotonic_us(self) -> int:
        return int(self._loop.now_s * 1_000_000)

    def monotonic_ns(self) -> int:
        return int(self._loop.now_s * 1_000_000_000)
