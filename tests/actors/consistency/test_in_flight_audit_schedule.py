"""A leak in the counts of requests in flight shows in no digest; the audit names it, and decisions are right again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from actors.consistency.in_flight_audit_schedule import OWN_EVENTS_MAX, TEXTS_KEPT
from actors.router.router import Router
from core.ids import RequestId, StreamSeq, WorkerId
from projections.folds.in_flight import InFlight, InFlightLoad
from tests.actors.world import World, collect, request, world
from tests.projections.facts import routed


@pytest.fixture
async def site() -> AsyncIterator[tuple[World, Router]]:
    """One worker and one router, at rest after some requests."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        for number in range(3):
            await collect(router, request(range(100 * number, 100 * number + 40)))
        await it.settled(router)
        yield it, router


def entry(router: Router) -> InFlight:
    """A request on the worker, before its first token."""
    (worker,) = router.state.workers()
    return InFlight(WorkerId(worker), 5, 80, b"12345678")


def not_subtracted(router: Router) -> None:
    """The fold did not subtract a request that is over."""
    router.state.routing.in_flight_load.weigh(entry(router), 1)


def row_left(router: Router) -> None:
    """The sums are right, and the prompt of a request that is over is still there to be shared."""
    leak = entry(router)
    router.state.routing.in_flight_load.add((RequestId("leak"), 0), leak)
    router.state.routing.in_flight_load.weigh(leak, -1)


def pending_row_left(router: Router) -> None:
    """The same in the table by first blocks alone."""
    leak = entry(router)
    router.state.routing.in_flight_load._pending[b"12345678"] = {id(leak): ((RequestId("leak"), 0), leak)}


def own_not_subtracted(router: Router) -> None:
    """An event of its own was read back, and its request still counts."""
    router.publisher.pending_events.in_flight_load.weigh(entry(router), 1)


def own_request_left(router: Router) -> None:
    """Likewise with the request itself."""
    router.publisher.pending_events._entries[RequestId("leak"), 0] = entry(router)


def own_event_left(router: Router) -> None:
    """An event of its own was read back, and still waits to be."""
    router.publisher.pending_events.emit(routed("leak", router.state.workers()[0]), None)


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (not_subtracted, "worker {} has 1 requests, 5 blocks, 80 tokens to compute, instead of 0 requests, 0 blocks"),
        (row_left, "worker {} has other prompts to compute than the requests in flight have"),
        (pending_row_left, "worker {} has other prompts to compute than the requests in flight have"),
        (own_not_subtracted, "own events: worker {} has 1 requests, 5 blocks"),
        (own_request_left, "own events: requests in flight are others than they give"),
        (own_event_left, "own events: 1 still count, though the log has given all of them back"),
    ],
)
async def test_a_leak_is_named_and_mended(
    site: tuple[World, Router], plant: Callable[[Router], None], text: str
) -> None:
    """Once found it is gone: the next check finds nothing, and nothing was folded anew."""
    _, router = site
    (worker,) = router.state.workers()
    audit = router.background_tasks.in_flight_audit
    assert await audit.check() == []
    digest = router.state.digest
    plant(router)
    assert router.state.digest == digest
    assert await router.background_tasks.index_audit.check() == []
    (found,) = await audit.check()
    assert found.startswith(text.format(worker))
    about = router.describe()
    assert (about["in_flight_damaged"], about["in_flight_differences"]) == (1, [found])
    assert await audit.check() == []
    assert (audit.checked, audit.damaged, router.runner.rebuilds) == (3, 1, 0)
    assert not len(router.publisher.pending_events)
    assert not router.state.routing.in_flight_load.busy


async def test_a_request_that_is_left_in_the_fold(site: tuple[World, Router]) -> None:
    """Its tables follow from it, so only the digest's own count tells. The log is folded anew for it, once."""
    _, router = site
    audit = router.background_tasks.in_flight_audit

    def plant() -> None:
        part = router.state.routing.replicas[router.publisher.id]
        part.in_flight[RequestId("leak"), 0] = entry(router)
        router.state.routing.recount()

    plant()
    wanted = [f"replica {router.publisher.id} has other requests in flight than the digest counts"]
    assert await audit.check() == wanted
    assert router.runner.rebuilds == 1
    assert not router.state.routing.replicas[router.publisher.id].in_flight
    assert await audit.check() == []
    plant()
    assert await audit.check() == wanted
    assert (audit.damaged, router.runner.rebuilds) == (2, 1)


async def test_a_planted_bug_is_named_each_time(site: tuple[World, Router], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not subtract: each check after requests finds it, and decisions are right until the next."""
    it, router = site
    audit = router.background_tasks.in_flight_audit
    subtract = InFlightLoad.subtract

    def forgets(load: InFlightLoad, gone: InFlight) -> None:
        subtract(load, gone)
        load.weigh(gone, 1)

    for number in (1, 2):
        with monkeypatch.context() as planted:
            planted.setattr(InFlightLoad, "subtract", forgets)
            await collect(router, request(range(70 * number, 70 * number + 40)))
            await it.settled(router)
        assert await audit.check()
        assert audit.damaged == number
        assert not router.state.routing.in_flight_load.busy


async def test_the_bounds(site: tuple[World, Router]) -> None:
    """Own events beyond OWN_EVENTS_MAX are left for later, and TEXTS_KEPT texts are kept."""
    _, router = site
    audit, events = router.background_tasks.in_flight_audit, router.publisher.pending_events
    router.publisher.outbox.last_seq = StreamSeq(1 << 40)  # the log has not given all back
    for number in range(OWN_EVENTS_MAX):
        events.emit(routed(f"r{number}", router.state.workers()[0]), None)
    own_not_subtracted(router)
    assert len(await audit.check()) == 1
    own_not_subtracted(router)
    events.emit(routed("more", router.state.workers()[0]), None)
    assert await audit.check() == []
    for _ in range(2 * TEXTS_KEPT):
        not_subtracted(router)
        await audit.check()
    assert (len(audit.differences), audit.damaged) == (TEXTS_KEPT, 1 + 2 * TEXTS_KEPT)


async def test_nothing_is_found_under_load(site: tuple[World, Router]) -> None:
    """Requests begin and end between the slices and the checks."""
    it, router = site
    await it.worker("b")
    await it.ready(router, 2)
    audit = router.background_tasks.in_flight_audit
    for number in range(40):
        await collect(router, request(range(50 * number, 50 * number + 40)))
        assert await audit.check() == []
