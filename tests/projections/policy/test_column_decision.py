"""Decisions by columns: the same bytes as worker by worker, in every case, and the cases in which they are not made."""

from __future__ import annotations

import random

import msgspec
import pytest

from core.block_spans import single, stretch
from core.events import WorkerLeft
from core.events.routing import DECIDE_VERSION
from core.ids import Epoch, RequestId, WorkerId
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.worker_table import ELIGIBLE_MAX, NUMBER_MAX, OUTSTANDING_COLUMNS
from projections.index.depth_column import MATRIX_BLOCKS_MAX
from projections.index.prefix_index import PrefixIndex
from projections.policy.column_decision import (
    PRODUCT_MAX,
    TOKENS_MAX,
    WEIGHT_M_MAX,
    RankedCandidates,
    decide_by_columns,
)
from projections.policy.cost import (
    FIRST_ACTIVE_TIMES,
    FIRST_ACTIVE_TOKENS,
    TURNOVER_SLACK,
    TURNOVER_TIMES,
    first_active_price_m,
    pending_beyond,
)
from projections.policy.decide import COLUMNS_WORKERS_MIN, Decision, decide, decide_newest
from projections.policy.prefill_time import PrefillTime
from projections.policy.rules import RULES
from projections.policy.view import RouteRequest
from tests.projections.facts import SEED, load, prompt, routed, worker_id
from tests.projections.policy.random_fleets import RandomFleet, check
from tests.projections.site import Site

FLEETS = 60
ASKED = prompt(*range(20))
WORKERS = [WorkerId(worker_id(number)) for number in range(1, 41)]


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join(*WORKERS)
    return made


def decided(site: Site, settings: RoutingSettings | None = None, request: RouteRequest | None = None) -> Decision:
    """By columns if it can be, and in any case as the rules have it."""
    request = request or RouteRequest(RequestId("r"), 0, "tiny", ASKED)
    settings = settings or RoutingSettings(policy="kv")
    found = decide_by_columns(site.view, request, settings, 1000, 2**63)
    judge = decide(site.view, request, settings, 1000, 2**63)
    assert found._replace(ranked=[*found.ranked]) == judge
    return found


def is_by_columns(decision: Decision) -> bool:
    return isinstance(decision.ranked, RankedCandidates)


def test_random_fleets_are_decided_on_alike() -> None:
    """Byte for byte; `python -m tests.projections.policy.random_fleets 100000` tries more of them."""
    every = by_columns = 0
    for seed in range(FLEETS):
        found = check(RandomFleet(seed))
        every, by_columns = every + found[0], by_columns + found[1]
    assert by_columns > every // 2


def test_few_workers_are_decided_on_one_by_one() -> None:
    """From COLUMNS_WORKERS_MIN on it is done by columns."""
    few = Site()
    few.join(*WORKERS[: COLUMNS_WORKERS_MIN - 1])
    request, settings = RouteRequest(RequestId("r"), 0, "tiny", ASKED), RoutingSettings(policy="kv")
    assert not is_by_columns(decide_newest(few.view, request, settings, 1000, 2**63))
    few.join(WORKERS[-1])
    assert is_by_columns(decide_newest(few.view, request, settings, 1000, 2**63))


def test_other_rules_are_decided_by(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that this module does not follow is executed as it stands."""
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace())
    assert not is_by_columns(decided(site))


def test_only_the_last_resort_is_left(site: Site) -> None:
    site.exclude("failed", WORKERS)
    assert not is_by_columns(decided(site))
    site.exclude("failed", WORKERS[1:])
    assert is_by_columns(decided(site))


@pytest.mark.parametrize("policy", ["kv", "time"])
def test_numbers_that_might_not_fit(site: Site, policy: str) -> None:
    """At each bound the columns are left, and taken again once the number is gone."""
    settings = RoutingSettings(policy=policy)
    for blocks, fits in ((NUMBER_MAX, True), (NUMBER_MAX + 1, False)):
        event = msgspec.structs.replace(routed("x", WORKERS[3], ASKED), blocks=blocks)
        site.pending_events.emit(event, None)
        assert is_by_columns(decided(site, settings)) == fits
        site.pending_events.forget()
        site.say(ROUTING, "dd" * 8, event)
        assert is_by_columns(decided(site, settings)) == fits
        site.say(ROUTING, "dd" * 8, msgspec.structs.replace(event, blocks=1))
        assert is_by_columns(decided(site, settings))


def test_own_events_below_the_bound(site: Site) -> None:
    """Requests of the log that this replica has ended count less than nothing until the log says so."""
    for blocks, fits in ((-NUMBER_MAX, True), (-NUMBER_MAX - 1, False)):
        site.pending_events.emit(msgspec.structs.replace(routed("x", WORKERS[3], ASKED), blocks=blocks), None)
        assert is_by_columns(decided(site)) == fits
        site.pending_events.forget()


def test_one_worker_is_full(site: Site) -> None:
    """At the bound, and nothing else excludes a worker."""
    settings = RoutingSettings(policy="kv", waiting_max=3)
    for waiting in (2, 3, 4):
        site.say(LOAD, WORKERS[3], load(waiting))
        found = decided(site, settings)
        assert is_by_columns(found)
        assert found.excluded == ({} if waiting == 2 else {"overloaded": [WORKERS[3]]})


def test_a_stream_that_begins_again(site: Site) -> None:
    """The load that was reported before is void."""
    settings = RoutingSettings(policy="least-loaded")
    site.say(LOAD, WORKERS[3], load(9))
    assert decided(site, settings).ranked[-1].cost == 9000
    site.state.reset(LOAD, Epoch(2))
    assert decided(site, settings).ranked[-1].cost == 0


def test_the_models_of_which_rows_are_remembered_are_bounded(site: Site) -> None:
    table = site.state.worker_table()
    for number in range(ELIGIBLE_MAX + 1):
        assert not table.eligible(f"m{number}", 4).flags.any()
    assert len(table._eligible) <= ELIGIBLE_MAX


def test_long_prompts_and_heavy_weights(site: Site) -> None:
    for tokens, fits in ((TOKENS_MAX, True), (TOKENS_MAX + 1, False)):
        long = Prompt(bytes(4 * tokens), 64, SEED)
        site.join(*(worker_id(1000 + number) for number in range(20)), block_size=64)
        assert is_by_columns(decided(site, request=RouteRequest(RequestId("r"), 0, "tiny", long))) == fits
    for weight_m, fits in ((WEIGHT_M_MAX, True), (WEIGHT_M_MAX + 1, False)):
        assert is_by_columns(decided(site, RoutingSettings(policy="kv", decode_weight_m=weight_m))) == fits
    dear = RouteRequest(RequestId("r"), 0, "tiny", ASKED, time=PrefillTime(0, 1 << 30))
    assert is_by_columns(decided(site, RoutingSettings(policy="time"), dear))
    for weight, least in (("own_request_weight", 1), ("active_weight", 10)):
        for factor in (1, 100):
            heavy = RoutingSettings.parse({"policy": "time", weight: least * factor})
            assert not is_by_columns(decided(site, heavy, dear))


def test_crowded_workers(site: Site) -> None:
    """More outstanding prefills than columns, those of this replica among them."""
    for number in range(OUTSTANDING_COLUMNS + 2):
        event = routed(f"x{number}", WORKERS[5], ASKED, now_ms=990 + 7 * number % 20, wait_us=number * 900)
        site.say(ROUTING, "dd" * 8, event)
        assert is_by_columns(decided(site, RoutingSettings(policy="time")))
    site.pending_events.emit(routed("own", WORKERS[5], ASKED, now_ms=1001), None)
    assert is_by_columns(decided(site, RoutingSettings(policy="time")))


def test_a_worker_without_a_row_that_prefills(site: Site) -> None:
    """Its wait is in the record: the rules themselves find it."""
    site.say(ROUTING, "dd" * 8, routed("x", worker_id(77), ASKED, now_ms=1000))
    assert not is_by_columns(decided(site, RoutingSettings(policy="time")))
    assert is_by_columns(decided(site))


def test_a_ranking_reads_like_a_list(site: Site) -> None:
    decision = decided(site)
    ranked = [*decision.ranked]
    assert (decision.ranked[:3], decision.ranked[-1], len(decision.ranked)) == (ranked[:3], ranked[-1], len(WORKERS))
    assert decision.ranked == ranked
    assert decision.ranked != ranked[1:]
    assert repr(decision.ranked) == "<RankedCandidates 40>"


def test_a_decision_keeps_what_it_saw(site: Site) -> None:
    """Later events change columns, and no decision made before."""
    decision = decided(site)
    before = [*decision.ranked]
    for worker in WORKERS:
        site.say(LOAD, worker, load(7, draining=True))
        site.say(ROUTING, "dd" * 8, routed(f"x{worker}", worker, ASKED))
    decided(site)
    assert [*decision.ranked] == before


def test_changes_are_noted_only_of_workers_with_a_row(site: Site) -> None:
    """However long no decision is made: the notes are bounded by the workers."""
    decided(site)
    loads, in_flight = site.state.loads, site.state.routing.in_flight_load
    for number in range(3):
        for worker in (*WORKERS, worker_id(77 + number)):
            site.say(LOAD, worker, load(number))
            site.say(ROUTING, "dd" * 8, routed(f"{number}{worker}", worker, ASKED))
    assert loads.changed.keys() == in_flight.changed.keys() == set(WORKERS)
    decided(site)
    assert not loads.changed
    assert not in_flight.changed


@pytest.mark.parametrize("seed", range(40))
def test_depths_by_a_matrix_are_those_of_the_search(seed: int) -> None:
    """Runs and single blocks, holes, retired workers, prompts on both sides of the bound."""
    dice = random.Random(seed)
    index, blocks = PrefixIndex(), dice.choice((1, 17, 60, MATRIX_BLOCKS_MAX + 1, MATRIX_BLOCKS_MAX + 2, 300))
    asked = Prompt(tokens_to_bytes([dice.randrange(9) for _ in range(blocks * 2)]), 2, SEED)
    column = asked.hashes()
    for worker in WORKERS:
        depth = min(blocks, dice.randrange(-blocks // 4, blocks + 20))
        if depth > 0:
            apart = single(hashes_from_bytes(column)[:depth])
            index.store(worker, "device", stretch(column, 0, depth) if dice.random() < 0.8 else apart)
        if dice.random() < 0.1:
            at = dice.randrange(blocks)
            index.remove(worker, "device", single(hashes_from_bytes(column)[at : at + 1]))
    for worker in dice.sample(WORKERS, 3):
        index.drop(worker)
    found = index.depth_column(asked, len(WORKERS) + 2)
    assert found is not None
    depths = {worker: int(found[bit.bit_length() - 1]) for worker, bit in index.sets.bits.items()}
    assert {worker: depth for worker, depth in depths.items() if depth} == {
        worker: overlap[0] for worker, overlap in index.overlaps(asked).items()
    }
    assert found.sum() == sum(depths.values()), "a place of no worker has a depth"
    for size in range(1, len(found)):
        fewer = index.depth_column(asked, size)
        assert fewer is not None
        assert [*fewer] == [*found[: size - 1], 0]


def test_fleets_with_pools_are_among_them() -> None:
    """In which a pool counts for a candidate."""
    fleets = [RandomFleet(seed) for seed in range(FLEETS)]
    pooled = 0
    for fleet in fleets:
        for mine, judge, request, settings in fleet.decisions():
            assert mine._replace(ranked=[*mine.ranked]) == judge
            state, cached = fleet.site.state, settings.policy != "approximate"
            pooled += cached and state.reported(request.prompt) != state.reported(request.prompt, pools=False)
    assert pooled > FLEETS


def test_fleets_with_first_active_tokens_are_among_them() -> None:
    """Decisions by columns among talks, with candidates below, at and above FIRST_ACTIVE_TOKENS."""
    found = dict.fromkeys(("below", "at", "above"), 0)
    for seed in range(FLEETS):
        fleet = RandomFleet(seed)
        for mine, judge, request, settings in fleet.decisions():
            assert mine._replace(ranked=[*mine.ranked]) == judge
            size = request.prompt.block_size
            if (
                not is_by_columns(mine)
                or settings.policy != "time"
                or not first_active_price_m(settings, mine.backlog, size)
            ):
                continue
            counts = [each.candidate.active_blocks - pending_beyond(each.candidate) for each in mine.ranked]
            first = FIRST_ACTIVE_TOKENS // size
            found["below"] += any(0 < blocks < first for blocks in counts)
            found["at"] += first in counts
            found["above"] += max(counts) > first
    assert min(found.values()) > 0, found


def test_fleets_with_turnover_are_among_them() -> None:
    """Decisions by columns in which candidates have more turnover than others, one is far below the mean, all have the
    same, and an excluded worker has less than each candidate."""
    found = dict.fromkeys(("excess", "far below", "all alike", "less on an excluded worker", "with loads"), 0)
    for seed in range(FLEETS):
        fleet = RandomFleet(seed)
        for mine, judge, request, settings in fleet.decisions():
            assert mine._replace(ranked=[*mine.ranked]) == judge
            assert (settings.policy == "time") >= bool(mine.backlog.turnover)
            if not is_by_columns(mine) or settings.policy != "time":
                continue
            reported = fleet.site.state.loads.turnover
            known = [reported.get(each.candidate.worker, 0) for each in mine.ranked]
            base = max(min(known), sum(known) // len(known) - TURNOVER_SLACK)
            costing = {
                each.candidate.worker: turnover - base for each, turnover in zip(mine.ranked, known, strict=True)
            }
            costing = {worker: turnover for worker, turnover in costing.items() if turnover > 0}
            assert dict(mine.backlog.turnover) == costing
            excluded = (worker for workers in mine.excluded.values() for worker in workers)
            found["excess"] += bool(costing)
            found["far below"] += base > min(known)
            found["all alike"] += known[0] > 0 and not costing
            found["less on an excluded worker"] += any(reported.get(each, 0) < min(known) for each in excluded)
            found["with loads"] += bool(costing) and request.loading(settings) is not None
    assert min(found.values()) > 0, found
    assert found["excess"] > FLEETS, found


def test_turnover_of_excluded_workers_does_not_count(site: Site) -> None:
    """Neither as the least one nor in the mean: by columns, and worker by worker."""
    settings = RoutingSettings(policy="time", waiting_max=3)
    for worker in WORKERS:
        site.say(LOAD, worker, load(turnover=30))
    assert decided(site, settings).backlog.turnover == {}
    site.say(LOAD, WORKERS[0], load(turnover=40))
    assert dict(decided(site, settings).backlog.turnover) == {WORKERS[0]: 10}
    for worker in WORKERS[1:30]:
        site.say(LOAD, worker, load(3, turnover=0))
    decision = decided(site, settings)
    assert is_by_columns(decision)
    assert len(decision.ranked) == 11
    assert dict(decision.backlog.turnover) == {WORKERS[0]: 10}
    for worker in WORKERS[1:30]:
        site.say(LOAD, worker, load(turnover=0))
    assert set(decided(site, settings).backlog.turnover) == {WORKERS[0], *WORKERS[30:]}
    for policy in ("kv", "session"):
        assert not decided(site, RoutingSettings(policy=policy)).backlog.turnover


def test_turnover_of_a_worker_that_ended_is_gone(site: Site) -> None:
    """The table of workers has it no more, also if the same worker joins again."""
    settings = RoutingSettings(policy="time")
    site.say(LOAD, WORKERS[0], load(turnover=64))
    assert dict(decided(site, settings).backlog.turnover) == {WORKERS[0]: 64}
    site.say(LOAD, WORKERS[0], WorkerLeft(reason="left"))
    assert not decided(site, settings).backlog.turnover
    site.say(LOAD, WORKERS[0], load())
    assert not decided(site, settings).backlog.turnover


@pytest.mark.parametrize("turnover", [NUMBER_MAX, NUMBER_MAX + 1, -NUMBER_MAX, -NUMBER_MAX - 1, 1 << 63])
def test_a_turnover_that_might_not_fit(site: Site, turnover: int) -> None:
    """No worker of ours reports it. At the bound the columns are left, and taken again once the number is gone."""
    settings = RoutingSettings(policy="time")
    site.say(LOAD, WORKERS[3], load(turnover=turnover))
    assert is_by_columns(decided(site, settings)) == (abs(turnover) <= NUMBER_MAX)
    site.say(LOAD, WORKERS[3], load(turnover=5))
    assert is_by_columns(decided(site, settings))


def test_the_price_of_turnover_is_bounded(site: Site) -> None:
    """A prefill so long that its price might not fit is left to the rules."""
    unweighed = ("own_weight_m", "own_request_weight_m", "active_weight_m", "delay_weight_m", "reuse_weight_m")
    settings, asked = RoutingSettings(policy="time", **dict.fromkeys(unweighed, 0)), prompt(*range(1100))
    own_most_us = PRODUCT_MAX // (TURNOVER_TIMES * NUMBER_MAX)
    most = ((own_most_us + 1) * 1000 - 1) // asked.tokens
    site.say(LOAD, WORKERS[3], load(turnover=NUMBER_MAX))
    for per_token_m, fits in ((most, True), (most + 1, False)):
        request = RouteRequest(RequestId("r"), 0, "tiny", asked, time=PrefillTime(0, per_token_m))
        assert is_by_columns(decided(site, settings, request)) == fits


def test_the_price_of_first_tokens_is_bounded(site: Site) -> None:
    """It alone is beyond the bound: without talks, and with a smaller weight, columns decide."""
    time = PrefillTime(0, 1_000_000)
    most = PRODUCT_MAX // (NUMBER_MAX + TOKENS_MAX) * 1000 // (FIRST_ACTIVE_TIMES * time.per_token_m * ASKED.block_size)
    assert 0 < most < WEIGHT_M_MAX
    request = RouteRequest(RequestId("r"), 0, "tiny", ASKED, time=time)
    usual = RoutingSettings(policy="time", own_request_weight_m=0, delay_weight_m=0, reuse_weight_m=0)
    light, heavy = (msgspec.structs.replace(usual, active_weight_m=weight_m) for weight_m in (most, most + 1))
    assert is_by_columns(decided(site, heavy, request))
    site.say(LOAD, WORKERS[3], load(reuse_rate=1 << 30))
    assert is_by_columns(decided(site, light, request))
    assert not is_by_columns(decided(site, heavy, request))


def test_only_the_first_of_a_ranking_are_sorted(site: Site) -> None:
    """As many as a record has, and those that cost as much as the next one; all of them once a further one is read."""
    for number, worker in enumerate(WORKERS):
        site.say(LOAD, worker, load(min(number, 20)))
    decision = decide_by_columns(
        site.view, RouteRequest(RequestId("r"), 0, "tiny", ASKED), RoutingSettings(policy="least-loaded"), 1000, 2**63
    )
    assert isinstance(ranked := decision.ranked, RankedCandidates)
    assert [each.candidate.waiting for each in ranked[:8]] == [*range(8)]
    assert len(ranked._sorted) == 9
    assert ranked[8].cost == 8000
    assert len(ranked._sorted) == 9
    assert ranked[9].cost == 9000
    assert len(ranked._sorted) == len(WORKERS)


def test_a_worker_without_a_row_that_is_held_for(site: Site) -> None:
    """Its wait is in the backlog: the rules themselves find it."""
    for worker, by_columns in ((WORKERS[3], True), (WorkerId(worker_id(77)), False)):
        request = RouteRequest(RequestId("r"), 0, "tiny", ASKED, held={worker: 5000})
        decision = decided(site, RoutingSettings(policy="time"), request)
        assert is_by_columns(decision) == by_columns
        assert dict(decision.backlog.waits_us) == {worker: 5000}
        assert len(decision.backlog.waits_us) == 1
