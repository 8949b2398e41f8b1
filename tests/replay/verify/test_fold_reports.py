"""`verify` compares every fold that a replica told, whether or not it decided anything afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from core.block_spans import single
from core.codec import DIGEST_BYTES, digest
from core.events import ReplicaLeft
from core.ids import COLUMN_WIDTH, StreamSeq, WorkerId
from core.settings import RoutingSettings
from core.subjects import LOAD
from projections.digest import TURNOVER_VERSION
from projections.folds.state import POINTS_KEPT
from replay.playback.fold_reports import FoldDifference
from replay.verify.verify import VerifyResult, verify
from tests.projections.facts import load, prompt, restated, stored
from tests.replay.staged import KEY, KV, A, B, R, S, Stage

ASKED = prompt(1, 2, 3)


@pytest.fixture
def stage() -> Stage:
    it = Stage()
    it.pair()
    it.replica(R, "r1", RoutingSettings(policy="kv"))
    it.replica(S, "r2", RoutingSettings(policy="kv"))
    return it


def verified(stage: Stage, path: Path, start: int = 1, end: int | None = None) -> VerifyResult:
    with stage.recording(path / "log") as recording:
        return verify(recording, start, end)


def wrong(stage: Stage) -> StreamSeq:
    """The second replica's index is changed behind its back; where it says what it has now."""
    stage.seat(S).state.index.store(WorkerId(A), "device", single([5]))
    stage.say(KV, A, stored(78))
    return stage.tell(stage.report(S), replica=S)


def difference(found: VerifyResult) -> FoldDifference:
    """The only one, of the cache that was changed."""
    assert (found.different, found.folds.different, found.holds) == (0, 1, False)
    (told,) = found.folds.differences
    assert (told.replica, told.stream) == (S, KV)
    return told


def test_a_wrong_fold_shows_before_any_decision_rests_on_it(stage: Stage, tmp_path: Path) -> None:
    """What the replica told of it is not what the log gives."""
    wrong(stage)
    stage.route("elsewhere", ASKED, replica=S)
    found = verified(stage, tmp_path)
    assert difference(found).seq == 3


def test_a_gap_that_a_restatement_closed_excuses_no_wrong_fold(stage: Stage, tmp_path: Path) -> None:
    """A message of the other worker is missing, and that worker has restated its cache since."""
    lost = stage.sealed(KV, B, stored(1))
    stage._chains[KV, B] = stage._chains[KV, B][0] + 1, digest(lost, KEY.chain_key)
    stage.say(KV, B, restated(0, 1, 2))
    wrong(stage)
    assert verified(stage, tmp_path).folds.different == 1


def test_a_fold_that_is_told_behind_the_last_decision(stage: Stage, tmp_path: Path) -> None:
    """Of all replicas, however little they have decided in the range."""
    stage.route("one", ASKED)
    stage.route("two", ASKED, replica=S)
    stage.tell(stage.report(R))
    told = wrong(stage)
    found = verified(stage, tmp_path)
    assert found.folds.compared == 6
    assert difference(found).reported_seq == told
    later = verified(stage, tmp_path, told)
    assert (later.decisions, later.folds.compared) == (0, 3)
    assert difference(later) == difference(found)
    assert verified(stage, tmp_path, end=told).holds


@pytest.mark.parametrize("left", [True, False])
def test_a_replica_that_decides_nothing(stage: Stage, tmp_path: Path, *, left: bool) -> None:
    """Nobody asked it, and others decided since; it may even be gone."""
    wrong(stage)
    if left:
        stage.tell(ReplicaLeft(reason="stopped"), replica=S)
    for number in range(3):
        stage.route(f"r{number}", ASKED)
        stage.say(KV, A, stored(79 + number))
    assert difference(verified(stage, tmp_path)).seq == 3


def test_a_fold_that_nobody_has_any_more(stage: Stage, tmp_path: Path) -> None:
    """So much came before the replica decided again that the place is folded once more."""
    stage.route("one", ASKED, replica=S)
    told = wrong(stage)
    for _ in range(POINTS_KEPT):
        stage.say(KV, A, stored(78))
    stage.route("two", ASKED, replica=S)
    found = verified(stage, tmp_path)
    assert (found.verified, found.folds.compared) == (2, 3)
    assert difference(found).reported_seq == told


def test_a_fold_of_what_is_not_here(stage: Stage, tmp_path: Path) -> None:
    """Is compared with nothing: the place lies behind the end of the recording, or in another history."""
    told = stage.report(S)
    beyond = {stream: replace(points, seqs=(100,)) for stream, points in told.points.items()}
    another = {stream: replace(points, epoch=2) for stream, points in told.points.items()}
    stage.tell(replace(told, points=beyond), replace(told, points=another), replica=S)
    stage.tell(replace(told, fold_version=told.fold_version + 1), replica=S)
    assert verified(stage, tmp_path).folds.compared == 0


@pytest.mark.parametrize("reported", ["turnover", "reuse_rate", ""])
def test_a_fold_of_an_earlier_version_is_compared_while_no_turnover_is_reported(
    stage: Stage, tmp_path: Path, reported: str
) -> None:
    """Version 6 lacks turnovers, and has reuse rates."""
    stage.say(LOAD, A, load(turnover=5 * (reported == "turnover"), reuse_rate=5 * (reported == "reuse_rate")))
    stage.route("one", ASKED)
    told = stage.report(S)
    last = told.points[LOAD]
    wrong_loads = replace(last, seqs=last.seqs[-1:], digests=bytes(COLUMN_WIDTH), heads=last.heads[-DIGEST_BYTES:])
    stage.tell(replace(told, fold_version=TURNOVER_VERSION - 1, points={LOAD: wrong_loads}), replica=S)
    folds = verified(stage, tmp_path).folds
    assert (folds.compared, folds.different) == ((0, 0) if reported == "turnover" else (1, 1))
    stage.tell(replace(told, points={LOAD: wrong_loads}), replica=S)
    assert verified(stage, tmp_path).folds.different == folds.different + 1
