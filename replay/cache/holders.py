"""Holders: how much of each decision's prompt caches held at the decision's cursor, by the view of its replica."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from core.ids import StreamName, WorkerId
from projections.policy.rules import POOLS_VERSION
from projections.policy.view import EXCLUSION_REASONS
from replay.playback.playback import Playback, RecordedDecision
from replay.recording.request_history import PLACES, RequestHistory

NEVER = 1 << 62
"""A place behind all messages."""
DRAINING, UNNAMED = "draining", "not_joined"
"""Reasons for which a worker could not take a request: its last report says that it leaves; no message names it."""


class HeldDepths(NamedTuple):
    """Leading blocks of a prompt that workers held, over all tiers; the most of each kind."""

    chosen: int
    """The worker that got the request."""
    usable: int
    """Other workers that could have taken it."""
    unusable: int
    """Other workers that could not, as far as the replica knew: lost, or about to leave."""


class BlockHolder(NamedTuple):
    """A worker that held some of a prompt at a decision's cursor."""

    worker: WorkerId
    depth: int
    """Leading blocks, over all tiers."""
    barred: tuple[str, ...]
    """Reasons for which it could not take the request, as far as the replica knew; empty if it could."""


def block_holders(decision: RecordedDecision) -> Iterator[BlockHolder]:
    """Workers of the decision's model that held some of the prompt at its cursor. O(those workers).

    A worker that the log knows as alive was no choice if the replica itself knew it as failed, suspected or without
    connection, and if it was draining. A worker that was full, or that computes prompts for others, counts as a choice:
    it is alive, and the router sent the request elsewhere.
    """
    event, view = decision.event, decision.view
    state, local = view.state, [(reason, view.local.get(reason, ())) for reason in EXCLUSION_REASONS]
    counts_pools = event.decide_version >= POOLS_VERSION
    for worker, depths in state.reported(decision.request.prompt, pools=counts_pools).items():
        member = state.member(worker)
        if member is not None and member.pool:
            continue
        joined = member.joined if member is not None else None
        if joined is not None and (joined.model, joined.block_size) != (event.model, event.block_size):
            continue
        report = state.loads.reports.get(worker)
        barred = [reason for reason, workers in local if worker in workers]
        if joined is None:
            barred.append(UNNAMED)
        if report is not None and report.draining:
            barred.append(DRAINING)
        yield BlockHolder(worker, depths[-1], tuple(barred))


def held_depths(holders: Iterable[BlockHolder], chosen: WorkerId) -> HeldDepths:
    """The most of each kind."""
    by_chosen = usable = unusable = 0
    for worker, depth, barred in holders:
        if worker == chosen:
            by_chosen = depth
        elif barred:
            unusable = max(unusable, depth)
        else:
            usable = max(usable, depth)
    return HeldDepths(by_chosen, usable, unusable)


class HolderTable:
    """The held depths and the cursors of decisions, by their numbers; some 120 bytes each."""

    def __init__(self, streams: Sequence[StreamName], listed: Collection[int] = ()) -> None:
        """Of the `listed` decisions all holders are kept."""
        self.listed: dict[int, list[BlockHolder]] = {}
        self._listed = listed
        self._streams = streams
        self._rows: list[array[int]] = []
        self._floors = array("q")
        self._next = 0

    def __repr__(self) -> str:
        return f"<HolderTable of {len(self._rows)} decisions>"

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, playback: Playback, history: RequestHistory) -> Iterator[int]:
        """The served decisions of the playback stand here in the end; gives how many of all have been played. A
        decision on a history that was replaced since, or with a prompt that is not known, is left out."""
        played = 0
        for window in playback.windows():
            for decision in window:
                if not isinstance(decision, RecordedDecision):
                    continue
                played += 1
                yield played
                number = decision.seq * PLACES + decision.number
                attempt = history.at(number)
                if attempt is None or attempt.ttft_ms < 0:
                    continue
                if decision.fault is None and not playback.replaced_streams(decision.event):
                    self._add(number, decision, attempt.cached_tokens)
                    if number in self._listed:
                        self.listed[number] = list(block_holders(decision))
        self._rows.sort(key=lambda row: row[0])
        self._find_floors()

    def _add(self, number: int, decision: RecordedDecision, cached_tokens: int) -> None:
        prompt, cursor = decision.request.prompt, decision.event.cursor
        missed = cached_tokens // prompt.block_size < prompt.blocks_reusable
        chosen = WorkerId(decision.event.worker)
        depths = held_depths(block_holders(decision), chosen) if missed else HeldDepths(0, 0, 0)
        read = [cursor[stream][1] if stream in cursor else 0 for stream in self._streams]
        self._rows.append(array("q", [number, *depths, *read]))

    def _find_floors(self) -> None:
        """Per decision and kv stream, the earliest place of its cursor and those of all later ones."""
        least = [NEVER] * len(self._streams)
        floors = [0] * (len(self._rows) * len(least))
        for at in range(len(self._rows) - 1, -1, -1):
            least = [min(pair) for pair in zip(least, self._rows[at][4:], strict=True)]
            floors[at * len(least) : (at + 1) * len(least)] = least
        self._floors = array("q", floors)

    def take(self, number: int) -> tuple[HeldDepths, list[int]] | None:
        """The depths and the cursor of this decision; None if it is not here. Numbers are asked for in ascending
        order."""
        rows = self._rows
        while self._next < len(rows) and rows[self._next][0] < number:
            self._next += 1
        if self._next == len(rows) or rows[self._next][0] != number:
            return None
        row = rows[self._next]
        return HeldDepths(*row[1:4]), row[4:].tolist()

    @property
    def floor(self) -> list[int]:
        """Per kv stream, the earliest place of the cursors of the decision that was taken last and all later ones."""
        count = len(self._streams)
        if self._next == len(self._rows):
            return [NEVER] * count
        return self._floors[self._next * count : (self._next + 1) * count].tolist()
