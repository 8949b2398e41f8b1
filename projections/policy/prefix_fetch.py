"""Prefix fetches: a worker takes the start of a prompt from another worker's host tier instead of computing it.

For each candidate the decision weighs `fetch + prefill of the rest` against `prefill of all that it lacks`, as in
Mooncake's algorithm 1, and takes the cheaper one. A fetched block has the credit of one in the host, where it lies
then. The fetch counts as the blocks that could be computed meanwhile, so the terms of a record keep their meaning:
`prefill` has it, and the cost follows from that. With learned load times, the load from the host counts likewise.

A source is a worker of the candidate's kind of blocks that fetches, too. It is connected, not suspected, has not just
failed a request, and its cache is known. Of several the one with most of the prompt is taken; then the one with fewer
fetches under way, then by id. How many are under way is the replica's own knowledge, and an input of the decision
(`RouteRequest.fetching`). Requests for an adapter fetch nothing: engines name its blocks by a path.

A pool and a fetch are two ways to the same blocks. With a fetch the candidate takes those behind its own host from the
source, and none from a pool; without one it has the pool's. The cheaper way counts. With learned load times its levels
end at its host then, so that no load from the pool counts.

The index has one copy of a block, the nearest. What it says of a source's device stands in the source's host as well,
because an engine that has blocks fetched has a host tier of at least the size of its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from core.events.routing import PrefixFetch
from core.ids import WorkerId
from core.kv_transfer import FetchAddress
from core.settings import TIERS, RoutingSettings
from projections.folds.state import NO_OVERLAP
from projections.policy.cost import MILLI, ScoredCandidate, estimate
from projections.policy.prefill_backlog import PrefillBacklog
from projections.policy.view import Candidate, RouteRequest, View

FETCHES_MAX = 4
"""Fetches from one source that a replica has under way at most."""
FETCH_BASE_US = 10_000
"""A fetch takes so long beside moving its bytes: seen between two engines of one machine."""
FETCH_THRESHOLD_M = 1200
"""The source must have so many times as much of the prompt as the candidate, in thousandths: its copy pushes others
out."""
FETCH_TOKENS_MIN = 512
"""Fewer are computed: a fetch is not worth the disturbance."""
HOST = TIERS.index("host")
FETCH_POLICY = "time"
"""The policy under which fetches have a price."""
NO_SOURCE_REASONS = ("not_connected", "suspected", "failed")
"""Local reasons for which a worker is no source."""


class FetchablePrefix(NamedTuple):
    """The start of the prompt on one source."""

    source: WorkerId
    blocks: int
    address: FetchAddress


class PlannedFetch(NamedTuple):
    """A fetch that a candidate would make."""

    source: WorkerId
    blocks: int
    """Behind those that the candidate has on device and host."""
    us: int


def with_fetches(
    scored: list[ScoredCandidate],
    view: View,
    request: RouteRequest,
    settings: RoutingSettings,
    backlog: PrefillBacklog,
) -> tuple[list[ScoredCandidate], dict[WorkerId, PlannedFetch]]:
    """The candidates in their order, at the cost with a fetch where that is lower, and these fetches by worker.
    O(candidates * sources), mostly O(candidates)."""
    if settings.policy != FETCH_POLICY or not backlog.time.per_token_m:
        return scored, {}
    if backlog.loading is not None and backlog.loading.slow[HOST]:
        return scored, {}  # fetched blocks come through the host
    prefixes = fetchable_prefixes(view, request)
    if not prefixes:
        return scored, {}
    fetchers, found, fetches = view.state.fetchers(), list[ScoredCandidate](), dict[WorkerId, PlannedFetch]()
    stale = view.local.get("stale", ())
    for each in scored:
        worker = each.candidate.worker
        own = fetchers.get(worker)
        fetch = None if own is None else plan_fetch(each.candidate, own, prefixes, request.prompt.block_size)
        if fetch is not None:
            cheaper = _scored(each.candidate, fetch, request, settings, backlog, is_stale=worker in stale)
            if cheaper.cost < each.cost:
                fetches[worker] = fetch
                found.append(cheaper)
                continue
        found.append(each)
    return found, fetches


def fetchable_prefixes(view: View, request: RouteRequest) -> list[FetchablePrefix]:
    """The start of the prompt on each source that may be asked, the longest first."""
    busy = request.fetching
    if busy is None or request.adapter:
        return []
    out = frozenset[WorkerId]().union(*(view.local.get(reason, ()) for reason in NO_SOURCE_REASONS))
    overlap = view.state.reported(request.prompt, pools=False)
    known = {member.worker for member in view.state.serving() if member.cache_known}
    found = [
        FetchablePrefix(worker, overlap.get(worker, NO_OVERLAP)[HOST], address)
        for worker, address in view.state.fetchers().items()
        if worker in known and worker not in out and busy.get(worker, 0) < FETCHES_MAX
    ]
    least = -(-FETCH_TOKENS_MIN // request.prompt.block_size)
    found = [each for each in found if each.blocks >= least]
    return sorted(found, key=lambda each: (-each.blocks, busy.get(each.source, 0), each.source))


def plan_fetch(
    candidate: Candidate,
    own: FetchAddress,
    prefixes: list[FetchablePrefix],
    block_size: int,
) -> PlannedFetch | None:
    """The fetch that the candidate would make; None if no source has enough more than it."""
    has = candidate.overlap[HOST]
    counted = max(has, candidate.pending)
    for source, blocks, address in prefixes:
        if source == candidate.worker or address.kind != own.kind:
            continue
        depth = min(blocks, has + own.load_blocks)
        if depth * MILLI <= counted * FETCH_THRESHOLD_M or (depth - counted) * block_size < FETCH_TOKENS_MIN:
            return None  # those behind it have less
        fetched = depth - has
        us = FETCH_BASE_US + fetched * address.block_bytes // max(1, own.mb_per_s)  # MB a second: bytes in a us
        return PlannedFetch(source, fetched, us)
    return None


def recorded_fetch(busy: Mapping[WorkerId, int], fetch: PlannedFetch | None, block_size: int) -> PrefixFetch:
    """The inputs of the decision, and its fetch, as its record has them."""
    known = {str(source): count for source, count in sorted(busy.items())}
    return (
        PrefixFetch(known) if fetch is None else PrefixFetch(known, fetch.source, fetch.blocks * block_size, fetch.us)
    )


def _scored(
    candidate: Candidate,
    fetch: PlannedFetch,
    request: RouteRequest,
    settings: RoutingSettings,
    backlog: PrefillBacklog,
    *,
    is_stale: bool,
) -> ScoredCandidate:
    """The candidate as it costs with the fetch."""
    prompt, credit, before = request.prompt, 0, 0
    credits_m: tuple[int, ...] = settings.credits_m
    us = fetch.us
    if backlog.loading is not None:
        credits_m = backlog.loading.credits_m
        us += fetch.blocks * backlog.loading.times_m[HOST] // MILLI
        kept = candidate.overlap[: HOST + 1]  # else the load of what the pool has would count, too
        candidate = candidate._replace(overlap=kept + kept[HOST:] * (len(candidate.overlap) - len(kept)))
    for depth, credit_m in zip(candidate.overlap[: HOST + 1], credits_m, strict=False):
        credit += (depth - before) * credit_m
        before = depth
    if is_stale:
        credit = credit * settings.stale_credit_m // MILLI
    needed_m = prompt.tokens * MILLI // prompt.block_size
    moving_m = -(-us * MILLI * MILLI // (backlog.time.per_token_m * prompt.block_size))
    credit += fetch.blocks * credits_m[HOST]  # they lie in the host then, and are loaded from there
    prefill_m = max(0, needed_m - credit) + moving_m
    terms = estimate(candidate, prefill_m, settings, prompt.tokens, prompt.block_size, backlog)
    return ScoredCandidate(candidate, sum(terms), prefill_m)
