"""A replica starts while retention has taken the first messages of a stream, and a copy of the store has them again:
what it reports and decides is what the log gives from where it states that its fold begins, or it is a difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from core.block_spans import single
from core.events import ReplicaReported
from core.ids import Epoch, StreamName, StreamSeq, WorkerId
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.view import Candidate
from replay.verify.judge import judge_decision
from tests.projections.facts import load, prompt, stored
from tests.replay.staged import ASKED, KV, A, B, R, S, Stage
from tests.replay.verify.test_differing_terms import TERMS, busy, cached, plant, verified, waiting


def lacks_worker(stage: Stage) -> StreamName:
    """Worker A, which has the prompt, joined in what had been cut off, and nothing of it came since."""
    stage.pair()
    folds_from(stage, KV, 2)
    return KV


def lacks_report(stage: Stage) -> StreamName:
    """So does a load report of worker A."""
    stage.pair()
    stage.say(LOAD, A, load(3))
    stage.say(LOAD, B, load())
    folds_from(stage, LOAD, 4)
    return LOAD


def lacks_request(stage: Stage) -> StreamName:
    """So does the life of another replica, with a request in flight on worker A."""
    stage.pair()
    stage.replica(S, "r2", RoutingSettings(policy="kv"))
    stage.route("earlier", prompt(7, 8, 9), replica=S)
    folds_from(stage, ROUTING, 4)
    return ROUTING


LACKS: dict[Callable[[Stage], StreamName], tuple[str, Callable[[Candidate], Candidate]]] = {
    lacks_worker: ("candidates", cached),
    lacks_report: ("waiting", waiting),
    lacks_request: ("active_blocks", busy),
}
"""Each with the term that differs from the whole log's, and with a bug in that of the other worker."""


def folds_from(stage: Stage, stream: StreamName, seq: int) -> None:
    """The first replica has nothing of the stream before that message."""
    state = stage._seat(R).state
    state.open(stream, Epoch(1))
    state.skip_to(stream, StreamSeq(seq - 1))


@pytest.fixture(params=LACKS)
def lacks(request: pytest.FixtureRequest) -> Callable[[Stage], StreamName]:
    found: Callable[[Stage], StreamName] = request.param
    return found


def tell_report(stage: Stage, *, begins: bool = True) -> ReplicaReported:
    """The first replica reports its folds; of an earlier version without where they begin."""
    report = stage.report(R)
    stage.tell(report if begins else replace(report, begins=UNSET))
    return report


def test_a_report_of_such_a_fold_is_true(lacks: Callable[[Stage], StreamName], tmp_path: Path) -> None:
    """Without the begin it is a difference: nothing in the log explains it."""
    for begins in (True, False):
        stage = Stage()
        stream = lacks(stage)
        stage.replica(R, "r1", RoutingSettings(policy="kv"))
        report = tell_report(stage, begins=begins)
        (tmp_path / str(begins)).mkdir()
        found = verified(stage, tmp_path / str(begins))
        assert isinstance(report.begins, dict)
        assert list(report.begins) == [stream]
        assert found.folds.different == (0 if begins else 1)
        assert found.folds.compared == 3


def test_a_wrong_fold_that_begins_late_is_named(tmp_path: Path) -> None:
    """Something was changed in it behind the replica's back; or it is the whole log's, and begins where it says not."""
    stage = Stage()
    lacks_worker(stage)
    stage.replica(R, "r1", RoutingSettings(policy="kv"))
    stage.seat(R).state.index.store(WorkerId(B), "device", single([5]))
    stage.say(KV, B, stored(78))
    report = tell_report(stage)
    stage._seats.clear()
    whole = stage.report(R)
    stage.tell(replace(whole, begins=report.begins))
    assert verified(stage, tmp_path).folds.different == 2


def test_a_begin_behind_the_place_or_in_another_epoch_changes_nothing(tmp_path: Path) -> None:
    stage = Stage()
    lacks_worker(stage)
    stage.replica(R, "r1", RoutingSettings(policy="kv"))
    report = stage.report(R)
    stage.tell(replace(report, begins={KV: (1, 100)}), replace(report, begins={KV: (2, 2)}))
    assert verified(stage, tmp_path).folds.different == 2


@pytest.mark.parametrize("reported", ["before", "behind", "never", "otherwise"])
def test_a_decision_on_such_a_fold_is_explained_by_a_report_beside_it(
    lacks: Callable[[Stage], StreamName], tmp_path: Path, reported: str
) -> None:
    """The last one before it, or the first one behind it; if that states none, it is a difference."""
    stage = Stage()
    stream = lacks(stage)
    stage.replica(R, "r1", RoutingSettings(policy="kv"))
    if reported == "before":
        tell_report(stage)
    stage.route("x", ASKED)
    seq = len(stage.frames[ROUTING])
    if reported == "behind":
        tell_report(stage)
    elif reported == "otherwise":
        stage.tell(replace(stage.report(R), points={}, begins=UNSET))
        tell_report(stage)
    found = verified(stage, tmp_path)
    others = found.decisions - 1
    if reported in ("before", "behind"):
        assert (found.different, found.not_judged, found.verified) == (0, {"replaced": 1}, others)
        assert f"its fold of {stream} begins at" in found.not_judged_why["replaced"]
        with stage.recording(tmp_path / "again") as recording:
            again = judge_decision(recording, seq, R, "x", 0)
        assert again is not None
        assert again.excuse is not None
        assert again.excuse.reason == "replaced"
    else:
        assert (found.different, found.not_judged, found.verified) == (1, {}, others)
        assert found.differences[0].term == LACKS[lacks][0]


def test_a_wrong_term_of_such_a_decision_is_named(
    lacks: Callable[[Stage], StreamName], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug is in what the fold has of the other worker."""
    change = LACKS[lacks][1]
    stage = Stage()
    lacks(stage)
    stage.replica(R, "r1", RoutingSettings(policy="kv"))
    plant(monkeypatch, B, change)
    stage.route("x", ASKED)
    monkeypatch.undo()
    tell_report(stage)
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {})
    told = found.differences[0]
    if lacks is lacks_request:  # what is in flight is explained on all workers or on none
        assert told.term == "active_blocks"
    else:
        assert (told.term, told.term_worker) == (TERMS[change], B)
