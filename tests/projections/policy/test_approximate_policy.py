"""The policy `approximate`: the cost of `kv`, with blocks that were sent to workers instead of those they report."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.events import ReplicaJoined, ReplicaLeft
from core.ids import RequestId, WorkerId
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.approximate_index import APPROXIMATE_BLOCKS_MAX
from projections.folds.pending_events import PENDING_PROMPTS_MAX
from projections.folds.snapshot import decode, encode
from projections.policy.decide import Decision, decide, record
from projections.policy.view import RouteRequest, View
from tests.projections.facts import finished, joined, prefilled, prompt, replica_restated, routed, worker_id
from tests.projections.site import KV, REPLICA, Site
from tests.projections.speaker import CHAIN_KEY

A, B, C = (WorkerId(worker_id(number)) for number in (1, 2, 3))
ASKED = prompt(*range(20))
OTHER, THIRD = "dd" * 8, "cc" * 8
KV_COSTS = RoutingSettings(policy="kv", decode_weight_m=0)
BELIEVING = RoutingSettings(policy="approximate", decode_weight_m=0, approximate_ttl_s=120)
KEEPS = (1000, 120_000)
ROUTED_MS = 1000


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join(A, B, C)
    return made


def decided(
    site: Site, given: RoutingSettings = BELIEVING, asked: Prompt = ASKED, now_ms: int = ROUTED_MS + 1
) -> Decision:
    return decide(site.view, RouteRequest(RequestId("r"), 0, "tiny", asked), given, now_ms, seed=0)


def computed(site: Site, worker: str, asked: Prompt, *, by: str = OTHER, request: str = "x") -> None:
    """The replica sent it there, and its first token came; nothing of it is in flight any more."""
    sent = routed(request, worker, asked, now_ms=ROUTED_MS, believed=KEEPS)
    site.say(ROUTING, by, ReplicaJoined(name=by, version="1"), sent, prefilled(request), finished(request))


def overlaps(decision: Decision) -> dict[str, int]:
    return {each.candidate.worker: each.candidate.overlap[0] for each in decision.ranked}


def test_costs_are_those_of_kv(site: Site) -> None:
    """Of a site whose workers report what was sent to them."""
    reporting = Site()
    reporting.join(A, B, C)
    for worker, blocks in ((A, 7), (B, 12)):
        computed(site, worker, prompt(*range(blocks)), request=worker)
        reporting.cache(worker, ASKED, blocks)
    found, wanted = decided(site), decided(reporting, KV_COSTS)
    assert overlaps(found) == {A: 7, B: 12, C: 0}
    assert found.ranked == wanted.ranked
    assert (found.worker, found.predicted_cached_tokens, found.prefill_tokens) == (B, 48, 33)
    assert (wanted.worker, wanted.predicted_cached_tokens, wanted.prefill_tokens) == (B, 48, 33)


def test_what_workers_report_is_not_asked(site: Site) -> None:
    """Nor does anybody but this policy ask what is believed."""
    site.cache(A, ASKED, 20)
    computed(site, B, ASKED)
    assert overlaps(decided(site)) == {A: 0, B: 20, C: 0}
    for policy in ("kv", "time", "session", "random"):
        assert overlaps(decided(site, RoutingSettings(policy=policy))) == {A: 20, B: 0, C: 0}


def test_a_prompt_is_pending_until_its_first_token(site: Site) -> None:
    """As under `kv`: a fan-out stays together, at the credit for what is being computed; one that fails was nothing."""
    sent = routed("x", A, ASKED, now_ms=ROUTED_MS, believed=KEEPS)
    site.say(ROUTING, OTHER, sent)
    (first, *_) = decided(site).ranked
    assert (first.candidate.worker, first.candidate.overlap[0], first.candidate.pending) == (A, 0, 20)
    assert decided(site).ranked == decided(site, KV_COSTS).ranked
    site.say(ROUTING, OTHER, finished("x"))
    assert overlaps(decided(site)) == {A: 0, B: 0, C: 0}


def test_own_decisions_count_before_the_log_has_them(site: Site) -> None:
    """As what is pending, then as what is held; there is no moment in which they are neither."""

    def seen() -> tuple[int, int]:
        first = decided(site).ranked[0].candidate
        assert first.worker == A
        return first.pending, first.overlap[0]

    sent = routed("x", A, ASKED, now_ms=ROUTED_MS, believed=KEEPS)
    for event, wanted in ((sent, (20, 0)), (prefilled("x"), (0, 20)), (finished("x"), (0, 20))):
        site.pending_events.emit(event, site.state.routing.replicas.get(REPLICA))
        assert seen() == wanted
        site.say(ROUTING, REPLICA, event)
        site.pending_events.read_back(event)
        assert (seen(), len(site.pending_events)) == (wanted, 0)
    assert not site.pending_events.believed


def test_without_the_log_the_newest_count(site: Site) -> None:
    """At the bound all of them, beyond it not the oldest; the log has them all when it comes back."""
    own, said = site.state.routing.replicas, []
    for number in range(PENDING_PROMPTS_MAX + 1):
        asked, name = prompt(number, 900), f"x{number}"
        for event in (routed(name, B, asked, now_ms=ROUTED_MS, believed=KEEPS), prefilled(name)):
            site.pending_events.emit(event, own.get(REPLICA))
            said.append(event)
        assert overlaps(decided(site, asked=asked))[B] == 2
        assert overlaps(decided(site, asked=prompt(0, 900)))[B] == (2 if number < PENDING_PROMPTS_MAX else 0)
    assert overlaps(decided(site, asked=asked, now_ms=ROUTED_MS + 120_000))[B] == 0
    for event in said:
        site.say(ROUTING, REPLICA, event)
        site.pending_events.read_back(event)
    assert not site.pending_events.believed
    assert overlaps(decided(site, asked=prompt(0, 900)))[B] == overlaps(decided(site, asked=asked))[B] == 2


def test_it_is_believed_for_so_long(site: Site) -> None:
    """To the millisecond of the decision's own time; with 0, for ever."""
    computed(site, A, ASKED)
    given = RoutingSettings(policy="approximate", approximate_ttl_s=7)
    assert overlaps(decided(site, given, now_ms=ROUTED_MS + 6999))[A] == 20
    assert overlaps(decided(site, given, now_ms=ROUTED_MS + 7000))[A] == 0
    for_ever = RoutingSettings(policy="approximate", approximate_ttl_s=0)
    assert overlaps(decided(site, for_ever, now_ms=1 << 60)) == {A: 20, B: 0, C: 0}


def test_the_record_says_what_the_worker_keeps(site: Site) -> None:
    """This replica's share of what the worker says that it holds, or of less; other policies say nothing."""

    def keeps(**given: int) -> tuple[int, int] | None:
        settings = RoutingSettings(**{"policy": "approximate", "approximate_ttl_s": 120, **given})  # type: ignore[arg-type]
        asked = RouteRequest(RequestId("r"), 0, "tiny", ASKED)
        decision = decide(site.view, asked, settings, ROUTED_MS, seed=0)
        assert decision.believed is not None
        event = record(decision, asked, settings, 0)
        assert event.believed == decision.believed
        return event.believed

    assert keeps() == (1000, 120_000)
    assert keeps(approximate_blocks_max=999, approximate_ttl_s=3) == (999, 3000)
    assert keeps(approximate_blocks_max=1001, approximate_ttl_s=0) == (1000, 0)
    for replica in (OTHER, THIRD, REPLICA):
        site.say(ROUTING, replica, ReplicaJoined(name=replica, version="1"))
    assert keeps() == (333, 120_000)
    assert keeps(approximate_blocks_max=2) == (1, 120_000)
    assert decided(site, KV_COSTS).believed is None


def test_a_worker_that_tells_no_room_has_a_bound() -> None:
    """That of all of a replica's workers together."""
    site = Site()
    site.say(KV, A, replace(joined(A), capacity_blocks=0))
    found = decided(site).believed
    assert found is not None
    assert found.blocks == APPROXIMATE_BLOCKS_MAX


def test_what_its_record_keeps_is_what_counts(site: Site) -> None:
    """A worker with room for 12 blocks has the last 12 that were used there."""
    for number, asked in enumerate((prompt(*range(8)), prompt(*range(30, 40)))):
        sent = routed(f"x{number}", A, asked, now_ms=ROUTED_MS, believed=(12, 0))
        site.say(ROUTING, OTHER, sent, prefilled(sent.request), finished(sent.request))
    assert overlaps(decided(site))[A] == 2
    assert overlaps(decided(site, asked=prompt(*range(30, 40))))[A] == 10


def test_replicas_add_up(site: Site) -> None:
    """The longest that any of them sent there; what one said is void when it restates itself, or is over."""
    computed(site, A, prompt(*range(5)), by=OTHER)
    computed(site, A, prompt(*range(9)), by=THIRD)
    assert overlaps(decided(site))[A] == 9
    site.say(ROUTING, THIRD, replica_restated([]))
    assert overlaps(decided(site))[A] == 5
    site.say(ROUTING, OTHER, ReplicaLeft(reason="done"))
    assert overlaps(decided(site))[A] == 0
    assert site.state.routing.believed == {}


def test_digests_and_snapshots_have_it(site: Site) -> None:
    """The digest changes with what is believed; a state that was written and read decides alike, also later."""
    before = site.state.routing.digest
    computed(site, A, prompt(*range(9)))
    (part,) = site.state.routing.believed.values()
    assert part.digest
    assert site.state.routing.digest != before
    again = decode(CHAIN_KEY, b"".join(encode(site.state)))
    assert again.digest == site.state.digest
    asked = RouteRequest(RequestId("r"), 0, "tiny", ASKED)
    view = View(again, REPLICA, site.pending_events, site.local)
    assert decide(view, asked, BELIEVING, ROUTED_MS + 1, seed=0) == decided(site)


def test_a_worker_under_a_new_id_holds_nothing(site: Site) -> None:
    """Its cache may be what it was, but nobody sent anything to this one."""
    computed(site, A, ASKED)
    new = worker_id(9)
    site.join(new)
    assert overlaps(decided(site)) == {A: 20, B: 0, C: 0, new: 0}


def test_nothing_is_kept_where_the_policy_is_another(site: Site) -> None:
    """Decisions without it cost a fold nothing."""
    site.say(ROUTING, OTHER, routed("x", A, ASKED), prefilled("x"))
    assert site.state.routing.believed == {}


def test_a_temperature_softens_it(site: Site) -> None:
    """As it does `kv`."""
    computed(site, A, ASKED)
    soft = RoutingSettings(policy="approximate", temperature_m=1000)
    seeds = [number << 60 for number in range(16)]
    asked = RouteRequest(RequestId("r"), 0, "tiny", ASKED)
    assert len({decide(site.view, asked, soft, ROUTED_MS, seed).worker for seed in seeds}) > 1
