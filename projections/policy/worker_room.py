"""Room on a worker: how long a prompt is expected to wait until its blocks fit beside those that are in use there.

A request that comes to a full worker waits in the engine, for room that only this worker can make. While it waits in
the router, it can still go to another worker. So a plan of held requests (`projections.policy.binding_plan`) knows the
room.

The blocks in use are those of the worker's last report, and those of requests that did not run then. Requests that
share a prefix share its blocks: the sum over all requests in flight, which a decision reads, is only the upper bound.
So a prompt needs no room for the blocks that it shares with a request there (`RunningPrompts`).
"""

from __future__ import annotations

from collections.abc import Iterable

from core.events import LoadReported
from core.ids import RequestId, WorkerId
from core.prompt import HASH_BYTES, Prompt
from projections.folds.in_flight import shared_depth
from projections.policy.view import Candidate

WAIT_PERCENT = 30
"""The wait of a held request for room counts so much of its time, and has no price of delays: it computes nothing, and
delays no request that runs. In full, talks move too readily, and each move computes a prompt anew. For a request that
is held no longer it counts in full: no other worker can end that wait."""
FETCH_WAIT_PERCENT = 100
"""The same of a request that could fetch its prefix, and has it in a pool as well: a talk that moves computes nothing
anew, nor is lost what its copy pushes out of a host."""
FREE_PART = 100
"""One part in FREE_PART of a worker's blocks stays free for answers that grow: an engine without a free block preempts
a request, and computes it again."""

NEWEST = 64
"""The newest request counts one part in NEWEST, and more while fewer have ended."""


class ResidenceTime:
    """The time for which requests of each model stay at their worker, learned from those that ended.

    It is that from sending a request until its answer's end, with its wait in the engine: as long as its blocks are
    in use there, or stand in line. A replica learns it alone; what a decision reads of it stands in the record, as a
    part of `RequestRouted.held`. Memory is bounded by the models.
    """

    def __init__(self) -> None:
        self._models: dict[str, tuple[int, int]] = {}
        """Requests that ended, up to NEWEST, and their mean time in microseconds."""

    def __repr__(self) -> str:
        return f"<ResidenceTime {self._models}>"

    def note(self, model: str, us: int) -> None:
        """A request of the model was answered, so long after it was sent to its worker. O(1)."""
        count, mean_us = self._models.get(model, (0, 0))
        count = min(NEWEST, count + 1)
        self._models[model] = count, mean_us + (max(0, us) - mean_us) // count

    def us(self, model: str) -> int:
        """The mean over the model's newest requests; 0 if none has ended."""
        return self._models.get(model, (0, 0))[1]


SHARED_MAX = 256
"""Depths that are kept for one worker until its requests change; beyond that they are found anew."""


class RunningPrompts:
    """The prompts of this replica's requests in flight, by worker. Of other replicas' requests no prompt is known after
    the first token, so what a prompt shares with them counts as needed anew. Memory is that of the requests in flight.
    """

    def __init__(self) -> None:
        self._hashes: dict[WorkerId, dict[RequestId, bytes]] = {}
        self._shared: dict[WorkerId, dict[tuple[RequestId, int], int]] = {}
        """Depths that were found since the worker's requests changed, by request and length of its prompt."""

    def __repr__(self) -> str:
        return f"<RunningPrompts {sum(map(len, self._hashes.values()))} on {len(self._hashes)} workers>"

    def begin(self, worker: WorkerId, request: RequestId, hashes: bytes) -> None:
        """The request was sent to the worker; `hashes` are those of all full blocks of its prompt. O(1)."""
        self._hashes.setdefault(worker, {})[request] = hashes
        self._shared.pop(worker, None)

    def end(self, worker: WorkerId, request: RequestId) -> None:
        """The request is with the worker no more."""
        prompts = self._hashes[worker]
        del prompts[request]
        if not prompts:
            del self._hashes[worker]
        self._shared.pop(worker, None)

    def shared(self, worker: WorkerId, request: RequestId, prompt: Prompt) -> int:
        """Leading blocks of the request's prompt that are those of a request in flight there, too. One comparison for
        each of them, and O(log blocks) more for each that shares more than those before it; O(1) until the worker's
        requests change."""
        running = self._hashes.get(worker)
        if running is None:
            return 0
        known, key = self._shared.setdefault(worker, {}), (request, prompt.tokens)
        depth = known.get(key)
        if depth is None:
            if len(known) >= SHARED_MAX:
                known.clear()
            depth = known[key] = _longest_shared(running.values(), prompt)
        return depth


def _longest_shared(prompts: Iterable[bytes], prompt: Prompt) -> int:
    most = 0
    for hashes in prompts:
        if most == prompt.blocks_reusable:
            break
        if hashes[most * HASH_BYTES : (most + 1) * HASH_BYTES] == prompt.block(most + 1):
            most = shared_depth(hashes, prompt, most + 1)
    return most


def blocks_in_use(candidate: Candidate, report: LoadReported) -> int:
    """Blocks that requests in flight hold there, or will hold once they run. Above the engine's number where those that
    did not run at the report share blocks with others. Where fewer are in flight than ran at the report, some have
    ended since, and each is taken to have held as much as the others."""
    active, requests = candidate.active_blocks, candidate.active_requests
    if not report.blocks_total or requests < 1:
        return active
    if requests < report.running:
        return min(active, report.blocks_used * requests // report.running)
    others = max(0, requests - report.running)
    return min(active, report.blocks_used + others * active // requests)


def lacking_blocks(candidate: Candidate, in_use: int, needed: int) -> int:
    """Blocks that are to come free before so many more fit. 0 if they fit, and for those that cannot be waited for: of
    a worker of unknown size, and of a prompt that needs the whole device."""
    most = candidate.capacity_blocks - candidate.capacity_blocks // FREE_PART
    lacking = in_use + needed - most
    return lacking if 0 < lacking <= in_use else 0


def room_wait_us(lacking: int, in_use: int, residence_us: int) -> int:
    """Expected time until so many of the blocks in use come free: all of them do, evenly, while a request stays at its
    worker. 0 while that time is unknown."""
    return residence_us * lacking // in_use if lacking else 0
