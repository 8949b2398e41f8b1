"""Excuses that `verify` took without evidence: each of these decisions is wrong, and each was called not judged, or
passed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from core.codec import encode_event, encode_message
from core.events import ReplicaLeft, RequestRejected, RequestRouted, WorkerLost
from core.events.routing import DECIDE_VERSION
from core.ids import LOST_SUFFIX, Epoch, ReplicaId, SourceId, StreamName, StreamSeq
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.state import Position
from projections.policy.cost import ScoredCandidate, score
from projections.policy.decide import decide, rejection
from projections.policy.rules import RULES
from projections.policy.view import Candidate, RouteRequest
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.verify.verify import VerifyResult, verify
from streams.archive.archive_writer import ArchiveWriter
from tests.projections.facts import joined, load, prompt, restated, stored
from tests.replay.staged import KEY, KV, A, B, C, R, S, Stage
from tests.replay.verify.test_differing_terms import TERMS, busy, cached, plant, waiting

T = ReplicaId("cc" * 8)
ASKED = prompt(1, 2, 3)
OTHER = prompt(7, 8, 9)


@pytest.fixture
def stage() -> Stage:
    """Two workers and two replicas, which have decided once."""
    it = Stage()
    it.pair()
    for replica, name in ((R, "r1"), (S, "r2")):
        it.replica(replica, name, RoutingSettings(policy="kv"))
        it.route(f"first-{name}", OTHER, replica=replica)
    return it


def written(stage: Stage, path: Path, shifts_ms: dict[StreamName, int] | None = None) -> Path:
    """An export of the whole log, with the broker's times of some streams shifted."""
    writer = ArchiveWriter(path, "test", KEY.chain_key, "contrail test", 1)
    for stream, frames in stage.frames.items():
        writer.open(stream, Epoch(1), 1, 1)
        for record in stage._records:
            if record.stream == stream:
                writer.add(record._replace(time_ms=record.time_ms + (shifts_ms or {}).get(stream, 0)))
        writer.reached(stream, len(frames))
    writer.finish(writer.contents(0, 0))
    return path


def verified(stage: Stage, path: Path, shifts_ms: dict[StreamName, int] | None = None) -> VerifyResult:
    with Recording.open(written(stage, path / "log", shifts_ms), KEY) as recording:
        return verify(recording)


def flipped(*given: object) -> list[ScoredCandidate]:
    """A bug in the rules: the sign of every cost."""
    return [each._replace(cost=-each.cost - 1) for each in score(*given)]  # type: ignore[arg-type]


def last_is_dearer(*given: object) -> list[ScoredCandidate]:
    """A bug in the cost of the dearest candidate, which stays the dearest."""
    *cheaper, last = sorted(score(*given), key=lambda each: each.cost)  # type: ignore[arg-type]
    changed = [*cheaper, last._replace(cost=last.cost + 1)]
    return sorted(changed, key=lambda each: each.candidate.worker)


@pytest.mark.parametrize("behind_ms", [60_000, 3_600_000, -60_000])
def test_a_clock_that_is_off_hides_no_difference(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_ms: int
) -> None:
    """Before: of a replica 60 s behind, every decision with a flipped sign was not judged: "history was replaced"."""
    stage.clock.advance(10 * 3_600_000)
    stage.skew_ms = -behind_ms
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=flipped))
    for number in range(20):
        stage.say(KV, A, stored(100 + number))
        stage.route(f"late-{number}", ASKED, after_ms=5)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged, found.holds) == (20, {}, False)
    assert {each.term for each in found.differences} == {"cost"}


@pytest.mark.parametrize("shifted", [KV, LOAD, ROUTING])
def test_a_broker_s_clock_that_is_off_hides_no_difference(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shifted: StreamName
) -> None:
    """Before: with one stream's times 1 s later, no difference was found at all."""
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=flipped))
    for number in range(20):
        stage.say(KV, A, stored(100 + number))
        stage.route(f"late-{number}", ASKED, after_ms=5)
    monkeypatch.undo()
    for shift_ms in (1000, -1000, 60_000):
        found = verified(stage, tmp_path, {shifted: shift_ms})
        assert (found.different, found.not_judged) == (20, {})


def test_settings_that_the_replica_did_not_have(stage: Stage, tmp_path: Path) -> None:
    """A decision under other settings than the replica's chain states, which lacks nothing."""
    routed = stage.decided("x", ASKED)
    stage.tell(structs.replace(routed, settings_revision=routed.settings_revision + 1, seed=5, worker=str(B)))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert found.differences[0].term == "settings_revision"


def test_a_revision_of_settings_that_the_replica_did_not_have(stage: Stage, tmp_path: Path) -> None:
    """Decision and refusal are those of the true settings. Before, such records were verified."""
    routed = stage.decided("x", ASKED)
    stage.tell(structs.replace(routed, settings_revision=routed.settings_revision + 1))
    refused = _refused(stage)
    stage.tell(structs.replace(refused, settings_revision=refused.settings_revision + 1))
    found = verified(stage, tmp_path)
    assert (found.different, found.refusals.different, found.not_judged) == (1, 1, {})
    assert [each.term for each in found.differences] == ["settings_revision"] * 2


@pytest.mark.parametrize("beyond", [False, True])
def test_a_cursor_that_no_replica_can_have_reached(stage: Stage, tmp_path: Path, beyond: bool) -> None:
    """It names a message that was stored later, or none of the log: a replica that counts too far is found."""
    for number in range(3):
        stage.say(KV, A, stored(100 + number))
    routed = stage.decided("x", ASKED)
    seq = len(stage.frames[KV]) + 2
    wrong = structs.replace(routed, cursor={**routed.cursor, KV: (1, seq)})
    stage.tell(wrong)
    if not beyond:
        stage.say(KV, A, stored(*[ASKED.key(depth) for depth in (1, 2)]))
        stage.say(KV, A, stored(ASKED.key(3)))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert found.differences[0].term == ("cursor" if beyond else "overlap")


def test_an_epoch_that_nothing_else_names(stage: Stage, tmp_path: Path) -> None:
    """History that was replaced is named by earlier decisions and reports; this one is invented."""
    routed = stage.decided("x", ASKED)
    stage.tell(structs.replace(routed, cursor={**routed.cursor, KV: (7, 1)}))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert found.differences[0].term == "cursor"


def decide_before_a_worker_was_lost(stage: Stage, *, acknowledged: int, has_end: bool = True, lag: int = 1) -> None:
    """`before` and `x` are decided: the cache of worker A in `x` rests on its third message, and on the fourth without
    a `lag`. The stream loses both. Then others find A lost. By its report of load the log had acknowledged so many
    messages to A."""
    stage.say(KV, A, stored(90))
    stage.route("before", ASKED)
    for number in (1, 2):
        stage.say(KV, A, stored(*[ASKED.key(depth) for depth in (1, 2)][:number]))
    stage.route("x", ASKED, lag={KV: lag})
    stage.say(LOAD, A, structs.replace(load(), kv_n=acknowledged))
    rolled_back(stage, 2)
    if has_end:
        stage.say(KV, A + LOST_SUFFIX, WorkerLost(by=R, reason="no lease, no answer"), about=A)
    stage.say(KV, B, stored(91))


@pytest.mark.parametrize("acknowledged", [2, 3, 4])
@pytest.mark.parametrize("has_end", [True, False])
def test_a_worker_that_was_lost_had_sent_what_the_log_acknowledged(
    stage: Stage, tmp_path: Path, acknowledged: int, has_end: bool
) -> None:
    """Its end stands behind all that it sent. No later message of it shows that some is missing: before, the chain was
    called whole, and a decision that had read the last of it different. Without the end, the export may be behind."""
    decide_before_a_worker_was_lost(stage, acknowledged=acknowledged, has_end=has_end)
    found = verified(stage, tmp_path)
    is_missing = has_end and acknowledged > 2
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if is_missing else (1, {}))
    assert [(gap.source, gap.n_from, gap.n_to) for gap in found.gaps] == [(A, 2, acknowledged - 1)] * is_missing
    assert [(each.kind, each.seq) for each in found.proof.breaks] == [("missing", 4)] * is_missing


def decide_before_a_worker_left_nothing(stage: Stage, *, acknowledged: int) -> None:
    """`before` is decided without worker C and `x` with it. The stream loses all messages of C, which others then find
    lost. By its report of load the log had acknowledged so many messages to C."""
    stage.route("before", ASKED)
    stage.say(KV, C, joined("third"))
    stage.say(LOAD, C, structs.replace(load(), kv_n=acknowledged))
    stage.route("x", ASKED)
    rolled_back(stage, 1)
    stage.say(KV, C + LOST_SUFFIX, WorkerLost(by=R, reason="no lease, no answer"), about=C)


@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_a_worker_that_left_nothing_had_sent_what_the_log_acknowledged(
    stage: Stage, tmp_path: Path, acknowledged: int
) -> None:
    """Its chain lacks messages from its first one on. Before, it was called whole, and the decision different."""
    decide_before_a_worker_left_nothing(stage, acknowledged=acknowledged)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == ((0, {"replaced": 1}) if acknowledged else (1, {}))
    assert [(gap.source, gap.n_from, gap.n_to) for gap in found.gaps] == [(C, 0, acknowledged - 1)] * bool(acknowledged)


@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_a_wrong_term_before_a_worker_that_left_nothing_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    plant(monkeypatch, A, change)
    decide_before_a_worker_left_nothing(stage, acknowledged=1)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert [(each.request, each.term) for each in found.differences] == [("before", TERMS[change])]


@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_a_wrong_term_before_what_a_lost_worker_had_sent_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    plant(monkeypatch, A, change)
    decide_before_a_worker_was_lost(stage, acknowledged=4)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert [(each.request, each.term) for each in found.differences] == [("before", TERMS[change])]


@pytest.mark.parametrize("acknowledged", [2, 3])
@pytest.mark.parametrize("change", [None, cached, waiting, busy])
def test_the_cache_of_a_worker_that_was_lost_is_explained_beyond_what_is_known_to_be_missing(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    acknowledged: int,
    change: Callable[[Candidate], Candidate] | None,
) -> None:
    """`x` had read one message more than the log had acknowledged. That may be the worker's, and is no other's."""
    if change is not None:
        plant(monkeypatch, B, change)
    decide_before_a_worker_was_lost(stage, acknowledged=acknowledged, lag=0)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    differ = [each.request for each in found.differences]
    assert differ == ["before"] * (change is not None) + ["x"] * (change is not None or acknowledged == 2)


def test_a_wrong_choice_behind_what_a_lost_worker_had_sent_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=flipped))
    decide_before_a_worker_was_lost(stage, acknowledged=4)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert [(each.request, each.term) for each in found.differences] == [("before", "cost"), ("x", "cost")]


def decide_before_a_stream_was_made_anew(stage: Stage) -> RequestRouted:
    """T decides before it has read any report of load, where that stream has another epoch. The log has the stream as
    it was made anew, and no message names the epoch before."""
    stage.say(LOAD, A, load(3))
    stage.route("early", ASKED)
    stage.replica(T, "r3", RoutingSettings(policy="kv"))
    lag = {LOAD: len(stage.frames[LOAD])}
    stage.seat(T, lag).state.cursor[LOAD] = Position(Epoch(7), StreamSeq(0))
    return stage.decided("x", ASKED, replica=T, lag=lag)


def test_an_epoch_of_which_nothing_was_read_needs_no_excuse(stage: Stage, tmp_path: Path) -> None:
    """What the replica knew follows from the log: nothing. Before, such a decision was called different."""
    event = decide_before_a_stream_was_made_anew(stage)
    assert event.cursor[LOAD] == (7, 0)
    stage.tell(event, replica=T)
    stage.route("later", ASKED)
    found = verified(stage, tmp_path)
    assert (found.verified, found.different, found.not_judged) == (5, 0, {})


@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_a_wrong_term_under_an_epoch_of_which_nothing_was_read_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    plant(monkeypatch, A, change)
    stage.tell(decide_before_a_stream_was_made_anew(stage), replica=T)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (2, {})
    assert [(each.request, each.term) for each in found.differences] == [("early", TERMS[change]), ("x", TERMS[change])]


def test_a_replica_that_has_read_more_than_it_names_is_different(stage: Stage, tmp_path: Path) -> None:
    """It names a place 0 of another epoch, and counts what waits by a report; or it names a stream that is not here."""
    stage.say(LOAD, A, load(3))
    event = stage.decided("x", ASKED)
    for place in ({LOAD: (7, 0)}, {"kv_9": (7, 0)}):
        stage.tell(structs.replace(event, cursor={**event.cursor, **place}))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (2, {})
    assert [each.term for each in found.differences] == ["waiting", "cursor"]


def test_an_unknown_worker_of_another_model(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No decision for this model rests on its cache."""
    stage.say(KV, C, joined("other", model="another"))
    n, _ = stage._chains[KV, C]
    stage._chains[KV, C] = n + 1, bytes(16)  # a message that never reached the log
    stage.say(KV, C, stored(77))
    stage.say(KV, A, stored(78))
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=flipped))
    stage.route("x", ASKED)
    monkeypatch.undo()
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})


@pytest.mark.parametrize("is_noticed", [True, False])
def test_an_unknown_worker_of_another_model_is_no_hidden_candidate(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_noticed: bool
) -> None:
    """Nor where the record shows one candidate of two, and the other one differs."""
    stage.settings(RoutingSettings(policy="kv", candidates_recorded_max=1))
    stage.say(KV, C, joined("other", model="another"))
    stage.say(KV, C, stored(77))
    stage._records.pop()  # the log lost it
    if is_noticed:
        stage.say(KV, C, stored(78))
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=last_is_dearer))
    stage.route("x", ASKED)
    monkeypatch.undo()
    stage.say(KV, C, stored(79))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})


def test_a_message_that_cannot_be_read_excuses_what_it_holds_alone(stage: Stage, tmp_path: Path) -> None:
    """Decisions are counted message by message: others that are missing a verdict are no part of it."""
    routed = stage.decided("lost", ASKED)
    n, head = stage._chains[ROUTING, R]
    payload = encode_message(SourceId(R), n, head, 1, [encode_event(routed)])
    broken = payload.replace(b"settings_revision", b"settings_revisiom")
    stage._stored(ROUTING, R, broken, stage.frames[ROUTING][-1].message, b"")  # type: ignore[arg-type]
    found = verified(stage, tmp_path)
    assert found.decisions == 3
    assert found.unaccounted == 0
    assert sum(found.not_judged.values()) == 1


def test_what_the_worker_is_taken_to_keep_is_compared(tmp_path: Path) -> None:
    """Folds apply it; before, a false value under the right digest was verified."""
    stage = Stage()
    for name, worker in (("left", A), ("right", B)):
        stage.say(KV, worker, joined(name))
        stage.say(LOAD, worker, load())
    stage.replica(R, "r1", RoutingSettings(policy="approximate"))
    routed = stage.decided("x", ASKED)
    assert routed.believed is not None
    stage.tell(structs.replace(routed, believed=(routed.believed[0] + 1, routed.believed[1])))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert found.differences[0].term == "believed"


@pytest.mark.parametrize("fields", [{"reason": "overloaded"}, {"status": 200}, {"status": 500}])
def test_reason_and_status_of_a_refusal_are_compared(stage: Stage, tmp_path: Path, fields: dict[str, object]) -> None:
    """Before, the exclusions alone were."""
    refused = _refused(stage)
    stage.tell(refused)
    assert verified(stage, tmp_path).refusals.verified == 1
    stage.tell(structs.replace(refused, request="y", **fields))
    found = verified(stage, tmp_path)
    assert (found.refusals.verified, found.refusals.different, found.holds) == (1, 1, False)
    assert found.differences[0].term == "reason"


def test_refusals_that_are_none_are_counted_apart(stage: Stage, tmp_path: Path) -> None:
    """The same message once more, one on another's subject, one behind the end of its replica."""
    refused = _refused(stage)
    n, head = stage._chains[ROUTING, R]
    twice = encode_message(SourceId(R), n, head, 1, [encode_event(refused)])
    stage.store(ROUTING, R, twice)
    stage.store(ROUTING, R, twice)
    stage.say(ROUTING, S, refused, about=R)
    stage.say(ROUTING, R, ReplicaLeft(reason="over"), refused)
    found = verified(stage, tmp_path)
    assert found.refusals.skipped == {"ended": 1, "foreign": 1, "repeat": 1}
    assert (found.refusals.total, found.refusals.verified, found.refusals.not_judged) == (4, 1, 3)
    assert found.refusals.unaccounted == 0


def test_reports_that_cannot_be_compared_are_counted_by_reason(stage: Stage, tmp_path: Path) -> None:
    """Of folds of another version, of places that are not here, and of streams of which a source was unknown."""
    report = stage.report(R)
    stage.tell(structs.replace(report, fold_version=99))
    points = {KV: structs.replace(report.points[KV], epoch=9)}
    stage.tell(structs.replace(report, points=points, incomplete=("load",)))
    stage.route("x", ASKED)
    folds = verified(stage, tmp_path).folds
    assert folds.not_judged_by["version"] == sum(len(each.seqs) for each in report.points.values())
    assert folds.not_judged_by["absent"] == len(report.points[KV].seqs)
    assert folds.not_judged == sum(folds.not_judged_by.values())
    assert folds.unreported == 1


def test_history_that_was_replaced_has_a_witness(stage: Stage, tmp_path: Path) -> None:
    """A replica had read another message than stands there, by its report: its decisions on that are not judged, those
    behind its next report are."""
    stage.say(KV, A, stored(*[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.tell(stage.report(R))
    stage.route("old", ASKED)
    rolled_back(stage, 1)
    stage.say(KV, B, joined("right"), restated(0, 1, 55))
    stage.say(KV, A, joined("left"), restated(0, 1, 56))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (0, {"replaced": 1})
    assert "replaced" in found.not_judged_why["replaced"]


def test_explain_and_the_state_agree_with_verify(stage: Stage, tmp_path: Path) -> None:
    """A record with the digest of the decision and another worker is no decision of the log for any of them."""
    routed = stage.decided("forged", ASKED)
    other = str(B) if routed.worker == A else str(A)
    stage.tell(structs.replace(routed, worker=other))
    with Recording.open(written(stage, tmp_path / "log"), KEY) as recording:
        found = verify(recording)
        explanation = explain(recording, "forged")
        assert found.different == 1
        assert explanation.attempts[-1].again == "differs"


def rolled_back(stage: Stage, messages: int) -> None:
    """The broker lost the newest messages of the cache events; who wrote them does not know it."""
    gone = stage.frames[KV][-messages:]
    del stage.frames[KV][-messages:]
    stage._records = [it for it in stage._records if it.stream != KV or it.seq < gone[0].seq]


def _refused(stage: Stage) -> RequestRejected:
    """A request for a model that no worker has."""
    seat = stage.seat(R)
    request = RouteRequest("x", 0, "absent", ASKED)  # type: ignore[arg-type]
    decision = decide(seat.view, request, seat.settings, stage.clock.now_ms, 0)
    assert decision.worker is None
    return rejection(decision, request, seat.revision, 503)
