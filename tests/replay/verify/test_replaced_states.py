"""A store went back, and a worker sent its messages again at other places: what the worker had said by then explains
decisions of the history before, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from core.events import LocalChanged, RequestRouted
from core.events.routing import LOST_HISTORY, MADE_ANEW, ROLLED_BACK_TEXT
from core.ids import Epoch, ReplicaId, RequestId, StreamName, WorkerId
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.in_flight import InFlight
from projections.folds.load_fold import reuse_of
from projections.policy.view import Candidate
from replay.recording.recording import Recording
from replay.verify.judge import judge_decision
from replay.verify.verify import verify
from tests.projections.facts import finished, joined, load, replica_restated, restated, stored, worker_id
from tests.replay.staged import KEY, KV, A, B, C, R, S, Stage
from tests.replay.verify.test_differing_terms import (
    ASKED,
    TERMS,
    busy,
    cached,
    lose,
    plant,
    see_reuse,
    see_turnover,
    verified,
    waiting,
    written,
)
from tests.replay.verify.test_excuses import rolled_back

D = worker_id(4)
T = ReplicaId("cc" * 8)


@pytest.fixture
def stage() -> Stage:
    """Three workers, and a replica that is there."""
    it = Stage()
    it.pair()
    it.say(KV, C, joined("third"))
    it.say(LOAD, C, load())
    it.replica(R, "r1", RoutingSettings(policy="kv"))
    return it


def decide_and_go_back(stage: Stage) -> None:
    """`x` is decided where A has the prompt; then A has sent that again behind others, and a message of B is lost."""
    again = stage.sealed(KV, A, stored(*[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.store(KV, A, again)
    stage.say(KV, B, stored(70))
    stage.route("x", ASKED)
    rolled_back(stage, 2)
    stage.say(KV, D, joined("fourth"))
    stage.say(KV, D, stored(80))
    stage.say(KV, D, stored(81))
    stage.store(KV, A, again)
    stage.say(KV, B, stored(71))


def test_a_decision_before_the_store_went_back_is_explained(stage: Stage, tmp_path: Path) -> None:
    """Of A the log's fold has nothing yet at the cursor, and a worker that was not there. Both were called wrong."""
    decide_and_go_back(stage)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (0, {"replaced": 1})
    assert "history was replaced" in found.not_judged_why["replaced"]


def test_a_load_report_that_was_sent_again_explains_what_waited(stage: Stage, tmp_path: Path) -> None:
    again = stage.sealed(LOAD, A, load(3))
    stage.store(LOAD, A, again)
    stage.route("x", ASKED)
    stage.frames[LOAD].pop()
    stage._records = [it for it in stage._records if it.stream != LOAD or it.seq <= len(stage.frames[LOAD])]
    stage.say(LOAD, B, load(0))
    stage.store(LOAD, A, again)
    n, _ = stage._chains[KV, B]
    stage._chains[KV, B] = n + 1, bytes(16)
    stage.say(KV, B, stored(71))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (0, {"replaced": 1})


@pytest.mark.parametrize("shown", [8, 1])
@pytest.mark.parametrize("rate", [700, 800])
def test_a_load_report_that_was_sent_again_explains_its_reuse_rate(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int, shown: int
) -> None:
    """Only the rate that the worker had reported, also where the record has it as the greatest of all alone."""
    stage.settings(RoutingSettings(candidates_recorded_max=shown))
    again = stage.sealed(LOAD, A, load(reuse_rate=700))
    stage.store(LOAD, A, again)
    see_reuse(monkeypatch, {A: reuse_of(rate)})
    stage.route("x", ASKED)
    monkeypatch.undo()
    stage.frames[LOAD].pop()
    stage._records = [it for it in stage._records if it.stream != LOAD or it.seq <= len(stage.frames[LOAD])]
    stage.say(LOAD, B, load(0))
    stage.store(LOAD, A, again)
    lose(stage, KV, B)
    stage.say(KV, B, stored(71))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if rate == 700 else (1, {}))
    assert [each.term for each in found.differences] == ["reuse" if shown > 1 else "reuse_max"] * found.different


@pytest.mark.parametrize("stream", [LOAD, KV])
@pytest.mark.parametrize("worker", [A, B])
def test_a_replaced_load_history_explains_turnover(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: str, stream: StreamName
) -> None:
    """That of any worker, since turnovers count against each other. A replaced history of the cache explains none."""
    stage.settings(RoutingSettings())
    again = stage.sealed(LOAD, A, load(turnover=50)) if stream == LOAD else stage.sealed(KV, A, stored(70))
    stage.store(stream, A, again)
    see_turnover(monkeypatch, {worker: 30})
    stage.route("x", ASKED)
    monkeypatch.undo()
    stage.frames[stream].pop()
    stage._records = [it for it in stage._records if it.stream != stream or it.seq <= len(stage.frames[stream])]
    stage.say(stream, B, load(0) if stream == LOAD else stored(72))
    stage.store(stream, A, again)
    lose(stage, KV, B)
    stage.say(KV, B, stored(71))
    found = verified(stage, tmp_path)
    assert (found.different, sum(found.not_judged.values())) == ((0, 1) if stream == LOAD else (1, 0))
    assert [each.term for each in found.differences] == ["turnover"] * found.different


@pytest.mark.parametrize("has_reported", [True, False])
def test_a_worker_of_which_the_store_has_nothing_left_was_there_by_its_reports(
    stage: Stage, tmp_path: Path, has_reported: bool
) -> None:
    """It ended before it sent anything again. A candidate of which no stream has a message is invented."""
    if has_reported:
        stage.say(LOAD, D, load())
    stage.say(KV, D, joined("fourth"))
    stage.say(KV, B, stored(70))
    stage.route("x", ASKED)
    rolled_back(stage, 2)
    for number in range(3):
        stage.say(KV, C, stored(80 + number))
    stage.say(KV, B, stored(71))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if has_reported else (1, {}))


@pytest.mark.parametrize("change", [cached, waiting, busy])
@pytest.mark.parametrize("is_of_verify", [True, False])
def test_a_wrong_term_of_such_a_decision_is_named(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Candidate], Candidate],
    is_of_verify: bool,
) -> None:
    """A never had such a cache or load. The bug is in the program of the replica, or in that of `verify`, which sees
    worker C alike before and after the store went back."""
    if not is_of_verify:
        plant(monkeypatch, A, change)
    decide_and_go_back(stage)
    monkeypatch.undo()
    if is_of_verify:
        plant(monkeypatch, C, change)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert found.differences[0].term == TERMS[change]


def test_a_replica_that_has_read_the_log_as_it_is_has_left_the_history_before(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its report it has read what stands there now: a cache of before is a difference."""
    decide_and_go_back(stage)
    stage.say(KV, B, joined("right"), restated(0, 1, 72))
    stage._seats.clear()
    stage.settings(RoutingSettings(policy="kv"))
    stage.tell(stage.report(R))
    plant(monkeypatch, A, lambda it: it._replace(overlap=(0,) * len(it.overlap)))
    stage.route("y", ASKED)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {"replaced": 1})
    assert (found.differences[0].request, found.differences[0].term) == ("y", "overlap")


@pytest.mark.parametrize("change", [cached, waiting, busy])
@pytest.mark.parametrize("has_read", [True, False])
def test_a_restatement_counts_from_where_its_replica_has_read_it(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Candidate], Candidate],
    has_read: bool,
) -> None:
    """A message of its own is missing. What it has in flight until then rests on a fold that may have had the message:
    this was called wrong. Caches and reports do not rest on that."""
    stage.tell(LocalChanged(worker=B, reasons=()))
    lose(stage, ROUTING, R)
    stage.tell(replica_restated([]))
    stage.tell(LocalChanged(worker=B, reasons=()))
    stage.route("x", ASKED, lag={} if has_read else {ROUTING: 3})
    assert verified(stage, tmp_path).verified == 1
    plant(monkeypatch, A, change)
    found = verified(stage, tmp_path)
    is_missing = change is busy and not has_read
    assert (found.different, found.not_judged) == ((0, {"gap": 1}) if is_missing else (1, {}))


def decide_between_two_copies(stage: Stage, *, has_decided: bool) -> None:
    """`x` is decided after an older copy of the store was put back, and before a newer one was: of what A sent in
    between the log has nothing, and the newer copy has messages that the older one had not."""
    for number in (70, 71, 72):
        stage.say(KV, A, stored(number))
    if has_decided:
        stage.route("w", ASKED)
    frames, records = stage.frames[KV][:], stage._records[:]
    rolled_back(stage, 3)
    stage.say(KV, A, joined("left"), restated(0, 1, *[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage._seats.clear()
    stage.settings(RoutingSettings(policy="kv"))
    event = stage.decided("x", ASKED)
    stage.frames[KV] = frames
    stage._records = [it for it in records if it.stream == KV] + [it for it in stage._records if it.stream != KV]
    stage.tell(event)
    stage.say(KV, A, joined("left"), restated(0, 1, 73))


@pytest.mark.parametrize("has_decided", [True, False])
def test_a_copy_put_back_after_an_older_one_is_named_by_cursors_that_went_back(
    stage: Stage, tmp_path: Path, has_decided: bool
) -> None:
    """The messages that are missing stood before others that are here. Only the replica's own cursors show that."""
    decide_between_two_copies(stage, has_decided=has_decided)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if has_decided else (1, {}))


@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_a_wrong_term_between_two_copies_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    """The chain of worker C lacks nothing."""
    plant(monkeypatch, C, change)
    decide_between_two_copies(stage, has_decided=True)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (2, {})
    assert {each.term for each in found.differences} == {TERMS[change]}


def test_cursors_that_went_back_before_an_equal_report_are_no_evidence(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the report the replica is back in the log's history. A later loss explains no cache of before."""
    decide_between_two_copies(stage, has_decided=True)
    stage._seats.clear()
    stage.settings(RoutingSettings(policy="kv"))
    stage.tell(stage.report(R))
    stage.say(KV, B, stored(74))
    plant(monkeypatch, A, cached)
    stage.route("y", ASKED)
    monkeypatch.undo()
    stage.say(KV, A, stored(75))
    lose(stage, KV, A)
    stage.say(KV, A, stored(76))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {"replaced": 1})
    assert (found.differences[0].request, found.differences[0].term) == ("y", "overlap")


def decide_before_what_is_cut_off(stage: Stage) -> None:
    """`x` is decided behind two messages of B that the stream loses. A restates its cache at the place of the first."""
    stage.say(KV, B, stored(70))
    stage.say(KV, B, stored(72))
    stage.route("x", ASKED)
    rolled_back(stage, 2)
    stage.say(KV, A, joined("left"), restated(0, 1, *[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.say(KV, B, joined("right"), restated(0, 1, 71))


@pytest.mark.parametrize("cut", [0, 3])
def test_a_cache_before_a_restatement_rests_on_messages_that_retention_took(
    stage: Stage, tmp_path: Path, cut: int
) -> None:
    """The recording begins behind the rest of the chain of A: the cache of A before its restatement is in no record."""
    decide_before_what_is_cut_off(stage)
    with stage.recording(tmp_path / "log", {KV: cut}) as recording:
        found = verify(recording)
    assert (found.different, found.not_judged) == (0, {"replaced": 1})


@pytest.mark.parametrize("change", [waiting, busy])
def test_a_wrong_term_before_such_a_restatement_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    plant(monkeypatch, A, change)
    decide_before_what_is_cut_off(stage)
    monkeypatch.undo()
    with stage.recording(tmp_path / "log", {KV: 3}) as recording:
        found = verify(recording)
    assert [each.term for each in found.differences] == [TERMS[change]]


def decide_before_a_rollback(stage: Stage, *, is_named: bool, goes_back: bool) -> None:
    """`x` is decided with worker D, which ends. Then the store has nothing of D, and no chain lacks anything."""
    stage.say(LOAD, D, load())
    stage.say(KV, D, joined("fourth"))
    stage.route("x", ASKED)
    rolled_back(stage, 1)
    if goes_back:
        stage._seats.clear()
        stage.settings(RoutingSettings(policy="kv"))
        stage.route("y", ASKED)
    stage.say(KV, B, stored(71))
    reason = f"{KV} {LOST_HISTORY}: {ROLLED_BACK_TEXT}, its end at {KV}:4 is gone"
    stage.tell(structs.replace(replica_restated([]), reason=reason if is_named else "test"))


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("goes_back", [True, False])
def test_a_worker_that_ended_was_there_by_a_rollback_that_is_named(
    stage: Stage, tmp_path: Path, is_named: bool, goes_back: bool
) -> None:
    """A restatement names the rollback, and a cursor of the replica went back. Either alone is no evidence: a replica
    that counts wrong would have such cursors, too."""
    decide_before_a_rollback(stage, is_named=is_named, goes_back=goes_back)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if is_named and goes_back else (1, {}))


def decide_at_a_place_that_is_filled_again(stage: Stage, *, gone: int, goes_back: bool) -> None:
    """`x` is decided with worker D, and `w` behind the next message of D. Then the store has nothing of D, and a
    message of B where `x` was decided."""
    stage.say(LOAD, D, load())
    stage.say(KV, D, joined("fourth"))
    stage.route("x", ASKED)
    if goes_back:
        stage.say(KV, D, stored(70))
        stage.route("w", ASKED)
    rolled_back(stage, 2 if goes_back else 1)
    stage.say(KV, B, stored(71))
    stage._seats.clear()
    stage.settings(RoutingSettings(policy="kv"))
    stage.route("y", ASKED)
    reason = f"{KV} {LOST_HISTORY}: {ROLLED_BACK_TEXT}, its end at {KV}:{gone} is gone"
    stage.tell(structs.replace(replica_restated([]), reason=reason))


@pytest.mark.parametrize("gone", [4, 5])
@pytest.mark.parametrize("goes_back", [True, False])
def test_a_worker_that_ended_was_there_by_the_place_that_a_rollback_names(
    stage: Stage, tmp_path: Path, gone: int, goes_back: bool
) -> None:
    """The replica never names a place before that of `x` again, but its cursors went back, and the restatement says
    that this very place is gone. A later place says nothing of it."""
    decide_at_a_place_that_is_filled_again(stage, gone=gone, goes_back=goes_back)
    found = verified(stage, tmp_path)
    is_named = goes_back and gone == 4
    assert {each.request for each in found.differences} == (set() if is_named else {"x"})
    assert found.not_judged == ({"replaced": goes_back + is_named} if goes_back else {})


@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_a_wrong_term_at_such_a_place_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    plant(monkeypatch, A, change)
    decide_at_a_place_that_is_filled_again(stage, gone=4, goes_back=True)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (3, {})


@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_a_wrong_term_before_such_a_rollback_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    plant(monkeypatch, A, change)
    decide_before_a_rollback(stage, is_named=True, goes_back=True)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (2, {})
    assert {each.term for each in found.differences} == {TERMS[change]}


@pytest.mark.parametrize("lost", [KV, LOAD])
def test_a_stream_that_was_made_anew_is_named_by_a_later_restatement(
    stage: Stage, tmp_path: Path, lost: StreamName
) -> None:
    """The first decision alone names the epoch before. A loss of another stream is no evidence."""
    event = stage.decided("x", ASKED)
    stage.tell(structs.replace(event, cursor={**event.cursor, KV: (7, 5)}))
    reason = f"{lost} {LOST_HISTORY}: {MADE_ANEW}, all up to {lost}:5 is gone"
    stage.tell(structs.replace(replica_restated([]), reason=reason))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if lost == KV else (1, {}))


@pytest.mark.parametrize("names", [KV, LOAD])
def test_a_stream_that_was_made_anew_is_named_by_a_later_report(
    stage: Stage, tmp_path: Path, names: StreamName
) -> None:
    """Its replica had folded the epoch before. A report on another stream is no evidence."""
    event = stage.decided("x", ASKED)
    stage.tell(structs.replace(event, cursor={**event.cursor, KV: (7, 5)}))
    points = stage.report(R).points[names]
    stage.tell(structs.replace(stage.report(R), points={names: structs.replace(points, epoch=7)}))
    found = verified(stage, tmp_path)
    assert {each.request: each.term for each in found.differences} == ({} if names == KV else {"x": "cursor"})


@pytest.mark.parametrize("later_ms", [1, 0])
def test_a_stream_that_was_made_behind_a_message_is_evidence_for_what_it_names(
    stage: Stage, tmp_path: Path, later_ms: int
) -> None:
    """An epoch is the broker's time at which a stream was made. A decision before has read another history. The first
    one that named such an epoch was called different."""
    stage.route("x", ASKED)
    epoch = Epoch(stage._records[-1].time_ms + later_ms)
    found = verified(stage, tmp_path, epochs={KV: epoch})
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if later_ms else (1, {}))


def count_other_requests(stage: Stage, *, is_sent_again: bool) -> RequestRouted:
    """`x` is decided where R has read what S has in flight. Then the store goes back: S sends that again at another
    place, or never. All caches are as before, but for a message of B that is missing."""
    stage.replica(S, "r2", RoutingSettings(policy="kv"))
    stage.say(KV, B, stored(70))
    here = len(stage.frames[ROUTING])
    own, own_event = stage.sealed(ROUTING, R, LocalChanged(worker=B, reasons=())), LocalChanged(worker=B, reasons=())
    stage.store(ROUTING, R, own)
    in_flight = {(RequestId("other"), 0): InFlight(WorkerId(A), 4, 12)}
    others = stage.sealed(ROUTING, S, replica_restated(in_flight.items()))
    stage.store(ROUTING, S, others)
    stage.seat(R).apply_own(here + 1, own_event)
    event = stage.decided("x", ASKED)
    rolled_back(stage, 1)
    del stage.frames[ROUTING][here:]
    stage._records = [it for it in stage._records if it.stream != ROUTING or it.seq <= here]
    stage.say(KV, C, stored(80))
    stage.say(KV, B, stored(71))
    if not is_sent_again:
        stage.say(ROUTING, S, replica_restated([]))
    stage.store(ROUTING, R, own)
    if is_sent_again:
        stage.tell(LocalChanged(worker=C, reasons=()))
        stage.store(ROUTING, S, others)
    stage.tell(event)
    return event


@pytest.mark.parametrize("is_sent_again", [True, False])
def test_requests_of_another_replica_before_the_store_went_back_are_explained(
    stage: Stage, tmp_path: Path, is_sent_again: bool
) -> None:
    """At the cursor the log has another message of its own instead, or what S said when it found its message missing.
    Before, what R counted in flight was called wrong."""
    event = count_other_requests(stage, is_sent_again=is_sent_again)
    assert sum(event.columns["active_requests"]) == 1
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (0, {"replaced": 1})


@pytest.mark.parametrize("change", [cached, waiting, busy])
@pytest.mark.parametrize("worker", [A, C])
def test_wrong_requests_of_another_replica_are_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate], worker: str
) -> None:
    """No start of the chain of S gives one request more."""
    plant(monkeypatch, worker, change)
    count_other_requests(stage, is_sent_again=True)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert found.differences[0].term == (TERMS[change] if change is not busy else "active_blocks")


def decide_by_tokens_that_no_column_shows(stage: Stage) -> None:
    """R decides `x` where a request of S has 12 tokens to compute. Then the routing stream goes back. At the place of
    what S said stands a request of T that had ended by then, and S says it again behind: before, its request has 10
    tokens. All began too long ago for anything to wait behind them."""
    settings = RoutingSettings(policy="time", prefill_base_us=1_000)
    for replica, name in ((R, "r1"), (S, "r2"), (T, "r3")):
        stage.replica(replica, name, settings)
    less, more = ([((RequestId("other"), 0), InFlight(WorkerId(A), 4, tokens, begins_us=1))] for tokens in (10, 12))
    stage.say(ROUTING, S, replica_restated(less))
    here = len(stage.frames[ROUTING])
    again = stage.sealed(ROUTING, S, replica_restated(more))
    stage.store(ROUTING, S, again)
    event, ended = stage.decided("x", ASKED), stage.decided("z", ASKED, replica=T)
    del stage.frames[ROUTING][here:]
    stage._records = [it for it in stage._records if it.stream != ROUTING or it.seq <= here]
    stage.say(ROUTING, T, ended, finished("z"))
    stage.say(ROUTING, R, event)
    stage.store(ROUTING, S, again)


def test_a_digest_is_explained_by_requests_that_give_the_whole_decision(stage: Stage, tmp_path: Path) -> None:
    """Tokens in flight stand in no column of `time`. Before, the decision was called different."""
    decide_by_tokens_that_no_column_shows(stage)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (0, {"replaced": 2})


def test_a_digest_that_no_requests_in_flight_give_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, A, lambda candidate: candidate._replace(prefill_tokens=candidate.prefill_tokens + 1))
    decide_by_tokens_that_no_column_shows(stage)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (2, {})
    assert found.differences[0].term == "digest"


def decide_and_send_all_again(
    stage: Stage, *, is_ahead: bool = True, has_read: bool = True, has_reported: bool = False
) -> None:
    """R decides `x`, `y` and `w`, and S decides `z`, where both have read what S and T have in flight. Then the routing
    stream goes back, and all messages are sent again at other places. No chain lacks anything. R `is_ahead` if it sends
    `x` at a place that it had read by then. Unless it `has_read`, its cursors are wrong: it counts nothing of the
    others."""
    for replica, name in ((S, "r2"), (T, "r3")):
        stage.replica(replica, name, RoutingSettings(policy="kv"))
    here = len(stage.frames[ROUTING])
    sent = {
        replica: stage.sealed(ROUTING, replica, replica_restated([((name, 0), InFlight(WorkerId(A), 4, 12))]))
        for replica, name in ((S, "of-s"), (T, "of-t"))
    }
    if not has_read:
        stage.seat(R)
    for replica, payload in sent.items():
        stage.store(ROUTING, replica, payload)
    lag = {} if has_read else {ROUTING: 2}
    decided = []
    for request in ("x", "y", "w"):
        event = stage.decided(request, ASKED, lag=lag)
        decided.append(structs.replace(event, cursor={**event.cursor, ROUTING: (1, here + 2)}))
        stage.seat(R, lag).pending_events.emit(event, stage.seat(R, lag).part)
    of_s = stage.decided("z", ASKED, replica=S)
    del stage.frames[ROUTING][here:]
    stage._records = [it for it in stage._records if it.stream != ROUTING or it.seq <= here]
    if not is_ahead:
        for _ in range(2):
            stage.say(ROUTING, R, LocalChanged(worker=C, reasons=()))
    stage.say(ROUTING, R, *decided[:2])
    stage.store(ROUTING, S, sent[S])
    stage.say(ROUTING, S, of_s)
    stage.store(ROUTING, T, sent[T])
    if has_reported:
        stage._seats.clear()
        stage.say(ROUTING, R, stage.report(R))
    stage.say(ROUTING, R, decided[2])


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_decision_that_names_its_own_place_is_evidence_of_a_history_that_was_sent_again(
    stage: Stage, tmp_path: Path, is_ahead: bool
) -> None:
    """Nothing is missing, so only the cursor shows it: no replica reads its own message before it sends it. Before, all
    were called different; without such a cursor they are."""
    decide_and_send_all_again(stage, is_ahead=is_ahead)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == ((0, {"replaced": 4}) if is_ahead else (4, {}))


@pytest.mark.parametrize("change", [cached, waiting, busy])
@pytest.mark.parametrize("worker", [A, C])
def test_a_wrong_term_in_a_history_that_was_sent_again_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate], worker: str
) -> None:
    plant(monkeypatch, worker, change)
    decide_and_send_all_again(stage)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (4, {})
    in_flight = {"pending", "active_blocks", "active_requests"}
    assert {each.term for each in found.differences} <= (in_flight if change is busy else {TERMS[change]})


def test_a_replica_that_counts_its_cursors_wrong_has_read_no_other_history(stage: Stage, tmp_path: Path) -> None:
    """It names two messages that it had not read. As many must stand in the chains, and count in its record."""
    decide_and_send_all_again(stage, has_read=False)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (3, {"replaced": 1})
    assert [each.request for each in found.differences] == ["x", "y", "w"]


def test_a_replica_that_has_read_what_was_sent_again_has_left_the_history_before(stage: Stage, tmp_path: Path) -> None:
    decide_and_send_all_again(stage, has_reported=True)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {"replaced": 3})
    assert found.differences[0].request == "w"


def test_explain_judges_alike(stage: Stage, tmp_path: Path) -> None:
    decide_and_go_back(stage)
    seq = len(stage.frames[ROUTING])
    with Recording.open(written(stage, tmp_path / "log"), KEY) as recording:
        judged = judge_decision(recording, seq, R, "x", 0)
    assert judged is not None
    assert judged.excuse is not None
    assert judged.excuse.reason == "replaced"
