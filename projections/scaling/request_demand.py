"""RequestDemand: the demand of each period, counted from the events of the routing stream.

An arrival is one request id: the first event that names the request counts it, and no later one does. Requests that
wait or are refused are arrivals, too, so saturation hides no demand.

Where prefill workers are sized, too, a prompt that pays its transfer is theirs, as the report of its decode worker has
it (`PrefillDemand`). In the cells of decode workers, such a prompt has no tokens to compute.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

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
from core.events.routing import CACHED_UNKNOWN
from core.events.scale import DemandCell, DemandRolled, PrefillDemand
from core.generation import PrefillReport
from projections.scaling.scale_settings import ScaleSettings

OPEN_MAX = 65_536
"""Requests that are followed at once. The oldest makes room …"""
OPEN_MS = 900_000
"""… and so does a request that came so long ago: of a front end that died, no request has an end. A request that made
room counts as a new arrival if it is routed again, and its end counts without its first token."""
SIZES_EVERY_MS = 60_000
"""Least time between two events with sizes: fewer and larger ones hold less, since like requests share a cell …"""
SIZES_MIN = 32
"""… and fewest requests of such an event. The first so many requests have their sizes at once."""
SERVED = frozenset({"stop", "length"})
"""Outcomes of a whole answer."""
GOES_ON = frozenset({"declined", "worker_lost"})
"""Outcomes of an attempt that another attempt may follow."""
US_PER_MS = 1000
COMPUTED_WHERE_DECODED = frozenset({"short", "busy"})
"""Reasons by which a prompt is no prefill worker's, however many there are (`projections.policy.prefill_choice`)."""
PULLED = "pulled"
LOCAL = (0, 0)
"""The class of requests without a prefill worker's prompt, among the cells of prefill workers."""


def size_classes(uncached: int, output: int) -> tuple[int, int]:
    """Classes of a request: two for each doubling of its uncached tokens, which decide on its first token, and one for
    each doubling of its answer. 0 is that of none."""
    bits = uncached.bit_length()
    uncached_class = 2 * bits - 2 + (uncached >> (bits - 2) & 1) if uncached > 1 else uncached
    return uncached_class, output.bit_length()


class _OpenRequest(msgspec.Struct):
    """A request that came and has not ended."""

    arrived_ms: int = -1
    """The end of the period in which it came; -1 until then."""
    is_waiting: bool = True
    """No worker has had it …"""
    is_running: bool = False
    """… and a worker has it now. Neither is true between two attempts, of which the second may never come."""
    first_token_ms: int = -1
    output_tokens: int = 0
    """Those of earlier attempts."""
    cached_tokens: int = CACHED_UNKNOWN
    """Of the attempt that gave the first token."""
    predicted_tokens: int = 0
    """Cached tokens that the last decision expected …"""
    missing_tokens: int = 0
    """… and the other tokens of the prompt."""
    prefill: PrefillReport | None = None
    """Of the attempt that gave the first token; None without prefill workers."""


class RequestDemand:
    """See the module's text. Memory is bounded by OPEN_MAX, and by the classes of sizes."""

    def __init__(self, settings: ScaleSettings, *, has_prefill: bool = False) -> None:
        self.settings = settings
        """The bounds of service that `attained` counts by."""
        self.has_prefill = has_prefill
        """Prefill workers are sized, too."""
        self._open: dict[str, _OpenRequest] = {}
        """In the order of their arrivals."""
        self._cells: dict[tuple[int, int], list[int]] = {}
        """Sums by class, since the last event with sizes …"""
        self._prefill_cells: dict[tuple[int, int], list[int]] = {}
        """… and the same of prefill workers."""
        self._remote_beyond = 0
        """Missing tokens beyond which a prompt pays its transfer, as the newest report has it."""
        self._sized = 0
        """Requests with sizes so far."""
        self._sized_ms = 0
        """The end of the last period with sizes."""
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
                routed = self._open[event.request]
                routed.is_waiting, routed.is_running = False, True
                routed.predicted_tokens = event.predicted_cached_tokens
                routed.missing_tokens = event.prompt_tokens - event.predicted_cached_tokens
            case RequestPrefilled():
                open_ = self._open.get(event.request)
                if open_ is not None and open_.first_token_ms < 0:
                    open_.first_token_ms, open_.cached_tokens = event.ttft_ms, event.cached_tokens
                    open_.prefill = event.prefill
                    if event.prefill is not None:
                        self._note_report(event.prefill)
            case RequestFinished():
                self._finish(event)
            case RequestTurnedAway() | RequestRejected():
                self._arrive(event.request)
                del self._open[event.request]
                self._refused += 1
                self._ended += 1

    def skip(self, at_ms: int) -> None:
        """All that was counted so far belongs to earlier periods, the last of which ended then. Requests that came and
        have not ended stay open. O(open requests)."""
        for each in self._open.values():
            each.arrived_ms = at_ms
        self._cells, self._prefill_cells, self._sized_ms = {}, {}, at_ms
        self._reset()

    def roll(self, at_ms: int, period_s: int, cursor: Mapping[str, tuple[int, int]]) -> DemandRolled:
        """The period that ends now; the next one is empty. O(open requests)."""
        unanswered = 0
        for request, each in list(self._open.items()):
            if each.arrived_ms < 0:
                each.arrived_ms = at_ms
            elif each.arrived_ms <= at_ms - OPEN_MS:
                del self._open[request]
            else:
                unanswered += each.is_running and each.first_token_ms < 0 and each.missing_tokens > self._remote_beyond
        running = sum(each.is_running for each in self._open.values())
        if self.has_prefill:
            running = sum(each.is_running and each.first_token_ms >= 0 for each in self._open.values())
        cells, prefill_cells = self._take_cells(at_ms)
        prefill = PrefillDemand(unanswered, self._pulled, self._transfer_ms, prefill_cells)
        rolled = DemandRolled(
            at_ms=at_ms,
            period_s=period_s,
            arrivals=self._arrivals,
            queued=self._queued,
            refused=self._refused,
            waiting=sum(each.is_waiting for each in self._open.values()),
            running=running,
            ended=self._ended,
            attained=self._attained,
            first_token_ms=self._first_token_ms,
            between_tokens_us=self._between_tokens_us,
            cells=cells,
            cursor=dict(cursor),
            prefill_demand=prefill if self.has_prefill else UNSET,
        )
        self._reset()
        return rolled

    def _note_report(self, report: PrefillReport) -> None:
        self._remote_beyond = report.min_tokens
        if report.outcome == PULLED:
            self._pulled += 1
            self._transfer_ms += report.pull_ms

    def _take_cells(self, at_ms: int) -> tuple[tuple[DemandCell, ...], tuple[DemandCell, ...]]:
        """The sizes since the last event that had any, if it is time for them; else none. Those of prefill workers come
        second."""
        count = sum(sums[0] for sums in self._cells.values())
        is_due = count >= SIZES_MIN and at_ms - self._sized_ms >= SIZES_EVERY_MS
        if not is_due and self._sized >= SIZES_MIN:
            return (), ()
        cells, prefill_cells = map(_in_order, (self._cells, self._prefill_cells))
        self._cells, self._prefill_cells, self._sized, self._sized_ms = {}, {}, self._sized + count, at_ms
        return cells, prefill_cells

    def _reset(self) -> None:
        self._arrivals: int = 0
        self._queued: int = 0
        self._refused: int = 0
        self._ended: int = 0
        self._attained: int = 0
        self._first_token_ms: int = 0
        self._between_tokens_us: int = 0
        self._pulled: int = 0
        self._transfer_ms: int = 0

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
                open_.is_waiting = open_.is_running = False
                open_.output_tokens += event.output_tokens
            return
        if open_ is None:  # it came before this fold began
            open_ = _OpenRequest()
        self._open.pop(event.request, None)
        self._ended += 1
        first_ms = open_.first_token_ms if open_.first_token_ms >= 0 else event.ttft_ms
        if event.outcome not in SERVED or first_ms < 0:
            return
        known = (each for each in (open_.cached_tokens, event.cached_tokens) if each != CACHED_UNKNOWN)
        cached = next(known, open_.predicted_tokens)
        uncached, output = max(0, event.prompt_tokens - cached), open_.output_tokens + event.output_tokens
        between_us = max(0, event.duration_ms - first_ms) * US_PER_MS // max(1, output - 1)
        settings = self.settings
        self._attained += first_ms <= settings.ttft_ms and between_us <= settings.itl_ms * US_PER_MS
        self._first_token_ms += first_ms
        self._between_tokens_us += between_us
        if self.has_prefill:
            remote = _remote_tokens(open_.prefill, event.prompt_tokens)
            uncached = 0 if remote else uncached
            if remote:
                _add(self._prefill_cells, size_classes(remote, 1), (1, remote, 1, event.prompt_tokens))
            else:
                _add(self._prefill_cells, LOCAL, (1, 0, 0, 0))
        _add(self._cells, size_classes(uncached, output), (1, uncached, output, event.prompt_tokens))


def _remote_tokens(report: PrefillReport | None, prompt_tokens: int) -> int:
    """Tokens of the prompt that a prefill worker has computed, or is to compute when there are enough of them; 0 if the
    prompt is none of theirs."""
    if report is None or report.reason in COMPUTED_WHERE_DECODED:
        return 0
    if report.outcome == PULLED:
        return max(1, prompt_tokens - report.remote_cached_tokens)
    return max(1, report.uncached_tokens)


def _add(cells: dict[tuple[int, int], list[int]], key: tuple[int, int], values: tuple[int, int, int, int]) -> None:
    sums = cells.setdefault(key, [0, 0, 0, 0])
    for place, value in enumerate(values):
        sums[place] += value


def _in_order(cells: dict[tuple[int, int], list[int]]) -> tuple[DemandCell, ...]:
    return tuple(DemandCell(*sums) for _, sums in sorted(cells.items()))
