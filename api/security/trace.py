"""Trace: where one request went and how long that took, as headers of its answer."""

from __future__ import annotations

from core.clock import Clock


class Trace:
    """From the arrival to the first byte of the answer: of a stream that is its first token."""

    __slots__ = ("_arrived_us", "_clock", "_routed_us", "_worker")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived_us = clock.monotonic_us()
        self._routed_us = 0
        self._worker = ""

    def routed(self, worker: str) -> None:
        """The request was sent to the worker of this name now; the last one counts."""
        self._routed_us = self._clock.monotonic_us()
        self._worker = worker

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The worker, what came before it (reading, encoding, waiting), and all until now; empty if none was asked."""
        if not self._worker:
            return []
        arrived_us = self._arrived_us
        return [
            (b"x-contrail-worker", self._worker.encode()),
            (b"x-contrail-queue-ms", b"%.3f" % ((self._routed_us - arrived_us) / 1000)),
            (b"x-contrail-answer-ms", b"%.3f" % ((self._clock.monotonic_us() - arrived_us) / 1000)),
        ]
