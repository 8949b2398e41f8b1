"""Decision table: the decisions of a request history as JSON for the page, and the search in them.

One thread reads the history; other threads may read the table at any time.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from typing import Any

from core.errors import CallerError
from core.subjects import ROUTING
from replay.recording.moment import AtSequence, AtTime, Moment, parse_moment
from replay.recording.request_history import PLACES, RequestHistory
from replay.recording.request_names import possible_ids

CHUNK_MAX = 20_000
"""Most decisions in one answer."""
NAMES = (
    "n", "ms", "worker", "replica", "attempt", "prompt_tokens", "predicted", "before_ms", "waited_ms", "cached",
    "ttft_ms", "duration_ms", "outcome",
)  # fmt: skip
"""The columns that the page has."""
LATER = ("cached", "ttft_ms", "duration_ms", "outcome")
"""The columns that change after the decision; -1 until then."""


class DecisionTable:
    """See the module's text."""

    def __init__(self, history: RequestHistory) -> None:
        self.history = history

    def __repr__(self) -> str:
        return f"<DecisionTable {self.history!r}>"

    def __len__(self) -> int:
        return len(self.history)

    @property
    def requests(self) -> list[str]:
        """Request ids, by row of the columns."""
        return self.history.requests

    def column(self, name: str) -> array[int]:
        """A column by name; read only."""
        return self.history.columns[name]

    def near(self, ms: int) -> int | None:
        """Row of the last decision made at or before that time, or of the first of all; None if there is none."""
        index = bisect_right(self.column("ms"), ms, hi=len(self))
        return max(0, index - 1) if len(self) else None

    def from_number(self, n: int) -> int | None:
        """Row of the first decision with this number or a later one."""
        index = bisect_left(self.column("n"), n)
        return index if index < len(self) else None

    def after(self, seq: int) -> dict[str, Any]:
        """Decisions since the message at `seq`, some CHUNK_MAX at most, and changed columns of older ones.

        `after` in the answer is the `seq` of the next question.
        """
        history, numbers = self.history, self.column("n")
        read_to = history.read_to
        start = bisect_left(numbers, (seq + 1) * PLACES)
        end = bisect_left(numbers, (read_to + 1) * PLACES, start)
        if end - start > CHUNK_MAX:
            read_to = numbers[start + CHUNK_MAX - 1] // PLACES
            end = bisect_left(numbers, (read_to + 1) * PLACES, start)
        history.watched = max(history.watched, end)  # before they are read, since changes are noted after the writing
        fresh: dict[str, Any] = {name: self.column(name)[start:end].tolist() for name in NAMES}
        fresh["request"] = self.requests[start:end]
        fresh["tenant"] = [history.tenant(row) for row in range(start, end)]
        fresh["session"] = [history.session(row) for row in range(start, end)]
        return {
            "decisions": fresh,
            "updates": self._updates(seq, max(seq, read_to), start),
            "outcomes": list(history.outcomes.names),
            "after": max(seq, read_to),
            "more": read_to < history.read_to,
        }

    def _updates(self, after: int, upto: int, before: int) -> dict[str, list[int]]:
        changed_seqs = self.history.changed_seqs
        low, high = bisect_right(changed_seqs, after), bisect_right(changed_seqs, upto)
        changed = sorted({index for index in self.history.changed[low:high] if index < before})
        return {name: [self.column(name)[index] for index in changed] for name in ("n", *LATER)}


FOUND_MAX = 50
TEXT_MAX = 200
DAY_MS = 24 * 60 * 60 * 1000
"""A time further away from all decisions finds nothing."""
_PLACE = re.compile(rf"{ROUTING}:(\d+)\+(\d{{1,4}})")
"""One decision of a message with several, in the form of the page's address."""


def search(decisions: DecisionTable, text: str, now_ms: int) -> dict[str, Any]:
    """At most FOUND_MAX decisions, the best first; `-15m` and `14:03` are relative to `now_ms`. O(all decisions)."""
    text = text.strip()[:TEXT_MAX]
    if not text:
        return {"found": [], "more": False}
    ids = possible_ids(text)
    named = [index for each in ids for index in _by_name(decisions, each)]
    exact = [index for index in named if decisions.requests[index] in ids]  # an id may look like a date
    indexes = list(dict.fromkeys([*exact, *_by_place(decisions, text, now_ms), *named]))
    numbers = decisions.column("n")
    return {"found": [numbers[index] for index in indexes[:FOUND_MAX]], "more": len(indexes) > FOUND_MAX}


def _by_place(decisions: DecisionTable, text: str, now_ms: int) -> list[int]:
    """The decision at a position or time; empty if the text is neither."""
    if place := _PLACE.fullmatch(text):
        index = decisions.history.row(int(place[1]) * PLACES + int(place[2]))
        return [] if index is None else [index]
    try:
        moment = parse_moment(text, now_ms)
    except CallerError:
        return []
    return _by_moment(decisions, moment)


def _by_name(decisions: DecisionTable, text: str) -> list[int]:
    """Requests equal to the text, then those that begin with it, then those that contain it; one more than is shown."""
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
