"""One history of requests: what counts, what comes twice, and what a fold forgets."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from core.codec import decode_message, digest
from core.events import Event, LocalChanged, ReplicaLeft
from core.events.routing import (
    CACHED_UNKNOWN,
    COMPACT_VERSION,
    HELD,
    PROGRESS_VERSION,
    SHORT_VERSION,
    Columns,
    RequestQueued,
    RequestTurnedAway,
)
from core.generation import PrefillReport
from core.subjects import LOAD, ROUTING
from replay.cache.cache_losses import apart_reason
from replay.cache.cache_report import NOT_COUNTED
from replay.explain.request_list import list_requests
from replay.recording.request_history import DECLINED, GONE, PLACES
from tests.projections.facts import finished, joined, load, prefilled, replica_restated, routed
from tests.replay.staged import KEY, KV, A, R, S, Stage


def staged() -> Stage:
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(LOAD, A, load())
    for replica in (R, S):
        it.replica(replica)
    return it


def lost(stage: Stage) -> None:
    """A message of R that the log never gets."""
    payload = stage.sealed(ROUTING, R, finished("nothing"))
    stage._chains[ROUTING, R] = decode_message(payload).n + 1, digest(payload, KEY.chain_key)


def test_a_message_that_comes_twice_counts_once(tmp_path: Path) -> None:
    stage = staged()
    payload = stage.sealed(ROUTING, R, routed("r", A), finished("r"))
    for _ in range(2):
        stage.store(ROUTING, R, payload)
    stage.tell(routed("s", A))
    with stage.recording(tmp_path / "log") as recording:
        assert [each.request for each in recording.requests.between()] == ["r", "s"]
        assert recording.requests.missing == {}


def test_folds_count_an_attempt_as_long_as_the_history_says(tmp_path: Path) -> None:
    """At every place of the log: those that end, that a restatement leaves out, and those of a replica of which
    messages are missing, until it restates itself."""
    stage = staged()
    kept = routed("kept", A)
    stage.tell(kept, routed("ends", A), routed("left out", A))
    stage.tell(routed("other", A), replica=S)
    stage.tell(prefilled("ends"), finished("ends"))
    lost(stage)
    stage.tell(routed("uncounted", A))
    stage.tell(replica_restated([]))
    stage.tell(routed("counted", A))
    stage.tell(routed("last", A), finished("counted"))
    with stage.recording(tmp_path / "log") as recording:
        history = recording.requests
        counts = {history.requests[row]: history.counted_until(row) for row in range(len(history))}
        for seq in range(1, recording.end[ROUTING] + 1):
            folded = recording.state_at({ROUTING: seq}).routing.replicas
            flying = {request for part in folded.values() for request, _ in part.in_flight}
            started = {each.request for each in history.between(end=seq + 1)}
            assert flying == {name for name in started if not 0 < counts[name] < (seq + 1) * PLACES}, seq
        (missed,) = history.missing[R]
        assert counts["kept"] == missed * PLACES
        assert (counts["uncounted"] % PLACES, counts["other"], counts["last"]) == (0, 0, 0)


def test_a_request_in_the_words_of_its_events(tmp_path: Path) -> None:
    """Declined, held again and turned away, it is one request; the refusal is its last attempt."""
    stage = staged()
    stage.tell(_queued("r", 1000), routed("r", A, now_ms=1400))
    stage.tell(replace(finished("r"), outcome=DECLINED), _queued("r", 2000))
    stage.tell(RequestTurnedAway(request="r", model="tiny", reason="client_gone", status=499, waited_ms=9))
    stage.tell(routed("r", A, now_ms=5000))
    with stage.recording(tmp_path / "log") as recording:
        first, second = recording.requests.uses("r")
        assert [(each.attempt, each.worker, each.outcome) for each in first] == [(0, A, DECLINED), (1, "", "")]
        assert (first[0].before_ms, first[0].queued_seq > 0, first[1].turned_away, first[1].status) == (
            400, True, True, 499,
        )  # fmt: skip
        (again,) = second
        assert (again.before_ms, again.queued_seq, again.ended_at) == (0, 0, 0)
        assert recording.requests.at(again.at) == again == recording.requests.newest(R, again.seq)


VERSIONS = [(1, 1), (COMPACT_VERSION, 1), (SHORT_VERSION, PROGRESS_VERSION)]
"""Of decisions, and of first tokens and ends."""


@pytest.mark.parametrize("beside", [[], [LocalChanged(worker=A, reasons=())]], ids=["alone", "beside other events"])
def test_the_versions_of_events_make_no_difference(tmp_path: Path, beside: list[Event]) -> None:
    """Also in messages that hold other events, which are read in another way."""
    report = PrefillReport(
        remote=True, reason="long", uncached_tokens=9, queued=0, workers=1, min_tokens=1, queue_max=1
    )
    found = []
    for decided, progressed in VERSIONS:
        stage = staged()
        columns = Columns((3,), (2,), (2,), (0,), (1,), (0,), (0,), (0,), (1,))
        decision = replace(routed("r", A, predicted=4), columns=columns, candidates=bytes(8), v=decided)
        stage.tell(*beside, decision, replace(decision, request="s", tenant="one"))
        first = [prefilled("r", cached=4), replace(prefilled("s"), prefill=report)]
        stage.tell(*[replace(event, v=progressed) for event in first])
        stage.tell(*beside, *[replace(event, v=progressed) for event in (first[1], finished("r"))])
        stage.tell(replace(replace(finished("s"), outcome=DECLINED, detail="why"), v=progressed))
        with stage.recording(tmp_path / f"{decided}") as recording:
            found.append([*recording.requests.between()])
    assert [(each.cached_tokens, each.remote, each.outcome) for each in found[0]] == [
        (4, False, "stop"), (0, True, DECLINED)
    ]  # fmt: skip
    assert found[0] == found[1] == found[2]


def test_an_attempt_ends_with_its_replica(tmp_path: Path) -> None:
    stage = staged()
    stage.tell(routed("r", A), replica=S)
    stage.clock.advance(700)
    seq = stage.tell(ReplicaLeft(reason="drained"), replica=S)
    with stage.recording(tmp_path / "log") as recording:
        (it,) = recording.requests.attempts("r")
        assert (it.outcome, it.ended_seq, it.ended_at // PLACES, it.duration_ms) == (GONE, 0, seq, 700)


def _queued(request: str, now_ms: int) -> RequestQueued:
    return RequestQueued(
        request=request, model="tiny", priority=0, tenant="", prompt_tokens=9, why=HELD, depth=0, now_ms=now_ms
    )


def test_cached_tokens_that_are_told_at_the_end_or_never(tmp_path: Path) -> None:
    """An attached server says them with its last tokens; of one that does not, no cache is judged."""
    stage = staged()
    stage.tell(routed("late", A, predicted=8), prefilled("late", cached=CACHED_UNKNOWN))
    stage.tell(replace(finished("late"), cached_tokens=12))
    stage.tell(routed("never", A, predicted=8), prefilled("never", cached=CACHED_UNKNOWN))
    stage.tell(replace(finished("never"), cached_tokens=CACHED_UNKNOWN))
    with stage.recording(tmp_path / "log") as recording:
        late, never = recording.requests.between()
        listed, wrong = list_requests(recording), list_requests(recording, mispredicted=5)
    assert (late.cached_tokens, never.cached_tokens) == (12, CACHED_UNKNOWN)
    assert (late.reused_tokens, never.reused_tokens) == (12, 8)
    assert (apart_reason(late), apart_reason(never)) == ("", NOT_COUNTED)
    assert [each.real_cached_tokens for each in listed.requests] == [12, None]
    assert [each.request for each in wrong.requests] == ["late"]
