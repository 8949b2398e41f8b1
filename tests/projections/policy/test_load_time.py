"""Load times: what they are learned from, what they cost, and which tiers they leave out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, structs

from core.codec import decode_message, encode_event, encode_message
from core.events import LoadReported, RequestRouted, WorkerLeft
from core.events.routing import SHORT_VERSION
from core.ids import RequestId, SourceId, WorkerId
from core.prompt import hashes_from_bytes
from core.settings import POLICIES, RoutingSettings
from core.subjects import LOAD
from projections.folds.load_fold import REUSE_STEPS
from projections.policy.binding_plan import PlacementInputs, UnboundRequest
from projections.policy.cost import estimate
from projections.policy.decide import Decision, decide, record
from projections.policy.delay_price import REUSE_FULL
from projections.policy.load_time import LEARN_EVERY_US, MODELS_MAX, LoadPrices, LoadTime, LoadTimeModel, learned_times
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from tests.projections.facts import joined, load, pool_joined, prompt, reads, stored, worker_id
from tests.projections.site import KV, Site

A, B, C, D = (WorkerId(worker_id(number)) for number in (1, 2, 3, 4))
ASKED = prompt(*range(20))  # 81 tokens, 21 blocks of 4
NOW_MS = 1000
BY_TIME = RoutingSettings(policy="time", prefill_base_us=8000, prefill_us_per_token_m=20_500, own_weight_m=4000)
BLOCK_M = 4 * 20_500
"""Of computing a block, in thousandths of a microsecond."""
FAST = LoadTime(1_000, 30_000, 60_000)
SLOW_DISK = FAST._replace(disk_m=BLOCK_M)


def asked(load_time: LoadTime | None, request: str = "r") -> RouteRequest:
    return RouteRequest(RequestId(request), 0, "tiny", ASKED, load_time=load_time)


def decided(site: Site, load_time: LoadTime | None, routing: RoutingSettings = BY_TIME) -> Decision:
    return decide(site.view, asked(load_time), routing, NOW_MS, 0)


def costs(decision: Decision) -> dict[str, int]:
    return {each.candidate.worker: each.cost for each in decision.ranked}


def own_us(blocks: int) -> int:
    """Of computing all but so many blocks."""
    return 8000 + (81 - 4 * blocks) * 20_500 // 1000


@pytest.fixture
def site() -> Site:
    """`b` has ten blocks on the device, `c` four there and ten on the host, `d` four, two more on the host and ten on
    the disk."""
    made = Site()
    made.join(A, B, C, D)
    made.cache(B, ASKED, 10)
    for worker, host in ((C, 10), (D, 6)):
        made.cache(worker, ASKED, 4)
        made.cache(worker, ASKED, host, "host", skip=4)
    made.cache(D, ASKED, 10, "disk", skip=6)
    return made


def test_blocks_that_are_loaded_cost_their_time(site: Site) -> None:
    """By hand: they need no computing, and delay the request by their time from each tier."""
    decision = decided(site, FAST)
    assert costs(decision) == {
        A: 4 * own_us(0),
        B: 4 * own_us(10),
        C: 4 * own_us(10) + 6 * 1_000 // 1000,
        D: 4 * own_us(10) + (2 * 1_000 + 4 * 30_000) // 1000,
    }
    assert decision.worker == B
    for scored in decision.ranked:
        assert sum(estimate(scored.candidate, scored.prefill_m, BY_TIME, 81, 4, decision.backlog)) == scored.cost


def test_a_load_is_a_delay_among_talks(site: Site) -> None:
    """So it counts twice more where talks fill the workers, and for no active request."""
    site.say(LOAD, B, load(reuse_rate=1 << 30))
    routing = structs.replace(BY_TIME, reuse_weight_m=0, delay_weight_m=1000)
    without, decision = decided(site, LoadTime(1, 1, 1), routing), decided(site, FAST, routing)
    assert {worker: cost - costs(without)[worker] for worker, cost in costs(decision).items()} == {
        A: 0, B: 0, C: 3 * 6, D: 3 * 122
    }  # fmt: skip
    for scored in decision.ranked:
        assert sum(estimate(scored.candidate, scored.prefill_m, routing, 81, 4, decision.backlog)) == scored.cost


def test_a_tier_that_is_not_learned_keeps_its_credit(site: Site) -> None:
    """And costs nothing more; without any learned time all is as before."""
    before = decided(site, None)
    credit = {C: 4 + 6 * 0.75, D: 4 + 2 * 0.75 + 4 * 0.25}
    for worker, blocks in credit.items():
        assert costs(before)[worker] == 4 * (8000 + -(-(81_000 - round(4000 * blocks)) // 1000) * 20_500 // 1000)
    known = costs(decided(site, LoadTime(1_000, 0, 0)))
    assert known[C] == costs(decided(site, FAST))[C]
    tokens = -(-(81_000 - 4 * (4000 + 2000 + 4 * 250)) // 1000)
    assert known[D] == 4 * (8000 + tokens * 20_500 // 1000) + 2


@pytest.mark.parametrize(("disk_m", "counts"), [(BLOCK_M - 1, True), (BLOCK_M, False), (10 * BLOCK_M, False)])
def test_a_tier_that_is_no_faster_than_computing_is_not_counted(site: Site, disk_m: int, *, counts: bool) -> None:
    """Its blocks are no cached tokens of the candidate, and the worker is to skip it; all other tiers count."""
    decision = decided(site, FAST._replace(disk_m=disk_m))
    seen = {each.candidate.worker: each.candidate.overlap for each in decision.ranked}
    assert seen[C] == (4, 10, 10, 10)
    assert seen[D] == ((4, 6, 10, 10) if counts else (4, 6, 6, 6))
    loading = asked(FAST._replace(disk_m=disk_m)).loading(BY_TIME)
    assert loading is not None
    assert loading.slow_tiers == (() if counts else ("disk",))
    site.exclude("not_connected", [A, B, C])
    alone = decided(site, FAST._replace(disk_m=disk_m))
    assert (alone.worker, alone.predicted_cached_tokens) == (D, 40 if counts else 24)
    if not counts:
        assert alone.ranked[0].cost == 4 * own_us(6) + 2


@pytest.mark.parametrize(
    ("time", "us_per_token_m", "slow"),
    [(None, 0, ()), (PrefillTime(0, 20_500), 0, ("disk",)), (None, 20_500, ("disk",)), (PrefillTime(0, 9), 20_501, ())],
)
def test_while_the_price_of_computing_is_unknown_no_tier_is_slow(
    time: PrefillTime | None, us_per_token_m: int, slow: tuple[str, ...]
) -> None:
    """The default stands for some engine, which may be a hundred times faster than this one."""
    routing = RoutingSettings(policy="time", prefill_us_per_token_m=us_per_token_m)
    loading = asked(SLOW_DISK)._replace(time=time).loading(routing)
    assert loading is not None
    assert loading.slow_tiers == slow
    assert loading.times_m[:2] == (0, 1_000)


def test_what_lies_behind_a_slow_tier_does_not_count_either() -> None:
    """A request cannot come to it; where the slow tier has no block, it can."""
    loading = LoadPrices.of(BY_TIME, LoadTime(BLOCK_M, 1, 1), PrefillTime(0, 20_500), 4)
    assert loading is not None
    assert loading.counted((4, 6, 9, 10)) == (4, 4, 4, 4)
    assert loading.counted((4, 4, 9, 10)) == (4, 4, 9, 10)
    assert loading.counted((4, 4, 4, 4)) == (4, 4, 4, 4)
    assert loading.slow_tiers == ("host",)


@pytest.mark.parametrize(
    ("reuse_max", "delay_weight_m", "blocks"),
    [(0, 1000, 1), (REUSE_FULL // 2, 1000, 2.5), (REUSE_FULL, 1000, 4), (REUSE_FULL, 0, 1)],
)
def test_computing_counts_more_where_talks_fill_the_workers(reuse_max: int, delay_weight_m: int, blocks: float) -> None:
    """It delays others: a disk is slow from so many times on."""
    routing = RoutingSettings(policy="time", delay_weight_m=delay_weight_m)
    border_m = int(blocks * BLOCK_M)
    for disk_m, slow in ((border_m - 1, ()), (border_m, ("disk",))):
        loading = LoadPrices.of(routing, LoadTime(1, disk_m, 1, reuse_max), PrefillTime(0, 20_500), 4)
        assert loading is not None
        assert loading.slow_tiers == slow


@pytest.mark.parametrize("policy", sorted({*POLICIES} - {"time"}))
def test_other_policies_read_no_load_times(site: Site, policy: str) -> None:
    """To the byte, in the record too."""
    routing = RoutingSettings(policy=policy)
    with_times, without = decided(site, SLOW_DISK, routing), decided(site, None, routing)
    assert with_times == without
    assert record(with_times, asked(SLOW_DISK), routing, 1) == record(without, asked(None), routing, 1)


@settings(deadline=None, max_examples=60)
@given(st.tuples(*[st.integers(0, 9 * BLOCK_M)] * 3, st.integers(0, REUSE_FULL)), st.integers(1, 4))
def test_the_record_makes_the_decision_again(times: tuple[int, int, int, int], version: int) -> None:
    """On the wire, too: with the same digest, for all times."""
    made = Site()
    made.join(A, B, C)
    made.cache(B, ASKED, 3)
    made.cache(B, ASKED, 9, "host", skip=3)
    made.cache(C, ASKED, 12, "disk")
    made.cache(C, ASKED, 15, "remote", skip=12)
    decision = decided(made, LoadTime(*times))
    event = record(decision, asked(LoadTime(*times)), BY_TIME, 1, version)
    sealed = encode_message(SourceId("ee" * 8), 0, bytes(16), 0, [encode_event(event)])
    (read,) = decode_message(sealed).events
    assert isinstance(read, RequestRouted)
    assert (read.load_time, dict(read.columns.items())) == (times, dict(event.columns.items()))
    again = decide(made.view, RouteRequest.of(read, ASKED), BY_TIME, NOW_MS, 0)
    assert again == decision
    assert record(again, RouteRequest.of(read, ASKED), BY_TIME, 1, version) == event


def test_the_record_has_the_levels_where_they_differ(site: Site) -> None:
    """And without load times not a byte more than before."""
    columns = record(decided(site, FAST), asked(FAST), BY_TIME, 1, SHORT_VERSION).columns
    workers = [each.candidate.worker for each in decided(site, FAST).ranked]
    by_worker = dict(zip(workers, columns["overlap_host"], strict=True))
    assert by_worker == {A: 0, B: 10, C: 10, D: 6}
    assert "overlap_disk" not in columns
    plain = record(decided(site, None), asked(None), BY_TIME, 1, SHORT_VERSION)
    assert (plain.load_time, "overlap_host" in plain.columns) == (UNSET, False)
    assert not {"overlap_host", "load_time"} & {*structs.asdict(plain)} - {*structs.asdict(plain)}


def test_held_requests_see_the_same_levels(site: Site) -> None:
    """The plan counts no block of a slow tier, whichever request it looks at first."""
    inputs = PlacementInputs(site.view, BY_TIME, NOW_MS, {})
    for name in ("first", "second"):
        scored = inputs.asked(UnboundRequest(asked(SLOW_DISK, name), NOW_MS)).scored
        assert scored == sorted(decided(site, SLOW_DISK).ranked, key=lambda each: each.candidate.worker)


def test_a_pool_that_is_slow_is_not_counted() -> None:
    """Blocks of a pool lie on the disk, whichever worker announces them."""
    made, pool = Site(), worker_id(900)
    for worker in (A, B):
        made.say(KV, worker, structs.replace(joined(worker, "tiny", 4), pools=reads("p")))
    made.say(KV, pool, pool_joined("p", A), stored(*hashes_from_bytes(ASKED.hashes())[:5], tier="disk"))
    assert {each.candidate.overlap for each in decided(made, FAST).ranked} == {(0, 0, 5, 5)}
    assert {each.candidate.overlap for each in decided(made, SLOW_DISK).ranked} == {(0, 0, 0, 0)}


def reported(*times: int, reuse_rate: int = 0) -> LoadReported:
    return structs.replace(load(), load_times=times, reuse_rate=reuse_rate)


def test_the_greatest_reuse_is_learned_beside_the_times(site: Site) -> None:
    """Of the same workers, to where they are full of talks; also of one that reports no times."""
    site.join("77" * 8, model="other")
    site.say(LOAD, A, reported(10, 0, 0, reuse_rate=1024))
    site.say(LOAD, B, structs.replace(load(), reuse_rate=3 * 1024))
    site.say(LOAD, "77" * 8, reported(1, 1, 1, reuse_rate=7 * 1024))
    assert learned_times(site.view, "tiny", 4) == LoadTime(10, 0, 0, 2 * REUSE_STEPS)
    site.say(LOAD, B, structs.replace(load(), reuse_rate=100 * 1024))
    assert learned_times(site.view, "tiny", 4) == LoadTime(10, 0, 0, REUSE_FULL)
    site.exclude("stale", [B])
    assert learned_times(site.view, "tiny", 4) == LoadTime(10, 0, 0, REUSE_STEPS)


def test_times_are_the_median_of_those_that_report_them(site: Site) -> None:
    """Tier by tier, without those that have none, and without workers of other models, stale ones and lost ones."""
    assert learned_times(site.view, "tiny", 4) is None
    site.join("77" * 8, model="other")
    site.join("78" * 8, block_size=8)
    times = {A: (10, 0, 0), B: (30, 900, 0), C: (20, 0, 0), D: (99, 700, 0), "77" * 8: (1, 1, 1), "78" * 8: (1, 1, 1)}
    for worker, each in times.items():
        site.say(LOAD, worker, reported(*each))
    assert learned_times(site.view, "tiny", 4) == LoadTime(20, 700, 0)
    site.exclude("stale", [D])
    assert learned_times(site.view, "tiny", 4) == LoadTime(20, 900, 0)
    site.say(LOAD, B, load())
    assert learned_times(site.view, "tiny", 4) == LoadTime(10, 0, 0)
    for worker in (A, C):
        site.say(LOAD, worker, WorkerLeft(reason="left"))
    assert learned_times(site.view, "tiny", 4) is None


def test_reports_are_looked_at_now_and_then(site: Site) -> None:
    """A time that did not change is the same object, so that held requests keep their inputs."""
    model = LoadTimeModel()
    site.say(LOAD, A, reported(10, 0, 0))
    first = model.time(site.view, "tiny", 4, 0)
    assert first == LoadTime(10, 0, 0)
    site.say(LOAD, B, reported(4, 0, 0))
    assert model.time(site.view, "tiny", 4, LEARN_EVERY_US - 1) is first
    assert model.time(site.view, "tiny", 4, LEARN_EVERY_US) == LoadTime(4, 0, 0)
    site.say(LOAD, B, reported(10, 0, 0))
    changed = model.time(site.view, "tiny", 4, 2 * LEARN_EVERY_US)
    assert model.time(site.view, "tiny", 4, 3 * LEARN_EVERY_US) is changed
    assert model.time(site.view, "other", 4, 0) is None
    assert repr(model).startswith("<LoadTimeModel {('tiny', 4): LoadTime(host_m=10")


def test_a_replica_keeps_the_times_of_so_many_models(site: Site) -> None:
    model = LoadTimeModel()
    site.say(LOAD, A, reported(10, 0, 0))
    model.time(site.view, "tiny", 4, 0)
    for number in range(MODELS_MAX - 1):
        model.time(site.view, f"unknown-{number}", 4, 0)
    site.say(LOAD, A, reported(20, 0, 0))
    assert model.time(site.view, "tiny", 4, 0) == LoadTime(10, 0, 0)
    model.time(site.view, "one more", 4, 0)
    assert model.time(site.view, "tiny", 4, 0) == LoadTime(20, 0, 0)
    assert repr(model).count("('") == MODELS_MAX
