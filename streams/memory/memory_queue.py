"""A work queue over a stream of the log in memory; see `streams.log`.

`SharedQueue` is what the broker keeps of it, `MemoryQueue` one worker's end. Time is the event loop's, so that virtual
time is too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from core.errors import Unavailable
from core.ids import Epoch, StreamSeq
from streams.log import QueueLimits, Record
from streams.memory.memory_stream import MemoryStream

READ_MAX = 64
"""Records that are looked through at once for one of the queue's subjects."""


class _Out:
    """One message that was handed out and not acknowledged."""

    __slots__ = ("due_s", "number")

    def __init__(self) -> None:
        self.number = 0
        self.due_s = 0.0
        """When it is handed out again, by the loop's clock."""


class SharedQueue:
    """Which messages are handed out, and what comes next; no call waits but `stirred`."""

    def __init__(self, found: Callable[[], MemoryStream], subjects: str, limits: QueueLimits) -> None:
        """`found` raises Unavailable while the log is away."""
        stream = found()
        self.limits = limits
        self._found = found
        self._subjects = subjects
        self._epoch: Epoch = stream.epoch
        self._next = stream.last + 1
        """Messages before this one were handed out, or are not ours."""
        self._out: dict[StreamSeq, _Out] = {}
        """In order of their sequences."""
        self._waiters: dict[asyncio.Future[None], None] = {}

    def __repr__(self) -> str:
        return f"<SharedQueue of {self._subjects}, {len(self._out)} handed out, next {self._next}>"

    def take(self) -> tuple[Record, int] | None:
        """The oldest message that waits and how often it was handed out; None if none does. Unavailable."""
        stream = self._found()
        self._check_history(stream)
        return self._taken_again(stream) or self._taken_first(stream)

    async def stirred(self, at_most_s: float) -> None:
        """Something changed, or a message may be due again, or the time is over."""
        loop = asyncio.get_running_loop()
        due_s = min((out.due_s for out in self._out.values()), default=float("inf"))
        waiter = loop.create_future()
        self._waiters[waiter] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(at_most_s, max(0.0, due_s - loop.time()))):
                    await waiter
        finally:
            del self._waiters[waiter]

    def stir(self) -> None:
        """Waiting callers check again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def done(self, seq: StreamSeq) -> None:
        """It is handed out no more. Unavailable if the log is away."""
        self._found()
        self._out.pop(seq, None)
        self.stir()  # it may have been one too many

    def later(self, seq: StreamSeq, wait_s: float) -> None:
        """It is handed out again only after that time, counted from now. Unavailable if the log is away."""
        self._found()
        if seq in self._out:
            self._out[seq].due_s = asyncio.get_running_loop().time() + wait_s
            self.stir()

    def _taken_again(self, stream: MemoryStream) -> tuple[Record, int] | None:
        now_s = asyncio.get_running_loop().time()
        for seq in [seq for seq, out in self._out.items() if out.due_s <= now_s]:
            record = stream.at(seq)
            if record is not None and self._out[seq].number <= self.limits.deliveries_max:
                return self._handed_out(record)
            del self._out[seq]
        return None

    def _taken_first(self, stream: MemoryStream) -> tuple[Record, int] | None:
        while len(self._out) < self.limits.pending_max and (records := stream.from_seq(self._next, READ_MAX)):
            for record in records:
                self._next = record.seq + 1
                if matches(self._subjects, record.subject):
                    return self._handed_out(record)
        return None

    def _handed_out(self, record: Record) -> tuple[Record, int]:
        out = self._out.setdefault(record.seq, _Out())
        out.number += 1
        out.due_s = asyncio.get_running_loop().time() + self.limits.ack_wait_s
        return record, out.number

    def _check_history(self, stream: MemoryStream) -> None:
        """The place is one in the stream as it is: a stream made anew is read from its start."""
        if stream.epoch != self._epoch:
            self._epoch, self._next, self._out = stream.epoch, 1, {}
        if stream.last < self._next - 1:
            self._next = stream.last + 1
            self._out = {seq: out for seq, out in self._out.items() if seq <= stream.last}


class MemoryDelivery:
    """See `streams.log.Delivery`."""

    def __init__(self, queue: MemoryQueue, record: Record, number: int) -> None:
        self.record = record
        self.number = number
        self._queue = queue

    def __repr__(self) -> str:
        return f"<MemoryDelivery {self.record.stream}:{self.record.seq}, number {self.number}>"

    async def done(self) -> None:
        self._queue.shared.done(self.record.seq)
        self._queue.let_go(self)

    async def working(self) -> None:
        self._queue.shared.later(self.record.seq, self._queue.shared.limits.ack_wait_s)
        self._queue.hold(self)

    async def again(self, delay_s: float = 0.0) -> None:
        self._queue.shared.later(self.record.seq, delay_s)
        self._queue.let_go(self)


class MemoryQueue:
    """One worker's end; see `streams.log.Queue`."""

    def __init__(self, shared: SharedQueue) -> None:
        self.shared = shared
        self._held: dict[MemoryDelivery, float] = {}
        """Handed to us, and until when it is ours, by the loop's clock."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryQueue on {self.shared!r}{', closed' if self._closed else ''}>"

    async def next(self, wait_s: float) -> MemoryDelivery | None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while not self._closed:
            taken = self.shared.take()
            if taken is not None:
                delivery = MemoryDelivery(self, *taken)
                self.hold(delivery)
                return delivery
            left_s = until_s - loop.time()
            if left_s <= 0:
                return None
            await self.shared.stirred(left_s)
        raise Unavailable("the queue is closed")

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._forget_old()
            with suppress(Unavailable):  # then they go to others when their time is over
                for delivery in self._held:
                    self.shared.later(delivery.record.seq, 0.0)
            self.shared.stir()

    def hold(self, delivery: MemoryDelivery) -> None:
        """It is ours for another while."""
        self._forget_old()
        self._held[delivery] = asyncio.get_running_loop().time() + self.shared.limits.ack_wait_s

    def let_go(self, delivery: MemoryDelivery) -> None:
        """It is ours no more."""
        self._held.pop(delivery, None)

    def _forget_old(self) -> None:
        """Forgets deliveries past their acknowledgement time: another process may have them by now."""
        now_s = asyncio.get_running_loop().time()
        self._held = {delivery: until_s for delivery, until_s in self._held.items() if until_s > now_s}


def matches(wildcard: str, subject: str) -> bool:
    """True if the wildcard stands for the subject, by the rules of NATS."""
    ours, theirs = wildcard.split("."), subject.split(".")
    if ours[-1] == ">":
        return len(theirs) >= len(ours) and matches(".".join(ours[:-1]), ".".join(theirs[: len(ours) - 1]))
    return len(ours) == len(theirs) and all(our in {"*", their} for our, their in zip(ours, theirs, strict=True))
