"""Decision table: the decisions of a timeline in columns, in the order of the log, and the search in them.

A decision is named by its number: the sequence of its message in the routing stream, times PLACES, plus its place in
the message. So every reader of the same log gives it the same number.

One thread appends; others may read at any time: `read_to` is moved only when a message's decisions are all there.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

from api.debug.timeline.timeline_events import (
    FinishedFields,
    PrefilledFields,
    QueuedFields,
    RoutedFields,
    TimelineEvent,
)
from core.errors import CallerError
from core.subjects import ROUTING
from replay.recording.moment import AtSequence, AtTime, Moment, parse_moment

PLACES = 10_000
"""More events than a message can hold."""
CHUNK_MAX = 20_000
"""Decisions in one answer."""
UNDER_WAY = -1
NAMES = (
    "n", "ms", "worker", "replica", "attempt", "prompt_tokens", "predicted", "before_ms", "waited_ms", "cached",
    "ttft_ms", "duration_ms", "outcome",
)  # fmt: skip
"""`before_ms`: how long before the decision the request came, from when `ttft_ms` and `duration_ms` count; `waited_ms`:
the same if it was in its replica all that time, held or waiting, and 0 if another worker had it."""
LATER = ("cached", "ttft_ms", "duration_ms", "outcome")
"""What comes after the decision; -1 until then."""

Key = tuple[str, int, int]
"""A request, its attempt, and the replica that it came to: clients may give two requests one id."""
DECLINED = "declined"
TRIED_AGAIN = frozenset({DECLINED, "worker_lost"})
"""Outcomes behind which another attempt may come."""


class PriorAttempt(NamedTuple):
    """A request that another attempt may be made at."""

    came_ms: int
    """By the log's clock."""
    declined: bool
    """Whether it was in its replica all the time, since the worker did not begin with it."""


class DecisionTable:
    """See the module's text."""

    def __init__(self) -> None:
        self.read_to = 0
        """Every message of the routing stream up to this sequence is in here."""
        self.requests: list[str] = []
        self.outcomes: list[str] = []
        """What the numbers in the column `outcome` mean."""
        self.last_seqs = array("q")
        """Of each one, which message said something of it last: itself, its first token, or its end."""
        self._columns = {name: array("q") for name in NAMES}
        self._cached, self._ttft_ms, self._duration_ms, self._outcome = map(self._columns.__getitem__, LATER)
        self._append = [column.append for column in self._columns.values()]
        self._open: dict[Key, int] = {}
        self._waiting: dict[tuple[str, int], int] = {}
        """Request and replica: since when it waits there, by the replica's clock."""
        self._tried: dict[tuple[str, int], PriorAttempt] = {}
        """By request and replica."""
        self._last_ms = 0
        self._touched_seqs, self._touched = array("q"), array("q")
        """Which ones changed after they were told, and by which message."""
        self._told = 0
        """Those before were told to somebody: set before they are read, and looked at after they are written."""

    def __repr__(self) -> str:
        return f"<DecisionTable {len(self)}, {len(self._open)} under way>"

    def __len__(self) -> int:
        return len(self.requests)

    def column(self, name: str) -> array[int]:
        """To be read only."""
        return self._columns[name]

    def at(self, n: int) -> int | None:
        """Which one in the columns has this number."""
        numbers = self._columns["n"]
        index = bisect_left(numbers, n)
        return index if index < len(self) and numbers[index] == n else None

    def near(self, ms: int) -> int | None:
        """The last one that was made at or before that time, or the first of all; None if there is none."""
        index = bisect_right(self._columns["ms"], ms, hi=len(self))
        return max(0, index - 1) if len(self) else None

    def from_number(self, n: int) -> int | None:
        """The first one that has this number or a later one."""
        index = bisect_left(self._columns["n"], n)
        return index if index < len(self) else None

    # --- writing -------------------------------------------------------------------------------------------------

    def routed(
        self, seq: int, place: int, ms: int, worker: int, replica: int, event: RoutedFields | TimelineEvent
    ) -> None:
        """A decision was made."""
        self._last_ms = ms = max(ms, self._last_ms)  # the log's clock may go back
        before_ms = waited_ms = 0
        if event.attempt:
            tried = self._tried.pop((event.request, replica), None)
            if tried is not None:
                before_ms = ms - tried.came_ms
                waited_ms = before_ms if tried.declined else 0
        elif self._waiting:
            since_ms = self._waiting.pop((event.request, replica), event.now_ms)
            before_ms = waited_ms = max(0, event.now_ms - since_ms)
        row = (
            seq * PLACES + place, ms, worker, replica, event.attempt, event.prompt_tokens,
            event.predicted_cached_tokens, before_ms, waited_ms, -1, -1, -1, UNDER_WAY,
        )  # fmt: skip
        for append, value in zip(self._append, row):  # noqa: B905 - a row has all columns, and this is the hot loop
            append(value)
        self.last_seqs.append(seq)
        self._open[event.request, event.attempt, replica] = len(self.requests)
        self.requests.append(event.request)

    def queued(self, replica: int, event: QueuedFields | TimelineEvent) -> None:
        """The request waits in its replica, if it did not before."""
        self._waiting.setdefault((event.request, replica), event.now_ms)

    def turned_away(self, replica: int, request: str) -> None:
        """It waits no more, and no decision comes."""
        self._waiting.pop((request, replica), None)
        self._tried.pop((request, replica), None)

    def prefilled(self, seq: int, replica: int, event: PrefilledFields | TimelineEvent) -> None:
        """Its first token came."""
        index = self._open.get((event.request, event.attempt, replica))
        if index is not None:
            self._cached[index] = event.cached_tokens
            self._ttft_ms[index] = event.ttft_ms
            self.last_seqs[index] = seq
            if index < self._told:
                self._touch(seq, index)

    def finished(self, seq: int, replica: int, event: FinishedFields | TimelineEvent) -> None:
        """It is over."""
        index = self._open.pop((event.request, event.attempt, replica), None)
        if index is None:
            return
        if event.ttft_ms >= 0:
            self._cached[index] = event.cached_tokens
            self._ttft_ms[index] = event.ttft_ms
        self._end(seq, index, event.outcome, event.duration_ms)
        if event.outcome in TRIED_AGAIN:
            ms, before_ms = (self._columns[name][index] for name in ("ms", "before_ms"))
            self._tried[event.request, replica] = PriorAttempt(ms - before_ms, event.outcome == DECLINED)

    def abandoned(self, seq: int, replica: int, ms: int) -> None:
        """The replica is gone, and with it all that it had under way."""
        times, before = (self._columns[name] for name in ("ms", "before_ms"))
        for key in [key for key in self._open if key[2] == replica]:
            index = self._open.pop(key)
            self._end(seq, index, "replica_gone", before[index] + ms - times[index])
        for of in (self._waiting, self._tried):
            for here in [key for key in of if key[1] == replica]:
                del of[here]

    def _end(self, seq: int, index: int, outcome: str, duration_ms: int) -> None:
        if outcome not in self.outcomes:
            self.outcomes.append(outcome)
        self._duration_ms[index] = duration_ms
        self._outcome[index] = self.outcomes.index(outcome)
        self.last_seqs[index] = seq
        if index < self._told:
            self._touch(seq, index)

    def _touch(self, seq: int, index: int) -> None:
        self._touched.append(index)
        self._touched_seqs.append(seq)

    # --- reading -------------------------------------------------------------------------------------------------

    def after(self, seq: int) -> dict[str, Any]:
        """What is new since the message at `seq`: at most some CHUNK_MAX decisions, and what became of older ones.

        `after` in the answer is what to ask with next.
        """
        read_to, numbers = self.read_to, self._columns["n"]
        start = bisect_left(numbers, (seq + 1) * PLACES)
        end = bisect_left(numbers, (read_to + 1) * PLACES, start)
        if end - start > CHUNK_MAX:
            read_to = numbers[start + CHUNK_MAX - 1] // PLACES
            end = bisect_left(numbers, (read_to + 1) * PLACES, start)
        self._told = max(self._told, end)
        fresh: dict[str, Any] = {name: column[start:end].tolist() for name, column in self._columns.items()}
        fresh["request"] = self.requests[start:end]
        return {
            "decisions": fresh,
            "updates": self._updates(seq, max(seq, read_to), start),
            "outcomes": list(self.outcomes),
            "after": max(seq, read_to),
            "more": read_to < self.read_to,
        }

    def _updates(self, after: int, upto: int, before: int) -> dict[str, list[int]]:
        low, high = bisect_right(self._touched_seqs, after), bisect_right(self._touched_seqs, upto)
        changed = sorted({index for index in self._touched[low:high] if index < before})
        return {name: [self._columns[name][index] for index in changed] for name in ("n", *LATER)}


FOUND_MAX = 50
TEXT_MAX = 200
DAY_MS = 24 * 60 * 60 * 1000
"""A time that is further away from all decisions is not meant for this recording."""
_PLACE = re.compile(rf"{ROUTING}:(\d+)\+(\d{{1,4}})")
"""One decision of a message with several, as the page's address names it."""


def search(decisions: DecisionTable, text: str, now_ms: int) -> dict[str, Any]:
    """At most FOUND_MAX decisions, the best first. `now_ms` is what `-15m` and `14:03` are reckoned from. O(all)."""
    text = text.strip()[:TEXT_MAX]
    if not text:
        return {"found": [], "more": False}
    named = _by_name(decisions, text)
    exact = [index for index in named if decisions.requests[index] == text]  # an id may look like a date
    indexes = list(dict.fromkeys([*exact, *_by_place(decisions, text, now_ms), *named]))
    numbers = decisions.column("n")
    return {"found": [numbers[index] for index in indexes[:FOUND_MAX]], "more": len(indexes) > FOUND_MAX}


def _by_place(decisions: DecisionTable, text: str, now_ms: int) -> list[int]:
    """The one that stands there, or was made then; none if the text names neither."""
    if place := _PLACE.fullmatch(text):
        index = decisions.at(int(place[1]) * PLACES + int(place[2]))
        return [] if index is None else [index]
    try:
        moment = parse_moment(text, now_ms)
    except CallerError:
        return []
    return _by_moment(decisions, moment)


def _by_name(decisions: DecisionTable, text: str) -> list[int]:
    """Exact ones first, then those that begin so, then those that have it anywhere; one more than is shown."""
    low = text.lower()
    ranked: tuple[list[int], list[int], list[int]] = ([], [], [])
    for index, request in enumerate(decisions.requests[: len(decisions)]):
        if low in request.lower():
            rank = 0 if request == text else 1 if request.lower().startswith(low) else 2
            if len(ranked[rank]) <= FOUND_MAX:
                ranked[rank].append(index)
    return [index for rank in ranked for index in rank][: FOUND_MAX + 1]


def _by_moment(decisions: DecisionTable, moment: Moment) -> list[int]:
    match moment:
        case AtTime(ms):
            index = decisions.near(ms) if _in_reach(decisions, ms) else None
        case AtSequence(stream, seq) if stream == ROUTING:
            index = decisions.from_number(seq * PLACES)
        case _:
            index = None
    return [] if index is None else [index]


def _in_reach(decisions: DecisionTable, ms: int) -> bool:
    times = decisions.column("ms")
    return len(decisions) > 0 and times[0] - DAY_MS <= ms <= times[len(decisions) - 1] + DAY_MS
