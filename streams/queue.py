"""A work queue over a stream of the log, as the rest of Contrail sees it.

The stream keeps its history; the queue is one durable reader that all workers share, by which each message is handed
to one of them at a time, oldest first. Two implementations pass one contract suite: `streams.memory_queue` and
`streams.jetstream_queue`.
"""

from __future__ import annotations

from typing import Protocol

from streams.log import Record


class Delivery(Protocol):
    """One message, handed to us."""

    record: Record
    number: int
    """How often this message was handed out, this time included: from 1. After a crash the broker may count too little;
    one over `deliveries_max` is for the last time: whoever gets it says that the message is given up."""

    async def done(self) -> None:
        """It is handed out no more. Unavailable if the broker did not say that it heard it: then it may be."""

    async def working(self) -> None:
        """The time until it is handed out again begins anew. Unavailable as above."""

    async def again(self, delay_s: float = 0.0) -> None:
        """It is handed out again after the delay, to anybody, unless it was for the last time. Unavailable as above."""


class Queue(Protocol):
    """Owned by one task, which asks for one message at a time. A queue that somebody deletes at the broker is made
    again: it goes on behind the last message that this one was handed.

    Raises Unavailable when the log cannot be reached, Refused when it says no for good.
    """

    async def next(self, wait_s: float) -> Delivery | None:
        """The oldest message that waits; None if none came in time, known at most a second later. Unavailable as soon
        as the log is away. Cancelled, it takes none: what was on the way is handed back, and counts as handed out."""

    async def close(self) -> None:
        """Nothing is asked for any more; what was handed to us and not acknowledged goes to others at once."""
