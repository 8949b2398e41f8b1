"""Decisions among many workers, by columns: what `decide` decides, to the byte, at a fraction of its price.

`decide` makes an object for each worker, and scores and ranks one after the other: 2 us per worker. Here each step is
one operation over all workers (`projections.folds.worker_table`), and a candidate becomes an object when it is read.
Costs are the same integers: int64 as long as no product can leave it, and `decide` itself where one could.

The rules stand in `projections.policy.rules`, and nowhere else are they to be read. Replay judges each decision by
`decide`; so a difference between the two shows in `replay verify`, in the tests, and in every chaos run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, overload

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from core.events.routing import DECIDE_VERSION
from core.ids import WorkerId
from core.prompt import Prompt
from core.settings import APPROXIMATE, TIERS, RoutingSettings
from projections.folds.in_flight import OutstandingPrefill
from projections.folds.load_fold import REUSE_STEPS
from projections.folds.worker_table import (
    NUMBER_MAX,
    OUTSTANDING_COLUMNS,
    Column,
    Fixed,
    Flags,
    Objects,
    WorkerTable,
    tail_bytes,
)
from projections.policy.cost import (
    BLOCK_COST_POLICIES,
    ESTIMATING_POLICIES,
    OWN_DELAYS,
    REQUEST_COST_POLICIES,
    ScoredCandidate,
    delay_price_m,
    load_price_m,
    reuse_price_us,
)
from projections.policy.decide import Decision, conclude, decide, retention
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
RULES_BY_COLUMNS = RULES[5]
"""The rules that this module follows."""

_encode = msgspec.msgpack.Encoder().encode


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


class RankedCandidates(Sequence[ScoredCandidate]):
    """All candidates as `Decision.ranked` has them; each is made when it is read."""

    def __init__(self, rows: _Rows, order: Column, encoded: msgspec.Raw) -> None:
        self._rows = rows
        self._order = order
        self.encoded = encoded
        """The bytes of a list of them (msgpack)."""

    def __repr__(self) -> str:
        return f"<RankedCandidates {len(self)}>"

    def __len__(self) -> int:
        return len(self._order)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    @overload
    def __getitem__(self, at: int) -> ScoredCandidate: ...
    @overload
    def __getitem__(self, at: slice) -> list[ScoredCandidate]: ...
    def __getitem__(self, at: int | slice) -> ScoredCandidate | list[ScoredCandidate]:
        if isinstance(at, slice):
            return [self._rows.candidate(row) for row in self._order[at].tolist()]
        return self._rows.candidate(int(self._order[at]))


class _Load(NamedTuple):
    """The numbers of all workers with this replica's own pending events: columns that no later event changes."""

    blocks: Column
    requests: Column
    prefill_tokens: Column
    waiting: Column
    draining: Flags
    reuse: Column
    tails: Objects
    """The bytes with which each candidate ends."""

    @staticmethod
    def of(table: WorkerTable, view: View) -> _Load | None:
        """None if a number is beyond the bound."""
        found = _Load(
            table.blocks.copy(), table.requests.copy(), table.prefill_tokens.copy(), table.waiting.copy(),
            table.draining.copy(), table.reuse.copy(), table.tails.copy(),
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
        self.tails[row] = tail_bytes((*numbers, self.draining.item(row)))
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

    def encoded(self, prompt: Prompt) -> Objects:
        """The bytes of each row's overlap and pending blocks."""
        if len(self.levels) == 1:
            found = _same_depths((prompt.blocks + 1).bit_length())[self.levels[0]]
        else:
            known: dict[tuple[int, ...], msgspec.Raw] = {}
            found = np.empty(len(self.levels[0]), object)
            for row, overlap in enumerate(zip(*[level.tolist() for level in self.levels], strict=True)):
                found[row] = known.get(overlap) or known.setdefault(overlap, _prefix_bytes(overlap, 0))
        for row, depth in self.pending.items():
            found[row] = _prefix_bytes(self.overlap(row), depth)
        return found

    def shared(self) -> Column | None:
        """Blocks that are being computed there and are not cached; None if nothing is being computed."""
        if not self.pending:
            return None
        pending: Column = np.zeros(len(self.levels[0]), np.int64)
        pending[[*self.pending]] = [*self.pending.values()]
        shared: Column = np.maximum(pending - self.levels[-1], 0)
        return shared


def _levels(table: WorkerTable, cached: Mapping[WorkerId, tuple[int, ...]], *, one: bool) -> tuple[Column, ...]:
    known = {row: overlap for worker, overlap in cached.items() if (row := table.rows.get(worker)) is not None}
    rows = [*known]
    found = []
    for level in range(1 if one else len(TIERS)):
        column: Column = np.zeros(len(table.fixed), np.int64)
        column[rows] = [overlap[level] for overlap in known.values()]
        found.append(column)
    return tuple(found)


def _prefix_bytes(overlap: tuple[int, ...], pending: int) -> msgspec.Raw:
    return msgspec.Raw(_encode(overlap) + _encode(pending))


@cache
def _same_depths(bits: int) -> Objects:
    """By depth, up to so many bits: the bytes of an overlap with that depth on each level and nothing pending."""
    found = np.empty(1 << bits, object)
    found[:] = [_prefix_bytes((depth,) * len(TIERS), 0) for depth in range(1 << bits)]
    return found


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
        """None if a number is beyond the bounds, or if a worker prefills that has no row."""
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
        waiting = column.nonzero()[0]
        waits: dict[WorkerId, int] = dict(zip(table.ids[waiting].tolist(), column[waiting].tolist(), strict=True))
        backlog = PrefillBacklog(time, waits, reuse=view.reuse()).behind(request.held)
        for worker in request.held:
            if worker in rows:
                if abs(backlog.waits_us[worker]) > PRODUCT_MAX:
                    return None
                column[rows[worker]] = backlog.waits_us[worker]
        return _Waits(column, backlog)


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
            costs = _time_costs(prefill_m, blocks, seen.waits, load, prompt, settings)
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
    prefill_m: Column, blocks: Column, waits: _Waits, load: _Load, prompt: Prompt, settings: RoutingSettings
) -> _Costs | None:
    (base_us, per_token_m), size = waits.backlog.time, prompt.block_size
    if settings.policy != "time":
        return _Costs(np.maximum(waits.column - settings.session_wait_max_ms * MILLI, 0), prefill_m)
    per_active = settings.active_weight_m * per_token_m * size // MILLI
    own = base_us + per_token_m * -(-prefill_m * size // MILLI) // MILLI
    most = int(own.max())
    if max(settings.own_weight_m, settings.own_request_weight_m * NUMBER_MAX) * most > PRODUCT_MAX:
        return None
    per_reuse = reuse_price_us(settings, prompt.tokens, per_token_m)
    if max(per_active * (NUMBER_MAX + TOKENS_MAX), per_reuse * NUMBER_MAX) > PRODUCT_MAX:
        return None
    cost = waits.column + settings.own_weight_m * own // MILLI
    cost += settings.own_request_weight_m * own * load.requests // MILLI
    cost += per_active * blocks // MILLI + per_reuse * load.reuse // REUSE_STEPS
    per_delay = delay_price_m(settings, waits.backlog.reuse_max)
    if per_delay:
        if per_delay * (OWN_DELAYS * (int(waits.column.max()) + most) + NUMBER_MAX * most) > PRODUCT_MAX:
            return None
        cost += per_delay * (OWN_DELAYS * (waits.column + own) + own * load.requests) // MILLI
    return _Costs(cost, prefill_m)


class _Seen(NamedTuple):
    """The columns that costs rest on."""

    load: _Load
    prefixes: _Prefixes
    waits: _Waits | None
    """Of policies that estimate times."""


def _decided(view: View, request: RouteRequest, settings: RoutingSettings, now_ms: int, seed: int) -> Decision | None:
    """None if `decide` has to make it."""
    table, prompt = view.state.worker_table(), request.prompt
    if table.wide or not _is_bounded(prompt, settings) or (load := _Load.of(table, view)) is None:
        return None
    kept = _Kept.of(table, request, load, view, settings)
    if not len(kept.rows):
        return None
    waits, loading = None, request.loading(settings)
    if settings.policy in ESTIMATING_POLICIES:
        waits = _Waits.of(table, view, request, PrefillTime.of(settings, request.time), now_ms)
        if waits is None:
            return None
        if waits.backlog.reuse:
            reuse_max = load.reuse[kept.rows].max().item()
            waits = waits._replace(backlog=waits.backlog._replace(reuse_max=reuse_max))
        if loading is not None:
            waits = waits._replace(backlog=waits.backlog._replace(loading=loading))
    seen = _Seen(load, _Prefixes.of(table, view, prompt, settings, now_ms, loading), waits)
    costs = _Costs.of(table, view, request, settings, seen)
    if costs is None:
        return None
    overlap = seen.prefixes.levels[0] if settings.policy in OVERLAP_POLICIES else None
    order = _order(table, kept.rows, costs.cost, overlap, request, settings, view.routed(request.model), seed)
    encoded = _encoded(table, seen, costs, order, prompt)
    ranked = RankedCandidates(_Rows(table.fixed, load, seen.prefixes, *costs), order, encoded)
    believed = retention(ranked[0].candidate, view, settings) if settings.policy == APPROXIMATE else None
    backlog = NO_BACKLOG if waits is None else waits.backlog
    reuse = load.reuse[order].tolist() if backlog.reuse else ()
    return conclude(ranked, kept.excluded, view, request, now_ms, seed, backlog, reuse, believed, DECIDE_VERSION)


def _is_bounded(prompt: Prompt, settings: RoutingSettings) -> bool:
    weights_m = max(
        settings.prefill_weight_m, settings.decode_weight_m, settings.request_weight_m, settings.own_weight_m,
        settings.own_request_weight_m, settings.active_weight_m, settings.reuse_weight_m, settings.delay_weight_m,
        settings.pending_credit_m, settings.stale_credit_m, *settings.credits_m,
    )  # fmt: skip
    return prompt.tokens <= TOKENS_MAX and prompt.blocks <= BLOCKS_MAX and weights_m <= WEIGHT_M_MAX


def _order(
    table: WorkerTable,
    rows: Column,
    cost: Column,
    overlap: Column | None,
    request: RouteRequest,
    settings: RoutingSettings,
    turn: int,
    seed: int,
) -> Column:
    """The rows as `rank` orders them; equal costs by `overlap`, if it is given."""
    asked, keys = tie_key(request, settings), table.keys
    costs = cost[rows]
    places = costs.argsort()
    order: Column = rows[places]
    ascending: Column = costs[places]
    _break_ties(order, ascending, overlap, asked, keys)
    match settings.policy:
        case "round-robin":
            chosen = rows.item(turn % len(rows))
        case "random":
            chosen = rows.item(seed % len(rows))
        case "power-of-two":
            chosen = rows.item(of_two(costs.tolist(), seed))
        case policy if settings.temperature_m and policy in TEMPERATURE_POLICIES:
            chosen = rows.item(draw_by_temperature(costs.tolist(), settings.temperature_m, seed))
        case _ if settings.tie_margin_m:
            highest = ascending.item(0) + settings.tie_margin_m
            near = order[: ascending.searchsorted(highest, "right")]
            chosen = near.item(int(_ties(asked, keys[near]).argmin()))  # the first of equal ones, as min() has it
        case _:
            return order
    place = int((order == chosen).argmax())
    order[1 : place + 1] = order[:place].copy()
    order[0] = chosen
    return order


def _break_ties(order: Column, costs: Column, overlap: Column | None, asked: bytes, keys: Objects) -> None:
    """Rows of equal cost stand by their overlap, the largest first, if it is given, then by their hashes, and by id if
    these are equal, too; `order` has them in any order."""
    equal = costs[1:] == costs[:-1]
    flags: Flags = np.zeros(len(costs), bool)
    flags[1:] = equal
    flags[:-1] |= equal
    tied = flags.nonzero()[0]
    if len(tied):
        rows = order[tied]
        depth = np.zeros(len(rows), np.int64) if overlap is None else -overlap[rows]
        order[tied] = rows[np.lexsort((rows, _ties(asked, keys[rows]), depth, costs[tied]))]


def _ties(asked: bytes, keys: Objects) -> NDArray[np.uint64]:
    """The hashes that decide between equal costs, of the workers with these keys."""
    digest = xxhash.xxh3_64_digest
    return np.frombuffer(b"".join([digest(asked + key) for key in keys.tolist()]), ">u8").astype(np.uint64)


def _encoded(table: WorkerTable, seen: _Seen, costs: _Costs, order: Column, prompt: Prompt) -> msgspec.Raw:
    """The candidates in their order as msgpack: an array of arrays of candidate, cost and blocks to prefill."""
    flat: list[object] = [None] * (5 * len(order))
    flat[0::5] = table.heads[order].tolist()
    flat[1::5] = seen.prefixes.encoded(prompt)[order].tolist()
    flat[2::5] = seen.load.tails[order].tolist()
    flat[3::5] = costs.cost[order].tolist()
    flat[4::5] = costs.prefill_m[order].tolist()
    content = memoryview(_encode(flat))[len(_array_header(len(flat))) :]
    return msgspec.Raw(_array_header(len(order)) + content)


def _array_header(count: int) -> bytes:
    """The head of an array of so many in msgpack."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
