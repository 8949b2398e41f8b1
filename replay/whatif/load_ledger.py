"""LoadLedger: the loads as they would be if requests had gone where a scenario put them.

A ledger holds every attempt of which the record and the scenario differ. A view shows such an attempt exactly when it
shows the recorded one: then the recorded weight is taken off one worker, and the supposed one put on another. An
attempt takes as long as it took; what the log does not tell, how much longer or shorter it would have been elsewhere,
is not supposed. With nothing in the ledger an adjusted view is the recorded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from core.ids import RequestId, WorkerId
from core.prompt import Prompt
from core.settings import APPROXIMATE, RoutingSettings
from core.subjects import ROUTING
from projections.folds.in_flight import ANY_HASH, AttemptKey, InFlight, OutstandingPrefill, hash_beyond, shared_depth
from projections.policy.view import NO_OVERLAP, Candidate, View
from replay.recording.messages import TypedEvent, partial_reader
from replay.recording.recording import Recording
from replay.recording.request_history import NEVER, PLACES, RequestAttempt

UNCHANGED = (0, 0, 0)
AS_IN_ROWS: Mapping[WorkerId, tuple[int, ...]] = MappingProxyType({})
"""Says that nothing else is known of caches than what the rows have."""


class AdjustedView(View):
    """A view with other candidates, other prefills outstanding, and another count of decisions."""

    _rows: list[Candidate]
    _fewer: int
    _ledger: LoadLedger
    _candidate_view: CandidateView

    @staticmethod
    def of(candidate_view: CandidateView, ledger: LoadLedger, rows: list[Candidate], fewer: int) -> AdjustedView:
        """`rows` by id; `fewer` decisions than the view has were made for the model."""
        supposed = AdjustedView(*candidate_view.view)
        supposed._rows, supposed._fewer = rows, fewer
        supposed._ledger, supposed._candidate_view = ledger, candidate_view
        return supposed

    def outstanding(self) -> dict[WorkerId, list[OutstandingPrefill]]:
        return self._ledger.outstanding(self._candidate_view)

    def routed(self, model: str) -> int:
        return super().routed(model) - self._fewer

    def cached(self, prompt: Prompt, settings: RoutingSettings, now_ms: int) -> Mapping[WorkerId, tuple[int, ...]]:
        """As the rows have it; under `approximate`, by where the record's requests went."""
        return super().cached(prompt, settings, now_ms) if settings.policy == APPROXIMATE else AS_IN_ROWS

    def candidates(self, _prompt: Prompt, cached: Mapping[WorkerId, tuple[int, ...]] | None = None) -> list[Candidate]:
        if cached is None or cached is AS_IN_ROWS:
            return self._rows
        return [row._replace(overlap=cached.get(row.worker, NO_OVERLAP)) for row in self._rows]


class CandidateView(NamedTuple):
    """Candidates as one view has them, for one request, and what of the routing stream that view shows."""

    view: View
    rows: list[Candidate]
    replica: str
    at: int
    """The number of the decision's event: the earlier events of its replica are in its view."""

    @property
    def limit(self) -> int:
        """Events of others are in the view if their numbers are below this."""
        cursor = self.view.state.cursor.get(ROUTING)
        return (cursor.seq + 1) * PLACES if cursor is not None else 0


class LedgerEntry(NamedTuple):
    """One attempt that the scenario weighs otherwise than the record. Flat, because every decision looks at all that
    are in flight."""

    key: AttemptKey
    replica: str
    at: int
    prefilled: int
    ended: int
    worker: WorkerId
    blocks: int
    prefill_tokens: int
    supposed_worker: WorkerId | None
    """None if nobody would have taken it."""
    supposed_blocks: int
    supposed_prefill_tokens: int
    supposed_begins_us: int

    @staticmethod
    def of(record: RequestAttempt, ended: int, recorded: InFlight, supposed: InFlight | None) -> LedgerEntry:
        """The weight of the attempt as recorded, and as supposed; `ended` is 0 while folds count it."""
        return LedgerEntry(
            (RequestId(record.request), record.attempt),
            record.replica,
            record.at,
            record.prefilled_at or NEVER,
            ended or NEVER,
            worker=recorded.worker,
            blocks=recorded.blocks,
            prefill_tokens=recorded.prefill_tokens,
            supposed_worker=supposed.worker if supposed is not None else None,
            supposed_blocks=supposed.blocks if supposed is not None else 0,
            supposed_prefill_tokens=supposed.prefill_tokens if supposed is not None else 0,
            supposed_begins_us=supposed.begins_us if supposed is not None else 0,
        )


Sums = dict[WorkerId, list[int]]
"""Per worker: blocks, requests, and prefill tokens more than the view has."""


class LoadLedger:
    """See the module's text."""

    def __init__(self) -> None:
        self._entries: list[LedgerEntry] = []

    def __repr__(self) -> str:
        return f"<LoadLedger of {len(self._entries)} attempts>"

    def note(self, entry: LedgerEntry) -> None:
        """The attempt counts as supposed from its place on."""
        self._entries.append(entry)

    def forget(self, lowest: int) -> None:
        """No view that comes shows less of the routing stream than this."""
        self._entries = [entry for entry in self._entries if entry.ended // PLACES > lowest]

    def rows(self, candidate_view: CandidateView, prompt: Prompt) -> list[Candidate]:
        """The candidates of the view as they are supposed to be; the very ones if nothing differs."""
        sums: Sums = {}
        moved: dict[AttemptKey, WorkerId | None] = {}
        mine, own, limit = candidate_view.replica, candidate_view.at, candidate_view.limit
        for key, replica, at, prefilled, ended, worker, blocks, tokens, to, to_blocks, to_tokens, _ in self._entries:
            until = own if replica == mine else limit
            if not at < until <= ended:
                continue
            before = sums.get(worker) or sums.setdefault(worker, [0, 0, 0])
            before[0] -= blocks
            before[1] -= 1
            if until <= prefilled:
                before[2] -= tokens
                moved[key] = to
            if to is not None:
                after = sums.get(to) or sums.setdefault(to, [0, 0, 0])
                after[0] += to_blocks
                after[1] += 1
                if until <= prefilled:
                    after[2] += to_tokens
        return _changed(candidate_view, prompt, sums, moved) if sums else candidate_view.rows

    def outstanding(self, candidate_view: CandidateView) -> dict[WorkerId, list[OutstandingPrefill]]:
        """The prefills of the view as they are supposed to be outstanding; O(all of them + entries)."""
        found, limit = candidate_view.view.outstanding(), candidate_view.limit
        for entry in self._entries:
            until = candidate_view.at if entry.replica == candidate_view.replica else limit
            if not entry.at < until <= min(entry.prefilled, entry.ended):
                continue
            before = found.get(entry.worker, [])
            before[:] = [row for row in before if (row.request, row.attempt) != entry.key]
            if entry.supposed_worker is not None:
                row = OutstandingPrefill(entry.supposed_begins_us, *entry.key, entry.supposed_prefill_tokens)
                found.setdefault(entry.supposed_worker, []).append(row)
        return {worker: rows for worker, rows in found.items() if rows}


def _changed(
    candidate_view: CandidateView, prompt: Prompt, sums: Sums, moved: Mapping[AttemptKey, WorkerId | None]
) -> list[Candidate]:
    pending = _pending(candidate_view.view, prompt, moved) if moved else None
    rows = []
    for row in candidate_view.rows:
        blocks, requests, tokens = sums.get(row.worker, UNCHANGED)
        computing = row.pending if pending is None else pending.get(row.worker, 0)
        if blocks or requests or tokens or computing != row.pending:
            row = row._replace(  # noqa: PLW2901 - the row as it is supposed to be
                pending=computing,
                active_blocks=row.active_blocks + blocks,
                active_requests=row.active_requests + requests,
                prefill_tokens=row.prefill_tokens + tokens,
            )
        rows.append(row)
    return rows


def _pending(view: View, prompt: Prompt, moved: Mapping[AttemptKey, WorkerId | None]) -> dict[WorkerId, int] | None:
    """As the view counts them, and as cheaply, with the moved ones where they would be; None if none of them has to do
    with this."""
    found: dict[WorkerId, int] = {}
    deeper, depth, touched = {0: ANY_HASH}, 0, False
    for tally in (view.state.routing.in_flight_load, view.ahead.in_flight_load):
        known = () if tally is view.ahead.in_flight_load else view.ahead.computed
        for key, entry in tally.pending(prompt):
            if key in known:
                continue
            touched = touched or key in moved
            worker, hashes = moved.get(key, entry.worker), entry.hashes
            if worker is None:
                continue
            least = found.get(worker, 0)
            place, block = deeper.get(least) or deeper.setdefault(least, hash_beyond(prompt, least))
            if hashes[place] == block:
                found[worker] = depth = shared_depth(hashes, prompt, depth)
    return found if touched else None


class _CursorEvent(TypedEvent):
    cursor: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)


_read_cursors = partial_reader(_CursorEvent)


def routing_floors(recording: Recording, start: int, end: int | None) -> dict[int, int]:
    """By the number of each decision, the lowest position in the routing stream at which it or a later one was made;
    some 2 us per message."""
    found: dict[int, int] = {}
    for record in recording.archive.read(ROUTING, start, end):
        message = _read_cursors(record.payload)
        for number, event in enumerate(message.events if message is not None else (), record.seq * PLACES):
            if event.type == "RequestRouted":
                found[number] = event.cursor.get(ROUTING, (0, 0))[1]
    return dict(zip(reversed(found), accumulate(reversed(found.values()), min), strict=True))
