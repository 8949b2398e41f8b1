"""AnswerDelivery: when a client's system had the whole answer, for clients that take it late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from api.server.tcp_probe import TcpProbe
from core.clock import SystemClock
from core.events.routing import DELAYED_MS

POLL_S_MIN, POLL_S_MAX = 0.002, 0.25
"""A connection with unsent bytes is asked this often: first the one, then the other. The kernel knows when the client's
system acknowledged the last byte, so the time found is no coarser."""
_now_ns = SystemClock.monotonic_ns
_NS_PER_MS = 1_000_000
_US_PER_MS = 1000


class Delay(NamedTuple):
    """Of one answer that its client took late; see `core.events.routing.AnswerDelayed`."""

    written_ms: int
    stalled_ms: int
    unsent_bytes: int


class AnswerDelivery:
    """Follows answers after their last token. An answer that the client took at once costs one question, 2 us."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Delay]] = set()

    def __repr__(self) -> str:
        return f"<AnswerDelivery of {len(self._tasks)} answers>"

    def follow(
        self, transport: asyncio.Transport, probe: TcpProbe, last_ns: int, on_delayed: Callable[[Delay], None]
    ) -> None:
        """All bytes of the answer were given to the transport; its last token came at `last_ns`. `on_delayed` is called
        when the client's system has them, or the connection has ended, if the client was late."""
        state = probe.sending()
        if state is None:
            return
        unsent = transport.get_write_buffer_size() + state.unsent_bytes
        stalled_before_us, probe.stalled_us = probe.stalled_us, state.stalled_us
        late_ms = (_now_ns() - last_ns) // _NS_PER_MS
        stalled_ms = (state.stalled_us - stalled_before_us) // _US_PER_MS
        if unsent or late_ms > DELAYED_MS:
            following = self._follow(transport, probe, last_ns, stalled_before_us, unsent)
            task = asyncio.create_task(following)
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_followed, on_delayed))
        elif stalled_ms > DELAYED_MS:
            on_delayed(Delay(late_ms, stalled_ms, unsent))

    def _on_followed(self, on_delayed: Callable[[Delay], None], task: asyncio.Task[Delay]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        delay = task.result()
        if max(delay.written_ms, delay.stalled_ms) > DELAYED_MS:
            on_delayed(delay)

    async def _follow(
        self, transport: asyncio.Transport, probe: TcpProbe, last_ns: int, stalled_before_us: int, unsent: int
    ) -> Delay:
        """The delay, once the client's system has the answer or its connection has ended."""
        wait_s, stalled_us = 0.0, probe.stalled_us
        while True:
            await asyncio.sleep(wait_s)
            end_ns, state = _now_ns(), probe.sending()
            if state is None:
                end_ns = probe.ended_ns
                break
            stalled_us = probe.stalled_us = state.stalled_us
            if not (state.unsent_bytes or state.unacked or transport.get_write_buffer_size()):
                end_ns -= state.ms_since_ack * _NS_PER_MS
                break
            wait_s = min(max(POLL_S_MIN, wait_s * 1.5), POLL_S_MAX)
        written_ms = max(0, end_ns - last_ns) // _NS_PER_MS
        return Delay(written_ms, (stalled_us - stalled_before_us) // _US_PER_MS, unsent)
