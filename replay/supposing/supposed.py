"""Supposed: the loads as they would be if requests had gone where a scenario put them.

A ledger holds every attempt of which the record and the scenario differ. A view shows such an attempt exactly when it
shows the recorded one: then the recorded weight is taken off one worker, and the supposed one put on another. An
attempt takes as long as it took; what the log does not tell, how much longer or shorter it would have been elsewhere,
is not supposed. With nothing in the ledger a supposed view is the recorded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from core.ids import WorkerId
from core.prompt import Prompt
from core.settings import APPROXIMATE, RoutingSettings
from core.subjects import ROUTING
from projections.folds.in_flight import ANY_HASH, AttemptKey, InFlight, OutstandingPrefill, hash_beyond, shared_depth
from projections.policy.view import NO_OVERLAP, Candidate, View
from replay.supposing.lives import Life, Place, place, seq_of

UNCHANGED = (0, 0, 0)
AS_IN_ROWS: Mapping[WorkerId, tuple[int, ...]] = MappingProxyType({})
"""Says that nothing else is known of caches than what the rows have."""


class Supposed(View):
    """A view with other candidates, other prefills outstanding, and another count of decisions."""

    _rows: list[Candidate]
    _fewer: int
    _ledger: Ledger
    _sight: Sight

    @staticmethod
    def of(sight: Sight, ledger: Ledger, rows: list[Candidate], fewer: int) -> Supposed:
        """`rows` by id; `fewer` decisions than the view has were made for the model."""
        supposed = Supposed(*sight.view)
        supposed._rows, supposed._fewer = rows, fewer
        supposed._ledger, supposed._sight = ledger, sight
        return supposed

    def outstanding(self) -> dict[WorkerId, list[OutstandingPrefill]]:
        return self._ledger.outstanding(self._sight)

    def routed(self, model: str) -> int:
        return super().routed(model) - self._fewer

    def cached(self, prompt: Prompt, settings: RoutingSettings, now_ms: int) -> Mapping[WorkerId, tuple[int, ...]]:
        """As the rows have it; under `approximate`, by where the record's requests went."""
        return super().cached(prompt, settings, now_ms) if settings.policy == APPROXIMATE else AS_IN_ROWS

    def candidates(self, _prompt: Prompt, cached: Mapping[WorkerId, tuple[int, ...]] | None = None) -> list[Candidate]:
        if cached is None or cached is AS_IN_ROWS:
            return self._rows
        return [row._replace(overlap=cached.get(row.worker, NO_OVERLAP)) for row in self._rows]


class Sight(NamedTuple):
    """Candidates as one view has them, for one request, and what of the routing stream that view shows."""

    view: View
    rows: list[Candidate]
    replica: str
    at: Place
    """Of the decision: what its replica said before is in its view."""

    @property
    def limit(self) -> Place:
        """What others said is in the view if it stands before this."""
        cursor = self.view.state.cursor.get(ROUTING)
        return place(cursor.seq + 1 if cursor is not None else 0)


class Entry(NamedTuple):
    """One attempt that the scenario weighs otherwise than the record. Flat, because every decision looks at all that
    are in flight."""

    key: AttemptKey
    replica: str
    at: Place
    prefilled: Place
    ended: Place
    worker: WorkerId
    blocks: int
    prefill_tokens: int
    supposed_worker: WorkerId | None
    """None if nobody would have taken it."""
    supposed_blocks: int
    supposed_prefill_tokens: int
    supposed_begins_us: int

    @staticmethod
    def of(key: AttemptKey, life: Life, recorded: InFlight, supposed: InFlight | None) -> Entry:
        """What the attempt weighs as recorded, and as supposed."""
        return Entry(
            key,
            life.replica,
            life.at,
            life.prefilled,
            life.ended,
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


class Ledger:
    """See the module's text."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __repr__(self) -> str:
        return f"<Ledger of {len(self._entries)} attempts>"

    def note(self, entry: Entry) -> None:
        """The attempt counts as supposed from its place on."""
        self._entries.append(entry)

    def forget(self, lowest: int) -> None:
        """No view that comes shows less of the routing stream than this."""
        self._entries = [entry for entry in self._entries if seq_of(entry.ended) > lowest]

    def rows(self, sight: Sight, prompt: Prompt) -> list[Candidate]:
        """The candidates of the sight as they are supposed to be; the very ones if nothing differs."""
        sums: Sums = {}
        moved: dict[AttemptKey, WorkerId | None] = {}
        mine, own, limit = sight.replica, sight.at, sight.limit
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
        return _changed(sight, prompt, sums, moved) if sums else sight.rows

    def outstanding(self, sight: Sight) -> dict[WorkerId, list[OutstandingPrefill]]:
        """The prefills of the sight as they are supposed to be outstanding; O(all of them + entries)."""
        found, limit = sight.view.outstanding(), sight.limit
        for entry in self._entries:
            until = sight.at if entry.replica == sight.replica else limit
            if not entry.at < until <= min(entry.prefilled, entry.ended):
                continue
            before = found.get(entry.worker, [])
            before[:] = [row for row in before if (row.request, row.attempt) != entry.key]
            if entry.supposed_worker is not None:
                row = OutstandingPrefill(entry.supposed_begins_us, *entry.key, entry.supposed_prefill_tokens)
                found.setdefault(entry.supposed_worker, []).append(row)
        return {worker: rows for worker, rows in found.items() if rows}


def _changed(sight: Sight, prompt: Prompt, sums: Sums, moved: Mapping[AttemptKey, WorkerId | None]) -> list[Candidate]:
    pending = _pending(sight.view, prompt, moved) if moved else None
    rows = []
    for row in sight.rows:
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
