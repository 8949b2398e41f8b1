"""The requests that a simulation serves, as they were recorded, and the pace at which they arrive."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import xxhash

from core.errors import CallerError
from core.ids import RequestId


class Arrival(NamedTuple):
    """In the order of `at_us`; equal times keep the order of the trace."""

    id: RequestId
    at_us: int
    """Virtual microseconds since the start of the run."""
    prompt_tokens: int
    hashes: bytes
    """Of each full block of the prompt, in the engine's block size: uint64, little-endian; equal hash, equal prefix."""
    output_tokens: int
    """At least 1."""
    tenant: str = ""
    session: str = ""
    """Id that turns of one conversation share, if the trace has one."""
    priority: int = 0


class FollowUp(NamedTuple):
    """An arrival after another request, instead of at its own time."""

    request: RequestId
    """The request to wait for; it stands before this one among the arrivals."""
    pause_us: int
    """Between that end and this arrival."""


US_PER_MS = 1000
SPEED_UP_MAX = 1000.0
JITTER_MS_MAX = 3_600_000
_DRAW_BITS = 64


class TraceRequest(NamedTuple):
    """One request of a trace."""

    id: RequestId
    at_us: int
    """Since the first one of the trace, in the trace's own time."""
    prompt_tokens: int
    output_tokens: int
    content: bytes
    """The prompt in the trace's own form."""
    tenant: str = ""
    session: str = ""
    priority: int = 0


class Pace(NamedTuple):
    """Conversion of recorded times to those of the run. Without rounding errors: times are whole microseconds."""

    speed_up: float = 1.0
    """So many times as fast; thousandths count."""
    jitter_ms: int = 0
    """Each request comes later by 0 up to this, not included, in the trace's own time."""
    seed: int = 0
    """Of the jitter."""

    def check(self) -> None:
        """CallerError if it cannot be."""
        if not 0.001 <= self.speed_up <= SPEED_UP_MAX:  # false for nan, too
            raise CallerError(f"speed-up: {self.speed_up:g} is not between 0.001 and {SPEED_UP_MAX:g}")
        if not 0 <= self.jitter_ms <= JITTER_MS_MAX:
            raise CallerError(f"jitter: {self.jitter_ms} is no number of milliseconds between 0 and {JITTER_MS_MAX}")

    def time_us(self, at_us: int, place: int) -> int:
        """Arrival time of the request at this place of the trace."""
        return (at_us + self._jitter_us(place)) * 1000 // round(self.speed_up * 1000)

    def _jitter_us(self, place: int) -> int:
        drawn: int = xxhash.xxh3_64_intdigest(struct.pack("<Q", place), self.seed) if self.jitter_ms else 0
        return drawn * self.jitter_ms * US_PER_MS >> _DRAW_BITS


class Trace(NamedTuple):
    """Requests in the order of the trace, some 150 bytes each beside their content."""

    asked: Sequence[TraceRequest]
    hashes: Callable[[TraceRequest, int], bytes]
    """The hashes of a request's full blocks, as `Arrival.hashes`, at a block size; CallerError if it cannot be had."""

    @property
    def prompt_tokens(self) -> int:
        """Of all of them."""
        return sum(each.prompt_tokens for each in self.asked)

    def arrivals(self, pace: Pace, block_size: int) -> Iterator[Arrival]:
        """Each request in the order in which they come, its hashes made when it is asked for; those that come at the
        same time in the order of the trace."""
        pace.check()
        times = [pace.time_us(each.at_us, place) for place, each in enumerate(self.asked)]
        for place in sorted(range(len(times)), key=times.__getitem__):
            yield self._arrival(self.asked[place], times[place], block_size)

    def _arrival(self, it: TraceRequest, at_us: int, block_size: int) -> Arrival:
        return Arrival(
            id=it.id,
            at_us=at_us,
            prompt_tokens=it.prompt_tokens,
            hashes=self.hashes(it, block_size),
            output_tokens=it.output_tokens,
            tenant=it.tenant,
            session=it.session,
            priority=it.priority,
        )
