"""The decisions, under one version of the rules each (`projections.policy.rules`).

`decide` is a pure function of view, request, settings, now and seed; `decide_prefill` of its inputs. No clock, no I/O,
integer costs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec
import xxhash
from msgspec import UNSET

from core.events import RequestRejected, RequestRouted
from core.events.routing import COMPACT_VERSION, DECIDE_VERSION, EXCLUDED_SHOWN_MAX, Columns, PrefixFetch
from core.generation import PrefillReport
from core.ids import WorkerId, to_column
from core.settings import APPROXIMATE, RoutingSettings
from projections.folds.approximate_index import APPROXIMATE_BLOCKS_MAX, CacheRetention
from projections.folds.in_flight import OutstandingPrefill
from projections.policy.candidate_columns import candidate_columns
from projections.policy.cost import ESTIMATING_POLICIES, TURNOVER_POLICY, ScoredCandidate, pending_beyond
from projections.policy.prefill_backlog import NO_BACKLOG, PrefillBacklog
from projections.policy.prefill_choice import NO_PREFERENCE, REMOTE, PrefillInputs
from projections.policy.prefill_time import PrefillTime
from projections.policy.prefix_fetch import HOST, PlannedFetch, recorded_fetch, with_fetches
from projections.policy.rules import RULES
from projections.policy.view import Candidate, RouteRequest, View, recorded_local

COLUMNS_WORKERS_MIN = 16
"""Fewer workers are decided on one by one: that costs less than columns."""

_encode = msgspec.msgpack.Encoder().encode


class Decision(NamedTuple):
    """One decision, with everything that its record needs."""

    worker: WorkerId | None
    """None if every worker was left out."""
    ranked: Sequence[ScoredCandidate]
    """All candidates, the chosen one first, then by cost."""
    excluded: dict[str, list[WorkerId]]
    local: dict[str, list[WorkerId]]
    cursor: dict[str, tuple[int, int]]
    now_ms: int
    seed: int
    prefill_tokens: int
    """Tokens that the chosen worker is expected to compute."""
    predicted_cached_tokens: int
    digest: str
    """Of all of this with every candidate: 16 hex digits; equal digests mean equal decisions. Since version 6 of the
    rules the order of the candidates is not part of it, but for the chosen one: it follows from the others."""
    prefer: str = ""
    """The prefill worker that holds more of the prompt than the chosen one; empty if none does."""
    prefer_tokens: int = 0
    """Tokens of the prompt that it holds."""
    backlog: PrefillBacklog = NO_BACKLOG
    """Outstanding prefills, under policies that estimate times."""
    wait_us: int = 0
    """Expected wait behind these on the chosen worker."""
    believed: CacheRetention | None = None
    """Retention of the chosen worker under `approximate`."""
    version: int = DECIDE_VERSION
    """Of the rules."""
    fetch: PrefixFetch | None = None
    """None if nothing could be fetched for the request."""


def decide(
    view: View,
    request: RouteRequest,
    settings: RoutingSettings,
    now_ms: int,
    seed: int,
    outstanding: Mapping[WorkerId, list[OutstandingPrefill]] | None = None,
    version: int = DECIDE_VERSION,
) -> Decision:
    """Chooses a worker for the request by this version of the rules; the same arguments give the same bytes.
    O(workers). KeyError if the version is not in RULES.

    `outstanding` is the view's, if the caller has computed it already.
    A worker of the last resort (LAST_RESORT_REASONS) still serves when no other can: a try costs less than a refusal.
    """
    rules = RULES[version]
    left, excluded = rules.find_candidates(view, request, settings, now_ms)
    ranked: list[ScoredCandidate] = []
    scored = ranked
    fetches: Mapping[WorkerId, PlannedFetch] = {}
    backlog = NO_BACKLOG
    if settings.policy in ESTIMATING_POLICIES:
        if outstanding is None:
            outstanding = view.outstanding()
        time = PrefillTime.of(settings, request.time)
        backlog = PrefillBacklog.of(time, outstanding, now_ms, request.held, rules.reuse(view))
        if reuse_max := rules.reuse_max(left, backlog.reuse):
            backlog = backlog._replace(reuse_max=reuse_max)
        if settings.policy == TURNOVER_POLICY and (turnover := rules.turnover(view, left)):
            backlog = backlog._replace(turnover=turnover)
        if not rules.prices_first_active:
            backlog = backlog._replace(prices_first_active=False)
        if loading := request.loading(settings):
            backlog = backlog._replace(loading=loading)
    if left:
        scored = rules.score(left, request, settings, view.local.get("stale", ()), backlog)
        if request.fetching is not None:
            scored, fetches = with_fetches(scored, view, request, settings, backlog)
        ranked = rules.rank(scored, request, settings, view.routed(request.model), seed)
    believed = retention(ranked[0].candidate, view, settings) if ranked and settings.policy == APPROXIMATE else None
    columns = [candidate_columns(scored, backlog)] if rules.by_columns else None
    fetch = fetches.get(ranked[0].candidate.worker) if ranked else None
    return conclude(ranked, columns, excluded, view, request, now_ms, seed, backlog, believed, version, fetch)


def decide_newest(
    view: View,
    request: RouteRequest,
    settings: RoutingSettings,
    now_ms: int,
    seed: int,
    outstanding: Mapping[WorkerId, list[OutstandingPrefill]] | None = None,
) -> Decision:
    """The decision of `decide` under the newest rules, with equal bytes; among many workers at a tenth of its price."""
    if len(view.state.serving()) < COLUMNS_WORKERS_MIN or request.fetching is not None:
        return decide(view, request, settings, now_ms, seed, outstanding)
    from projections.policy.column_decision import decide_by_columns  # noqa: PLC0415 - numpy, only for many workers

    return decide_by_columns(view, request, settings, now_ms, seed, outstanding)


def retention(chosen: Candidate, view: View, settings: RoutingSettings) -> CacheRetention:
    """This replica's share of the worker's room, which fills by the decisions of all."""
    room = chosen.capacity_blocks or APPROXIMATE_BLOCKS_MAX
    room = min(room, settings.approximate_blocks_max or room)
    return CacheRetention(max(1, room // max(1, len(view.state.routing.replicas))), settings.approximate_ttl_s * 1000)


def conclude(
    ranked: Sequence[ScoredCandidate],
    columns: Iterable[bytes | memoryview] | None,
    excluded: dict[str, list[WorkerId]],
    view: View,
    request: RouteRequest,
    now_ms: int,
    seed: int,
    backlog: PrefillBacklog,
    believed: CacheRetention | None,
    version: int,
    fetch: PlannedFetch | None = None,
) -> Decision:
    """The decision for the first candidate of the ranking, or for no worker, with its digest. `columns`
    are the bytes of `candidate_columns`, in any number of parts; None where the version has none."""
    prompt = request.prompt
    prefer = NO_PREFERENCE
    fetched = None if request.fetching is None else recorded_fetch(request.fetching, fetch, prompt.block_size)
    if ranked and view.state.prefilling():
        prefer = RULES[version].preferred_worker(view, request, ranked[0].candidate.overlap[-1])
    chosen = ranked[0].candidate if ranked else None
    predicted = max(chosen.overlap[-1], chosen.pending) * prompt.block_size if chosen else 0
    if chosen and fetch is not None:
        predicted = (chosen.overlap[HOST] + fetch.blocks) * prompt.block_size
    cursor, local = view.cursor, recorded_local(view.local)
    candidates = ranked if columns is None else (prompt.block_size, len(ranked), chosen.worker if chosen else None)
    everything: tuple[object, ...] = (
        version, request.id, request.attempt, request.model, prompt.tokens, now_ms, seed, cursor, local,
        sorted(excluded.items()), candidates,
    )  # fmt: skip
    if prefer.worker:  # else the bytes are those of times without prefill workers
        everything = (*everything, prefer)
    if request.session:  # the like
        everything = (*everything, request.session)
    if request.adapter:
        everything = (*everything, "adapter", request.adapter)
    if backlog is not NO_BACKLOG:
        listed = _listed_waits(ranked, backlog) if columns is None else ()
        everything = (*everything, backlog.time, *listed)
    if backlog.loading is not None:
        everything = (*everything, "load_time", request.load_time)
    if believed is not None:
        everything = (*everything, believed)
    if fetched is not None:
        everything = (*everything, "fetch", fetched)
    return Decision(
        worker=chosen.worker if chosen else None,
        ranked=ranked,
        excluded=excluded,
        local=local,
        cursor=cursor,
        now_ms=now_ms,
        seed=seed,
        prefill_tokens=prompt.tokens - predicted,
        predicted_cached_tokens=predicted,
        digest=_digest(everything, columns or ()),
        prefer=prefer.worker,
        prefer_tokens=prefer.tokens,
        backlog=backlog,
        wait_us=backlog.outstanding_us(chosen.worker) if chosen else 0,
        believed=believed,
        version=version,
        fetch=fetched,
    )


def _digest(everything: tuple[object, ...], columns: Iterable[bytes | memoryview]) -> str:
    found = xxhash.xxh3_64(_encode(everything))
    for part in columns:
        found.update(part)
    return found.hexdigest()


def _listed_waits(ranked: Sequence[ScoredCandidate], backlog: PrefillBacklog) -> Iterator[object]:
    """The expected waits by id, and the reuse in the order of the candidates if any has some: as digests before version
    6 cover them."""
    yield [*backlog.waits_us.items()]
    if backlog.reuse and any(reuse := [backlog.reuse.get(each.candidate.worker, 0) for each in ranked]):
        yield reuse


def record(
    decision: Decision, request: RouteRequest, settings: RoutingSettings, revision: int, version_read: int = 1
) -> RequestRouted:
    """The event of a decision that chose a worker, with all block hashes of the prompt, in the version of whole
    decisions that readers of `version_read` have. Computes these hashes: off the hot path."""
    # unpacked once: this runs for every request, and each name of a tuple's costs a call
    worker, ranked, excluded, _, cursor, now_ms, seed, prefill_tokens, predicted, digest = decision[:10]
    prefer, prefer_tokens, backlog, wait_us, believed, version, fetch = decision[10:]
    request_id, attempt, model, prompt, tenant, priority, session, time, held, parent, adapter, _, load_time = request
    assert worker is not None
    workers, columns = _columns(ranked[: settings.candidates_recorded_max], backlog)
    learned: tuple[int, ...] = ()
    if backlog is not NO_BACKLOG and time is not None and not settings.prefill_us_per_token_m:
        learned = time
    return RequestRouted(
        request=request_id,
        attempt=attempt,
        model=model,
        prompt_tokens=prompt.tokens,
        block_size=prompt.block_size,
        hashes=prompt.hashes(),
        policy=settings.policy,
        settings_revision=revision,
        decide_version=version,
        seed=seed,
        now_ms=now_ms,
        cursor=cursor,
        worker=worker,
        candidates=workers,
        columns=columns,
        candidates_total=len(ranked),
        excluded=recorded_exclusions(excluded) if excluded else {},
        blocks=prompt.blocks_to_hold - pending_beyond(ranked[0].candidate),
        prefill_tokens=prefill_tokens,
        predicted_cached_tokens=predicted,
        digest=digest,
        tenant=tenant,
        priority=priority,
        prefer=prefer,
        prefer_tokens=prefer_tokens,
        session=session,
        wait_us=wait_us,
        prefill_time=learned,
        held={str(worker): held_us for worker, held_us in held.items()} if held else {},
        believed=believed,
        session_parent=parent,
        adapter=adapter or UNSET,
        fetch=UNSET if fetch is None else fetch,
        load_time=UNSET if backlog.loading is None or load_time is None else load_time,
        v=version_read if version_read >= COMPACT_VERSION else 1,
    )


def rejection(decision: Decision, request: RouteRequest, revision: int, status: int) -> RequestRejected:
    """The event of a decision without a worker; `status` is that of its client's response."""
    return RequestRejected(
        request=request.id,
        attempt=request.attempt,
        model=request.model,
        reason=rejection_reason(decision.excluded),
        status=status,
        cursor=decision.cursor,
        excluded=recorded_exclusions(decision.excluded),
        settings_revision=revision,
        now_ms=decision.now_ms,
        tenant=request.tenant,
        decide_version=decision.version,
        adapter=request.adapter or UNSET,
    )


def decide_prefill(inputs: PrefillInputs, version: int = DECIDE_VERSION) -> PrefillReport:
    """The verdict of this version of the rules, with its inputs. KeyError if the version is not in RULES."""
    reason = RULES[version].prefill_reason(inputs)
    return PrefillReport(remote=reason == REMOTE, reason=reason, rules=version, **inputs._asdict())


def rejection_reason(excluded: Container[str]) -> str:
    """The reason of a refusal with exclusions for these reasons."""
    return "overloaded" if "overloaded" in excluded else "no_workers"


def recorded_exclusions(excluded: dict[str, list[WorkerId]]) -> dict[str, tuple[int, bytes]]:
    """Exclusions as a record holds them: the whole count, the first few ids."""
    return {reason: (len(ids), to_column(list(ids[:EXCLUDED_SHOWN_MAX]))) for reason, ids in sorted(excluded.items())}


def _columns(best: Sequence[ScoredCandidate], backlog: PrefillBacklog) -> tuple[bytes, Columns]:
    """The ids of these candidates, and their columns: turned over by zip, not row by row."""
    candidates, costs, prefills = zip(*best, strict=True)
    workers, _, _, _, known, overlaps, pending, blocks, requests, _, waiting, _ = zip(*candidates, strict=True)
    levels = [*zip(*overlaps, strict=True)]
    host = disk = None
    if backlog.loading is not None:
        host, disk = (None if level == levels[-1] else level for level in levels[1:3])
    waits = None if backlog is NO_BACKLOG else tuple(map(backlog.waits_us.get, workers, repeat(0)))
    reuse = tuple(map(backlog.reuse.get, workers, repeat(0))) if backlog.reuse else ()
    if backlog.reuse_max > max(reuse, default=0):
        reuse = (*reuse, backlog.reuse_max)
    knowns = tuple(map(int, known))
    turnover = tuple(map(backlog.turnover.get, workers, repeat(0))) if backlog.turnover else ()
    columns = Columns(
        costs, levels[0], levels[-1], pending, prefills, blocks, requests, waiting, knowns, waits,
        reuse if any(reuse) else None, host, disk, turnover if any(turnover) else None,
    )  # fmt: skip
    return to_column(workers), columns
