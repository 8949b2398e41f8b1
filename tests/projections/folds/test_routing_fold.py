"""The fold of the routing stream: what is in flight on each worker, and how right the predictions were."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.events import (
    DecisionCounts,
    Event,
    LocalChanged,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    RequestRejected,
    SettingsChanged,
)
from core.events.routing import CACHED_UNKNOWN, ROUTED_VERSION
from core.ids import ReplicaId, WorkerId
from projections.folds.in_flight import InFlight, WorkerLoad
from projections.folds.routing_fold import (
    DROPPED_KEPT,
    WORKERS_AT_ONCE,
    ReplicaPart,
    ReuseTotals,
    RoutingFold,
    contents,
)
from tests.projections.facts import finished, load, prefilled, prompt, replica_restated, routed, worker_id
from tests.projections.speaker import Speaker, fold

R = ReplicaId("ee" * 8)
A, B = WorkerId(worker_id(1)), WorkerId(worker_id(2))
ASKED = prompt(1, 2, 3)


class Routing:
    """One replica and the fold that hears it."""

    def __init__(self) -> None:
        self.projection = RoutingFold()
        self.speaker = Speaker("routing", R)

    def says(self, *events: Event) -> bool:
        return fold(self.projection, self.speaker.say(*events))[0]

    def loses(self, *events: Event) -> None:
        self.speaker.say(*events)

    @property
    def busy(self) -> dict[WorkerId, WorkerLoad]:
        return self.projection.in_flight_load.busy

    @property
    def part(self) -> ReplicaPart:
        return self.projection.replicas[R]

    @property
    def pending(self) -> set[str]:
        return {request for (request, _), _ in self.projection.in_flight_load.pending(ASKED)}


@pytest.fixture
def routing() -> Routing:
    made = Routing()
    made.says(ReplicaJoined(name="router-0", version="1"))
    return made


def test_requests_in_flight_add_up(routing: Routing) -> None:
    """Each attempt weighs what was fixed when it was routed, until its end; its prefill until its first token."""
    routing.says(routed("a", A, ASKED), routed("b", A, ASKED, predicted=8), routed("c", B, prompt(9)))
    assert routing.busy == {A: WorkerLoad(8, 2, 13 + 5), B: WorkerLoad(2, 1, 5)}
    assert routing.pending == {"a", "b"}
    routing.says(prefilled("a"))
    assert (routing.busy[A], routing.pending) == (WorkerLoad(8, 2, 5), {"b"})
    routing.says(finished("a"), finished("c"))
    assert routing.busy == {A: WorkerLoad(4, 1, 5)}
    routing.says(finished("b"), finished("b"), finished("never routed"), prefilled("never routed"))
    assert (routing.busy, routing.pending, routing.part.in_flight) == ({}, set(), {})


def test_attempts_are_apart(routing: Routing) -> None:
    """A second attempt is another entry: the end of the first takes only the first away."""
    routing.says(routed("a", A, ASKED), routed("a", B, ASKED, attempt=1), finished("a", 0))
    assert routing.busy == {B: WorkerLoad(4, 1, 13)}
    assert routing.pending == {"a"}


def test_an_attempt_routed_twice_counts_once(routing: Routing) -> None:
    """The later word replaces the earlier; nothing is left behind at the end."""
    routing.says(routed("a", A, ASKED), routed("a", B, ASKED))
    assert routing.busy == {B: WorkerLoad(4, 1, 13)}
    routing.says(finished("a"))
    assert (routing.busy, routing.pending) == ({}, set())


def test_predictions_are_held_against_what_engines_said(routing: Routing) -> None:
    """Sums over requests whose first token came; those that ended without one tell nothing."""
    routing.says(routed("a", A, ASKED, predicted=8), routed("b", A, ASKED, predicted=4), routed("c", A, ASKED))
    routing.says(prefilled("a", cached=8), prefilled("b"), finished("c"), prefilled("b", cached=100))
    reuse = routing.part.reuse
    assert (reuse.requests, reuse.prompt_tokens, reuse.predicted_tokens, reuse.cached_tokens) == (2, 26, 12, 8)


def test_an_engine_that_says_nothing_of_its_cache_is_in_no_sum(routing: Routing) -> None:
    """Neither what was predicted for it nor a count of its own."""
    routing.says(routed("a", A, ASKED, predicted=8), prefilled("a", cached=CACHED_UNKNOWN))
    assert routing.part.reuse == ReuseTotals()
    assert not routing.part.predicted


def test_after_a_gap_nothing_is_in_flight_until_a_restatement(routing: Routing) -> None:
    """Ends may be among what was lost; the restatement says what there is."""
    routing.says(routed("a", A, ASKED), routed("b", A, ASKED))
    routing.loses(finished("a"))
    routing.says(routed("c", A, ASKED), finished("b"))
    assert (routing.busy, routing.pending, routing.part.known, routing.projection.incomplete) == ({}, set(), False, 1)
    routing.says(replica_restated([(("c", 0), InFlight(A, 4, 13)), (("d", 1), InFlight(B, 2, 0))]))
    assert (routing.busy, routing.projection.incomplete) == ({A: WorkerLoad(4, 1, 13), B: WorkerLoad(2, 1, 0)}, 0)
    routing.says(prefilled("c"), finished("d", 1), routed("e", B, ASKED))
    assert (routing.busy, routing.pending) == ({A: WorkerLoad(4, 1, 0), B: WorkerLoad(4, 1, 13)}, {"e"})


def test_a_restatement_replaces_everything_before_it(routing: Routing) -> None:
    """Requests that it does not name are over, and decisions are counted from it on."""
    routing.says(routed("a", A, ASKED), routed("b", A, ASKED), routed("b", A, ASKED, attempt=1))
    assert routing.part.routed == {"tiny": 3}
    routing.says(replica_restated([(("b", 1), InFlight(A, 4, 13))]), routed("c", B, ASKED))
    assert routing.busy == {A: WorkerLoad(4, 1, 13), B: WorkerLoad(4, 1, 13)}
    assert (routing.part.routed, routing.pending) == ({"tiny": 1}, {"c"})


@pytest.mark.parametrize("by_itself", [True, False])
def test_the_end_of_a_replica_ends_its_requests(by_itself: bool) -> None:
    """ReplicaLeft, or the first ReplicaLost from its `-lost` source; final, also for what is restated later."""
    routing = Routing()
    routing.says(routed("a", A, ASKED))
    other = Speaker("routing", "dd" * 8)
    fold(routing.projection, other.say(routed("z", A, ASKED)))
    if by_itself:
        routing.says(ReplicaLeft(reason="over"))
    else:
        lost = Speaker("routing", f"{R}-lost", about=R).say(ReplicaLost(by=other.source, reason="over"))
        assert fold(routing.projection, lost, lost) == [True, False]
    assert (routing.busy, routing.pending) == ({A: WorkerLoad(4, 1, 13)}, {"z"})
    assert routing.projection.ended == {R: "left: over" if by_itself else "lost: over"}
    assert R not in routing.projection.replicas
    digest = routing.projection.digest
    assert not routing.says(replica_restated([(("a", 0), InFlight(A, 4, 13))]))
    assert (routing.busy[A].requests, routing.projection.digest, routing.projection.incomplete) == (1, digest, 0)


def test_a_replica_does_not_end_by_a_word_on_its_own_chain(routing: Routing) -> None:
    """ReplicaLost counts only from the source that others write its end as."""
    routing.says(routed("a", A, ASKED), ReplicaLost(by=R, reason="odd"))
    assert (routing.projection.ended, routing.busy[A].requests) == ({}, 1)


def test_settings_and_rejections(routing: Routing) -> None:
    """The newest settings stand; a rejection leaves no state; what the stream does not carry is counted."""
    routing.says(SettingsChanged(revision=1, settings={"policy": "kv"}), SettingsChanged(revision=2, settings={}))
    assert (routing.part.settings_revision, routing.part.settings) == (2, {})
    rejected = RequestRejected(
        request="a", attempt=0, model="tiny", reason="overloaded", status=503, cursor={}, excluded={},
        settings_revision=2, now_ms=0,
    )  # fmt: skip
    routing.says(rejected, load())
    assert (routing.busy, routing.projection.unknown_events) == ({}, 1)
    assert repr(routing.projection).startswith("<RoutingFold 1 replicas, 0 in flight, digest ")


def test_the_digest_covers_what_is_in_flight(routing: Routing) -> None:
    """Request, attempt, worker, blocks and tokens to prefill, each; back at the start when all is over."""
    digests = {routing.part.contents}
    entries = [
        (("a", 0), InFlight(A, 4, 13)),
        (("b", 0), InFlight(A, 4, 13)),
        (("a", 1), InFlight(A, 4, 13)),
        (("a", 0), InFlight(B, 4, 13)),
        (("a", 0), InFlight(A, 5, 13)),
        (("a", 0), InFlight(A, 4, 0)),
    ]
    for entry in entries:
        routing.says(replica_restated([entry]))
        assert routing.part.contents == contents(routing.part)
        digests.add(routing.part.contents)
    assert len(digests) == len(entries) + 1
    routing.says(routed("x", A, ASKED), LocalChanged(worker=A, reasons=("stale",)), prefilled("x"))
    assert routing.part.contents == contents(routing.part)
    routing.says(LocalChanged(worker=A, reasons=("failed",)), finished("x"), finished("a"))
    assert routing.part.contents == contents(routing.part)
    routing.says(replica_restated([]))
    assert routing.part.contents == 0


def test_requests_restated_before_their_replica_is_known_stay_unknown() -> None:
    """A log cut inside a restatement: its settings may be missing too."""
    routing = Routing()
    routing.loses(ReplicaJoined(name="router-0", version="1"))
    routing.says(replica_restated([(("a", 0), InFlight(A, 4, 13))]))
    assert (routing.busy, routing.projection.incomplete) == ({}, 1)
    routing.says(ReplicaJoined(name="router-0", version="1"), replica_restated([(("a", 0), InFlight(A, 4, 13))]))
    assert (routing.busy, routing.projection.incomplete) == ({A: WorkerLoad(4, 1, 13)}, 0)


def test_dropped_decisions_are_known_beside_the_fold(routing: Routing) -> None:
    """By the last statement of each replica; the digest does not depend on the counts."""
    other = Routing()
    other.says(ReplicaJoined(name="router-0", version="1"))
    counts = DecisionCounts(9, 4, 1)
    routing.says(replace(replica_restated(()), counts=counts))
    other.says(replica_restated(()))
    assert routing.projection.dropped == {R: counts}
    assert routing.projection.name(R) == "router-0"
    routing.says(ReplicaLeft(reason="asked to", counts=replace(counts, dropped=5)))
    assert (routing.projection.dropped[R].dropped, routing.projection.name(R)) == (5, "router-0")
    routing.says(ReplicaLeft(reason="its journal", counts=replace(counts, dropped=7)))
    assert routing.projection.dropped[R].dropped == 7
    other.says(ReplicaLeft(reason="asked to"))
    assert (other.projection.dropped, other.projection.digest) == ({}, routing.projection.digest)


def test_few_dropped_decisions_are_remembered(routing: Routing) -> None:
    """Of the replicas that stated them last."""
    for number in range(DROPPED_KEPT + 1):
        replica = ReplicaId(f"{number:016x}")
        joined, left = ReplicaJoined(name="r", version="1"), ReplicaLeft(reason="", counts=DecisionCounts(2, 1))
        fold(routing.projection, Speaker("routing", replica).say(joined, left))
    assert len(routing.projection.dropped) == DROPPED_KEPT
    assert routing.projection.name(ReplicaId("0" * 16)) == "0" * 16


def test_slices_of_an_audit_have_some_workers_each() -> None:
    """One slice for each WORKERS_AT_ONCE workers, so that no check stops the loop for long."""
    fold = RoutingFold()
    for number in range(WORKERS_AT_ONCE + 1):
        fold.in_flight_load.weigh(InFlight(WorkerId(f"{number:016x}"), 1, 1), 1)
    assert [len(found) for found in fold.audit_load()] == [WORKERS_AT_ONCE, 1]


def test_the_version_that_all_replicas_read(routing: Routing) -> None:
    """Each change of the replicas counts at once; one that has said nothing of itself reads the first version alone."""
    fold_, other = routing.projection, Speaker("routing", ReplicaId("dd" * 8))
    found = [fold_.version_read(R)]
    for source, event in (
        (routing.speaker, ReplicaJoined(name="router-0", version="1", reads=ROUTED_VERSION)),
        (other, SettingsChanged(revision=1, settings={})),
        (other, ReplicaJoined(name="router-1", version="1", reads=2)),
        (other, ReplicaLeft(reason="stopped")),
    ):
        fold(fold_, source.say(event))
        found.append(fold_.version_read(R))
    assert found == [1, ROUTED_VERSION, 1, 2, ROUTED_VERSION]
    assert fold_.version_read(ReplicaId("cc" * 8)) == 1
    fold_.restore(ReplicaPart(ReplicaId("bb" * 8)))
    assert fold_.version_read(R) == 1
