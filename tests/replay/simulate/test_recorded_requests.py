"""Which requests of a record can be run again, and why the others cannot."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from core.errors import CallerError
from core.events import (
    Event,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
)
from core.events.routing import HELD, RequestQueued, RequestTurnedAway
from core.generation import PrefillReport
from core.ids import LOST_SUFFIX, ReplicaId
from core.subjects import ROUTING
from projections.folds.routing_fold import in_flight
from replay.closed_loop.engine_fit import engine_samples
from replay.simulate import recorded_requests as why
from replay.simulate.recorded_requests import RecordedRequests, read_requests
from tests.projections.facts import finished, prompt, replica_restated, routed
from tests.replay.staged import START_MS, A, B, R, S, Stage

ASKED = prompt(1, 2, 3)
T, U = ReplicaId("cc" * 8), ReplicaId("bb" * 8)


@pytest.fixture
def stage() -> Stage:
    it = Stage()
    for replica in (R, S):
        it.replica(replica)
    return it


def chosen(request: str, now_ms: int = 0, worker: str = A, attempt: int = 0, model: str = "tiny") -> RequestRouted:
    return routed(request, worker, ASKED, attempt=attempt, model=model, now_ms=now_ms)


def ended(request: str, outcome: str = "stop", output: int = 5, first: int = 10, attempt: int = 0) -> RequestFinished:
    it = finished(request, attempt)
    return msgspec.structs.replace(it, outcome=outcome, output_tokens=output, ttft_ms=first, duration_ms=30)


def found(stage: Stage, path: Path, model: str = "", end: int | None = None) -> RecordedRequests:
    with stage.recording(path / "log") as recording:
        return read_requests(recording, model, end)


def test_a_request_with_two_attempts(stage: Stage, tmp_path: Path) -> None:
    """It came when it began to wait; each attempt did its part on its worker."""
    stage.tell(queued("r", "full", 40), chosen("r", 50))
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=4, ttft_ms=15))
    stage.tell(ended("r", "worker_lost", 2, 15), grown(chosen("r", 75, B, 1), 2))
    stage.tell(RequestPrefilled(request="r", attempt=1, cached_tokens=8, ttft_ms=60))
    stage.tell(msgspec.structs.replace(ended("r", "length", 3, 60, 1), duration_ms=80))

    it = found(stage, tmp_path)

    (past,) = it.requests
    assert (past.id, past.arrival_ms, past.output_tokens, past.outcome, past.end_ms) == ("r", 40, 5, "length", 120)
    first, second = past.timings
    assert past.served is first
    assert (first.worker, first.sent_ms, first.cached_tokens, first.first_ms) == (A, 50, 4, 55)
    assert (second.worker, second.sent_ms, second.first_ms, second.output_tokens) == (B, 75, 100, 3)
    assert (it.left_out, it.cut_short, it.start_ms, it.model, it.block_size) == ({}, {}, 40, "tiny", 4)


def grown(event: RequestRouted, told: int) -> RequestRouted:
    """The same with so much of the answer behind the prompt."""
    return msgspec.structs.replace(event, prompt_tokens=event.prompt_tokens + told)


def test_an_answer_that_is_begun_again_counts_once(stage: Stage, tmp_path: Path) -> None:
    """As one that depends on more than its tokens: the next worker makes those anew that the client has. What is told
    is what the longest attempt reached."""
    stage.tell(chosen("r", 50), ended("r", "worker_lost", 4))
    stage.tell(chosen("r", 75, B, 1), ended("r", output=9, attempt=1))
    stage.tell(chosen("s", 80), ended("s", "worker_lost", 4))
    stage.tell(grown(chosen("s", 95, B, 1), 4), ended("s", "worker_lost", 0, -1, 1))
    stage.tell(grown(chosen("s", 99, B, 2), 4), ended("s", "worker_lost", 3, 20, 2))
    assert [past.output_tokens for past in found(stage, tmp_path).requests] == [9, 7]


@pytest.mark.parametrize("outcome", ["worker_lost", "declined"])
def test_the_end_of_an_earlier_attempt_is_no_end(stage: Stage, tmp_path: Path, outcome: str) -> None:
    """The next attempt is under way when the record ends."""
    stage.tell(chosen("whole", 1), ended("whole"))
    stage.tell(chosen("r", 2), ended("r", outcome, 2, 10), grown(chosen("r", 40, B, 1), 2))
    it = found(stage, tmp_path)
    assert [past.id for past in it.requests] == ["whole"]
    assert (it.left_out, it.cut_short) == ({why.UNDER_WAY: 1}, {})


def test_an_attempt_without_an_end_ends_with_the_next(stage: Stage, tmp_path: Path) -> None:
    """What its replica said of it was lost."""
    stage.tell(chosen("r", 1), chosen("r", 40, B, 1), ended("r", attempt=1))
    (past,) = found(stage, tmp_path).requests
    assert [stint.end_ms for stint in past.timings] == [40, 31]


def queued(request: str, why: str, now_ms: int) -> RequestQueued:
    return RequestQueued(
        request=request, model="tiny", priority=0, tenant="", prompt_tokens=13, why=why, depth=0, now_ms=now_ms
    )


def test_a_request_that_waits_twice(stage: Stage, tmp_path: Path) -> None:
    """For a place, and then for its worker: it came when it began to wait, and its prefill lasts from its decision."""
    stage.tell(queued("r", "full", 1000), queued("r", HELD, 9000), chosen("r", 9500))
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=0, ttft_ms=8600))
    stage.tell(msgspec.structs.replace(ended("r", first=8600), duration_ms=8900))
    (past,) = found(stage, tmp_path).requests
    (stint,) = past.timings
    assert (past.arrival_ms, stint.sent_ms, stint.first_ms, past.end_ms) == (1000, 9500, 9600, 9900)
    (prefill,) = engine_samples(past.timings).prefills
    assert prefill.us == 100_500


@pytest.mark.parametrize(
    ("refusal", "counted"),
    [
        (
            RequestRejected(
                request="r", attempt=0, model="tiny", reason="overloaded", status=503, cursor={}, excluded={},
                settings_revision=0, now_ms=900,
            ),
            why.REFUSED,
        ),
        (
            RequestTurnedAway(request="r", model="tiny", reason="queue_wait", status=503, waited_ms=800),
            why.TURNED_AWAY,
        ),
    ],
)  # fmt: skip
def test_a_wait_that_ended_without_a_decision(
    stage: Stage, tmp_path: Path, refusal: RequestRejected | RequestTurnedAway, counted: str
) -> None:
    """It is no wait of the next request with that id."""
    stage.tell(queued("r", "full", 100), refusal, chosen("r", 60_000), ended("r"))
    it = found(stage, tmp_path)
    assert [past.arrival_ms for past in it.requests] == [60_000]
    assert it.left_out == {counted: 1}


def test_what_is_left_out_is_counted(stage: Stage, tmp_path: Path) -> None:
    """By what it lacks; what is known of it stands among what workers did all the same."""
    stage.tell(chosen("whole", 1), ended("whole"))
    stage.tell(chosen("open", 2), chosen("silent", 3), ended("silent", "abort", 0, -1))
    stage.tell(msgspec.structs.replace(chosen("cut", 4), hashes=ASKED.hashes()[:-8]), ended("cut"))
    stage.tell(chosen("older", 5, attempt=2), ended("older", attempt=2))
    stage.tell(
        RequestRejected(
            request="none", attempt=0, model="tiny", reason="no_workers", status=503, cursor={}, excluded={},
            settings_revision=0, now_ms=6,
        )
    )  # fmt: skip
    stage.tell(RequestTurnedAway(request="late", model="tiny", reason="queue_full", status=503, waited_ms=-1))

    stage.tell(chosen("declined", 7), ended("declined", "declined", 0, -1))
    stage.tell(RequestTurnedAway(request="declined", model="tiny", reason="client_gone", status=499, waited_ms=9))

    it = found(stage, tmp_path)

    assert [each.id for each in it.requests] == ["whole"]
    others = [why.UNDER_WAY, why.UNHASHED, why.BEGUN_BEFORE, why.REFUSED, why.TURNED_AWAY]
    assert it.left_out == {why.UNANSWERED: 2} | dict.fromkeys(others, 1)
    assert len(it.timings) == 5


def test_answers_that_were_cut_short_are_run_as_they_were(stage: Stage, tmp_path: Path) -> None:
    stage.tell(chosen("gone", 1), ended("gone", "abort", 2), chosen("broken", 2), ended("broken", "error", 1))
    it = found(stage, tmp_path)
    assert it.cut_short == {"abort": 1, "error": 1}
    assert [each.output_tokens for each in it.requests] == [2, 1]


def test_an_id_that_is_used_again_and_by_two_replicas(stage: Stage, tmp_path: Path) -> None:
    stage.tell(chosen("r", 1), replica=R)
    stage.tell(chosen("r", 2), replica=S)
    stage.tell(ended("r", output=3), replica=S)
    stage.tell(ended("r", output=2), chosen("r", 9), ended("r", output=4), replica=R)
    it = found(stage, tmp_path)
    assert [(each.id, each.replica, each.output_tokens) for each in it.requests] == [
        ("r", R, 2), ("r-use-2", S, 3), ("r-use-3", R, 4),
    ]  # fmt: skip


def test_a_message_that_comes_twice_counts_once(stage: Stage, tmp_path: Path) -> None:
    payload = stage.sealed(ROUTING, R, chosen("r", 1), ended("r"))
    stage.store(ROUTING, R, payload)
    stage.store(ROUTING, R, payload)
    assert len(found(stage, tmp_path).requests) == 1


def test_up_to_an_end(stage: Stage, tmp_path: Path) -> None:
    """Decisions from there on are not run; ends are heard."""
    stage.tell(chosen("r", 1))
    end = stage.tell(chosen("later", 2))
    stage.tell(ended("r"), ended("later"))
    assert [each.id for each in found(stage, tmp_path, end=end).requests] == ["r"]


def test_what_was_begun_before_the_end_goes_on(stage: Stage, tmp_path: Path) -> None:
    """Its further attempts are read beyond; a request behind the end that has its name is another one, and so are that
    one's attempts."""
    stage.tell(chosen("r", 1), chosen("s", 2), ended("s", output=3))
    end = stage.tell(ended("r", "worker_lost", 2, 15))
    stage.tell(grown(chosen("r", 75, B, 1), 2), ended("r", "length", 3, 60, 1))
    stage.tell(chosen("s", 80), ended("s", "worker_lost", 9), grown(chosen("s", 95, B, 1), 9), ended("s", attempt=1))
    it = found(stage, tmp_path, end=end)
    assert [(past.id, past.output_tokens, len(past.timings)) for past in it.requests] == [("r", 5, 2), ("s", 3, 1)]
    assert (it.left_out, it.cut_short) == ({}, {})


def test_a_wait_is_of_the_attempt_that_follows_it(stage: Stage, tmp_path: Path) -> None:
    """Held again after it was declined: the next request of that name did not come then."""
    stage.tell(chosen("r", 1), ended("r", "declined", 0, -1), queued("r", HELD, 20), chosen("r", 30, B, 1))
    stage.tell(ended("r", attempt=1), chosen("r", 60_000), ended("r"))
    assert [past.arrival_ms for past in found(stage, tmp_path).requests] == [1, 60_000]


def test_what_ends_with_its_replica(stage: Stage, tmp_path: Path) -> None:
    """Whether that left or was lost: its workers have nothing of it from then on, and nobody heard how it ended."""
    stage.tell(chosen("left", START_MS), replica=R)
    stage.tell(chosen("lost", START_MS), ended("lost", "worker_lost", 2), chosen("lost", START_MS, B, 1), replica=S)
    stage.tell(chosen("whole", START_MS), ended("whole"), replica=R)
    stage.clock.advance(500)
    stage.tell(ReplicaLeft(reason="drained"), replica=R)
    stage.clock.advance(500)
    stage.say(ROUTING, S + LOST_SUFFIX, ReplicaLost(by=R, reason="silent"), about=S)
    it = found(stage, tmp_path)
    assert [past.id for past in it.requests] == ["whole"]
    assert it.left_out == {why.END_UNKNOWN: 2}
    assert [stint.end_ms - START_MS for stint in it.timings] == [500, 30, 1000, 30]


def test_what_a_restatement_leaves_out_has_ended(stage: Stage, tmp_path: Path) -> None:
    """Nobody knows how; what it names goes on."""
    kept = chosen("kept", START_MS)
    stage.tell(chosen("gone", START_MS), kept, chosen("whole", START_MS), ended("whole"))
    stage.clock.advance(500)
    stage.tell(replica_restated([(("kept", 0), in_flight(kept))]))
    stage.tell(ended("kept"))
    it = found(stage, tmp_path)
    assert [past.id for past in it.requests] == ["kept", "whole"]
    assert it.left_out == {why.END_UNKNOWN: 1}
    assert [stint.end_ms - START_MS for stint in it.timings] == [500, 30, 30]


def test_replicas_count_by_name_while_they_are_there(tmp_path: Path) -> None:
    """One that is started again has a new id; its successor may come before it goes. Who decided nothing is none."""
    stage = Stage()
    for number, (replica, name) in enumerate(((R, "one"), (S, "two"), (T, "one"))):
        stage.replica(replica, name)
        stage.tell(chosen(f"r{number}", number), ended(f"r{number}"), replica=replica)
    stage.replica(U, "three")
    assert found(stage, tmp_path).replicas == 2


@pytest.mark.parametrize(
    "end", [(R, ReplicaLeft(reason="drained")), (R + LOST_SUFFIX, ReplicaLost(by=S, reason="silent"))]
)
def test_who_comes_when_another_has_gone_takes_its_place(tmp_path: Path, end: tuple[str, Event]) -> None:
    """Under whatever name: as many are simulated as there were at once. A record without names has ids."""
    stage = Stage()
    stage.tell(chosen("r", 1), ended("r"), replica=R)
    source, event = end
    stage.say(ROUTING, source, event, about=R)
    for replica in (S, T):
        stage.tell(ReplicaJoined(name=f"pod-{replica}", version="1"), replica=replica)
        stage.tell(chosen("r", 2), ended("r"), replica=replica)
    assert found(stage, tmp_path).replicas == 2


def test_one_model_at_a_time(stage: Stage, tmp_path: Path) -> None:
    stage.tell(chosen("r", 1), ended("r"), chosen("s", 2, model="large"), ended("s"))
    with pytest.raises(CallerError, match=r"several models \(large, tiny\): name one with --model"):
        found(stage, tmp_path)
    assert [each.id for each in found(stage, tmp_path, "large").requests] == ["s"]
    stage.tell(chosen("r", 3, model="large"), ended("r", output=9))
    assert [each.output_tokens for each in found(stage, tmp_path, "tiny").requests] == [5]
    with pytest.raises(CallerError, match=r"no request of the model 'huge'.*none is there"):
        found(stage, tmp_path, "huge")


def test_nothing_that_can_be_run(stage: Stage, tmp_path: Path) -> None:
    stage.tell(chosen("open", 2))
    with pytest.raises(CallerError, match="1 are left out because the record ends before they do"):
        found(stage, tmp_path)


def test_blocks_of_two_sizes(stage: Stage, tmp_path: Path) -> None:
    wide = prompt(1, 2, block_size=8)
    stage.tell(chosen("r", 1), ended("r"))
    stage.tell(routed("s", A, wide, now_ms=2), ended("s"))
    with pytest.raises(CallerError, match=r"several sizes \(4, 8\)"):
        found(stage, tmp_path)


def test_prompts_that_others_computed(stage: Stage, tmp_path: Path) -> None:
    report = PrefillReport(
        remote=True, reason="long", uncached_tokens=9, queued=0, workers=1, min_tokens=1, queue_max=8
    )
    stage.tell(chosen("r", 1))
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=0, ttft_ms=5, prefill=report), ended("r"))
    with pytest.raises(CallerError, match="prefill workers computed 1 of the recorded prompts"):
        found(stage, tmp_path)
