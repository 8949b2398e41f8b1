"""Names of requests: what a person may have in hand for one, read as the id that the log knows."""

from __future__ import annotations

from collections.abc import Iterable

from core.errors import CallerError

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_", "rs_", "fc_", "ctc_")
"""The API's answers, and the items of an answer, have the request's id behind one of these."""
PART_MIN = 4
"""A part of an id has so many characters at least."""
NAMED_MAX = 5
"""So many ids are named where a part fits several."""


def possible_ids(text: str) -> list[str]:
    """The ids that the request may have: the text itself first, for clients may give any; then, if it is the id of an
    answer or of an item of one (`msg_req-1_0`), the id in it."""
    found = [text]
    for prefix in ANSWER_PREFIXES:
        if text.startswith(prefix):
            found.append(text.removeprefix(prefix))
            request, _, index = found[-1].rpartition("_")
            if index.isdecimal():
                found.append(request)
            break
    return [each for each in found if each]


def is_part(text: str, request: str) -> bool:
    """True if the request's id begins or ends with the text."""
    return len(text) >= PART_MIN and (request.startswith(text) or request.endswith(text))


def only_one(text: str, requests: Iterable[str]) -> str | None:
    """The one id among these; None without any. CallerError if there are several: the text is a part of them all."""
    found = sorted(set(requests))
    if len(found) > 1:
        more = f" and {len(found) - NAMED_MAX:,} more" if len(found) > NAMED_MAX else ""
        raise CallerError(
            f"{text!r} begins or ends the ids of {len(found):,} requests: {', '.join(found[:NAMED_MAX])}{more}; "
            "give more of the one that you mean"
        )
    return found[0] if found else None
