"""Demand, counted from the events of requests: each arrival once."""

from __future__ import annotations

import random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from core.events import RequestFinished, RequestPrefilled, RequestQueued, RequestTurnedAway
from core.events.routing import CACHED_UNKNOWN
from core.events.scale import DemandCell, DemandRolled, PrefillDemand
from core.generation import PrefillReport
from projections.scaling.request_demand import OPEN_MAX, OPEN_MS, SIZES_EVERY_MS, SIZES_MIN, RequestDemand, size_classes
from projections.scaling.scale_decision import FleetCounts
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.facts import routed, worker_id
from tests.projections.scaling.demands import CAPACITY, START_MS, foreseen


def queued(request: str) -> RequestQueued:
    return RequestQueued(
        request=request, model="m", priority=0, tenant="", prompt_tokens=100, why="full", depth=0, now_ms=0
    )


def finished(
    request: str, outcome: str = "stop", ttft_ms: int = 400, duration_ms: int = 1_400, output: int = 21
) -> RequestFinished:
    return RequestFinished(
        request=request,
        attempt=0,
        outcome=outcome,
        prompt_tokens=100,
        output_tokens=output,
        cached_tokens=40,
        ttft_ms=ttft_ms,
        duration_ms=duration_ms,
    )


def prefilled(request: str, ttft_ms: int = 400) -> RequestPrefilled:
    return RequestPrefilled(request=request, attempt=0, cached_tokens=40, ttft_ms=ttft_ms)


def demand(*events: object, settings: ScaleSettings | None = None) -> DemandRolled:
    fold = RequestDemand(settings or ScaleSettings())
    for event in events:
        fold.apply(event)  # type: ignore[arg-type]
    return fold.roll(5_000, 5, {"routing": (1, 7)})


def test_an_arrival_is_one_request_however_often_it_is_named() -> None:
    """Queued, tried twice, and served."""
    found = demand(
        queued("a"), queued("a"), prefilled("a"), finished("a", "worker_lost", output=5), finished("a", output=16)
    )

    assert (found.arrivals, found.queued, found.ended, found.waiting) == (1, 1, 1, 0)
    assert found.cells == (DemandCell(1, 60, 21, 100),)
    assert found.cursor == {"routing": (1, 7)}


@pytest.mark.parametrize(("told", "uncached"), [(40, 60), (CACHED_UNKNOWN, 84)])
def test_cached_tokens_that_come_at_the_end_or_never(told: int, uncached: int) -> None:
    """Without the engine's word, what the decision predicted counts."""
    asked = routed("a", worker_id(1), predicted=16)
    first, end = replace(prefilled("a"), cached_tokens=CACHED_UNKNOWN), replace(finished("a"), cached_tokens=told)

    (cell,) = demand(asked, first, end).cells

    assert (cell.uncached_tokens, cell.prompt_tokens) == (uncached, 100)


def test_refused_and_waiting_requests_are_arrivals() -> None:
    """So saturation hides no demand."""
    away = RequestTurnedAway(request="b", model="m", reason="queue_full", status=503, waited_ms=-1)

    found = demand(queued("a"), away)

    assert (found.arrivals, found.refused, found.waiting, found.ended, found.attained) == (2, 1, 1, 1, 0)
    assert found.cells == ()


def test_bounds_of_service_are_counted_at_the_end() -> None:
    """20 gaps in 1 000 ms are 50 ms each."""
    settings = ScaleSettings(ttft_ms=400, itl_ms=50)
    served = [queued("a"), finished("a")]

    assert demand(*served, settings=settings).attained == 1
    assert demand(queued("a"), finished("a", ttft_ms=401), settings=settings).attained == 0
    assert demand(queued("a"), finished("a", duration_ms=1_401), settings=settings).attained == 0
    failed = demand(queued("a"), finished("a", outcome="error"), settings=settings)
    assert (failed.ended, failed.attained, failed.cells) == (1, 0, ())


def test_classes_double_in_two_steps_or_one() -> None:
    """So a class's mean is near each of its members."""
    tokens = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16)

    assert [size_classes(each, 0)[0] for each in tokens] == [0, 1, 2, 3, 4, 4, 5, 5, 6, 7, 8]
    assert [size_classes(0, each)[1] for each in tokens] == [0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 5]


def test_a_class_is_that_of_its_mean() -> None:
    """So events need no names of classes: a reader puts the cells of several events together."""
    sizes, fold, random_ = RequestDemand(ScaleSettings()), ScaleFold(), random.Random(2)
    fold.capacity, served = CAPACITY, set[tuple[int, int]]()
    for number in range(3):
        for request in range(200):
            output = int(random_.lognormvariate(5.2, 0.9)) + 1
            uncached = int(random_.lognormvariate(7.0, 2.0))
            found = finished(f"{number}-{request}", output=output)
            sizes.apply(replace(found, prompt_tokens=found.cached_tokens + uncached))
            served.add(size_classes(uncached, output))
        fold.apply(sizes.roll(START_MS + number * SIZES_EVERY_MS, 5, {}))
    cells = fold.inputs(START_MS + 2 * SIZES_EVERY_MS, FleetCounts(1), foreseen(0)).cells

    classes = [size_classes(each.uncached_tokens // each.count, each.output_tokens // each.count) for each in cells]
    assert classes == sorted(served)
    assert sum(each.count for each in cells) == 600


def test_open_requests_are_bounded() -> None:
    """The oldest makes room, and still ends once."""
    fold = RequestDemand(ScaleSettings())
    for number in range(OPEN_MAX + 1):
        fold.apply(queued(str(number)))
    first = fold.roll(5_000, 5, {})
    fold.apply(finished("0"))
    second = fold.roll(10_000, 5, {})

    assert (first.arrivals, first.waiting) == (OPEN_MAX + 1, OPEN_MAX)
    assert (second.arrivals, second.ended, second.waiting) == (0, 1, OPEN_MAX)


def test_a_request_whose_worker_was_lost_for_good_does_not_wait_forever() -> None:
    """No event follows the last attempt that a retry budget allows."""
    found = demand(queued("a"), finished("a", "worker_lost"))

    assert (found.arrivals, found.waiting, found.running) == (1, 0, 0)


def test_requests_of_a_front_end_that_died_are_forgotten() -> None:
    """No event ends them: they count for a quarter of an hour."""
    fold = RequestDemand(ScaleSettings())
    fold.apply(queued("a"))
    found = [fold.roll(START_MS + at_ms, 5, {}).waiting for at_ms in (0, 5_000, OPEN_MS - 1, OPEN_MS)]

    assert found == [1, 1, 1, 0]


def test_sizes_are_written_once_a_minute() -> None:
    """The first ones at once, and none twice; counts are those of each period."""
    fold = RequestDemand(ScaleSettings())
    found: list[DemandRolled] = []
    for number in range(30):
        for request in range(20):
            fold.apply(queued(f"{number}-{request}"))
            fold.apply(finished(f"{number}-{request}"))
        found.append(fold.roll(START_MS + 5_000 * number, 5, {}))

    assert {each.ended for each in found} == {20}
    counts = [sum(cell.count for cell in each.cells) for each in found]
    assert [number for number, count in enumerate(counts) if count] == [0, 1, 13, 25]
    assert counts[0] + counts[1] >= SIZES_MIN
    assert counts[13] == counts[25] == 12 * 20


REPORT = PrefillReport(
    remote=True,
    reason="long",
    uncached_tokens=60,
    queued=0,
    workers=1,
    min_tokens=16,
    queue_max=8,
    outcome="pulled",
    pulled_tokens=60,
    pull_ms=30,
    remote_cached_tokens=10,
)
"""A prefill worker had 10 of the 100 tokens of a prompt, and computed 90. The decode worker had 40, and pulled 60."""
HERE = replace(REPORT, outcome="timeout", pull_ms=0)
"""The decode worker computed 60 tokens after all."""


def split_demand(*reports: PrefillReport | None) -> DemandRolled:
    """The demand of requests with these reports, where prefill workers are sized."""
    fold = RequestDemand(ScaleSettings(), has_prefill=True)
    for number, report in enumerate(reports):
        name = f"r{number}"
        for event in (queued(name), replace(prefilled(name), prefill=report), finished(name)):
            fold.apply(event)
    return fold.roll(5_000, 5, {})


def test_a_prompt_of_a_prefill_worker_has_a_cell_there() -> None:
    """And nothing to compute where it is decoded. Of one that was not pulled, a prefill worker would have computed what
    its decode worker lacked. Short ones, and ones that others compute already, are the decode worker's."""
    found = split_demand(
        REPORT, HERE, replace(REPORT, reason="short", outcome=""), replace(REPORT, reason="busy"), None
    )

    assert found.cells == (DemandCell(2, 0, 42, 200), DemandCell(3, 180, 63, 300))
    assert found.prefill_demand == PrefillDemand(
        0, 2, 60, (DemandCell(3, 0, 0, 0), DemandCell(1, 60, 1, 100), DemandCell(1, 90, 1, 100))
    )


def test_without_prefill_workers_demand_is_as_before() -> None:
    """A planner of decode workers alone counts a pulled prompt by what its worker lacked."""
    found = demand(queued("a"), replace(prefilled("a"), prefill=REPORT), finished("a"))

    assert found.cells == (DemandCell(1, 60, 21, 100),)
    assert found.prefill_demand is UNSET


def test_requests_before_their_first_token_wait_for_prefill_workers() -> None:
    """From the second period on, if their workers lack as much of the prompt as the newest report asks for. They hold
    no room of a decode worker, so they do not run."""
    fold = RequestDemand(ScaleSettings(), has_prefill=True)
    for name in ("a", "b", "c"):
        fold.apply(routed(name, worker_id(1)))
    fold.apply(queued("d"))
    fold.apply(routed("short", worker_id(1), predicted=84))
    fold.apply(replace(prefilled("a"), prefill=replace(REPORT, min_tokens=1)))
    first = fold.roll(5_000, 5, {})
    fold.apply(prefilled("b"))
    second = fold.roll(10_000, 5, {})

    parts = [each.prefill_demand for each in (first, second)]
    assert [each.waiting for each in parts if isinstance(each, PrefillDemand)] == [0, 1]
    assert [(each.running, each.waiting) for each in (first, second)] == [(1, 1), (2, 1)]


def test_sizes_of_prefill_workers_come_with_the_others() -> None:
    """Once a minute, and not before a planner that took over has counted on."""
    fold = RequestDemand(ScaleSettings(), has_prefill=True)
    found = []
    for number in range(SIZES_MIN + 1):
        for event in (queued(f"r{number}"), replace(prefilled(f"r{number}"), prefill=REPORT), finished(f"r{number}")):
            fold.apply(event)
        if number in {SIZES_MIN - 1, SIZES_MIN}:
            found.append(fold.roll(5_000 * number, 5, {}).prefill_demand)
    fold.skip(1_000_000)
    found.append(fold.roll(1_000_000 + SIZES_EVERY_MS, 5, {}).prefill_demand)

    assert [sum(cell.count for cell in each.cells) for each in found if isinstance(each, PrefillDemand)] == [
        SIZES_MIN, 0, 0,
    ]  # fmt: skip
