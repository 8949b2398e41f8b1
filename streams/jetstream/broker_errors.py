"""Broker errors: the meaning of the broker's refusals.

A refusal is for good only where trying again cannot help. A full disk, an exceeded limit, a missing leader or a
missing stream can all be put right while we wait, so they are `Unavailable`.
"""

from __future__ import annotations

from typing import Any

from core.errors import PeerError, Refused, Unavailable, WrongSequence

NO_MESSAGE = 10037
NO_STREAM = 10059
NAME_IN_USE = 10058
"""A stream of that name exists with another configuration."""

_WRONG_SEQUENCE = {10071, 10164}
_MAY_PASS = {
    10002,  # resource limits exceeded for account
    10005,  # no suitable peers for placement
    10014,  # consumer not found: it lived on a server that went away
    10028,  # insufficient memory resources
    10047,  # insufficient storage resources
    10077,  # the stream is full: maximum bytes or messages exceeded
    10059,  # stream not found: it can be made again
    10158,  # duplicate message id is in process: the first offer of it is still being committed
}
_NEVER = {
    10052,  # invalid stream configuration
    10074,  # replicas > 1 in a server that is no cluster
}
_DISABLED = {
    10039,  # JetStream not enabled for account
    10076,  # JetStream not enabled
}
"""For good where JetStream never answered; a server that runs out of disk switches it off until it is restarted."""
NO_ROOM = {10002, 10028, 10047}
"""Error codes for a new stream with a `max_bytes` that cannot be reserved."""


def err_code(answer: dict[str, Any]) -> int:
    """The broker's own code in an answer; 0 if it is no refusal."""
    return int(answer.get("error", {}).get("err_code", 0))


def refusal(answer: dict[str, Any], what: str, *, worked: bool = False) -> PeerError | None:
    """The error that a refusing answer stands for; None if the answer refuses nothing.

    `worked` says whether JetStream has answered before.
    """
    error = answer.get("error")
    if error is None:
        return None
    code, status = err_code(answer), int(error.get("code", 500))
    text = f"{what}: the broker says {error.get('description', 'no')} ({code})"
    if code in _WRONG_SEQUENCE:
        return WrongSequence(text)
    if code in _DISABLED:
        return Unavailable(text) if worked else Refused(text)
    passing = status >= 500 or status in {408, 429}
    if code not in _NEVER and (code in _MAY_PASS or passing):
        return Unavailable(text)
    return Refused(text)
