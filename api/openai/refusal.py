"""What becomes of an error: an answer for the client, a line in the log if it is not the client's fault, a count."""

from __future__ import annotations

import logging

from api.openai.errors import ApiError, answer_to
from core.errors import ContrailError

OVERLOADED = 529
"""What is 503 elsewhere, in Anthropic's API."""
log = logging.getLogger(__name__)


def shown(error: ContrailError, request_id: str) -> ApiError:
    """What the client sees of it; what is not the client's fault is logged."""
    failure = answer_to(error)
    if failure.status >= 500:
        log.warning("answered %d: %s", failure.status, error, extra={"request_id": request_id})
    return failure


def outcome_of(failure: ApiError) -> str:
    """The word for it in the metrics."""
    if failure.status in {503, OVERLOADED}:
        return "unavailable"
    if failure.status == 504:
        return "deadline"
    return "error" if failure.status >= 500 else "rejected"
