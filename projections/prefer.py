"""Which prefill worker holds most of a prompt: a hint that a decision gives the worker that it chose."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from core.ids import WorkerId
from projections.view import LEFT_OUT, NOTHING, QUIET, RouteRequest, View


class Preferred(NamedTuple):
    """A prefill worker and how much of the prompt it holds on its device."""

    worker: str
    tokens: int


NOBODY = Preferred("", 0)


def preferred(view: View, request: RouteRequest, beyond: int) -> Preferred:
    """The prefill worker that holds most of the prompt, if that is more than `beyond` blocks; looks the prompt up.
    O(prefill workers + holder groups * log blocks).

    Of several that hold as much, the one with fewer requests waiting; then a hash of request and worker decides.
    """
    asked, left_out = f"{request.id}/{request.attempt}/".encode(), _left_out(view)
    model, block_size = request.model, request.prompt.block_size
    held_by = view.state.index.overlaps(request.prompt).get
    best: tuple[int, int, int] | None = None
    found = NOBODY
    for member in view.state.prefilling():
        worker, joined = member.worker, member.joined
        held = held_by(worker, NOTHING)[0]
        if held <= beyond or not member.cache_known or worker in left_out:
            continue
        assert joined is not None  # prefilling() gives only those that joined
        report = view.state.loads.reports.get(worker, QUIET)
        if joined.model != model or joined.block_size != block_size or report.draining:
            continue
        rank = (-held, report.waiting, xxhash.xxh3_64_intdigest(asked + worker.encode()))
        if best is None or rank < best:
            best, found = rank, Preferred(worker, held * block_size)
    return found


def _left_out(view: View) -> frozenset[WorkerId]:
    return frozenset().union(*(view.local.get(reason, ()) for reason in LEFT_OUT))
