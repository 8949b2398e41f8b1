"""The wire of vLLM's and SGLang's KV events: every batch once, in order, or a gap that is told.

1. The engine numbers its batches from 0 and sends them on a PUB socket; its replay socket gives back those that it
   still holds (the last `buffer_steps`). Of an engine that we start both are ipc sockets in a private folder: no other
   user can reach them. A server that runs already says where its sockets are.
2. A batch is taken when it is the next one; one that was seen is skipped; before one that is ahead, the ones between
   are asked for. If the engine has them no more, that is a gap, and reading goes on behind it.
3. `catch_up` needs no traffic. The engine puts a batch into the publisher's queue before it sends the output of the
   same step, and the publisher answers one replay at most between two looks into its queue. So when two answers in a
   row end with the same batch, the queue was empty in between: all that was there at the call has been sent. A busy
   engine may never come to that; there a batch that was made after the call (same machine, same clock) tells as much.
4. An answer is one burst, and the engine's socket drops what its pipe (1 000 frames) does not hold while this process
   is slow: frames, and the end too. So an answer that falls silent is over, proves nothing, and the rest is asked for.
5. An engine that starts again numbers from 0. The feed follows one start of an engine: it ends when a number returns.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.asyncio

from actors.engines.kv_events.kv_endpoints import KvEndpoints
from actors.engines.locked_folder import open_locked_folder
from core.clock import SystemClock
from core.errors import EngineDead, Unavailable

FOLDER_PREFIX = "contrail-events-"
"""Another one than that of versions before, whose folders are not locked."""
QUEUE_MESSAGES_MAX = 100_000
"""Messages that may wait on either side of the PUB socket; more are dropped, found missing and asked for."""
REPLAY_TIMEOUT_S = 10.0
"""Bound on the first frame of a replay; the engine's publisher polls every 0.1 s."""
SILENCE_S = 0.5
"""Bound on the silence within an answer; the engine sends it at one go."""
ROUNDS_MAX = 1_000
"""Replays in one `catch_up`; each but the last two found a new batch."""
SEQ_BYTES = 8
END = (-1).to_bytes(SEQ_BYTES, "big", signed=True)
HEARTBEAT_MS = 5_000
"""A subscription over TCP whose engine does not answer for so long is made again."""
BEGAN_ANEW = "the engine's cache events begin anew: it was started again"


class Replayed(NamedTuple):
    """The numbers of the batches in one replay."""

    oldest: int
    """sys.maxsize if it held nothing."""
    end: int
    """One behind the newest: how many batches the engine had published; 0 if it held nothing."""
    whole: bool
    """False if its end was lost: there may be newer ones."""


class KvEventFeed:
    """Follows one engine from its first batch on; all calls and callbacks are on the event loop.

    `on_batch` returns when the batch was made, in seconds of the wall clock; 0 if it cannot tell. With `endpoints` the
    engine runs already, perhaps on another machine.
    """

    def __init__(
        self,
        on_batch: Callable[[bytes], float],
        on_gap: Callable[[str], None],
        endpoints: KvEndpoints | None = None,
    ) -> None:
        self._on_batch = on_batch
        self._on_gap = on_gap
        self._next = 0
        self._newest = -1
        """The number that the subscription brought last."""
        self._made_s = 0.0
        home, self._folder_lock = open_locked_folder(FOLDER_PREFIX)
        self.folder = str(home)
        """A folder that no other user may enter, until `stop`."""
        self._context = zmq.asyncio.Context()
        self._task: asyncio.Task[None] | None = None
        self._one_clock = endpoints is None
        """The engine is on this machine: its times are ours."""
        self.buffer_steps = 10_000
        """Batches that an engine of our own is to keep for replay."""
        own = KvEndpoints(f"ipc://{Path(self.folder, 'events')}", f"ipc://{Path(self.folder, 'replay')}")
        self.events_endpoint, self.replay_endpoint = endpoints or own
        """The engine binds these endpoints, to publish and to answer replays."""

    def __repr__(self) -> str:
        return f"<KvEventFeed {self._next} batches taken>"

    def start(self) -> None:
        """The feed listens; the engine may be started before or after."""
        assert self._task is None
        subscription = self._context.socket(zmq.SUB)
        subscription.set_hwm(QUEUE_MESSAGES_MAX)
        subscription.subscribe(b"")
        subscription.heartbeat_ivl = HEARTBEAT_MS
        subscription.connect(self.events_endpoint)
        self._task = asyncio.create_task(self._follow(subscription), name="kv-event-feed")

    async def catch_up(self) -> None:
        """Every batch that the engine had queued before the call has been taken, or told as a gap."""
        asked_s = (SystemClock().wall_ms() + 1) / 1000  # rounded up: not before the call
        published = -1
        for _ in range(ROUNDS_MAX):
            self.check()
            answer = await self._replay(max(self._next - 1, 0))
            if self._next < answer.end:
                await self._fill(answer.end)
            if (answer.whole and published == answer.end) or (self._one_clock and self._made_s > asked_s):
                return
            published = answer.end if answer.whole else -1
        raise Unavailable(f"the engine went on sending cache events through {ROUNDS_MAX} replays")

    async def reread(self) -> None:
        """Batches that the subscription lost, and after which none came, have been taken. One replay. EngineDead if the
        engine was started again; Unavailable if it does not answer."""
        taken = self._next
        answer = await self._replay(max(taken - 1, 0))
        if taken and answer.whole and not answer.end:  # the newest batch is never dropped
            raise EngineDead(BEGAN_ANEW)
        if self._next < answer.end:
            await self._fill(answer.end)

    def check(self) -> None:
        """Raises EngineDead if batches are not followed any more."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            text = str(error) if isinstance(error, EngineDead) else "the engine's cache events are not read any more"
            raise EngineDead(text) from error

    async def stop(self) -> None:
        """Nothing is read or held any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)  # files of an engine that was killed may go meanwhile
        os.close(self._folder_lock)

    async def _follow(self, subscription: zmq.asyncio.Socket) -> None:
        while True:
            _, number, payload = await subscription.recv_multipart()
            seq = int.from_bytes(number, "big")
            if seq <= self._newest:
                raise EngineDead(BEGAN_ANEW)
            self._newest = seq
            if not self._take(seq, payload):
                await self._fill(seq)
                self._take(seq, payload)

    def _take(self, seq: int, payload: bytes) -> bool:
        """True if this batch needs no other before it."""
        if seq == self._next:
            self._next += 1
            self._made_s = self._on_batch(payload)
        return seq < self._next

    async def _fill(self, end: int) -> None:
        """All batches before `end` have been taken, or told as a gap; after a gap with the oldest that there is."""
        while (start := self._next) < end:
            oldest = end
            try:
                oldest = (await self._replay(start)).oldest
            except Unavailable as error:
                why = str(error)
            else:
                why = "the engine does not hold them any more"
            if self._next == start:
                self._next = min(max(oldest, start + 1), end)
                self._on_gap(f"cache events {start} to {self._next - 1} were missed: {why}")

    async def _replay(self, start: int) -> Replayed:
        """Takes what the engine gives back from `start` on.

        A fresh socket each time, so that no late frame of another answer can be mistaken for one of this.
        """
        oldest, end, patience_s = sys.maxsize, 0, REPLAY_TIMEOUT_S
        with self._context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.set_hwm(QUEUE_MESSAGES_MAX)
            socket.connect(self.replay_endpoint)
            await socket.send_multipart([b"", start.to_bytes(SEQ_BYTES, "big")])
            while True:
                try:
                    async with asyncio.timeout(patience_s):
                        frames = await socket.recv_multipart()
                except TimeoutError as error:
                    if end:
                        return Replayed(oldest, end, whole=False)
                    raise Unavailable(f"no answer to a replay for {REPLAY_TIMEOUT_S:.0f} s") from error
                *_, number, payload = frames  # older SGLang servers send no topic before them
                if number == END:
                    return Replayed(oldest, end, whole=True)
                seq = int.from_bytes(number, "big")
                oldest, end, patience_s = min(oldest, seq), seq + 1, SILENCE_S
                self._take(seq, payload)
