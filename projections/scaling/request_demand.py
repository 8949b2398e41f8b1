"""RequestDemand: the demand of each period, counted from the events of the routing stream.

An arrival is one request id: the first event that names the request counts it, and no later one does. Requests that
wait or are refused are arrivals, too, so saturation hides no demand.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from core.events import (
    Event,
    RequestFinished,
    RequestPrefilled,
    RequestQueued,
    RequestRejected,
    RequestRouted,
    RequestTurnedAway,
    UnknownEvent,
)
from core.events.scale import DemandCell, DemandRolled
from projections.scaling.scale_settings import ScaleSettings

OPEN_MAX = 65_536
"""Requests that are followed at once. The oldest makes room: its end is counted without its first token."""
SERVED = frozenset({"stop", "length"})
"""Outcomes of a whole answer."""
GOES_ON = frozenset({"declined", "worker_lost"})
"""Outcomes of an attempt that another attempt may follow."""
US_PER_MS = 1000


def size_class(tokens: int) -> int:
    """Class of a number of tokens: two for each doubling, 0 for none."""
    if tokens < 2:
        return tokens
    bits = tokens.bit_length()
    return 2 * bits - 2 + (tokens >> (bits - 2) & 1)


class _OpenRequest(msgspec.Struct):
    """A request that came and has not ended."""

    is_running: bool = False
    first_token_ms: int = -1
    output_tokens: int = 0
    """Those of earlier attempts."""
    cached_tokens: int = -1
    """Of the attempt that gave the first token."""


class RequestDemand:
    """See the module's text. Memory is bounded by OPEN_MAX, and by the classes of one period."""

    def __init__(self, settings: ScaleSettings) -> None:
        self.settings = settings
        """The bounds of service that `attained` counts by."""
        self._open: dict[str, _OpenRequest] = {}
        self._reset()

    def __repr__(self) -> str:
        return f"<RequestDemand, {len(self._open)} requests open>"

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event counts in the present period. O(1)."""
        match event:
            case RequestQueued():
                request = self._arrive(event.request)
                self._queued += request is not None
            case RequestRouted():
                self._arrive(event.request)
                self._open[event.request].is_running = True
            case RequestPrefilled():
                open_ = self._open.get(event.request)
                if open_ is not None and open_.first_token_ms < 0:
                    open_.first_token_ms, open_.cached_tokens = event.ttft_ms, event.cached_tokens
            case RequestFinished():
                self._finish(event)
            case RequestTurnedAway() | RequestRejected():
                self._arrive(event.request)
                del self._open[event.request]
                self._refused += 1
                self._ended += 1

    def roll(self, at_ms: int, period_s: int, cursor: Mapping[str, tuple[int, int]]) -> DemandRolled:
        """The period that ends now; the next one is empty."""
        running = sum(each.is_running for each in self._open.values())
        rolled = DemandRolled(
            at_ms=at_ms,
            period_s=period_s,
            arrivals=self._arrivals,
            queued=self._queued,
            refused=self._refused,
            waiting=len(self._open) - running,
            running=running,
            ended=self._ended,
            attained=self._attained,
            first_token_ms=self._first_token_ms,
            between_tokens_us=self._between_tokens_us,
            cells=tuple(DemandCell(*key, *sums) for key, sums in sorted(self._cells.items())),
            cursor=dict(cursor),
        )
        self._reset()
        return rolled

    def _reset(self) -> None:
        self._arrivals = self._queued = self._refused = self._ended = self._attained = 0
        self._first_token_ms = self._between_tokens_us = 0
        self._cells: dict[tuple[int, int], list[int]] = {}

    def _arrive(self, request: str) -> _OpenRequest | None:
        """The request is open; returns it if it was not before."""
        if request in self._open:
            return None
        if len(self._open) >= OPEN_MAX:
            del self._open[next(iter(self._open))]
        self._arrivals += 1
        found = self._open[request] = _OpenRequest()
        return found

    def _finish(self, event: RequestFinished) -> None:
        open_ = self._open.get(event.request)
        if event.outcome in GOES_ON:
            if open_ is not None:
                open_.is_running, open_.output_tokens = False, open_.output_tokens + event.output_tokens
            return
        if open_ is None:  # it came before this fold began
            open_ = _OpenRequest()
        self._open.pop(event.request, None)
        self._ended += 1
        first_ms = open_.first_token_ms if open_.first_token_ms >= 0 else event.ttft_ms
        if event.outcome not in SERVED or first_ms < 0:
            return
        cached = open_.cached_tokens if open_.cached_tokens >= 0 else event.cached_tokens
        uncached, output = max(0, event.prompt_tokens - cached), open_.output_tokens + event.output_tokens
        between_us = max(0, event.duration_ms - first_ms) * US_PER_MS // max(1, output - 1)
        settings = self.settings
        self._attained += first_ms <= settings.ttft_ms and between_us <= settings.itl_ms * US_PER_MS
        self._first_token_ms += first_ms
        self._between_tokens_us += between_us
        sums = self._cells.setdefault((size_class(uncached), size_class(output)), [0, 0, 0, 0])
        for place, value in enumerate((1, uncached, output, event.prompt_tokens)):
            sums[place] += value
