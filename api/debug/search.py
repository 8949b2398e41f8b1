"""Search: from what a person types to decisions: a request id or a part of one, a time, or a place in the log."""

from __future__ import annotations

import re
from typing import Any

from api.debug.decisions import PLACES, Decisions
from core.errors import CallerError
from core.subjects import ROUTING
from replay.recording.moment import AtSequence, AtTime, Moment, parse_moment

FOUND_MAX = 50
TEXT_MAX = 200
DAY_MS = 24 * 60 * 60 * 1000
"""A time that is further away from all decisions is not meant for this recording."""
_PLACE = re.compile(rf"{ROUTING}:(\d+)\+(\d{{1,4}})")
"""One decision of a message with several, as the page's address names it."""


def search(decisions: Decisions, text: str, now_ms: int) -> dict[str, Any]:
    """At most FOUND_MAX decisions, the best first. `now_ms` is what `-15m` and `14:03` are reckoned from. O(all)."""
    text = text.strip()[:TEXT_MAX]
    if not text:
        return {"found": [], "more": False}
    named = _by_name(decisions, text)
    exact = [index for index in named if decisions.requests[index] == text]  # an id may look like a date
    indexes = list(dict.fromkeys([*exact, *_by_place(decisions, text, now_ms), *named]))
    numbers = decisions.column("n")
    return {"found": [numbers[index] for index in indexes[:FOUND_MAX]], "more": len(indexes) > FOUND_MAX}


def _by_place(decisions: Decisions, text: str, now_ms: int) -> list[int]:
    """The one that stands there, or was made then; none if the text names neither."""
    if place := _PLACE.fullmatch(text):
        index = decisions.at(int(place[1]) * PLACES + int(place[2]))
        return [] if index is None else [index]
    try:
        moment = parse_moment(text, now_ms)
    except CallerError:
        return []
    return _by_moment(decisions, moment)


def _by_name(decisions: Decisions, text: str) -> list[int]:
    """Exact ones first, then those that begin so, then those that have it anywhere; one more than is shown."""
    low = text.lower()
    ranked: tuple[list[int], list[int], list[int]] = ([], [], [])
    for index, request in enumerate(decisions.requests[: len(decisions)]):
        if low in request.lower():
            rank = 0 if request == text else 1 if request.lower().startswith(low) else 2
            if len(ranked[rank]) <= FOUND_MAX:
                ranked[rank].append(index)
    return [index for rank in ranked for index in rank][: FOUND_MAX + 1]


def _by_moment(decisions: Decisions, moment: Moment) -> list[int]:
    match moment:
        case AtTime(ms):
            index = decisions.near(ms) if _in_reach(decisions, ms) else None
        case AtSequence(stream, seq) if stream == ROUTING:
            index = decisions.from_number(seq * PLACES)
        case _:
            index = None
    return [] if index is None else [index]


def _in_reach(decisions: Decisions, ms: int) -> bool:
    times = decisions.column("ms")
    return len(decisions) > 0 and times[0] - DAY_MS <= ms <= times[len(decisions) - 1] + DAY_MS
