"""Keeps the processes of a deployment running, and stops them in order.

1. Each process has a keeper: a task that waits for its end (or for it to stop answering), waits longer each time
   (`Backoff`), and starts it again. That is reported each time. Nothing that fails on the way ends the keeper.
2. Draining first tells all keepers to leave; none is interrupted in the middle of a start. Then the stages go, one
   after the other: front ends before workers, workers before the servers that record them.
3. A process that does not go in its time is killed, with everything in its process group. Hurrying makes that time
   short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from core.errors import ContrailError

RESTART_DELAY_FIRST_S = 1.0
RESTART_DELAY_MAX_S = 30.0
STEADY_S = 60.0
"""A part that was up for so long is trusted again: its next delay is the first."""


class Backoff:
    """Doubles from the first delay to the longest; starts over after a steady life."""

    def __init__(
        self,
        first_s: float = RESTART_DELAY_FIRST_S,
        max_s: float = RESTART_DELAY_MAX_S,
        steady_s: float = STEADY_S,
    ) -> None:
        assert 0 < first_s <= max_s
        self._first_s, self._max_s, self._steady_s = first_s, max_s, steady_s
        self._next_s = first_s

    def after(self, up_s: float) -> float:
        """The delay after a life of that length."""
        delay_s = self._first_s if up_s >= self._steady_s else self._next_s
        self._next_s = min(2 * delay_s, self._max_s)
        return delay_s


WATCH_S = 0.2
"""Interval between checks of a process."""
PROBE_EVERY_S = 2.0
PROBE_FAILURES_MAX = 5
"""So many probes in a row without an answer: the part is taken for dead, and killed."""
HURRY_MAX_S = 2.0
"""Time for each stage after a second Ctrl-C."""


class SupervisedProcess(Protocol):
    """A process or server that the supervisor keeps running."""

    name: str
    kind: str
    starts: int
    drain_max_s: float

    @property
    def log(self) -> Path:
        """Its output."""

    @property
    def running(self) -> bool:
        """True while its process runs."""

    @property
    def pid(self) -> int | None:
        """The process started last."""

    async def start(self) -> None:
        """Its process runs."""

    async def alive(self) -> bool:
        """False if it should answer and does not."""

    async def ready(self) -> bool:
        """True if it serves."""

    def ending(self) -> str:
        """The reason of its end."""

    async def stop(self, within_s: float) -> None:
        """Its process is gone: asked first, killed when the time is up."""

    async def kill(self) -> None:
        """Its process, and what it left behind, is gone."""


class Supervisor:
    """Supervises stages of parts; the first stage is the first to go at the end."""

    def __init__(
        self,
        report: Callable[[str], None],
        new_backoff: Callable[[], Backoff] = Backoff,
        probe_every_s: float = PROBE_EVERY_S,
    ) -> None:
        self.changing = asyncio.Lock()
        """Held while a part is exchanged, added or taken away."""
        self._report = report
        self._new_backoff = new_backoff
        self._probe_every_s = probe_every_s
        self._keepers: dict[SupervisedProcess, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._draining = False

    def __repr__(self) -> str:
        return f"<Supervisor {len(self._keepers)} parts{', draining' if self._draining else ''}>"

    def keep(self, part: SupervisedProcess) -> None:
        """The part, which runs, will be started again whenever it ends."""
        assert not self._draining
        assert part not in self._keepers
        leaving = asyncio.Event()
        keeper = asyncio.create_task(self._keep(part, leaving), name=f"keeper of {part.name}")
        self._keepers[part] = (keeper, leaving)

    async def release(self, part: SupervisedProcess) -> None:
        """The part is no longer supervised and not started again. A start in progress has finished."""
        keeper, leaving = self._keepers.pop(part)
        leaving.set()
        await keeper

    async def drain(self, stages: Sequence[Sequence[SupervisedProcess]], hurry: asyncio.Event) -> None:
        """No part runs any more; stage after stage, each bounded, each in a hurry once that is asked.

        What went wrong on the way is raised at the end, when all stages have been let go.
        """
        self._draining = True
        for _, leaving in self._keepers.values():
            leaving.set()
        results = await asyncio.gather(*(keeper for keeper, _ in self._keepers.values()), return_exceptions=True)
        for stage in stages:
            results += await asyncio.gather(*(self._let_go(part, hurry) for part in stage), return_exceptions=True)
        failures = [result for result in results if isinstance(result, Exception)]
        if failures:
            raise ExceptionGroup("while the parts were let go", failures)

    async def _let_go(self, part: SupervisedProcess, hurry: asyncio.Event) -> None:
        stopping = asyncio.create_task(part.stop(part.drain_max_s))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((stopping, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done():
            await asyncio.wait((stopping,), timeout=HURRY_MAX_S)
        if not stopping.done():
            self._report(f"{part.name} does not end: killed")
            await part.kill()
        await stopping

    async def _keep(self, part: SupervisedProcess, leaving: asyncio.Event) -> None:
        backoff = self._new_backoff()
        clock_s = asyncio.get_running_loop().time
        started_s, reported_ready = clock_s(), True
        while True:
            try:
                why = await self._until_gone(part, leaving, started_s, reported_ready)
                if why is None:
                    return
                await part.kill()
            except Exception as error:  # noqa: BLE001 - without its keeper the part would stay down without a report
                why = f"could not be looked after: {error!r}"
            delay_s = backoff.after(clock_s() - started_s)
            runs = part.running
            self._report(f"{part.name} {why}; it is {'looked after' if runs else 'started'} again in {delay_s:g} s")
            if await _set_within(leaving, delay_s):
                return
            if runs:
                continue
            started_s, reported_ready = clock_s(), False
            try:
                await part.kill()  # what is left of it, if the last round ended before that
                await part.start()
            except (ContrailError, OSError) as error:
                self._report(f"{part.name} cannot be started: {error}")
            except Exception as error:  # noqa: BLE001 - likewise
                self._report(f"{part.name} cannot be started: {error!r}")

    async def _until_gone(
        self, part: SupervisedProcess, leaving: asyncio.Event, started_s: float, reported_ready: bool
    ) -> str | None:
        """Why the part is gone, or to be taken for gone; None if we are leaving. Says when it is ready (again)."""
        clock_s = asyncio.get_running_loop().time
        probe_at_s, failures = clock_s() + self._probe_every_s, 0
        while not await _set_within(leaving, WATCH_S):
            if not part.running:
                return part.ending()
            if not reported_ready and await part.ready():
                reported_ready = True
                self._report(f"{part.name} is ready again after {clock_s() - started_s:.1f} s (pid {part.pid})")
            if clock_s() < probe_at_s:
                continue
            failures = 0 if await part.alive() else failures + 1
            if failures >= PROBE_FAILURES_MAX:
                return f"did not answer {failures} times in a row, and was killed"
            probe_at_s = clock_s() + self._probe_every_s
        return None


async def _set_within(event: asyncio.Event, delay_s: float) -> bool:
    try:
        async with asyncio.timeout(delay_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
