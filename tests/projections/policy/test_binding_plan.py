"""Held requests: placed together, bound when a worker is free, shortest first, and none is overtaken for ever."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.events import LoadReported, RequestFinished
from core.ids import RequestId, WorkerId
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy import binding_plan as plan_module
from projections.policy.binding_plan import (
    AGE_M,
    LIGHT_TOKENS,
    PASS_TOKENS,
    PlacementInputs,
    PlannedRequest,
    UnboundRequest,
    held_max,
    plan,
    with_room,
)
from projections.policy.column_decision import all_have_room
from projections.policy.cost import TURNOVER_SLACK
from projections.policy.decide import Decision, decide, record
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from projections.policy.worker_room import WAIT_PERCENT, RunningPrompts
from tests.projections.facts import finished, joined, load, prefilled, prompt, routed, worker_id
from tests.projections.site import KV, Site

A, B, C = (WorkerId(worker_id(number)) for number in (1, 2, 3))
NOW_MS = 1_000_000
OTHER = "dd" * 8
GIVEN = RoutingSettings(policy="time", own_weight_m=3000, prefill_base_us=0, prefill_us_per_token_m=1_000_000)
"""A millisecond a token."""
BLOCKS_OF_A_PASS = PASS_TOKENS // 4


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join(A, B)
    return made


def held(name: str, blocks: int, *, start: int = 0, ago_ms: int = 0, model: str = "tiny") -> UnboundRequest:
    """A prompt of so many blocks of 4 and one token, whose first block is named by `start`."""
    asked = prompt(*range(start, start + blocks))
    return UnboundRequest(RouteRequest(RequestId(name), 0, model, asked), NOW_MS - ago_ms)


def planned(site: Site, *queue: UnboundRequest) -> list[PlannedRequest]:
    """All that go now, one after the other; what was outstanding before is so afterwards."""
    site, left, found = deepcopy(site), list(queue), list[PlannedRequest]()
    while (one := plan(site.view, left, GIVEN, NOW_MS, {})) is not None:
        found.append(one)
        left = [each for each in left if each.request.id != one.request.id]
        if one.decision.worker is not None:
            site.say(ROUTING, OTHER, record(one.decision, one.request, GIVEN, 0))
    return found


def sent(site: Site, *queue: UnboundRequest) -> list[tuple[str, str | None]]:
    """Which request goes where now."""
    return [(each.request.id, each.decision.worker) for each in planned(site, *queue)]


def decisions_of(site: Site, *queue: UnboundRequest) -> list[Decision]:
    return [each.decision for each in planned(site, *queue)]


def busy(site: Site, worker: str, tokens: int = 40) -> None:
    site.say(ROUTING, OTHER, routed(f"x{worker}", worker, prompt(*range(500, 500 + tokens // 4)), now_ms=NOW_MS - 1))


def test_one_request_on_idle_workers_goes_where_it_would_at_once(site: Site) -> None:
    """The same worker, costs and digest as of `decide`."""
    site.cache(B, prompt(*range(10)), 5)
    (decision,) = decisions_of(site, held("r", 10)._replace(seed=7))
    assert decision == decide(site.view, held("r", 10).request, GIVEN, NOW_MS, 7)
    assert decision.worker == B


@pytest.fixture
def none_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "SMALL_TOKENS", 0)


@pytest.fixture
def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "PASS_TOKENS", 40)


@pytest.mark.usefixtures("small_passes")
def test_nothing_is_sent_to_a_worker_that_prefills(site: Site) -> None:
    """It waits for the one that holds its prompt while that is worth it; the other one is free."""
    site.cache(A, prompt(*range(100)), 100)
    busy(site, A)
    assert sent(site, held("r", 99)) == []
    assert sent(site, held("r", 99), held("q", 10, start=300)) == [("q", B)]
    site.say(ROUTING, OTHER, prefilled(f"x{A}"))
    assert sent(site, held("r", 99)) == [("r", A)]


def test_it_goes_elsewhere_where_the_wait_is_longer_than_what_is_saved(site: Site) -> None:
    """Three times 399 ms saved are not worth a wait of 1.05 * 1201 ms and more."""
    site.cache(A, prompt(*range(100)), 100)
    busy(site, A, 1200)
    assert sent(site, held("r", 100)) == [("r", B)]
    assert sent(site, held("r", 101)) == [("r", B)]


def test_requests_of_one_moment_are_spread(site: Site) -> None:
    """Each one placed makes its worker dearer, by the shorter of the two prefills."""
    decisions = decisions_of(site, held("r", 2000), held("q", 1900, start=5000))
    assert {decision.worker for decision in decisions} == {A, B}


def test_what_it_would_wait_for_stands_in_its_record(site: Site) -> None:
    """So it is made again without the queue: the same costs, the same digest."""
    placed_second = UnboundRequest(RouteRequest(RequestId("q"), 0, "tiny", prompt(*range(5000, 6900))), NOW_MS)
    site.exclude("not_connected", [B])
    busy(site, A)
    alone = decide(site.view, placed_second.request, GIVEN, NOW_MS, 0)
    behind = decide(site.view, placed_second.request._replace(held={A: 5_000_000}), GIVEN, NOW_MS, 0)
    assert behind.ranked[0].cost - alone.ranked[0].cost == 5_000_000
    assert behind.digest != alone.digest
    assert behind.wait_us == alone.wait_us
    event = record(behind, placed_second.request._replace(held={A: 5_000_000}), GIVEN, 0)
    again = decide(site.view, RouteRequest.of(event, placed_second.request.prompt), GIVEN, NOW_MS, 0)
    assert again == behind


@pytest.mark.usefixtures("none_is_small")
def test_the_shortest_goes_first_and_fills_a_pass(site: Site) -> None:
    """As many as one pass computes; each begins behind those before it. The rest stays held."""
    site.exclude("not_connected", [B])
    queue = held("long", BLOCKS_OF_A_PASS - 40), held("mid", 30, start=5000), held("short", 5, start=6000)
    assert sent(site, *queue) == [("short", A), ("mid", A), ("long", A)]
    assert [each.wait_us for each in decisions_of(site, *queue)] == [0, 1050 * 21, 1050 * (21 + 121)]
    queue = held("long", BLOCKS_OF_A_PASS - 30), held("mid", 30, start=5000), held("short", 5, start=6000)
    assert sent(site, *queue) == [("short", A), ("mid", A)]
    assert sent(site, held("huge", 2 * BLOCKS_OF_A_PASS)) == [("huge", A)]


def test_a_pass_is_full_at_its_bound(site: Site) -> None:
    """PASS_TOKENS fit, one more does not."""
    site.exclude("not_connected", [B])
    rest = PASS_TOKENS - 21
    for extra, count in ((0, 2), (1, 1)):
        asked = prompt(*range(5000, 5000 + rest // 4), extra=rest % 4 + extra)
        other = UnboundRequest(RouteRequest(RequestId("other"), 0, "tiny", asked), NOW_MS)
        assert len(planned(site, held("short", 5), other)) == count


@pytest.mark.usefixtures("none_is_small")
def test_age_counts(site: Site) -> None:
    """A longer one that was held for long enough goes before a shorter one that just came, at the bound too."""
    assert AGE_M == 300
    site.exclude("not_connected", [B])
    long, fresh = BLOCKS_OF_A_PASS, held("fresh", 100, start=5000)  # 4097 and 401 ms
    enough_ms = (4097 - 401) * 1000 // AGE_M
    assert sent(site, held("old", long, ago_ms=enough_ms - 1), fresh)[0] == ("fresh", A)
    assert sent(site, held("old", long, ago_ms=enough_ms), fresh) == [("old", A)]


def of_tenant(one: UnboundRequest, tenant: str, priority: int = 0, start: int = 0) -> UnboundRequest:
    return one._replace(request=one.request._replace(tenant=tenant, priority=priority), start=start)


@pytest.mark.parametrize("blocks", [100, 1100])
def test_tenants_come_before_priorities(site: Site, blocks: int) -> None:
    """The tenant that starts first is next, under any priorities of others; of its own, the first priority is. With
    small prompts as with long ones."""
    site.exclude("not_connected", [B])
    flood = [of_tenant(held(f"flood-{at}", blocks, start=5000 * at), "flood", -1000, start=9) for at in range(3)]
    quiet = of_tenant(held("quiet", blocks + 10, start=20_000), "quiet", 5, start=8)
    urgent = of_tenant(held("urgent", blocks + 20, start=30_000), "quiet", 0, start=8)
    assert sent(site, *flood, quiet, urgent)[0] == ("urgent", A)
    assert sent(site, *flood, quiet)[0] == ("quiet", A)


@pytest.mark.usefixtures("none_is_small")
def test_tenants_with_one_start_compare_prefills_and_no_priorities(site: Site) -> None:
    """Of each tenant its first in priority, of these the shortest prefill, less its age."""
    site.exclude("not_connected", [B])
    long = of_tenant(held("long", 50), "a", -1000)
    short = of_tenant(held("short", 10, start=5000), "a", 1000)
    mid = of_tenant(held("mid", 40, start=6000), "b")
    assert [name for name, _ in sent(site, long, short, mid)] == ["mid", "long", "short"]


def test_who_can_be_served_by_nobody_is_told_so(site: Site) -> None:
    """With the reasons, as `decide` has them."""
    site.say(LOAD, A, load(draining=True))
    site.exclude("not_connected", [B])
    (decision,) = decisions_of(site, held("r", 10))
    assert (decision.worker, decision.excluded) == (None, {"draining": [A], "not_connected": [B]})
    assert decision == decide(site.view, held("r", 10).request, GIVEN, NOW_MS, 0)
    assert plan(site.view, [], GIVEN, NOW_MS, {}) is None


def test_models_do_not_mix(site: Site) -> None:
    """Each request among the workers of its own."""
    site.join(C, model="other")
    assert sent(site, held("r", 10, model="other"), held("q", 12)) in (
        [("q", A), ("r", C)],
        [("q", B), ("r", C)],
    )


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_the_order_of_the_queue_does_not_matter(data: st.DataObject) -> None:
    """The same decisions, bit for bit; nobody is sent twice, and no more than a pass to anyone who got several."""
    site = Site()
    site.join(A, B, C)
    cached: Prompt = prompt(*range(200))
    site.cache(A, cached, data.draw(st.integers(0, 200)))
    if data.draw(st.booleans()):
        busy(site, B)
    shapes = data.draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2), st.integers(0, 5000)), max_size=8))
    queue = [held(f"r{at}", blocks, start=1000 * start, ago_ms=ago) for at, (blocks, start, ago) in enumerate(shapes)]
    found = planned(site, *queue)
    assert planned(site, *data.draw(st.permutations(queue))) == found
    decisions = [each.decision for each in found]
    assert len({each.request.id for each in found}) == len(found)
    assert len({each.digest for each in decisions}) == len(decisions) <= len(queue)
    for worker in (A, B, C):
        theirs = [each for each in decisions if each.worker == worker]
        assert len(theirs) <= 1 or sum(each.prefill_tokens for each in theirs) <= PASS_TOKENS
    assert not queue or decisions or site.view.outstanding()


def test_a_worker_that_declined_is_not_free(site: Site) -> None:
    """What it says to compute is waited for there, as if the log had told of it; the decision's inputs have it."""
    one = held("one", 10)
    assert sent(site, one) == [("one", A)] or sent(site, one) == [("one", B)]
    first = plan(site.view, [one], GIVEN, NOW_MS, {})
    assert first is not None
    chosen = first.decision.worker
    assert chosen is not None
    (other,) = {A, B} - {chosen}
    again = plan(site.view, [one], GIVEN, NOW_MS, {chosen: 500_000})
    assert again is not None
    assert again.decision.worker == other
    assert again.request.held == {chosen: 500_000}
    assert again.decision.backlog.waits_us == {chosen: 500_000}
    assert plan(site.view, [one], GIVEN, NOW_MS, {A: 500_000, B: 400_000}) is None


def test_with_many_workers_fewer_are_held() -> None:
    """A plan takes no longer for them."""
    assert [held_max(workers) for workers in (0, 1, 16, 17, 64, 5000)] == [64, 64, 64, 60, 16, 1]


@pytest.mark.usefixtures("small_passes")
@pytest.mark.parametrize(("ago_ms", "goes"), [(GIVEN.hold_max_ms - 1, False), (GIVEN.hold_max_ms, True)])
def test_a_prefill_of_which_nothing_is_heard_holds_nobody_for_ever(site: Site, ago_ms: int, goes: bool) -> None:
    """Its replica may have ended without a word."""
    site.cache(A, prompt(*range(100)), 100)
    site.say(ROUTING, OTHER, routed("x", A, prompt(*range(500, 510)), now_ms=NOW_MS - ago_ms))
    assert sent(site, held("r", 99)) == ([("r", A)] if goes else [])


@pytest.mark.parametrize("model", ["tiny", "other"])
@pytest.mark.parametrize("computes", [(), (A,), (A, B)])
def test_one_alone_goes_as_it_would_among_others(site: Site, computes: tuple[str, ...], model: str) -> None:
    """The short way and the long way come to the same, byte by byte."""
    for worker in computes:
        busy(site, worker)
    one = held("one", 10, model=model)
    stranger = {WorkerId("ff" * 8): 1}
    assert plan(site.view, [one], GIVEN, NOW_MS, {}) == plan(site.view, [one], GIVEN, NOW_MS, stranger)


def test_small_ones_do_not_wait_for_long_ones(site: Site) -> None:
    """By priority, then in the order in which they came, each as if it were alone; the long one stays held."""
    long, small, smaller = held("long", 3000, ago_ms=9), held("small", 120, start=5000), held("less", 100, start=6000)
    first = held("first", 110, start=7000)
    first = first._replace(request=first.request._replace(priority=-1))
    assert [name for name, _ in sent(site, long, small, smaller, first)] == ["first", "less", "small"]
    site.join(C)
    alone = plan(site.view, [small], GIVEN, NOW_MS, {})
    assert plan(site.view, [long, small], GIVEN, NOW_MS, {}) == alone


RESIDENCE_US = 1_000_000


def needing_room(blocks: int, residence_us: int = RESIDENCE_US, ago_ms: int = 0) -> UnboundRequest:
    return held("r", blocks, ago_ms=ago_ms)._replace(residence_us=residence_us)


@pytest.fixture
def full(site: Site) -> Site:
    """A has 801 of its 1 000 blocks in use, by an answer that flows, and the prompt of 300 in its cache."""
    site.say(ROUTING, OTHER, routed("x", A, prompt(*range(5000, 5800))), prefilled("x"))
    site.cache(A, prompt(*range(300)), 300)
    return site


def test_a_request_waits_for_room_while_that_costs_less(full: Site) -> None:
    """301 blocks beside 801 exceed 990, one part in a hundred being free, by 112: so many come free in 140 ms,
    of which 42 count. To compute the prompt takes 1.2 s on the other worker."""
    assert sent(full, needing_room(300)) == []
    full.say(ROUTING, OTHER, finished("x"))
    assert sent(full, needing_room(300)) == [("r", A)]


def test_a_long_wait_for_room_is_avoided(full: Site) -> None:
    """The wait stands in the decision's inputs, so that it is made again with it."""
    (one,) = planned(full, needing_room(300, 100 * RESIDENCE_US))
    assert one.decision.worker == B
    assert one.request.held == {A: 100 * RESIDENCE_US * 112 // 801 * WAIT_PERCENT // 100}


def test_no_request_waits_for_room_longer_than_computing_its_prompt_takes(full: Site) -> None:
    """That is 1 201 ms. Then a wait counts as the longest hold, and the other worker has room."""
    assert sent(full, needing_room(300, ago_ms=1200)) == []
    (one,) = planned(full, needing_room(300, ago_ms=1201))
    assert one.decision.worker == B
    assert one.request.held == {A: GIVEN.hold_max_ms * 1000}
    full.say(ROUTING, OTHER, routed("y", B, prompt(*range(6000, 6750))), prefilled("y"))
    assert sent(full, needing_room(300, ago_ms=1201)) == []


def test_blocks_that_a_request_there_holds_need_no_room(full: Site) -> None:
    """Of the 301 blocks 200 are those of an answer that flows on A, so 101 fit beside 801."""
    asked, running = needing_room(300), RunningPrompts()
    assert sent(full, asked._replace(running=running)) == []
    running.begin(A, RequestId("x"), prompt(*range(200), *range(5000, 5600)).hashes())
    assert sent(full, asked._replace(running=running)) == [("r", A)]
    assert with_room(full.view, asked._replace(running=running), GIVEN, NOW_MS) == asked.request
    running.end(A, RequestId("x"))
    running.begin(B, RequestId("x"), prompt(*range(200)).hashes())
    assert sent(full, asked._replace(running=running)) == []


def test_two_requests_do_not_count_on_the_same_room(full: Site) -> None:
    """The second one's expected wait is also that for the blocks of the first, which costs more than computing."""
    twin = needing_room(300, 33 * RESIDENCE_US)
    assert sent(full, twin) == []
    second = twin._replace(request=twin.request._replace(id=RequestId("s")))
    assert sent(full, twin, second)[0] == ("s", B)


@pytest.mark.parametrize(
    ("asked", "reports"),
    [
        pytest.param(needing_room(300, 0), (), id="it is not known how long requests stay"),
        pytest.param(needing_room(995), (), id="the prompt needs the whole worker"),
        pytest.param(needing_room(LIGHT_TOKENS // 4 - 1), (), id="the prompt is light"),
        pytest.param(needing_room(300), (replace(load(), running=1, blocks_used=600),), id="blocks are shared"),
    ],
)
def test_no_request_waits_for_room_without_need(
    full: Site, asked: UnboundRequest, reports: tuple[LoadReported, ...]
) -> None:
    """Such a request goes to the full worker at once."""
    full.cache(A, asked.request.prompt, asked.request.prompt.blocks)
    full.say(LOAD, A, *reports)
    assert sent(full, asked) == [("r", A)]


def test_requests_that_did_not_run_at_the_report_count_beside_it(full: Site) -> None:
    """One of two requests runs in 600 blocks; the other one counts as half of both prompts."""
    full.say(ROUTING, OTHER, routed("y", A, prompt(*range(6000, 6100))), prefilled("y"))
    full.say(LOAD, A, replace(load(), running=1, blocks_used=600))
    assert sent(full, needing_room(300)) == []


ROOM_US = 112 * RESIDENCE_US // 801
"""Until the 112 blocks come free that are lacking on the full worker."""


def test_a_request_that_is_held_no_longer_knows_the_room(full: Site) -> None:
    """The whole wait counts, while a plan counts three tenths of it: so it goes where there is room."""
    asked = needing_room(300, 40 * RESIDENCE_US)
    assert sent(full, asked) == []
    released = with_room(full.view, asked, GIVEN, NOW_MS)
    assert released.held == {A: 40 * RESIDENCE_US * 112 // 801}
    assert [decide(full.view, each, GIVEN, NOW_MS, 0).worker for each in (asked.request, released)] == [A, B]


def test_a_wait_for_room_has_no_price_of_delays(full: Site) -> None:
    """A decision counts each wait three times where talks fill the workers, so a third of it stands there."""
    full.say(LOAD, B, load(reuse_rate=1 << 30))
    without = decide(full.view, needing_room(300).request, GIVEN, NOW_MS, 0)
    released = decide(full.view, with_room(full.view, needing_room(300), GIVEN, NOW_MS), GIVEN, NOW_MS, 0)
    costs = [{each.candidate.worker: each.cost for each in one.ranked} for one in (without, released)]
    assert costs[1][A] - costs[0][A] == pytest.approx(ROOM_US, abs=3)
    assert costs[1][B] == costs[0][B]


def test_what_a_held_request_would_push_out_has_a_price(site: Site) -> None:
    """Its placement counts just the costs of the decision that follows. It goes to the worker with less turnover."""
    unbound = held("r", 40)
    site.cache(A, unbound.request.prompt, 10)
    assert sent(site, unbound) == [("r", A)]
    site.say(LOAD, A, load(turnover=30))
    site.say(LOAD, B, load(turnover=2))
    site.say(LOAD, C, load(turnover=0))  # it has not joined, so it is no candidate
    assert sent(site, unbound) == [("r", B)]
    decision = decide(site.view, unbound.request, GIVEN, NOW_MS, 0)
    assert decision.backlog.turnover == {A: 30 - (16 - TURNOVER_SLACK)}
    inputs = PlacementInputs(site.view, GIVEN, NOW_MS, site.view.outstanding())
    scored = inputs.asked(unbound).scored
    assert {each.candidate.worker: each.cost for each in scored} == {
        each.candidate.worker: each.cost for each in decision.ranked
    }
    by_session = PlacementInputs(site.view, replace(GIVEN, policy="session"), NOW_MS, site.view.outstanding())
    assert {each.cost for each in by_session.asked(unbound).scored} == {0}


def test_where_no_worker_has_room_the_wait_counts_as_computing_at_most(full: Site) -> None:
    """Else each request would leave its prefix for the worker with the shorter one of two long waits."""
    full.say(ROUTING, OTHER, routed("y", B, prompt(*range(6000, 6750))), prefilled("y"))
    asked = needing_room(300, 1000 * RESIDENCE_US)
    whole_us = PrefillTime.of(GIVEN, None).us(asked.request.prompt.tokens)
    released = with_room(full.view, asked, GIVEN, NOW_MS)
    assert released.held == {A: whole_us, B: whole_us}
    assert decide(full.view, released, GIVEN, NOW_MS, 0).worker == A
    shorter = with_room(full.view, needing_room(300), GIVEN, NOW_MS).held
    assert shorter == {A: ROOM_US, B: 62 * RESIDENCE_US // 751}


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        pytest.param(needing_room(300, 0), (), id="it is not known how long requests stay"),
        pytest.param(needing_room(300), (finished("x"),), id="every worker has room"),
        pytest.param(needing_room(LIGHT_TOKENS // 4 - 1), (), id="the prompt is light"),
    ],
)
def test_a_request_with_room_is_decided_on_as_it_is(
    full: Site, asked: UnboundRequest, events: tuple[RequestFinished, ...]
) -> None:
    """So the records of before are made again, byte by byte."""
    full.say(ROUTING, OTHER, *events)
    assert with_room(full.view, asked, GIVEN, NOW_MS) == asked.request


@pytest.mark.parametrize("seed", range(12))
def test_room_among_many_workers_is_that_of_each(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """By columns where all have room, else worker by worker: at each bound, with this replica's own requests, and with
    workers of unknown size and of another model."""
    dice, many = random.Random(seed), Site()
    workers = [worker_id(number) for number in range(1, 21)]
    many.join(*workers[1:])
    many.say(KV, workers[0], replace(joined("w"), capacity_blocks=dice.choice((0, 1000, 2**63 + 1))))
    many.join(worker_id(21), model="other", block_size=4)
    for number in range(dice.randrange(1, 8)):
        event = routed(f"x{number}", dice.choice(workers), prompt(*range(6000, 6000 + dice.randrange(100, 400))))
        many.say(ROUTING, OTHER, event, prefilled(f"x{number}"))
    own = replace(
        routed("own", dice.choice(workers), prompt(*range(7000, 7100))), blocks=dice.choice((100, 600, 1 << 40))
    )
    many.pending_events.emit(own, None)
    for blocks in (300, 395, *range(660, 720), 989, 990, 995):
        asked = needing_room(blocks)
        found = with_room(many.view, asked, GIVEN, NOW_MS)
        with monkeypatch.context() as one_by_one:
            one_by_one.setattr(plan_module, "COLUMNS_WORKERS_MIN", 1000)
            judge = with_room(many.view, asked, GIVEN, NOW_MS)
        assert found == judge
        assert all_have_room(many.view, asked.blocks_needed) == (not judge.held) or own.blocks == 1 << 40


def test_the_room_is_added_to_the_waits_that_are_known(full: Site) -> None:
    """As that for an adapter that is loaded there."""
    asked = needing_room(300)
    asked = asked._replace(request=asked.request._replace(held={A: 5, B: 7}))
    assert with_room(full.view, asked, GIVEN, NOW_MS).held == {A: 5 + ROOM_US, B: 7}
