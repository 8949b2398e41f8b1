"""The bounds of a work queue over a stream."""

from __future__ import annotations

from typing import NamedTuple


class QueueLimits(NamedTuple):
    """Every bound of a queue; the first to open it settles them."""

    ack_wait_s: float = 5.0
    """A message that nobody speaks for so long is handed out again."""
    deliveries_max: int = 5
    """How often it is handed out to be done; once more, so that whoever gets it then can say that it is given up."""
    pending_max: int = 1024
    """Messages handed out and not acknowledged, of all workers together."""


QUEUE_LIMITS = QueueLimits()
