"""How long outstanding prefills hold up a new one: the formula by hand, and whatever order they were heard of in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import Event
from core.ids import RequestId, WorkerId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.in_flight import OutstandingPrefill
from projections.folds.pending_events import PendingEvents
from projections.folds.routing_fold import RoutingFold
from projections.policy.prefill_backlog import SLACK_M, PrefillBacklog, wait_us
from projections.policy.prefill_time import DEFAULT_TIME, PrefillTime
from tests.projections.facts import finished, prefilled, prompt, replica_restated, routed, worker_id
from tests.projections.histories import shuffled, sources
from tests.projections.site import REPLICA, Site
from tests.projections.speaker import Said, fold

A, B = WorkerId(worker_id(1)), WorkerId(worker_id(2))
TIME = PrefillTime(base_us=1000, per_token_m=2500)
NOW_MS = 1_700_000_000_000
NOW_US = NOW_MS * 1000
OTHER = "dd" * 8


def outstanding(*prefills: tuple[int, int]) -> list[OutstandingPrefill]:
    """Each by when it begins, before now, and its tokens."""
    return [
        OutstandingPrefill(NOW_US - ago_us, RequestId(f"r{at}"), 0, tokens)
        for at, (ago_us, tokens) in enumerate(prefills)
    ]


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join(A, B)
    return made


def tokens_there(site: Site) -> dict[str, list[int]]:
    """Of outstanding prefills, in the order in which they are expected to be computed."""
    return {worker: [each.tokens for each in sorted(rows)] for worker, rows in site.view.outstanding().items()}


def test_a_prefill_lasts_by_its_tokens() -> None:
    """As learned, before that 8 ms and 20.5 us a token, unless settings say otherwise; fractions of a microsecond are
    cut off."""
    assert PrefillTime.of(RoutingSettings(), TIME) == TIME
    assert PrefillTime.of(RoutingSettings(prefill_base_us=9), TIME) == TIME
    assert PrefillTime.of(RoutingSettings(), None) == DEFAULT_TIME
    assert DEFAULT_TIME.us(2000) == 8000 + 41_000
    assert PrefillTime.of(RoutingSettings(prefill_us_per_token_m=5, prefill_base_us=9), TIME) == PrefillTime(9, 5)
    assert TIME.us(0) == 1000
    assert TIME.us(3) == 1000 + 7


@pytest.mark.parametrize(
    ("prefills", "wait"),
    [
        ([], 0),
        ([(0, 400)], 2100),  # 2 ms, and a twentieth more
        ([(500, 400)], 1600),
        ([(2099, 400)], 1),
        ([(2100, 400)], 0),
        ([(9000, 400)], 0),  # its clock ran out, whether or not it is done
        ([(0, 400), (0, 400)], 4200),
        ([(1000, 400), (100, 400)], -1000 + 2 * 2100),
        ([(9000, 400), (100, 400)], 2000),  # the first should be done; the second begins when it was to
        ([(-1600, 400)], 2100),  # was to begin later; those before it are done, so it has begun
        ([(-1600, 400), (500, 400)], -500 + 2 * 2100),
        ([(NOW_US, 400), (0, 0)], 1050),  # nobody said when the first one begins
    ],
)
def test_the_wait_by_hand(prefills: list[tuple[int, int]], wait: int) -> None:
    """free = max(free, begins) + 1.05 prefill over all in their order; the wait is what of that lies ahead."""
    assert SLACK_M == 1050
    assert wait_us(outstanding(*prefills), TIME, NOW_MS) == wait


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_the_order_in_which_they_are_heard_of_does_not_matter(data: st.DataObject) -> None:
    """Any order of the same prefills gives the same wait; one more never makes it shorter."""
    rows = outstanding(*data.draw(st.lists(st.tuples(st.integers(-3000, 9000), st.integers(1, 2000)), max_size=6)))
    wait = wait_us(rows, TIME, NOW_MS)
    assert wait_us(data.draw(st.permutations(rows)), TIME, NOW_MS) == wait
    assert not rows or wait_us(rows[1:], TIME, NOW_MS) <= wait
    later_ms = data.draw(st.integers(0, 5))
    assert wait_us(rows, TIME, NOW_MS + later_ms) >= wait - later_ms * 1000


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_waits_of_several_replicas_requests_agree(data: st.DataObject) -> None:
    """Any interleaving of the replicas' messages, restatements, gaps and ends included, gives the same waits."""

    def waits(said: list[Said]) -> PrefillBacklog:
        folded = RoutingFold()
        fold(folded, *said)
        rows = {worker: list(entries.values()) for worker, entries in folded.in_flight_load.prefills.items()}
        return PrefillBacklog.of(TIME, rows, now_ms=5)

    history = [source.said for source in data.draw(sources("routing"))]
    one_by_one = [each for said in history for each in said]
    one, other = waits(one_by_one), waits(data.draw(shuffled(history)))
    assert (one, list(one.waits_us)) == (other, list(other.waits_us))


def test_a_prefill_is_outstanding_until_its_first_token_or_its_end(site: Site) -> None:
    """Of any replica; of this one also where the log has not told of it yet."""
    site.say(ROUTING, OTHER, routed("a", A, prompt(1, 2), now_ms=5), routed("b", A, prompt(1), now_ms=3))
    site.pending_events.emit(routed("c", A, prompt(), now_ms=4), None)
    assert tokens_there(site) == {A: [5, 1, 9]}
    site.say(ROUTING, OTHER, prefilled("b"))
    site.pending_events.emit(finished("c"), None)
    assert tokens_there(site) == {A: [9]}
    site.say(ROUTING, OTHER, finished("a"))
    assert tokens_there(site) == {}


@pytest.mark.parametrize(
    ("end", "expected"), [(prefilled("a"), {}), (finished("a"), {}), (routed("a", B, prompt(1)), {B: [5]})]
)
def test_what_this_replica_knows_better_counts(site: Site, end: Event, expected: dict[str, list[int]]) -> None:
    """The fold still shows a prefill as outstanding whose first token, or end, or other worker is known here."""
    site.say(ROUTING, REPLICA, routed("a", A, prompt(1)))
    site.pending_events.emit(end, site.state.routing.replicas.get(REPLICA))
    assert tokens_there(site) == expected
    site.say(ROUTING, REPLICA, end)
    site.pending_events.read_back(end)
    assert tokens_there(site) == expected


@pytest.mark.parametrize("first", ["aa" * 8, "bb" * 8])
def test_two_replicas_may_have_the_same_request(site: Site, first: str) -> None:
    """Both count, each until its own first token, whichever was heard of first."""
    second = "bb" * 8 if first == "aa" * 8 else "aa" * 8
    for replica in (first, second):
        site.say(ROUTING, replica, routed("a", A, prompt(1, 2), now_ms=int(replica[:2], 16)))
    assert [each.begins_us for each in sorted(site.view.outstanding()[A])] == [0xAA * 1000, 0xBB * 1000]
    site.say(ROUTING, "aa" * 8, prefilled("a"))
    assert [each.begins_us for each in site.view.outstanding()[A]] == [0xBB * 1000]
    assert len(list(site.state.routing.in_flight_load.pending(prompt(1, 2)))) == 1


def test_a_prefill_begins_when_the_wait_is_over(site: Site) -> None:
    """By its decision; a restatement says it again, and one of times before says nothing."""
    site.say(ROUTING, REPLICA, routed("a", A, prompt(1), now_ms=7, wait_us=500))
    ((row,),) = site.view.outstanding().values()
    assert row == OutstandingPrefill(7500, RequestId("a"), 0, 5)
    part = site.state.routing.replicas[REPLICA]
    event = replica_restated(part.in_flight.items())
    for begins_us in ((7500,), ()):
        ahead = PendingEvents()
        said = type(event)(
            **{name: getattr(event, name) for name in event.__struct_fields__} | {"begins_us": begins_us}
        )
        ahead.emit(said, part)
        view = site.view._replace(pending_events=ahead)
        assert view.outstanding() == {A: [row._replace(begins_us=sum(begins_us))]}
        site.say(ROUTING, REPLICA, said)
        assert site.view.outstanding() == {A: [row._replace(begins_us=sum(begins_us))]}
