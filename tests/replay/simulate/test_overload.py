"""More requests than a fleet can serve at once: they wait, in order and within bounds, and who fails is told apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.engines.simulated.simulated_settings import mocker_settings
from core.events.routing import RequestQueued, RequestTurnedAway
from core.prompt import HASH_BYTES
from core.settings import RoutingSettings
from core.subjects import ROUTING
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.report import TOO_LONG, ServedRequest, report
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import SimulationResult, simulate
from replay.simulate.workload import Arrival
from replay.verify.verify import verify
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

CROWD = families(120, every_us=200)
"""All come before the first is answered."""
PLACES = 18
"""Of an engine that runs 16 at once."""
AT_ONCE = RoutingSettings(policy="kv")


def run(path: Path | None = None, arrivals: list[Arrival] = CROWD, **options: Any) -> SimulationResult:
    return simulate(Options(**{"workers": 1, "engine": ENGINE, "routing": AT_ONCE, **options}), arrivals, archive=path)


def by(routing: RoutingSettings = AT_ONCE, **changes: Any) -> RoutingSettings:
    return msgspec.structs.replace(routing, **changes)


def failures(found: SimulationResult, workers: int = 1) -> dict[str, int]:
    return report(found.served, workers).failures


def first_served(found: SimulationResult) -> list[ServedRequest]:
    """Those that were served, in the order in which they had their worker."""
    return sorted((each for each in found.served if not each.why), key=lambda each: each.routed_us)


@pytest.mark.parametrize("policy", ["kv", "time"])
def test_a_crowd_waits_as_it_would_for_a_real_router(policy: str) -> None:
    """700 requests within 1.4 s for one engine that runs 256 at once, at the usual settings: none fails."""
    engine = mocker_settings()
    blocks = 1000 // engine.block_size
    arrivals = [
        it._replace(prompt_tokens=1000, hashes=(number + 1).to_bytes(HASH_BYTES, "little") * blocks, output_tokens=20)
        for number, it in enumerate(families(700, every_us=2_000))
    ]
    found = run(arrivals=arrivals, engine=engine, routing=RoutingSettings(policy=policy))

    assert failures(found) == {}
    assert max(each.routed_us - each.arrival_us for each in found.served) > 1_000_000


@pytest.mark.parametrize(("active_max", "places"), [(0, PLACES), (1, 1), (7, 7)])
def test_no_more_are_under_way_than_there_are_places(tmp_path: Path, active_max: int, places: int) -> None:
    """All of them while anybody waits; and in the order in which they came. The log says who waited, and proves
    itself."""
    found = run(tmp_path / "log", routing=by(active_max=active_max))

    order = first_served(found)
    assert [each.id for each in order] == [each.id for each in CROWD]
    assert [each.routed_us for each in order[:places]] == [each.arrival_us for each in order[:places]]
    ends = sorted(each.end_us for each in order)
    assert [each.routed_us for each in order[places:]] == ends[: len(CROWD) - places]
    told = [event for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestQueued)]
    assert [event.request for event in told] == [each.id for each in CROWD[places:]]
    assert [(event.why, event.depth) for event in told] == [
        ("behind" if depth else "full", depth) for depth in range(len(CROWD) - places)
    ]
    with Recording.open(tmp_path / "log", KEY) as recording:
        proved = verify(recording)
    assert proved.holds
    assert proved.verified == len(CROWD)


def test_settings_of_the_queue_count_for_nothing_where_nobody_waits() -> None:
    """Decisions and results are the same, bit for bit."""
    few = families(60, every_us=40_000)
    usual = run(arrivals=few)

    assert max(each.routed_us - each.arrival_us for each in usual.served) == 0
    for routing in (by(active_max=40), by(queue_max=1), by(queue_wait_max_ms=1)):
        assert run(arrivals=few, routing=routing) == usual


def test_tenants_take_turns_and_priorities_order_within_one() -> None:
    """One that comes behind a crowd of another's does not wait for all of that; an urgent one is its tenant's first."""
    arrivals = [it._replace(tenant="many", priority=1, prompt_tokens=31, hashes=b"") for it in CROWD]
    arrivals[100] = arrivals[100]._replace(tenant="few")
    arrivals[101] = arrivals[101]._replace(priority=0)
    order = [each.id for each in first_served(run(arrivals=arrivals, routing=by(active_max=1)))]

    assert order[0] == arrivals[0].id
    assert set(order[1:3]) == {arrivals[100].id, arrivals[101].id}


def test_the_queue_has_bounds(tmp_path: Path) -> None:
    """In number, and in time; who finds it full is turned away at once, or makes room for a tenant that has less."""
    routing = by(active_max=1, queue_max=5, queue_wait_max_ms=250)
    arrivals = [it._replace(tenant="many") for it in CROWD]
    arrivals[60] = arrivals[60]._replace(tenant="few")
    found = run(tmp_path / "log", arrivals=arrivals, routing=routing)
    told = [event for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestTurnedAway)]

    assert Counter(event.reason for event in told) == failures(found)
    assert failures(found).keys() == {"queue_full", "queue_wait", "tenant_share"}
    assert {event.status for event in told if event.reason == "tenant_share"} == {429}
    assert {event.request: event.reason for event in told} == {each.id: each.why for each in found.served if each.why}
    late = {event.waited_ms for event in told if event.reason == "queue_wait"}
    assert late == {250}
    assert {each.end_us - each.arrival_us for each in found.served if each.why == "queue_wait"} == {250_000}
    waited = [event for event in told if event.reason in {"tenant_share", "queue_full"} and event.waited_ms >= 0]
    assert len(waited) == 1  # for the one of the other tenant
    assert run(arrivals=arrivals, routing=routing) == found


def test_replicas_share_the_places() -> None:
    """Each may have its part whatever the others have; what is taken at once beyond that, engines queue."""
    found = run(replicas=2, lag_ms=20)

    assert failures(found) == {}
    moments = sorted(each.routed_us for each in found.served)
    under_way = [sum(each.routed_us <= at_us < each.end_us for each in found.served) for at_us in moments]
    assert PLACES <= max(under_way) <= 2 * PLACES
    assert under_way[len(under_way) // 2] >= PLACES - 2


def test_who_is_held_stays_held_while_engines_are_overloaded() -> None:
    """As in a real router: nobody takes anything now, and then somebody does."""
    arrivals = [it._replace(prompt_tokens=31, hashes=b"", output_tokens=100) for it in families(40, every_us=30_000)]
    routing = RoutingSettings(policy="time", waiting_max=1, active_max=100, hold_max_ms=60_000)
    found = run(arrivals=arrivals, routing=routing, engine=replace(ENGINE, max_seqs=2))

    assert failures(found) == {}
    assert max(each.routed_us - each.arrival_us for each in found.served) > 1_000_000
    impatient = run(arrivals=arrivals, routing=by(routing, hold_max_ms=200), engine=replace(ENGINE, max_seqs=2))
    assert failures(impatient)["overloaded"] > 1
    assert {each.end_us - each.arrival_us for each in impatient.served if each.why} == {200_000}


def test_a_closed_loop_tries_again_when_it_is_told_to() -> None:
    """Whoever is turned away leaves the trace to others for a while, and does not run through all of it at once."""
    found = run(arrivals=families(200), concurrency=30, routing=by(active_max=4, queue_max=4))

    refused = [each for each in found.served if each.why]
    assert Counter(each.why for each in refused) == failures(found)
    assert sum(each.arrival_us == 0 for each in refused) == 30 - 8
    assert {each.arrival_us % 1_000_000 for each in refused} == {0}
    assert len(first_served(found)) > 30


def test_failures_are_told_apart() -> None:
    """By a word for each reason, which the decisions in the log have, too."""
    arrivals = families(100, every_us=60_000, output_tokens=300)
    arrivals[0] = arrivals[0]._replace(output_tokens=1_000_000)
    engine = replace(ENGINE, context_max=1 << 20)
    found = run(arrivals=arrivals, failures_per_hour=600, seed=3, engine=engine, routing=RoutingSettings())

    told = report(found.served, 1)
    assert told.failures[TOO_LONG] == 1
    assert told.failures["no_workers"] > 5
    assert sum(told.failures.values()) == told.failed
    assert {each.why == "" for each in found.served if each.first_us >= 0} == {True}
