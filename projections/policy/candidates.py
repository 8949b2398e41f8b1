"""Candidates of a decision: the workers that can be chosen, and those that are left out with the reason."""

from __future__ import annotations

from typing import NamedTuple

from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.folds.kv_fold import serving_adapter
from projections.policy.load_time import LoadPrices
from projections.policy.view import EXCLUSION_REASONS, Candidate, RouteRequest, View

OTHER_ADAPTER = "other_adapter"
"""The reason to leave a worker out that does not serve the request's adapter."""
LAST_RESORT_REASONS = ("suspected", "failed")
"""Reasons to leave a worker out only for as long as another one is left."""


class CandidateSet(NamedTuple):
    """Candidates by id, and the excluded workers by reason."""

    left: list[Candidate]
    excluded: dict[str, list[WorkerId]]


def find_candidates(
    view: View, request: RouteRequest, settings: RoutingSettings, now_ms: int, *, pools: bool = True
) -> CandidateSet:
    """The candidates among all workers; workers of the last resort only if there are no others. Without `pools`, blocks
    that lie there alone do not count; nor do blocks of a tier that is slower than computing them."""
    left, doubtful, excluded = _sort_candidates(view, request, settings, now_ms, pools=pools)
    loading = request.loading(settings)
    if loading is not None and not loading.counts_all:
        left = [_counted(candidate, loading) for candidate in left]
        doubtful = [(reason, _counted(candidate, loading)) for reason, candidate in doubtful]
    if not left:
        return CandidateSet([candidate for _, candidate in doubtful], excluded)
    for reason, candidate in doubtful:
        excluded.setdefault(reason, []).append(candidate.worker)
    return CandidateSet(left, excluded)


def _counted(candidate: Candidate, loading: LoadPrices) -> Candidate:
    return candidate._replace(overlap=loading.counted(candidate.overlap))


class _SortedCandidates(NamedTuple):
    left: list[Candidate]
    doubtful: list[tuple[str, Candidate]]
    excluded: dict[str, list[WorkerId]]


def _sort_candidates(
    view: View, request: RouteRequest, settings: RoutingSettings, now_ms: int, *, pools: bool
) -> _SortedCandidates:
    """Candidates, candidates of the last resort, and excluded workers: all by id."""
    left_out = _left_out(view, request.adapter)
    out = _SortedCandidates([], [], {})
    model, block_size, waiting_max = request.model, request.prompt.block_size, settings.waiting_max
    left = out.left.append
    for candidate in view.candidates(request.prompt, view.cached(request.prompt, settings, now_ms, pools=pools)):
        # unpacked at once: this runs for every worker, and each name of a tuple's costs a call
        worker, its_model, its_block_size, _, _, _, _, _, _, _, waiting, draining = candidate
        if its_model != model:
            reason = "other_model"
        elif its_block_size != block_size:
            reason = "other_block_size"
        elif left_out and worker in left_out:
            reason = left_out[worker]
        elif draining:
            reason = "draining"
        elif waiting >= waiting_max:
            reason = "overloaded"
        else:
            left(candidate)
            continue
        if reason in LAST_RESORT_REASONS:
            out.doubtful.append((reason, candidate))
        else:
            out.excluded.setdefault(reason, []).append(worker)
    return out


def _left_out(view: View, adapter: str) -> dict[WorkerId, str]:
    """Workers with a local reason, and those without the adapter, if one is asked for: then that is their reason."""
    found: dict[WorkerId, str] = {}
    for reason in reversed(EXCLUSION_REASONS):  # the first one counts
        if workers := view.local.get(reason):
            found.update(dict.fromkeys(workers, reason))
    if adapter:
        serving = view.state.serving()
        holders = serving_adapter(serving, adapter)
        found.update((member.worker, OTHER_ADAPTER) for member in serving if member.worker not in holders)
    return found
