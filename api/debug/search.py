"""Search: from what a person types to decisions: a request id or a part of one, a time, or a place in the log."""

from __future__ import annotations

from typing import Any

from api.debug.decisions import PLACES, Decisions
from core.errors import CallerError
from core.moments import AtRequest, AtSequence, AtTime, parse_moment
from core.subjects import ROUTING

FOUND_MAX = 50
TEXT_MAX = 200


def search(decisions: Decisions, text: str, now_ms: int) -> dict[str, Any]:
    """At most FOUND_MAX decisions, the best first. `now_ms` is what `-15m` and `14:03` are reckoned from. O(all)."""
    text = text.strip()[:TEXT_MAX]
    if not text:
        return {"found": [], "more": False}
    try:
        moment = parse_moment(text, now_ms)
    except CallerError:
        moment = AtTime(-1)
    indexes = _by_name(decisions, text) if isinstance(moment, AtRequest) else _by_moment(decisions, moment)
    numbers = decisions.column("n")
    return {"found": [numbers[index] for index in indexes[:FOUND_MAX]], "more": len(indexes) > FOUND_MAX}


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


def _by_moment(decisions: Decisions, moment: AtTime | AtSequence | Any) -> list[int]:
    match moment:
        case AtTime(ms):
            index = decisions.near(ms)
        case AtSequence(stream, seq) if stream == ROUTING:
            index = decisions.from_number(seq * PLACES)
        case _:
            index = None
    return [] if index is None else [index]
