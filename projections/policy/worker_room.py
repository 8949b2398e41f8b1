"""Room on a worker: how long a prompt is expected to wait until its blocks fit beside those that are in use there.

A request that comes to a full worker waits in the engine, for room that only this worker can make. While it waits in
the router, it can still go to another worker. So a plan of held requests (`projections.policy.binding_plan`) knows the
room.

The blocks in use are those of the worker's last report, and those of requests that did not run then. Requests that
share a prefix share its blocks: the sum over all requests in flight, which a decision reads, is only the upper bound.
"""

from __future__ import annotations

from core.events import LoadReported
from projections.policy.view import Candidate

WAIT_PERCENT = 30
"""A wait for room counts so much of its time, and has no price of delays: it computes nothing, and delays no request
that runs. In full, talks move too readily, and each move computes a prompt anew."""
FREE_PART = 100
"""One part in FREE_PART of a worker's blocks stays free for answers that grow: an engine without a free block preempts
a request, and computes it again."""


def blocks_in_use(candidate: Candidate, report: LoadReported) -> int:
    """Blocks that requests in flight hold there, or will hold once they run. Above the engine's number where those that
    did not run at the report share blocks with others."""
    active, requests = candidate.active_blocks, candidate.active_requests
    if not report.blocks_total or requests < 1:
        return active
    others = max(0, requests - report.running)
    return min(active, report.blocks_used + others * active // requests)


def lacking_blocks(candidate: Candidate, in_use: int, needed: int) -> int:
    """Blocks that are to come free before so many more fit. 0 if they fit, and for those that cannot be waited for: of
    a worker of unknown size, and of a prompt that needs the whole device."""
    most = candidate.capacity_blocks - candidate.capacity_blocks // FREE_PART
    lacking = in_use + needed - most
    return lacking if 0 < lacking <= in_use else 0


def room_wait_us(lacking: int, in_use: int, residence_us: int) -> int:
    """WAIT_PERCENT of the expected time until so many of the blocks in use come free: all of them do, evenly, while a
    request stays at its worker. 0 while that time is unknown."""
    return residence_us * lacking // in_use * WAIT_PERCENT // 100 if lacking else 0
