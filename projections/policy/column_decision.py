"""Decisions among many workers, by columns: what `decide` decides, to the byte, at a fraction of its price.

`decide` makes an object for each worker, and scores and ranks one after the other: 2 us per worker. Here each step is
one operation over all workers (`projections.folds.worker_table`), and a candidate becomes an object when it is read.
Costs are the same integers: int64 as long as no product can leave it, and `decide` itself where one could.

The rules stand in `projections.policy.rules`, and nowhere else are they to be read. Replay judges each decision by
`decide`; so a difference between the two shows in `replay verify`, in the tests, and in every chaos run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from core.events.routing import DECIDE_VERSION
from core.ids import WorkerId, id_lines
from core.prompt import Prompt
from core.settings import APPROXIMATE, TIERS, RoutingSettings
from projections.folds.in_flight import OutstandingPrefill
from projections.folds.load_fold import REUSE_STEPS, TURNOVER_STEPS
from projections.folds.worker_table import NUMBER_MAX, OUTSTANDING_COLUMNS, Column, Fixed, Flags, Objects, WorkerTable
from projections.policy.cost import (
    BLOCK_COST_POLICIES,
    ESTIMATING_POLICIES,
    FIRST_ACTIVE_TOKENS,
    REQUEST_COST_POLICIES,
    TURNOVER_POLICY,
    TURNOVER_TIMES,
    ScoredCandidate,
    first_active_price_m,
    load_price_m,
    reuse_price_us,
    turnover_base,
)
from projections.policy.decide import Decision, conclude, decide, retention
from projections.policy.delay_price import OWN_DELAYS, delay_price_m
from projections.policy.load_time import LoadPrices
from projections.policy.policies import (
    OVERLAP_POLICIES,
    TEMPERATURE_POLICIES,
    draw_by_temperature,
    of_two,
    tie_key,
)
from projections.policy.prefill_backlog import NO_BACKLOG, SLACK_M, PrefillBacklog, wait_us
from projections.policy.prefill_time import MILLI, PrefillTime
from projections.policy.rules import RULES
from projections.policy.view import EXCLUSION_REASONS, Candidate, RouteRequest, View
from projections.policy.worker_room import FREE_PART

TOKENS_MAX = 1 << 20
"""A longer prompt is decided on worker by worker, …"""
BLOCKS_MAX = 1 << 16
"""… as is one of more blocks, …"""
WEIGHT_M_MAX = 1 << 20
"""… and so is one under weights beyond those that settings may have, …"""
NOW_MS_MAX, PRICE_MAX = 1 << 45, 1 << 30
"""… a moment, or a price of a token or a prefill, beyond these, …"""
PRODUCT_MAX = 1 << 60
"""… or where a term of a cost could be more than this."""
RULES_BY_COLUMNS = RULES[8]
"""The rules that this module follows."""
BYTES = np.dtype("<i8")
"""The form of a number in `projections.policy.candidate_columns`."""


def decide_by_columns(
    view: View,
    request: RouteRequest,
    settings: RoutingSettings,
    now_ms: int,
    seed: int,
    outstanding: Mapping[WorkerId, list[OutstandingPrefill]] | None = None,
) -> Decision:
    """The decision of `decide` under the newest rules, with equal bytes.

    `decide` makes it where only workers of the last resort are left, and where a number is so large that int64 might
    not hold a cost.
    """
    found = None
    if view.state.serving() and RULES[DECIDE_VERSION] is RULES_BY_COLUMNS and type(view) is View:
        found = _decided(view, request, settings, now_ms, seed)
    return found or decide(view, request, settings, now_ms, seed, outstanding)


def all_have_room(view: View, needed: int) -> bool:
    """True if so many blocks more fit on every worker, or can be waited for on none (`worker_room.lacking_blocks`), by
    the blocks of all prompts in flight there: no worker has more in use. False if they may not. O(workers), some 10 us
    for a thousand."""
    table = view.state.worker_table()
    if table.wide:
        return False
    blocks = table.blocks.copy()
    for worker, own in view.pending_events.in_flight_load.busy.items():
        if abs(own.blocks) > NUMBER_MAX:
            return False
        if worker in table.rows:
            blocks[table.rows[worker]] += own.blocks
    capacities = table.capacities.view(np.int64)  # a negative one has more blocks than a prompt can need
    most = capacities - capacities // FREE_PART
    return not ((blocks > most - needed) & (needed <= most)).any()


class RankedCandidates(Sequence[ScoredCandidate]):
    """All candidates as `Decision.ranked` has them; each is made when it is read, and those behind the first ones stand
    in their order when one of them is read."""

    def __init__(self, rows: _Rows, order: _Order, first: int) -> None:
        self._rows = rows
        self._order = order
        self._sorted = order.first(first)

    def __repr__(self) -> str:
        return f"<RankedCandidates {len(self)}>"

    def __len__(self) -> int:
        return len(self._order.rows)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    @overload
    def __getitem__(self, at: int) -> ScoredCandidate: ...
    @overload
    def __getitem__(self, at: slice) -> list[ScoredCandidate]: ...
    def __getitem__(self, at: int | slice) -> ScoredCandidate | list[ScoredCandidate]:
        places = range(len(self))[at]
        if isinstance(places, int):
            return self._rows.candidate(self._row(places))
        return [self._rows.candidate(self._row(place)) for place in places]

    def _row(self, place: int) -> int:
        if place >= len(self._sorted):
            self._sorted = self._order.first(len(self))
        return self._sorted.item(place)


class _Load(NamedTuple):
    """The numbers of all workers with this replica's own pending events: columns that no later event changes."""

    blocks: Column
    requests: Column
    prefill_tokens: Column
    waiting: Column
    draining: Flags
    reuse: Column
    turnover: Column

    @staticmethod
    def of(table: WorkerTable, view: View) -> _Load | None:
        """None if a number is beyond the bound."""
        found = _Load(
            table.blocks.copy(), table.requests.copy(), table.prefill_tokens.copy(), table.waiting.copy(),
            table.draining.copy(), table.reuse.copy(), table.turnover.copy(),
        )  # fmt: skip
        for worker, own in view.pending_events.in_flight_load.busy.items():
            row = table.rows.get(worker)
            if row is not None and not found._add(row, own.blocks, own.requests, own.prefill_tokens):
                return None
        return found

    def _add(self, row: int, blocks: int, requests: int, prefill_tokens: int) -> bool:
        """The row has so much more; False if it cannot."""
        numbers = (
            self.blocks.item(row) + blocks, self.requests.item(row) + requests,
            self.prefill_tokens.item(row) + prefill_tokens, self.waiting.item(row),
        )  # fmt: skip
        if not -NUMBER_MAX <= min(numbers) <= max(numbers) <= NUMBER_MAX:
            return False
        self.blocks[row], self.requests[row], self.prefill_tokens[row], _ = numbers
        return True


class _Prefixes(NamedTuple):
    """Blocks of the prompt on all workers."""

    levels: tuple[Column, ...]
    """Cached blocks: one column if each level has the same, else one per level."""
    pending: dict[int, int]
    """Blocks that are being computed, by row."""

    @staticmethod
    def of(
        table: WorkerTable,
        view: View,
        prompt: Prompt,
        settings: RoutingSettings,
        now_ms: int,
        loading: LoadPrices | None,
    ) -> _Prefixes:
        depths = None if settings.policy == APPROXIMATE else table.depths(view.state.index, prompt)
        if depths is None:
            cached = view.cached(prompt, settings, now_ms)
            if loading is not None:
                cached = loading.all_counted(cached)
            levels = _levels(table, cached, one=settings.policy == APPROXIMATE)
        else:
            levels = (depths,)
        rows = table.rows
        pending = {rows[worker]: depth for worker, depth in view.pending(prompt).items() if worker in rows}
        return _Prefixes(levels, pending)

    def overlap(self, row: int) -> tuple[int, ...]:
        levels = self.levels
        return (levels[0].item(row),) * len(TIERS) if len(levels) == 1 else tuple([each.item(row) for each in levels])

    def shared(self) -> Column | None:
        """Blocks that are being computed there and are not cached; None if nothing is being computed."""
        if not self.pending:
            return None
        shared: Column = np.maximum(self.pending_column() - self.levels[-1], 0)
        return shared

    def pending_column(self) -> Column:
        """`pending` of every row."""
        found: Column = np.zeros(len(self.levels[0]), np.int64)
        found[[*self.pending]] = [*self.pending.values()]
        return found


def _levels(table: WorkerTable, cached: Mapping[WorkerId, tuple[int, ...]], *, one: bool) -> tuple[Column, ...]:
    known = {row: overlap for worker, overlap in cached.items() if (row := table.rows.get(worker)) is not None}
    rows = [*known]
    found = []
    for level in range(1 if one else len(TIERS)):
        column: Column = np.zeros(len(table.fixed), np.int64)
        column[rows] = [overlap[level] for overlap in known.values()]
        found.append(column)
    return tuple(found)


class _Rows(NamedTuple):
    """All that a decision saw of the workers, with their costs."""

    fixed: list[Fixed]
    load: _Load
    prefixes: _Prefixes
    cost: Column
    prefill_m: Column

    def candidate(self, row: int) -> ScoredCandidate:
        load, prefixes = self.load, self.prefixes
        numbers = (
            load.blocks.item(row), load.requests.item(row), load.prefill_tokens.item(row), load.waiting.item(row),
            load.draining.item(row),
        )  # fmt: skip
        seen = Candidate(*self.fixed[row], prefixes.overlap(row), prefixes.pending.get(row, 0), *numbers)
        return ScoredCandidate(seen, self.cost.item(row), self.prefill_m.item(row))


class _Kept(NamedTuple):
    """The rows that can be chosen, by id, and the excluded workers by reason."""

    rows: Column
    excluded: dict[str, list[WorkerId]]

    @staticmethod
    def of(table: WorkerTable, request: RouteRequest, load: _Load, view: View, settings: RoutingSettings) -> _Kept:
        """As `find_candidates`; no rows where workers of the last resort have to serve."""
        eligible = table.eligible(request.model, request.prompt.block_size, request.adapter)
        full = load.waiting.max() >= settings.waiting_max
        if not (eligible.excluded or full or load.draining.any() or any(map(view.local.get, EXCLUSION_REASONS))):
            return _Kept(table.every_row, {})
        excluded = {reason: [*workers] for reason, workers in eligible.excluded.items()}
        left = eligible.flags.copy()
        for reason in EXCLUSION_REASONS:  # the first one counts
            rows = [row for row in map(table.rows.get, view.local.get(reason, ())) if row is not None and left[row]]
            left[rows] = False
            _exclude(excluded, reason, table, sorted(rows))
        for reason, flags in (("draining", load.draining), ("overloaded", load.waiting >= settings.waiting_max)):
            _exclude(excluded, reason, table, (left & flags).nonzero()[0].tolist())
            left &= ~flags
        return _Kept(left.nonzero()[0], excluded)


def _exclude(excluded: dict[str, list[WorkerId]], reason: str, table: WorkerTable, rows: list[int]) -> None:
    if rows:
        excluded[reason] = [table.fixed[row][0] for row in rows]


class _Waits(NamedTuple):
    """The expected wait on each row, and all of them as a record has them."""

    column: Column
    backlog: PrefillBacklog

    @staticmethod
    def of(table: WorkerTable, view: View, request: RouteRequest, time: PrefillTime, now_ms: int) -> _Waits | None:
        """None if a number is beyond the bounds, or if a worker without a row prefills or is held for."""
        folded, own = view.state.routing.in_flight_load.prefills, view.pending_events.in_flight_load.prefills
        computed, rows = view.pending_events.computed, table.rows
        if len(folded) != table.prefilling or not own.keys() <= rows.keys():
            return None
        if abs(now_ms) > NOW_MS_MAX or max(time) > PRICE_MAX or min(time) < 0:
            return None
        column = _waits_us(table, time, now_ms)
        one_by_one = [rows[worker] for worker in (*own, *view.pending_events.computed_on) if worker in rows]
        for row in (*table.crowded, *one_by_one):
            worker = table.fixed[row][0]
            left = [each for each in folded.get(worker, _NONE).values() if each[1:3] not in computed]
            wait = wait_us([*left, *own.get(worker, _NONE).values()], time, now_ms)
            if wait > PRODUCT_MAX:
                return None
            column[row] = wait
        for worker, held_us in request.held.items():
            wait = column.item(rows[worker]) + held_us if worker in rows else PRODUCT_MAX + 1
            if abs(wait) > PRODUCT_MAX:
                return None
            column[rows[worker]] = wait
        return _Waits(column, PrefillBacklog(time, _ByWorker(table, column), request.held, view.reuse()))


class _ByWorker(Mapping[WorkerId, int]):
    """A column as `PrefillBacklog.waits_us` and `turnover` have theirs: by worker, and nothing for 0."""

    def __init__(self, table: WorkerTable, column: Column) -> None:
        self._ids, self._rows = table.ids, table.rows
        self._column = column

    def __repr__(self) -> str:
        return repr(dict(self))

    def __getitem__(self, worker: WorkerId) -> int:
        if wait := self._column.item(self._rows[worker]):
            return wait
        raise KeyError(worker)

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._ids[self._column.nonzero()[0]].tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._column))


def _waits_us(table: WorkerTable, time: PrefillTime, now_ms: int) -> Column:
    """`wait_us` of each row; of crowded ones, behind the first prefills alone."""
    now_us, (base_us, per_token_m) = now_ms * MILLI, time
    free_us: Column = np.zeros(len(table.fixed), np.int64)
    for place in range(min(OUTSTANDING_COLUMNS, int(table.outstanding.max()))):
        begin_us = np.maximum(free_us, np.minimum(table.begins_us[place], now_us))
        lasts_us = SLACK_M * (base_us + per_token_m * table.tokens[place] // MILLI) // MILLI
        free_us = np.where(table.outstanding > place, begin_us + lasts_us, free_us)
    return np.maximum(free_us - now_us, 0)


_NONE: Mapping[int, OutstandingPrefill] = MappingProxyType({})


class _Costs(NamedTuple):
    """`score` of each row."""

    cost: Column
    prefill_m: Column

    @staticmethod
    def of(
        table: WorkerTable, view: View, request: RouteRequest, settings: RoutingSettings, seen: _Seen
    ) -> _Costs | None:
        """None if a term could be beyond the bound."""
        prompt, load = request.prompt, seen.load
        size, needed_m = prompt.block_size, prompt.tokens * MILLI // prompt.block_size
        levels, loading = seen.prefixes.levels, None if seen.waits is None else seen.waits.backlog.loading
        credits_m = settings.credits_m if loading is None else loading.credits_m
        credit_m = _weighted(levels, credits_m)
        queued_m, blocks = load.prefill_tokens * MILLI // size, load.blocks
        shared = seen.prefixes.shared()
        if shared is not None:
            credit_m += shared * settings.pending_credit_m
            queued_m -= shared * MILLI
            blocks = blocks - shared
        for worker in view.local.get("stale", ()):
            if (row := table.rows.get(worker)) is not None:
                credit_m[row] = credit_m.item(row) * settings.stale_credit_m // MILLI
        prefill_m = np.maximum(needed_m - credit_m, 0)
        if seen.waits is not None:
            costs = _time_costs(prefill_m, blocks, seen.waits, seen.turnover, load, prompt, settings)
            return costs if costs is None or loading is None else _with_loads(costs, levels, loading, seen, settings)
        prefill_m += np.maximum(queued_m, 0)
        if settings.policy in BLOCK_COST_POLICIES:
            cost = settings.prefill_weight_m * prefill_m
            cost += settings.decode_weight_m * MILLI * (blocks + prompt.blocks_to_hold)
            cost += settings.request_weight_m * MILLI * load.requests
            cost //= MILLI
        elif settings.policy in REQUEST_COST_POLICIES:
            cost = (load.requests + load.waiting) * MILLI
        else:
            cost = np.zeros(len(prefill_m), np.int64)
        return _Costs(cost, prefill_m)


def _weighted(levels: tuple[Column, ...], each_m: Sequence[int]) -> Column:
    """The sum of the cached blocks on each row: of each level, those that it has beyond the one before, times its
    weight."""
    first, *others = levels
    sum_m = first * each_m[0]
    for above, level, weight_m in zip(levels, others, each_m[1:], strict=False):
        sum_m += (level - above) * weight_m
    return sum_m


def _with_loads(
    costs: _Costs, levels: tuple[Column, ...], loading: LoadPrices, seen: _Seen, settings: RoutingSettings
) -> _Costs | None:
    """The costs with the price of the blocks that are loaded. None if a term could be beyond the bound."""
    assert seen.waits is not None
    per_load = load_price_m(delay_price_m(settings, seen.waits.backlog.reuse_max))
    if max(loading.times_m) > PRICE_MAX or per_load * (max(loading.times_m) * BLOCKS_MAX // MILLI) > PRODUCT_MAX:
        return None
    return costs._replace(cost=costs.cost + per_load * (_weighted(levels, loading.times_m) // MILLI) // MILLI)


def _time_costs(
    prefill_m: Column,
    blocks: Column,
    waits: _Waits,
    turnover: Column | None,
    load: _Load,
    prompt: Prompt,
    settings: RoutingSettings,
) -> _Costs | None:
    (base_us, per_token_m), size = waits.backlog.time, prompt.block_size
    if settings.policy != "time":
        return _Costs(np.maximum(waits.column - settings.session_wait_max_ms * MILLI, 0), prefill_m)
    per_active = settings.active_weight_m * per_token_m * size // MILLI
    own = base_us + per_token_m * -(-prefill_m * size // MILLI) // MILLI
    most = int(own.max())
    if max(settings.own_weight_m, max(settings.own_request_weight_m, TURNOVER_TIMES) * NUMBER_MAX) * most > PRODUCT_MAX:
        return None
    per_reuse = reuse_price_us(settings, prompt.tokens, per_token_m)
    if max(per_active * (NUMBER_MAX + TOKENS_MAX), per_reuse * NUMBER_MAX) > PRODUCT_MAX:
        return None
    cost = waits.column + settings.own_weight_m * own // MILLI
    cost += settings.own_request_weight_m * own * load.requests // MILLI
    cost += per_active * blocks // MILLI + per_reuse * load.reuse // REUSE_STEPS
    if per_first := first_active_price_m(settings, waits.backlog, size):
        if per_first * (NUMBER_MAX + TOKENS_MAX) > PRODUCT_MAX:
            return None
        cost += per_first * np.minimum(blocks, FIRST_ACTIVE_TOKENS // size) // MILLI
    per_delay = delay_price_m(settings, waits.backlog.reuse_max)
    if per_delay:
        if per_delay * (OWN_DELAYS * (int(waits.column.max()) + most) + NUMBER_MAX * most) > PRODUCT_MAX:
            return None
        cost += per_delay * (OWN_DELAYS * (waits.column + own) + own * load.requests) // MILLI
    if turnover is not None:
        cost += TURNOVER_TIMES * own * turnover // TURNOVER_STEPS
    return _Costs(cost, prefill_m)


def _excess_turnover(load: _Load, rows: Column) -> Column | None:
    """As `cost.excess_turnover` of these rows, and 0 on all others; None if no row has any."""
    seen = load.turnover[rows]
    base = turnover_base(seen.min().item(), seen.sum().item(), len(seen))
    if seen.max() <= base:
        return None
    found: Column = np.zeros(len(load.turnover), np.int64)
    found[rows] = np.maximum(seen - base, 0)
    return found


class _Seen(NamedTuple):
    """The columns that costs rest on."""

    load: _Load
    prefixes: _Prefixes
    waits: _Waits | None
    """Of policies that estimate times."""
    turnover: Column | None
    """The turnover of each row beyond that of others; None where none has, and of policies that do not read it."""


def _decided(view: View, request: RouteRequest, settings: RoutingSettings, now_ms: int, seed: int) -> Decision | None:
    """None if `decide` has to make it."""
    table, prompt = view.state.worker_table(), request.prompt
    if table.wide or not _is_bounded(prompt, settings) or (load := _Load.of(table, view)) is None:
        return None
    kept = _Kept.of(table, request, load, view, settings)
    if not len(kept.rows):
        return None
    waits, turnover, loading = None, None, request.loading(settings)
    if settings.policy in ESTIMATING_POLICIES:
        waits = _Waits.of(table, view, request, PrefillTime.of(settings, request.time), now_ms)
        if waits is None:
            return None
        if waits.backlog.reuse:
            reuse_max = load.reuse[kept.rows].max().item()
            waits = waits._replace(backlog=waits.backlog._replace(reuse_max=reuse_max))
        if loading is not None:
            waits = waits._replace(backlog=waits.backlog._replace(loading=loading))
        if settings.policy == TURNOVER_POLICY and (turnover := _excess_turnover(load, kept.rows)) is not None:
            waits = waits._replace(backlog=waits.backlog._replace(turnover=_ByWorker(table, turnover)))
    seen = _Seen(load, _Prefixes.of(table, view, prompt, settings, now_ms, loading), waits, turnover)
    costs = _Costs.of(table, view, request, settings, seen)
    if costs is None:
        return None
    overlap = seen.prefixes.levels[0] if settings.policy in OVERLAP_POLICIES else None
    order = _Order(kept.rows, costs.cost[kept.rows], overlap, table.keys, tie_key(request, settings))
    order.choose(settings, view.routed(request.model), seed)
    ranked = RankedCandidates(_Rows(table.fixed, load, seen.prefixes, *costs), order, settings.candidates_recorded_max)
    believed = retention(ranked[0].candidate, view, settings) if settings.policy == APPROXIMATE else None
    backlog = NO_BACKLOG if waits is None else waits.backlog
    parts = _digested(table, kept.rows, seen, costs)
    return conclude(ranked, parts, kept.excluded, view, request, now_ms, seed, backlog, believed, DECIDE_VERSION)


def _is_bounded(prompt: Prompt, settings: RoutingSettings) -> bool:
    weights_m = max(
        settings.prefill_weight_m, settings.decode_weight_m, settings.request_weight_m, settings.own_weight_m,
        settings.own_request_weight_m, settings.active_weight_m, settings.reuse_weight_m, settings.delay_weight_m,
        settings.pending_credit_m, settings.stale_credit_m, *settings.credits_m,
    )  # fmt: skip
    return prompt.tokens <= TOKENS_MAX and prompt.blocks <= BLOCKS_MAX and weights_m <= WEIGHT_M_MAX


class _Order:
    """The rows that can be chosen, as `rank` orders them. Equal costs stand by `overlap`, the largest first, if it is
    given, then by their hashes, and by id if these are equal, too."""

    def __init__(self, rows: Column, costs: Column, overlap: Column | None, keys: Objects, asked: bytes) -> None:
        self.rows = rows
        self._costs = costs
        """Of these rows."""
        self._overlap = overlap
        self._keys, self._asked = keys, asked
        self._chosen: int | None = None
        """The row that stands first at any cost; None for the cheapest one."""

    def choose(self, settings: RoutingSettings, turn: int, seed: int) -> None:
        """The row that the policy chooses stands first."""
        rows, costs = self.rows, self._costs
        match settings.policy:
            case "round-robin":
                self._chosen = rows.item(turn % len(rows))
            case "random":
                self._chosen = rows.item(seed % len(rows))
            case "power-of-two":
                self._chosen = rows.item(of_two(costs.tolist(), seed))
            case policy if settings.temperature_m and policy in TEMPERATURE_POLICIES:
                self._chosen = rows.item(draw_by_temperature(costs.tolist(), settings.temperature_m, seed))
            case _ if settings.tie_margin_m:
                near = self._up_to(costs.min() + settings.tie_margin_m)
                self._chosen = near.item(int(self._ties(near).argmin()))  # the first of equal ones, as min() has it

    def first(self, count: int) -> Column:
        """So many rows in their order, or some more. O(rows), and a hash for each that costs as much as another one
        among the first."""
        costs = self._costs
        order = self._up_to(np.partition(costs, count)[count] if count < len(costs) else costs.max())
        if self._chosen is None:
            return order
        with_chosen: Column = np.concatenate(([self._chosen], order[order != self._chosen]))
        return with_chosen

    def _up_to(self, cost: int) -> Column:
        """The rows that cost no more, in the order of costs and ties."""
        places = (self._costs <= cost).nonzero()[0]
        places = places[self._costs[places].argsort()]
        costs = self._costs[places]
        order: Column = self.rows[places]
        equal = costs[1:] == costs[:-1]
        flags: Flags = np.zeros(len(costs), bool)
        flags[1:] = equal
        flags[:-1] |= equal
        tied = flags.nonzero()[0]
        if len(tied):
            rows = order[tied]
            depth = np.zeros(len(rows), np.int64) if self._overlap is None else -self._overlap[rows]
            order[tied] = rows[np.lexsort((rows, self._ties(rows), depth, costs[tied]))]
        return order

    def _ties(self, rows: Column) -> NDArray[np.uint64]:
        """The hashes that decide between equal costs."""
        digest, asked = xxhash.xxh3_64_digest, self._asked
        hashes = b"".join([digest(asked + key) for key in self._keys[rows].tolist()])
        return np.frombuffer(hashes, ">u8").astype(np.uint64)


def _digested(table: WorkerTable, rows: Column, seen: _Seen, costs: _Costs) -> list[bytes | memoryview]:
    """The parts of `candidate_columns` of these rows."""
    load, prefixes = seen.load, seen.prefixes
    levels = prefixes.levels if len(prefixes.levels) > 1 else prefixes.levels * len(TIERS)
    columns = [
        table.known, load.draining, *levels, prefixes.pending_column(), load.blocks, load.requests,
        load.prefill_tokens, load.waiting, costs.cost, costs.prefill_m,
    ]  # fmt: skip
    if seen.waits is not None:
        columns.append(seen.waits.column)
        if load.reuse[rows].any():
            columns.append(load.reuse)
        if seen.turnover is not None:
            columns.append(seen.turnover)
    if rows is table.every_row:
        ids, capacities = table.id_lines, table.capacities
    else:
        ids, capacities = id_lines(table.ids[rows].tolist()), table.capacities[rows]
        columns = [column[rows] for column in columns]
    return [ids, capacities.astype("<u8", copy=False).data, *[each.astype(BYTES, copy=False).data for each in columns]]
