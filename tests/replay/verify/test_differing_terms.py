"""Gaps excuse the terms that rest on what is missing, and no others: each wrong term here was called not judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from core.codec import encode_event, encode_message
from core.events import LocalChanged
from core.events.jobs import JobsRestated
from core.events.routing import DECIDE_VERSION, Columns
from core.ids import Epoch, SourceId, StreamName, WorkerId, from_column, to_column
from core.prompt import hashes_from_bytes
from core.settings import RoutingSettings
from core.subjects import JOBS, LOAD, ROUTING, asked_token
from projections.folds import jobs_fold
from projections.folds.in_flight import InFlight
from projections.folds.kv_fold import KvFold
from projections.policy.candidates import CandidateSet
from projections.policy.cost import ScoredCandidate
from projections.policy.rules import FIRST_ACTIVE_VERSION, RULES
from projections.policy.view import Candidate
from replay.playback.playback import Playback, RecordedDecision
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.recording.unknown_sources import UnknownSources
from replay.verify.judge import judge_decision
from replay.verify.verify import VerifyResult, verify
from streams.archive.archive_writer import ArchiveWriter
from tests.projections.facts import (
    finished,
    joined,
    load,
    pool_joined,
    prompt,
    reads,
    replica_restated,
    restated,
    stored,
)
from tests.projections.job_facts import asked
from tests.replay.staged import KEY, KV, A, B, C, R, S, Stage

ASKED = prompt(1, 2, 3)
OTHER = prompt(7, 8, 9)


@pytest.fixture
def stage() -> Stage:
    """Two workers, and two replicas that are there."""
    it = Stage()
    it.pair()
    for replica, name in ((R, "r1"), (S, "r2")):
        it.replica(replica, name, RoutingSettings(policy="kv"))
    return it


def verified(
    stage: Stage,
    path: Path,
    gone: set[tuple[StreamName, int]] | None = None,
    ends: dict[StreamName, int] | None = None,
    epochs: dict[StreamName, Epoch] | None = None,
) -> VerifyResult:
    """The log of the stage, but for some messages; each stream up to its end and of its epoch, if one is given."""
    with Recording.open(written(stage, path / "log", gone, ends, epochs), KEY) as recording:
        return verify(recording)


def written(
    stage: Stage,
    path: Path,
    gone: set[tuple[StreamName, int]] | None = None,
    ends: dict[StreamName, int] | None = None,
    epochs: dict[StreamName, Epoch] | None = None,
) -> Path:
    """The same as an export, limited to a moment if streams have ends."""
    writer = ArchiveWriter(path, "test", KEY.chain_key, "contrail test", 1)
    for stream, frames in stage.frames.items():
        writer.open(stream, (epochs or {}).get(stream, Epoch(1)), 1, 1)
        last = (ends or {}).get(stream, len(frames))
        for record in stage._records:
            if record.stream == stream and record.seq <= last and (stream, record.seq) not in (gone or set()):
                writer.add(record)
        writer.reached(stream, last)
    writer.finish(writer.contents(0, stage.clock.now_ms if ends else 0))
    return path


def lose(stage: Stage, stream: StreamName, source: str) -> None:
    """A message of the source never reaches the log."""
    n, _ = stage._chains[stream, source]
    stage._chains[stream, source] = n + 1, bytes(16)


def plant(monkeypatch: pytest.MonkeyPatch, worker: str, change: Callable[[Candidate], Candidate]) -> None:
    """A bug: the rules see this worker otherwise."""
    whole = RULES[DECIDE_VERSION].find_candidates

    def wrong(*given: Any) -> CandidateSet:
        left, excluded = whole(*given)
        return CandidateSet([change(each) if each.worker == worker else each for each in left], excluded)

    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(find_candidates=wrong))


def see_reuse(monkeypatch: pytest.MonkeyPatch, found: dict[str, int]) -> None:
    """A bug: the rules see so much reuse on these workers."""
    rules = RULES[DECIDE_VERSION]._replace(reuse=lambda _: {WorkerId(each): found[each] for each in found})
    monkeypatch.setitem(RULES, DECIDE_VERSION, rules)


def see_turnover(monkeypatch: pytest.MonkeyPatch, found: dict[str, int]) -> None:
    """A bug: the rules see so much more turnover on these workers."""
    rules = RULES[DECIDE_VERSION]._replace(turnover=lambda *_: {WorkerId(each): found[each] for each in found})
    monkeypatch.setitem(RULES, DECIDE_VERSION, rules)


def cached(it: Candidate) -> Candidate:
    return it._replace(overlap=tuple(depth + 1 for depth in it.overlap))


def waiting(it: Candidate) -> Candidate:
    return it._replace(waiting=it.waiting + 1)


def busy(it: Candidate) -> Candidate:
    return it._replace(active_requests=it.active_requests + 1)


def lost_cache(stage: Stage) -> None:
    lose(stage, KV, A)
    stage.route("x", ASKED)
    stage.say(KV, A, stored(77))


def lost_report(stage: Stage) -> None:
    lose(stage, LOAD, A)
    stage.route("x", ASKED)
    stage.say(LOAD, A, load(2))


def lost_request(stage: Stage) -> None:
    lose(stage, ROUTING, S)
    stage.tell(finished("other"))
    stage.route("x", ASKED)
    stage.tell(finished("gone"), replica=S)


def foreign_message(stage: Stage) -> None:
    """Sealed with another key: the next message does not follow on it, and no replica knew the cache."""
    n, _ = stage._chains[KV, A]
    stage.store(KV, A, encode_message(SourceId(A), n, bytes(16), 1, [encode_event(stored(76))]))
    stage.route("x", ASKED)


GAPS: dict[Callable[[Stage], None], tuple[Callable[[Candidate], Candidate] | None, str]] = {
    lost_cache: (cached, A),
    lost_report: (waiting, A),
    lost_request: (busy, A),
    foreign_message: (None, A),
}
"""Each gap, and the term that rests on what is missing."""
TERMS: dict[Callable[[Candidate], Candidate], str] = {cached: "overlap", waiting: "waiting", busy: "active_requests"}


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("change", [cached, waiting, busy])
@pytest.mark.parametrize("worker", [A, B])
def test_a_gap_excuses_the_terms_that_rest_on_it(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gap: Callable[[Stage], None],
    change: Callable[[Candidate], Candidate],
    worker: str,
) -> None:
    """A lost cache event of one worker says nothing of another, nor of requests in flight; and so on."""
    gap(stage)
    plant(monkeypatch, worker, change)
    found = verified(stage, tmp_path)
    excused, whose = GAPS[gap]
    if change is excused and (worker == whose or change is busy):
        assert (found.different, sum(found.not_judged.values())) == (0, 1)
    else:
        assert (found.different, found.not_judged) == (1, {})
        assert found.differences[0].term == TERMS[change]
        assert found.differences[0].term_worker == worker


@pytest.mark.parametrize("gap", [lost_cache, lost_report, lost_request])
def test_only_a_lost_report_excuses_what_talks_reuse(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: Callable[[Stage], None]
) -> None:
    """Of its own worker. A difference names both, also where one of the two decisions knew none."""
    stage.settings(RoutingSettings())
    gap(stage)
    for worker, is_excused in ((A, gap is lost_report), (B, False)):
        see_reuse(monkeypatch, {worker: 900})
        found = verified(stage, tmp_path)
        assert (found.different, sum(found.not_judged.values())) == ((0, 1) if is_excused else (1, 0))
        terms = [(each.term, each.term_worker, each.term_recorded, each.term_recomputed) for each in found.differences]
        assert terms == [("reuse", worker, 0, 900)] * found.different


@pytest.mark.parametrize("gap", [lost_cache, lost_report, lost_request, None])
@pytest.mark.parametrize("worker", [A, B])
def test_a_lost_report_of_any_worker_excuses_turnover(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: Callable[[Stage], None] | None, worker: str
) -> None:
    """A report of A changes by how much B has more. Other gaps excuse none."""
    stage.settings(RoutingSettings())
    if gap is None:
        stage.route("x", ASKED)
    else:
        gap(stage)
    see_turnover(monkeypatch, {worker: 30})
    found = verified(stage, tmp_path)
    is_excused = gap is lost_report
    assert (found.different, sum(found.not_judged.values())) == ((0, 1) if is_excused else (1, 0))
    terms = [(each.term, each.term_worker, each.term_recorded, each.term_recomputed) for each in found.differences]
    assert terms == [("turnover", worker, 0, 30)] * found.different


@pytest.mark.parametrize("lost", [A, B, ""])
def test_turnover_follows_from_the_log_but_for_lost_reports(stage: Stage, tmp_path: Path, lost: str) -> None:
    """Without the report of one worker, the difference of another one is excused; with all of them the decision is
    verified."""
    stage.settings(RoutingSettings())
    seqs = {each: stage.say(LOAD, each, load(turnover=turnover)) for each, turnover in ((A, 50), (B, 20))}
    event = stage.route("x", ASKED)
    at = from_column(event.candidates).index(A)
    assert event.columns["turnover"] == tuple(23 * (place == at) for place in range(2))
    for each in (A, B):
        stage.say(LOAD, each, load(turnover=60))
    found = verified(stage, tmp_path, {(LOAD, seqs[lost])} if lost else set())
    assert found.different == 0
    assert (found.verified, sum(found.not_judged.values())) == ((0, 1) if lost else (1, 0))


@pytest.mark.parametrize("term", ["turnover", "cost"])
def test_a_wrong_turnover_or_its_cost_is_a_difference(stage: Stage, tmp_path: Path, term: str) -> None:
    """The log has all reports, and another number than the record."""
    stage.settings(RoutingSettings())
    stage.say(LOAD, A, load(turnover=50))
    event = stage.decided("x", ASKED)
    at = from_column(event.candidates).index(A)
    column = [*event.columns[term]]
    column[at] += 1
    stage.tell(structs.replace(event, columns={**event.columns, term: tuple(column)}))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert [(each.term, each.term_worker) for each in found.differences] == [(term, A)]


def test_a_candidate_that_is_missing_excuses_turnover(stage: Stage, tmp_path: Path) -> None:
    """The log lacks the start of the third worker, which had the least."""
    stage.settings(RoutingSettings())
    gone = stage.say(KV, C, joined("third"))
    for worker, turnover in ((A, 50), (B, 50), (C, 45)):
        stage.say(LOAD, worker, load(turnover=turnover))
    assert any(stage.route("x", ASKED).columns["turnover"])
    found = verified(stage, tmp_path, {(KV, gone)})
    assert (found.different, sum(found.not_judged.values())) == (0, 1)


@pytest.mark.parametrize("stream", [KV, LOAD])
def test_a_lost_epoch_of_loads_excuses_turnover(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: StreamName
) -> None:
    """Two replicas name it. One of a cache stream excuses it, too: no worker is there without that."""
    stage.settings(RoutingSettings())
    stage.settings(RoutingSettings(), S)
    for replica in (R, S):
        event = stage.decided(f"x-{replica}", ASKED, replica=replica)
        stage.tell(structs.replace(event, cursor={**event.cursor, stream: (7, 5)}), replica=replica)
    see_turnover(monkeypatch, {B: 30})
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (0, {"replaced": 2})


@pytest.mark.parametrize("bug", ["", "cost", "max"])
def test_costs_follow_from_the_recorded_greatest_reuse(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """A lost report of A changes what delays cost on B, too: by just as much as the record says, and no more."""
    stage.settings(RoutingSettings())
    if bug == "max":  # it says another greatest reuse than its candidates have
        lose(stage, LOAD, A)
        event = stage.decided("x", ASKED)
        stage.tell(structs.replace(event, columns={**event.columns, "reuse": (0, 0, 7)}))
        stage.say(LOAD, A, load(2))
    else:
        lost_report(stage)
        see_reuse(monkeypatch, {A: 900})
    if bug == "cost":
        right = RULES[DECIDE_VERSION]

        def dearer(*given: Any) -> list[ScoredCandidate]:
            return [each._replace(cost=each.cost + (each.candidate.worker == B)) for each in right.score(*given)]

        monkeypatch.setitem(RULES, DECIDE_VERSION, right._replace(score=dearer))
    found = verified(stage, tmp_path)
    terms = [(each.term, each.term_worker) for each in found.differences]
    assert terms == {"": [], "cost": [("cost", B)], "max": [("reuse_max", "")]}[bug]
    assert sum(found.not_judged.values()) == (not bug)


@pytest.mark.parametrize("version", [FIRST_ACTIVE_VERSION - 1, FIRST_ACTIVE_VERSION])
def test_costs_follow_by_the_rules_of_their_version(stage: Stage, tmp_path: Path, version: int) -> None:
    """The log lacks the report with the greatest reuse. B's cost with the price of its active blocks follows from the
    recorded reuse, by rules with and without a price of first tokens; a cost by the other rules does not."""
    stage.settings(RoutingSettings())
    stage.tell(replica_restated([(("long", 0), InFlight(WorkerId(B), 3000, 0))]), replica=S)
    lost = stage.say(LOAD, A, load(reuse_rate=3000))
    event, other = (
        stage.decided("x", ASKED, version=each) for each in (version, 2 * FIRST_ACTIVE_VERSION - 1 - version)
    )
    at = from_column(event.candidates).index(B)
    assert event.columns["cost"][at] != other.columns["cost"][from_column(other.candidates).index(B)]
    stage.tell(event)
    stage.say(LOAD, A, load())
    found = verified(stage, tmp_path, {(LOAD, lost)})
    assert (found.different, sum(found.not_judged.values())) == (0, 1)
    stage.tell(structs.replace(other, request="y", decide_version=version))
    found = verified(stage, tmp_path, {(LOAD, lost)})
    assert {each.request for each in found.differences} == {"y"}


def test_settings_that_are_missing_excuse_what_talks_reuse(tmp_path: Path) -> None:
    """A policy that does not read it was called different in it."""
    stage = Stage()
    stage.pair()
    stage.replica(R, "r1")
    stage.say(LOAD, A, load(reuse_rate=1_000_000))
    gone = len(stage.frames[ROUTING]) + 1
    stage.settings(RoutingSettings(policy="kv"))
    stage.route("x", ASKED)
    found = verified(stage, tmp_path, {(ROUTING, gone)})
    assert (found.different, sum(found.not_judged.values())) == (0, 1)


@pytest.mark.parametrize("most", [0, 1])
def test_a_candidate_that_is_missing_may_have_the_greatest_reuse(stage: Stage, tmp_path: Path, most: int) -> None:
    """Its own, and none beyond that of all recorded candidates."""
    stage.settings(RoutingSettings())
    gone = stage.say(KV, C, joined("third"))
    stage.say(LOAD, C, load(reuse_rate=1_000_000))
    event = stage.decided("x", ASKED)
    reuse = event.columns["reuse"]
    stage.tell(structs.replace(event, columns={**event.columns, "reuse": (*reuse, *[max(reuse) + 1] * most)}))
    found = verified(stage, tmp_path, {(KV, gone)})
    assert (found.different, sum(found.not_judged.values())) == (most, 1 - most)
    assert [each.term for each in found.differences] == ["reuse_max"] * most


@pytest.mark.parametrize("gap", [lost_report, lost_cache, None])
def test_the_greatest_reuse_may_be_of_a_candidate_that_is_not_shown(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: Callable[[Stage], None] | None
) -> None:
    """Then a report of that one excuses it that is missing."""
    stage.settings(RoutingSettings(candidates_recorded_max=1))
    stage.say(KV, B, stored(*[ASKED.key(depth) for depth in (1, 2, 3)]))
    if gap is None:
        stage.route("x", ASKED)
    else:
        gap(stage)
    with Recording.open(written(stage, tmp_path / "made"), KEY) as recording:
        (at,) = Playback(recording, gaps=Gaps())
    assert isinstance(at, RecordedDecision)
    assert from_column(at.event.candidates) == [B]
    see_reuse(monkeypatch, {A: 900})
    found = verified(stage, tmp_path)
    terms = [(each.term, each.term_recorded, each.term_recomputed) for each in found.differences]
    assert terms == [("reuse_max", 0, 900)] * (gap is not lost_report)
    assert sum(found.not_judged.values()) == (gap is lost_report)


@pytest.mark.parametrize("change", [cached, busy])
def test_a_message_of_its_own_excuses_what_the_replica_alone_knew(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    gone = stage.tell(LocalChanged(worker=A, reasons=("stale",)))
    stage.route("x", ASKED)
    plant(monkeypatch, A, change)
    found = verified(stage, tmp_path, {(ROUTING, gone)})
    assert (found.different, found.not_judged) == ((1, {}) if change is cached else (0, {"unknown": 1}))


@pytest.mark.parametrize("stream", [KV, LOAD])
@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_an_epoch_that_is_lost_excuses_its_own_stream(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: StreamName, change: Any
) -> None:
    """Two replicas name it. Before, nothing of such a decision was made again."""
    for replica in (R, S):
        event = stage.decided(f"x-{replica}", ASKED, replica=replica)
        stage.tell(structs.replace(event, cursor={**event.cursor, stream: (7, 5)}), replica=replica)
    unspoilt = verified(stage, tmp_path)
    assert (unspoilt.different, unspoilt.not_judged) == (0, {"replaced": 2})
    plant(monkeypatch, B, change)
    found = verified(stage, tmp_path)
    if stream == KV or change is waiting:  # without its kv stream no worker is there
        assert (found.different, found.not_judged) == (0, {"replaced": 2})
    else:
        assert (found.different, found.not_judged) == (2, {})


@pytest.mark.parametrize("change", [cached, waiting, busy])
def test_a_stream_that_was_not_exported_so_far_excuses_its_own_terms(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Candidate], Candidate]
) -> None:
    stage.say(LOAD, A, load(2))
    stage.route("x", ASKED)
    ends = {LOAD: len(stage.frames[LOAD]) - 1}
    assert verified(stage, tmp_path, ends=ends).not_judged == {"end": 1}
    plant(monkeypatch, A, change)
    found = verified(stage, tmp_path, ends=ends)
    assert (found.different, found.not_judged) == ((0, {"end": 1}) if change is waiting else (1, {}))


def test_a_record_that_contradicts_itself_is_a_difference(stage: Stage, tmp_path: Path) -> None:
    """The choice follows from the recorded costs, also where the log lacks what the costs rest on."""
    gone = stage.say(KV, A, stored(*[ASKED.key(depth) for depth in (1, 2, 3)]))
    right, event = stage.decided("x", ASKED), stage.decided("y", ASKED, replica=S)
    assert event.worker == A
    stage.tell(right)
    turned = {name: column[::-1] for name, column in event.columns.items()}
    ids = to_column([WorkerId(B), WorkerId(A)])
    stage.tell(structs.replace(event, worker=B, candidates=ids, columns=turned), replica=S)
    found = verified(stage, tmp_path, {(KV, gone)})
    assert (found.different, found.not_judged) == (1, {"deleted": 1})
    assert (found.differences[0].request, found.differences[0].term) == ("y", "choice")


def test_a_cursor_that_is_not_the_one_of_the_decision(stage: Stage, tmp_path: Path) -> None:
    """The digest is that of the true cursor, so the record alone names the other one."""
    event = stage.decided("x", ASKED)
    stage.tell(structs.replace(event, cursor={**event.cursor, LOAD: (1, 1)}))
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})


def test_a_fold_that_stays_unknown_is_a_difference(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source restated itself: from there on its fold lacks nothing, and a fold that says so excuses nothing."""
    lose(stage, KV, A)
    stage.say(KV, A, stored(77))
    stage.say(KV, A, joined("left"), restated(0, 1, *[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.tell(stage.report(R))
    stage.route("x", ASKED)
    right = verified(stage, tmp_path)
    assert (right.verified, right.folds.different) == (1, 0)
    monkeypatch.setattr(KvFold, "_restated", lambda *_: None)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    assert found.differences[0].term == "overlap"
    assert (found.folds.different, found.folds.not_judged_by) == (1, {})


def test_jobs_that_stay_unknown_are_a_difference(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requester says that it has no job open. Before, each report on that fold was not judged."""
    stage.frames[JOBS] = []
    stage.say(JOBS, A, asked("0a" * 8, 1), about=asked_token(A))
    lose(stage, JOBS, A)
    stage.say(JOBS, A, JobsRestated(open=0), about=asked_token(A))
    stage.tell(stage.report(R))
    assert verified(stage, tmp_path).folds.different == 0
    monkeypatch.setattr(jobs_fold, "_forget", lambda part: setattr(part, "known", False))
    folds = verified(stage, tmp_path).folds
    assert (folds.different, folds.not_judged_by) == (1, {})
    assert folds.differences[0].stream == JOBS


def test_the_chain_tells_how_long_a_source_is_unknown(stage: Stage, tmp_path: Path) -> None:
    """From the gap to the last part of a restatement that nothing interrupts."""
    lose(stage, KV, A)
    first = stage.say(KV, A, stored(77))
    stage.say(KV, A, joined("left"), restated(0, 2, 1))
    stage.say(KV, A, restated(0, 2, 1))
    last = stage.say(KV, A, restated(1, 2, 2))
    with Recording.open(written(stage, tmp_path / "log"), KEY) as recording:
        unknown = UnknownSources(recording)
        allowed = [seq for seq in range(1, len(stage.frames[KV]) + 1) if unknown.allow(KV, seq, A)]
        assert allowed == [*range(first, last)]
        assert [seq for seq in range(1, last + 1) if unknown.allow(KV, seq)] == allowed
        assert not unknown.allow(KV, first, B)


def test_explain_and_the_state_judge_alike(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference that a gap does not excuse has no excuse there, either."""
    lose(stage, KV, A)
    stage.route("x", ASKED)
    seq = len(stage.frames[ROUTING])
    stage.say(KV, A, stored(77))
    plant(monkeypatch, B, cached)
    with Recording.open(written(stage, tmp_path / "log"), KEY) as recording:
        judged = judge_decision(recording, seq, R, "x", 0)
    assert judged is not None
    assert (judged.same, judged.excuse) == (False, None)


POOL, POOLED = "f0" * 8, "51" * 8
"""A pool's id, and its source."""


OTHER_POOLED = "52" * 8
"""The source of a pool that nobody reads."""


def pooled(stage: Stage, *, wrong: str = "") -> set[tuple[StreamName, int]]:
    """A reads and keeps a pool, B reads none. A decision counts the pool; of the worker `wrong` it has one block too
    many. Returns the messages that the recording lacks: those by which blocks came into both pools."""
    stage.say(KV, A, structs.replace(joined("a"), pools=reads(POOL)))
    stage.say(KV, POOLED, pool_joined(POOL, A))
    stage.say(KV, OTHER_POOLED, pool_joined("f1" * 8, A))
    blocks = stored(*hashes_from_bytes(ASKED.hashes()), tier="disk")
    gone = {(KV, int(stage.say(KV, source, blocks))) for source in (POOLED, OTHER_POOLED)}
    event = stage.decided("a", ASKED)
    if wrong:
        at = from_column(event.candidates).index(wrong)
        depths = [depth + (number == at) for number, depth in enumerate(event.columns["overlap_all"])]
        assert isinstance(event.columns, Columns)
        event = structs.replace(event, columns=structs.replace(event.columns, overlap_all=tuple(depths)))
    stage.tell(event)
    for source in (POOLED, OTHER_POOLED):  # by which its chain shows the message before
        stage.say(KV, source, stored(77, tier="disk"))
    return gone


def test_missing_messages_of_a_pool_excuse_its_readers(stage: Stage, tmp_path: Path) -> None:
    """What the replica knew of the pool, and the recording does not have."""
    gone = pooled(stage)
    assert verified(stage, tmp_path).verified == 1
    found = verified(stage, tmp_path, gone)
    assert (found.different, found.not_judged) == (0, {"deleted": 1})


def test_missing_messages_of_a_pool_excuse_no_other_worker(stage: Stage, tmp_path: Path) -> None:
    """Nor those of a pool that the worker does not read."""
    gone = pooled(stage, wrong=B)
    (found,) = verified(stage, tmp_path, gone).differences
    assert (found.term, found.term_worker) == ("overlap_all", B)


def test_the_start_of_a_pool_is_missing(stage: Stage, tmp_path: Path) -> None:
    """Then nothing says whose it is: it may be that of any worker that reads one."""
    gone = pooled(stage)
    starts = {(KV, int(seq) - 2) for _, seq in gone}
    found = verified(stage, tmp_path, gone | starts)
    assert (found.different, found.not_judged) == (0, {"deleted": 1})
