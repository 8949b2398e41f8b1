"""Binding plan: requests held in the router are bound to a worker as late as possible.

A plan is made at each arrival and each first token, until no request is to be sent. Every held request is placed
tentatively on the worker where it costs least, the longest first, under the rules of `time`; the wait there is what is
outstanding plus, for each request placed there before, the shorter one of the two prefills, since a worker takes its
shortest first. Then a worker gets one of the requests placed on it, if it has no outstanding prefills, or so few that
one more fits into the same pass of its engine. Its next request is fair between tenants: of the one that starts first
in virtual time (`projections.policy.fair_queue`). Among the requests of one tenant it is the shortest prefill of the
first priority, less its age. All others stay held and are placed anew.

A worker without room for the blocks of a prompt does not get it (`projections.policy.worker_room`). There the request
also costs the expected wait for room, for itself and those placed there before. Once a request was held for as long as
computing its prompt takes, that wait counts as the longest hold at least. A prompt of at most LIGHT_TOKENS goes without
asking for room.

A request that goes is one decision like any other, with one input more: how long those placed before it, the lack of
room and the load of its adapter would hold it up (`RouteRequest.held`), which stands in its record. So each is made
again, bit for bit, without the queue.

No request is overtaken for ever by its equals in tenant and priority: it gains AGE_M of each millisecond that it waits.
The caller bounds the wait.

`BusyWorkers` are workers that declined a held request, because they compute prompts of other replicas that the log has
not shown yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.folds.in_flight import OutstandingPrefill
from projections.folds.state import NO_OVERLAP
from projections.policy.candidates import find_candidates
from projections.policy.cost import TURNOVER_POLICY, ScoredCandidate, excess_turnover, most_reuse, score
from projections.policy.decide import COLUMNS_WORKERS_MIN, Decision, decide_newest
from projections.policy.delay_price import OWN_DELAYS, delay_price_m
from projections.policy.pending_prefixes import PendingPrefixes
from projections.policy.policies import rank
from projections.policy.prefill_backlog import PrefillBacklog
from projections.policy.prefill_time import MILLI, PrefillTime
from projections.policy.prefix_fetch import HOST, with_fetches
from projections.policy.view import NO_REPORT, Candidate, RouteRequest, View
from projections.policy.worker_room import (
    FETCH_WAIT_PERCENT,
    WAIT_PERCENT,
    RunningPrompts,
    blocks_in_use,
    lacking_blocks,
    room_wait_us,
)


class BusyWorker(NamedTuple):
    """A worker that declined a request."""

    tokens: int
    """Tokens that it computes for other replicas."""
    until_us: int
    """When that should be over."""


class BusyWorkers:
    """Workers that declined, until the log shows their prefills or these should be over."""

    def __init__(self) -> None:
        self.count = 0
        """Counts refusals of workers."""
        self._reports: dict[WorkerId, BusyWorker] = {}

    def __repr__(self) -> str:
        return f"<BusyWorkers: {self.count} declined, {len(self._reports)} workers now>"

    @property
    def stand(self) -> bool:
        """True if any note may still count."""
        return bool(self._reports)

    def note(self, worker: WorkerId, tokens: int, until_us: int) -> None:
        """The worker declined: it computes so many tokens for others, and should be done with them then."""
        self.count += 1
        self._reports[worker] = BusyWorker(tokens, until_us)

    def busy_us(self, known: Mapping[WorkerId, int], now_us: int) -> dict[WorkerId, int]:
        """Time for which each worker should still be busy with prefills that the log has not shown, by id.

        `known` are the tokens of its outstanding prefills. With as many as it reported, its report is dropped: the
        declined request does not fit beside those either, so a plan knows all that the worker knew.
        """
        self._reports = {
            worker: report
            for worker, report in sorted(self._reports.items())
            if report.until_us > now_us and known.get(worker, 0) < max(1, report.tokens)
        }
        return {worker: report.until_us - now_us for worker, report in self._reports.items()}


class UnboundRequest(NamedTuple):
    """One request that waits in the router."""

    request: RouteRequest
    since_ms: int
    """When it came, by the clock of `now_ms`."""
    seed: int = 0
    """Of its decision."""
    start: int = 0
    """The virtual time at which its tenant's next request starts: the tenant with the lowest one is next."""
    residence_us: int = 0
    """Learned time for which requests of the model stay at a worker (`projections.policy.worker_room`). 0 if it is
    unknown: then workers count as having room."""
    running: RunningPrompts | None = None
    """The prompts that are in flight; None if they are unknown."""

    @property
    def blocks_needed(self) -> int:
        """Blocks for which it needs room; 0 if it goes without asking for room."""
        prompt = self.request.prompt
        return prompt.blocks_to_hold if self.residence_us and prompt.tokens > LIGHT_TOKENS else 0

    def lacking(self, candidate: Candidate, in_use: int) -> int:
        """Blocks that are to come free there before it fits; 0 if it fits, or goes without asking for room. Its blocks
        that a request there holds are in use already. O(1) where it fits."""
        needed = self.blocks_needed
        lacking = lacking_blocks(candidate, in_use, needed) if needed else 0
        if not lacking or self.running is None:
            return lacking
        shared = self.running.shared(candidate.worker, self.request.id, self.request.prompt)
        return lacking_blocks(candidate, in_use, needed - shared) if shared else lacking


class ScoredRequest(NamedTuple):
    """One of them with what does not depend on the others; the lists are in one order, and of one length."""

    held: UnboundRequest
    scored: list[ScoredCandidate]
    tokens: list[int]
    """Tokens that it would compute on each of those."""
    own_us: list[int]
    """Duration of that."""
    per_wait_m: int
    """Price of a wait, in thousandths."""
    in_use: list[int]
    """Blocks in use on each of those; empty if it needs no room."""
    wait_percent: int
    """The part of a wait for room that counts …"""
    wait_least_us: int
    """… and the least that a wait counts."""


class PlacedRequest(NamedTuple):
    """One of them with its place."""

    held: UnboundRequest
    worker: WorkerId
    tokens: int
    own_us: int
    held_us: dict[WorkerId, int]
    """Expected wait behind other held requests and for room, by worker, with the prefills of workers that declined."""
    has_room: bool
    """Its blocks fit on the worker now."""


class PlacementInputs:
    """Inputs that all held requests share at one moment."""

    def __init__(
        self,
        view: View,
        settings: RoutingSettings,
        now_ms: int,
        outstanding: Mapping[WorkerId, list[OutstandingPrefill]],
    ) -> None:
        self._view = view
        self._settings = settings
        self._now_ms = now_ms
        self._outstanding = outstanding
        self._prefixes = PendingPrefixes(view)
        self._reuse, self._turnover = view.reuse(), view.state.loads.turnover
        self._backlogs: dict[PrefillTime, PrefillBacklog] = {}
        self._candidates: dict[tuple[str, int, str], list[Candidate]] = {}
        """By model and block size: as one prompt saw them."""

    def __repr__(self) -> str:
        return f"<PlacementInputs {len(self._outstanding)} workers that prefill>"

    def asked(self, held: UnboundRequest) -> ScoredRequest:
        """The request with its candidates, by id, as `decide` would score them for it alone."""
        request, settings = held.request, self._settings
        time = PrefillTime.of(settings, request.time)
        backlog = self._backlogs.get(time)
        if backlog is None:
            backlog = self._backlogs[time] = PrefillBacklog.of(time, self._outstanding, self._now_ms, reuse=self._reuse)
        seen = self._seen(request)
        backlog = backlog._replace(reuse_max=most_reuse(seen, self._reuse), loading=request.loading(settings))
        if settings.policy == TURNOVER_POLICY:
            backlog = backlog._replace(turnover=excess_turnover(seen, self._turnover))
        scored = score(seen, request, settings, self._view.local.get("stale", ()), backlog)
        wait_percent = WAIT_PERCENT
        if request.fetching is not None:
            scored, fetches = with_fetches(scored, self._view, request, settings, backlog)
            of_fetchers = (each.overlap for each in seen if each.worker in fetches)
            moves_freely = any(overlap[-1] > overlap[HOST] for overlap in of_fetchers)
            wait_percent = FETCH_WAIT_PERCENT if moves_freely else WAIT_PERCENT
        size = request.prompt.block_size
        tokens = [-(-prefill_m * size // MILLI) for _, _, prefill_m in scored]
        per_wait_m = MILLI + OWN_DELAYS * delay_price_m(settings, backlog.reuse_max)
        report = self._view.state.loads.reports.get
        in_use = [blocks_in_use(each, report(each.worker, NO_REPORT)) for each in seen] if held.blocks_needed else []
        own_us = [time.us(each) for each in tokens]
        computing_us = time.us(request.prompt.tokens)
        was_long = 0 < computing_us <= (self._now_ms - held.since_ms) * MILLI
        wait_least_us = settings.hold_max_ms * MILLI if was_long else 0
        return ScoredRequest(held, scored, tokens, own_us, per_wait_m, in_use, wait_percent, wait_least_us)

    def _seen(self, request: RouteRequest) -> list[Candidate]:
        """Whom it can be sent to does not depend on the prompt, only what they have of it."""
        prompt = request.prompt
        kind = request.model, prompt.block_size, request.adapter
        candidates = self._candidates.get(kind)
        if candidates is None:
            found = self._candidates[kind] = find_candidates(self._view, request, self._settings, self._now_ms).left
            return found
        cached, loading = self._view.cached(prompt, self._settings, self._now_ms), request.loading(self._settings)
        overlap = (cached if loading is None else loading.all_counted(cached)).get
        pending = self._prefixes.pending(prompt).get
        new = tuple.__new__
        return [
            new(Candidate, (*one[:5], overlap(one[0], NO_OVERLAP), pending(one[0], 0), *one[7:])) for one in candidates
        ]


class _PlacedQueue:
    """Those placed on one worker."""

    def __init__(self) -> None:
        self.placed: list[PlacedRequest] = []
        self.blocks = 0
        """That they need together."""
        self._shortest = self._longest = self._sum = 0

    def __repr__(self) -> str:
        return f"<_PlacedQueue {len(self.placed)} requests>"

    def add(self, placed: PlacedRequest) -> None:
        own_us = placed.own_us
        self._shortest = min(self._shortest, own_us) if self.placed else own_us
        self._longest = max(self._longest, own_us)
        self._sum += own_us
        self.blocks += placed.held.blocks_needed
        self.placed.append(placed)

    def wait_us(self, own_us: int) -> int:
        """Wait of one more prefill of that duration behind these: for each the shorter one of the two."""
        if own_us <= self._shortest:  # nearly always: the longest are placed first
            return own_us * len(self.placed)
        if own_us >= self._longest:
            return self._sum
        return sum([min(other.own_us, own_us) for other in self.placed])


def place_all(
    asked: Sequence[ScoredRequest], view: View, settings: RoutingSettings, busy_us: Mapping[WorkerId, int]
) -> dict[WorkerId, list[PlacedRequest]]:
    """Every one of them, by worker; each has a candidate. `busy_us` is what workers compute of which the view does not
    know. O(requests * workers), where those that are placed later are not much longer somewhere than those before."""
    queues: dict[WorkerId, _PlacedQueue] = {}
    turns: dict[str, int] = {}
    for each in sorted(asked, key=_longest_first):
        model = each.held.request.model
        if model not in turns:
            turns[model] = view.routed(model)
        placed = _place(each, queues, settings, busy_us, turns[model])
        queues.setdefault(placed.worker, _PlacedQueue()).add(placed)
    return {worker: queue.placed for worker, queue in queues.items()}


def _longest_first(asked: ScoredRequest) -> tuple[int, int, str, int]:
    """By its prefill where most of it is cached."""
    request = asked.held.request
    return -min(asked.own_us), asked.held.since_ms, request.id, request.attempt


def _place(
    asked: ScoredRequest,
    queues: Mapping[WorkerId, _PlacedQueue],
    settings: RoutingSettings,
    busy_us: Mapping[WorkerId, int],
    turn: int,
) -> PlacedRequest:
    """The cheapest placement of the request, given those that are placed already."""
    held_us: dict[WorkerId, int] = {}
    costs: list[int] = []
    needed, residence_us, loads_us = asked.held.blocks_needed, asked.held.residence_us, asked.held.request.held
    for place, ((candidate, cost, _), own_us) in enumerate(zip(asked.scored, asked.own_us, strict=True)):
        worker = candidate[0]
        queue, room_us = queues.get(worker), 0
        more_us = loads_us.get(worker, 0) + busy_us.get(worker, 0) + (0 if queue is None else queue.wait_us(own_us))
        if needed:
            in_use = asked.in_use[place] + (0 if queue is None else queue.blocks)
            whole_us = room_wait_us(asked.held.lacking(candidate, in_use), in_use, residence_us)
            room_us = max(whole_us * asked.wait_percent // 100, asked.wait_least_us) if whole_us else 0
        if more_us or room_us:
            held_us[worker] = more_us + room_us
        costs.append(cost + asked.per_wait_m * more_us // MILLI + room_us)
    at = _cheapest(asked, costs, settings, turn)
    chosen = asked.scored[at].candidate
    has_room = not needed or not asked.held.lacking(chosen, asked.in_use[at])
    return PlacedRequest(asked.held, chosen.worker, asked.tokens[at], asked.own_us[at], held_us, has_room)


def _cheapest(asked: ScoredRequest, costs: list[int], settings: RoutingSettings, turn: int) -> int:
    """The place of the one that a decision with these costs would choose."""
    least = min(costs)
    if costs.count(least) == 1 and not (settings.temperature_m or settings.tie_margin_m):
        return costs.index(least)  # as `rank`, which would sort all
    dearer = [scored._replace(cost=cost) for scored, cost in zip(asked.scored, costs, strict=True)]
    chosen = rank(dearer, asked.held.request, settings, turn, asked.held.seed)[0]
    return dearer.index(chosen)


HELD_MAX = 64
"""Requests of one model that a replica holds at a time: a plan looks at all of them, and is made anew for each that
goes …"""
PLACES_MAX = 1024
"""… and fewer where that times the workers were more than this: then a plan takes 5 ms."""
AGE_M = 300
"""Credit of a request against shorter ones for each unit of time that it was held, in thousandths."""
PASS_TOKENS = 4096
"""Prefills that together compute no more than this may be with a worker at a time: an engine computes them in one pass,
or the last ones in its next."""


def held_max(workers: int) -> int:
    """Bound of one model's held requests in a replica, for so many workers of it."""
    return min(HELD_MAX, max(1, PLACES_MAX // max(1, workers)))


def tokens_in_progress(
    outstanding: Mapping[WorkerId, Iterable[OutstandingPrefill]], settings: RoutingSettings, now_ms: int
) -> dict[WorkerId, int]:
    """Workers with outstanding prefills, and the tokens of these. A prefill that should have begun longer ago than any
    request is held is left out: the replica that would report its end may be gone."""
    since_us = (now_ms - settings.hold_max_ms) * MILLI
    found: dict[WorkerId, int] = {}
    for worker, all_ in outstanding.items():
        for begins_us, _, _, tokens in all_:
            if begins_us > since_us:
                found[worker] = found.get(worker, 0) + tokens
    return found


def is_one_pass(tokens: int) -> bool:
    """True if prefills of so many tokens together may be with a worker at a time."""
    return tokens <= PASS_TOKENS


def fits(tokens: int, worker: WorkerId, computes: Mapping[WorkerId, int]) -> bool:
    """True if the worker may get a prefill of so many tokens now."""
    return worker not in computes or computes[worker] + tokens <= PASS_TOKENS


SMALL_TOKENS = PASS_TOKENS // 8
"""A prompt of at most so many tokens, cached or not, delays no other: it is planned as if it were alone, ahead of
longer ones, so that many of them cost no more than their decisions."""


LIGHT_TOKENS = PASS_TOKENS // 4
"""A prompt of at most so many tokens is sent at once where no request waits: other arrivals of the moment would hardly
change its worker."""


class PlannedRequest(NamedTuple):
    """A held request that is to be sent now, or that no worker can serve."""

    request: RouteRequest
    """With what else is held."""
    decision: Decision


def plan(
    view: View,
    queue: Sequence[UnboundRequest],
    settings: RoutingSettings,
    now_ms: int,
    busy_us: Mapping[WorkerId, int],
) -> PlannedRequest | None:
    """The request of the queue that is to be sent now, or that no worker can serve; None if all stay held.

    The caller sends it, removes it from the queue, and plans again: the next view has this decision. `busy_us` is the
    time for which workers that declined a request should still compute prefills that the view does not know: they are
    not free. `settings` are of the policy `time`. O(queue * (workers + queue)), or O(workers) if no worker is free;
    the order of the queue does not matter. Requests have ids of their own.
    """
    assert settings.policy == "time"
    outstanding = view.outstanding()
    computes = tokens_in_progress(outstanding, settings, now_ms)
    if _none_is_free(view, computes, busy_us):
        return None
    if not busy_us:
        if len(queue) == 1:
            alone = _plan_alone(view, queue[0], settings, now_ms, outstanding, computes)
            if alone is None or _has_room(view, queue[0], alone.decision):
                return alone
        small = [held for held in queue if held.request.prompt.tokens <= SMALL_TOKENS]
        if small and (
            planned := _plan_alone(view, _next_in_turn(small, _arrival_turn), settings, now_ms, outstanding, computes)
        ):
            return planned
    inputs = PlacementInputs(view, settings, now_ms, outstanding)
    asked = [inputs.asked(held) for held in queue]
    unservable = min((each.held for each in asked if not each.scored), key=lambda held: held.request.id, default=None)
    if unservable is not None:
        return PlannedRequest(
            unservable.request,
            decide_newest(view, unservable.request, settings, now_ms, unservable.seed, outstanding),
        )
    placed = place_all(asked, view, settings, busy_us)
    next_one = _next_placed({worker: placed[worker] for worker in placed.keys() - busy_us.keys()}, computes, now_ms)
    if next_one is None:
        return None
    request = next_one.held.request._replace(held=next_one.held_us)
    return PlannedRequest(request, decide_newest(view, request, settings, now_ms, next_one.held.seed, outstanding))


def with_room(view: View, held: UnboundRequest, settings: RoutingSettings, now_ms: int) -> RouteRequest:
    """The request as it is decided on when it is held no longer: a worker without room for it costs the whole expected
    wait there, without the price of delays. Where no worker has room, a wait counts as no more than computing the whole
    prompt takes: then waits are long everywhere, and a request that gives up its prefix adds to them. The same request
    where every worker has room. O(workers)."""
    request, needed = held.request, held.blocks_needed
    if not needed or (len(view.state.serving()) >= COLUMNS_WORKERS_MIN and _all_have_room(view, needed)):
        return request
    waits, report = dict(request.held), view.state.loads.reports.get
    candidates = find_candidates(view, request, settings, now_ms).left
    rooms_us: dict[WorkerId, int] = {}
    for candidate in candidates:
        in_use = blocks_in_use(candidate, report(candidate.worker, NO_REPORT))
        rooms_us[candidate.worker] = room_wait_us(held.lacking(candidate, in_use), in_use, held.residence_us)
    most_us = max(rooms_us.values(), default=0)
    if all(rooms_us.values()):
        most_us = PrefillTime.of(settings, request.time).us(request.prompt.tokens)
    per_wait_m = MILLI + OWN_DELAYS * delay_price_m(settings, most_reuse(candidates, view.reuse()))
    for worker, room_us in rooms_us.items():
        if room_us:  # a decision gives each wait the price of delays
            waits[worker] = waits.get(worker, 0) + min(room_us, most_us) * MILLI // per_wait_m
    return request._replace(held=waits)


def _all_have_room(view: View, needed: int) -> bool:
    from projections.policy.column_decision import all_have_room  # noqa: PLC0415 - numpy, only for many workers

    return all_have_room(view, needed)


def _next_placed(
    placed: Mapping[WorkerId, list[PlacedRequest]], computes: Mapping[WorkerId, int], now_ms: int
) -> PlacedRequest | None:
    """The next one of the first worker that is free for it and has room for it; None if all stay held."""
    for worker, queue in sorted(placed.items()):
        with_room = [each for each in queue if each.has_room]
        if not with_room or not fits(0, worker, computes):
            continue
        next_one = _next_in_turn(with_room, lambda each: _prefill_turn(each, now_ms))
        if fits(next_one.tokens, worker, computes):
            return next_one
    return None


def _has_room(view: View, held: UnboundRequest, decision: Decision) -> bool:
    """The blocks of the request fit on its worker now."""
    if decision.worker is None or not held.blocks_needed:
        return True
    candidate = decision.ranked[0].candidate
    in_use = blocks_in_use(candidate, view.state.loads.reports.get(candidate.worker, NO_REPORT))
    return not held.lacking(candidate, in_use)


def _tokens(scored: ScoredCandidate, request: RouteRequest) -> int:
    return -(-scored.prefill_m * request.prompt.block_size // MILLI)


class _Turn(NamedTuple):
    """The position of one request in the order; lower first."""

    held: UnboundRequest
    place: tuple[int, int, str, int]
    """Among the requests of its priority and tenant, and among the first ones of tenants with one start."""


Waiting = TypeVar("Waiting")


def _next_in_turn(queue: Iterable[Waiting], turn_of: Callable[[Waiting], _Turn]) -> Waiting:
    """The next one: fair between tenants, within a tenant by priority, then by place. The queue is not empty."""
    firsts: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], Waiting]] = {}
    for each in queue:
        held, place = turn_of(each)
        own, first = (held.request.priority, place), firsts.get(held.request.tenant)
        if first is None or own < first[0]:
            firsts[held.request.tenant] = own, (held.start, place), each
    return min(firsts.values(), key=lambda first: first[1])[2]


def _arrival_turn(held: UnboundRequest) -> _Turn:
    return _Turn(held, (0, held.since_ms, held.request.id, held.request.attempt))


def _prefill_turn(placed: PlacedRequest, now_ms: int) -> _Turn:
    """By the shortest prefill, less its age."""
    held = placed.held
    age_us = (now_ms - held.since_ms) * MILLI
    turn = placed.own_us - AGE_M * age_us // MILLI
    return _Turn(held, (turn, held.since_ms, held.request.id, held.request.attempt))


def _none_is_free(view: View, computes: Mapping[WorkerId, int], busy_us: Mapping[WorkerId, int]) -> bool:
    if not computes and not busy_us:
        return False
    serving = view.state.serving()
    if not len(computes) + len(busy_us) >= len(serving) > 0:
        return False
    return all(each.worker in busy_us or not fits(1, each.worker, computes) for each in serving)


def _plan_alone(
    view: View,
    held: UnboundRequest,
    settings: RoutingSettings,
    now_ms: int,
    outstanding: dict[WorkerId, list[OutstandingPrefill]],
    computes: Mapping[WorkerId, int],
) -> PlannedRequest | None:
    """The same as `plan` for a queue of one request, at a third of its price."""
    decision = decide_newest(view, held.request, settings, now_ms, held.seed, outstanding)
    goes = decision.worker is None or fits(_tokens(decision.ranked[0], held.request), decision.worker, computes)
    return PlannedRequest(held.request, decision) if goes else None
