"""The time to the first token, taken apart as far as the log knows."""

from __future__ import annotations

from replay.explaining.form import Phases
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt


def phases(
    recording: Recording, tried: RequestAttempt, first_now_ms: int, now_ms: int, decided_ms: int
) -> Phases | None:
    """None if no token came. `first_now_ms` and `now_ms` are the replica's clock when the request came (its first
    attempt is decided at once, unless it waits) and at this decision; `decided_ms` is the log's clock at that."""
    if not tried.prefilled_seq:
        return None
    before_ms = now_ms - first_now_ms
    left_ms = max(0, tried.ttft_ms - before_ms)
    there = [each for each in recording.index.before(tried) if not 0 < each.prefilled_at < tried.at]
    ahead = [each for each in there if 0 < each.prefilled_at < tried.prefilled_at]
    behind_ms = max((each.prefilled_ms for each in ahead), default=decided_ms) - decided_ms
    behind_ms = min(left_ms, max(0, behind_ms))
    return Phases(
        ttft_ms=tried.ttft_ms,
        before_ms=before_ms,
        behind_ms=behind_ms,
        behind_requests=len(there),
        behind_tokens=sum(each.prefill_tokens for each in there),
        rest_ms=left_ms - behind_ms,
        overlapped=len(ahead) < len(there),
    )
