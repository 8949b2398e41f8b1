"""Prefill choice: whether a decode worker has a prompt computed elsewhere, and the prefill worker that suits best.

Both are pure functions, without clock and I/O: `prefill_reason` of its inputs, `preferred_worker` of a view. A decision
gives the preferred worker to the decode worker that it chose, as a hint.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from core.generation import PrefillReport
from core.ids import WorkerId
from core.kv_transfer import RECOMPUTED
from projections.folds.state import NO_OVERLAP
from projections.policy.view import EXCLUSION_REASONS, NO_REPORT, RouteRequest, View

REMOTE = "long"
"""The one reason to have a prompt computed elsewhere: that pays."""
PREFILL_REASONS = (REMOTE, "short", "no_prefill_worker", "queue_full", "log_away", "busy")
"""Why the verdict is what it is. `short`: what the cache lacks is not worth a transfer. `busy`: the same blocks are
being computed or pulled here for another request, and will be in the cache."""
PREFILL_OUTCOMES = frozenset({"", "pulled", "client_gone", *RECOMPUTED})
"""Outcomes of a job; empty where there was none."""


class PrefillInputs(NamedTuple):
    """All that the verdict rests on."""

    uncached_tokens: int
    queued: int
    workers: int
    min_tokens: int
    queue_max: int
    log_away: bool = False
    busy: bool = False


def inputs_of(report: PrefillReport) -> PrefillInputs:
    """The inputs of a recorded verdict."""
    return PrefillInputs(**{name: getattr(report, name) for name in PrefillInputs._fields})


def prefill_reason(inputs: PrefillInputs) -> str:
    """REMOTE if the part of the prompt that the cache lacks is longer than one threshold, the queue is shorter than
    another, and a prefill worker can take the job; else the reason against it."""
    if inputs.uncached_tokens <= inputs.min_tokens:
        return "short"
    if not inputs.workers:
        return "no_prefill_worker"
    if inputs.queued >= inputs.queue_max:
        return "queue_full"
    if inputs.log_away:
        return "log_away"
    return "busy" if inputs.busy else REMOTE


class Preferred(NamedTuple):
    """A prefill worker and how much of the prompt it holds on its device."""

    worker: str
    tokens: int


NO_PREFERENCE = Preferred("", 0)


def preferred_worker(view: View, request: RouteRequest, beyond: int) -> Preferred:
    """The prefill worker that holds most of the prompt, if that is more than `beyond` blocks; looks the prompt up.
    O(prefill workers + holder groups * log blocks).

    Of several that hold as much, the one with fewer requests waiting; then a hash of request and worker decides.
    """
    asked, left_out = f"{request.id}/{request.attempt}/".encode(), _left_out(view)
    model, block_size = request.model, request.prompt.block_size
    held_by = view.state.index.overlaps(request.prompt).get
    best: tuple[int, int, int] | None = None
    found = NO_PREFERENCE
    for member in view.state.prefilling():
        worker, joined = member.worker, member.joined
        held = held_by(worker, NO_OVERLAP)[0]
        if held <= beyond or not member.cache_known or worker in left_out:
            continue
        assert joined is not None  # prefilling() gives only those that joined
        report = view.state.loads.reports.get(worker, NO_REPORT)
        if joined.model != model or joined.block_size != block_size or report.draining:
            continue
        rank = (-held, report.waiting, xxhash.xxh3_64_intdigest(asked + worker.encode()))
        if best is None or rank < best:
            best, found = rank, Preferred(worker, held * block_size)
    return found


def _left_out(view: View) -> frozenset[WorkerId]:
    return frozenset().union(*(view.local.get(reason, ()) for reason in EXCLUSION_REASONS))
