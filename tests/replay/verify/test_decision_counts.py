"""Decisions that are in no log: named by the statements of their replicas, or a finding of verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.cli.renderer import render
from api.cli.replay.text.verify_text import verified_json, verified_text
from core.events import DecisionCounts, ReplicaLeft, ReplicaReported, ReplicaRestated, RequestRejected
from core.ids import StreamSeq
from core.settings import RoutingSettings
from core.subjects import ROUTING
from replay.recording.recording import Recording
from replay.redact.redaction import redact
from replay.verify import partition
from replay.verify.verify import VerifyResult, verify
from tests.projections.facts import prompt
from tests.replay.staged import KEY, R, S, Stage

ASKED = prompt(1, 2, 3)


@pytest.fixture
def stage() -> Stage:
    it = Stage()
    it.pair()
    it.replica(R, "r1", RoutingSettings(policy="kv"))
    it.replica(S, "r2", RoutingSettings(policy="kv"))
    return it


def restated(made: int, dropped: int = 0, others: int = 0) -> ReplicaRestated:
    counts = DecisionCounts(made, dropped, others)
    return ReplicaRestated(
        requests=(), attempts=(), models=(), workers=b"", blocks=(), prefill_tokens=(), counts=counts
    )


def reported(made: int, dropped: int = 0) -> ReplicaReported:
    return ReplicaReported(fold_version=0, points={}, counts=DecisionCounts(made, dropped))


def route(stage: Stage, *requests: str) -> None:
    for request in requests:
        stage.route(request, ASKED)


def verified(stage: Stage, path: Path, start: int = 1, end: int | None = None, jobs: int = 1) -> VerifyResult:
    with stage.recording(path / "log") as recording:
        return verify(recording, start, end, jobs=jobs)


def shown(stage: Stage, path: Path) -> tuple[str, str, dict[str, Any]]:
    """The verdict, all lines of the text, and the JSON."""
    with stage.recording(path / "log") as recording:
        found = verify(recording)
        text = render(verified_text(found, recording.names))
        return text.partition("\n")[0], text, verified_json(found, recording.names)


def test_as_many_as_were_made(stage: Stage, tmp_path: Path) -> None:
    """Decisions behind the last statement, and of a replica without one, are not compared."""
    route(stage, "one", "two")
    stage.tell(reported(2))
    route(stage, "three")
    stage.tell(reported(3))
    route(stage, "four")
    stage.route("other", ASKED, replica=S)
    found = verified(stage, tmp_path)
    assert found.holds
    assert (found.counts.compared, found.counts.not_compared, found.counts.deficits) == (3, 2, [])


def test_dropped_decisions_are_named(stage: Stage, tmp_path: Path) -> None:
    """How many, by which replica, and where; the sentence does not say that all is there."""
    route(stage, "one")
    first = stage.tell(reported(1))
    route(stage, "two")
    second = stage.tell(restated(7, dropped=5, others=9))
    route(stage, "three")
    found = verified(stage, tmp_path)
    assert found.holds
    (deficit,) = found.counts.deficits
    assert (deficit.replica, deficit.dropped, deficit.dropped_others, deficit.missing) == (R, 5, 9, 0)
    assert (deficit.after_seq, deficit.seq) == (first, second)
    verdict, text, value = shown(stage, tmp_path)
    assert verdict == "All 3 decisions follow from the log; 5 more were dropped and are in no log."
    assert "none in the chains" in text
    assert value["dropped"]["decisions"] == 5
    assert value["dropped"]["places"][0]["replica_name"] == "r1"


def test_decisions_that_vanished(stage: Stage, tmp_path: Path) -> None:
    """No event says that they were dropped: the log is not what the replica decided."""
    route(stage, "one")
    stage.tell(reported(1))
    route(stage, "two")
    stage.tell(restated(7, dropped=3))
    found = verified(stage, tmp_path)
    assert not found.holds
    verdict, _, value = shown(stage, tmp_path)
    assert verdict == (
        "All 2 decisions follow from the log; 3 more were dropped and are in no log, but 2 decisions that r1 made are "
        "not in it, and no event says that they were dropped."
    )
    assert (value["counts"]["missing"], value["dropped"]["decisions"], value["holds"]) == (2, 3, False)


def test_more_decisions_than_were_made(stage: Stage, tmp_path: Path) -> None:
    """The two numbers must be equal."""
    route(stage, "one", "two")
    stage.tell(reported(1))
    assert not verified(stage, tmp_path).holds
    assert "but it has 1 decision that r1 did not make" in shown(stage, tmp_path)[0]


def test_rejected_requests_are_decisions(stage: Stage, tmp_path: Path) -> None:
    """The log has one message for each."""
    rejected = RequestRejected(
        request="none", attempt=0, model="other", reason="no_workers", status=503, cursor={}, excluded={},
        settings_revision=1, now_ms=0,
    )  # fmt: skip
    stage.tell(rejected)
    stage.tell(reported(1))
    assert verified(stage, tmp_path).counts.compared == 1


def test_several_lives(stage: Stage, tmp_path: Path) -> None:
    """Each life counts from its own start; a life that ends says its counts."""
    route(stage, "one")
    stage.tell(ReplicaLeft(reason="ends", counts=DecisionCounts(3, 2, 1)))
    stage.route("other", ASKED, replica=S)
    stage.tell(reported(1), replica=S)
    found = verified(stage, tmp_path)
    assert found.holds
    assert (found.counts.compared, found.counts.dropped) == (2, 2)


@pytest.mark.parametrize("lost", ["decision", "statement"])
def test_missing_messages_cover_a_difference(stage: Stage, tmp_path: Path, lost: str) -> None:
    """They are a named gap; up to the next statement nothing else is said."""
    route(stage, "one")
    stage.tell(reported(1))
    if lost == "statement":
        route(stage, "two")
        gone = stage.tell(reported(2))
    else:
        gone = stage.tell(stage.decided("two", ASKED))
    route(stage, "three")
    stage.tell(reported(3))
    route(stage, "four")
    stage.tell(reported(5))
    with Recording.open(without(stage, tmp_path, gone), KEY) as recording:
        found = verify(recording)
    assert found.gaps
    missing = [(each.missing, each.in_gap) for each in found.counts.deficits]
    assert missing == ([(1, False)] if lost == "statement" else [(1, True), (1, False)])


def without(stage: Stage, folder: Path, seq: StreamSeq) -> Path:
    """The log without that message of the routing stream."""
    stage._records = [it for it in stage._records if (it.stream, it.seq) != (ROUTING, seq)]
    return stage.archived(folder / "holed")


def test_a_recording_that_begins_later(stage: Stage, tmp_path: Path) -> None:
    """The first statement is the base: earlier drops are not of this recording."""
    route(stage, "one")
    stage.tell(reported(4, dropped=3))
    route(stage, "two")
    cut = stage.tell(reported(5, dropped=3))
    route(stage, "three")
    stage.tell(reported(6, dropped=3))
    stage.tell(restated(9, dropped=5))
    path = stage.archived(tmp_path / "cut", {ROUTING: cut})
    with Recording.open(path, KEY) as recording:
        counts = verify(recording).counts
    (deficit,) = counts.deficits
    assert (counts.not_compared, deficit.dropped, deficit.missing) == (1, 2, 1)


def test_ranges(stage: Stage, tmp_path: Path) -> None:
    """A place is in each range that it overlaps, and in no other."""
    route(stage, "one")
    first = stage.tell(restated(4, dropped=3))
    route(stage, "two")
    second = stage.tell(restated(9, dropped=7))
    route(stage, "three")
    assert verified(stage, tmp_path).counts.dropped == 7
    assert verified(stage, tmp_path, start=second + 1).counts.dropped == 0
    assert verified(stage, tmp_path, start=second).counts.dropped == 4
    assert verified(stage, tmp_path, end=first).counts.dropped == 3


def test_a_replica_that_is_not_asked_about(stage: Stage, tmp_path: Path) -> None:
    """Only decisions of the given replicas count."""
    route(stage, "one")
    stage.tell(restated(4, dropped=1))
    with stage.recording(tmp_path / "log") as recording:
        assert verify(recording, replicas=[S]).holds
        assert not verify(recording, replicas=[R]).holds


def test_earlier_versions_state_nothing(stage: Stage, tmp_path: Path) -> None:
    """Their restatements have no counts, and nothing is compared."""
    route(stage, "one")
    stage.tell(ReplicaLeft(reason="ends"))
    found = verified(stage, tmp_path)
    assert (found.holds, found.counts.compared, found.counts.not_compared) == (True, 0, 1)
    assert "no replica states how many" in shown(stage, tmp_path)[1]


def test_processes_share_the_work(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts do not depend on their number, nor does the digest."""
    monkeypatch.setattr(partition, "SHARE_MIN", 1)
    route(stage, "one", "two")
    stage.tell(restated(7, dropped=4))
    route(stage, "three", "four")
    alone, shared = verified(stage, tmp_path), verified(stage, tmp_path, jobs=2)
    assert alone.counts == shared.counts
    assert alone.digest == shared.digest


def test_a_redacted_export_keeps_the_counts(stage: Stage, tmp_path: Path) -> None:
    """Of restatements and of reports, whose digests go."""
    route(stage, "one")
    stage.tell(reported(2, dropped=1))
    route(stage, "two")
    stage.tell(restated(6, dropped=3))
    target = tmp_path / "redacted"
    with stage.recording(tmp_path / "log") as recording:
        before = verify(recording).counts
        redact(recording.archive, target, KEY.chain_key, program="contrail test", made_ms=1)
    with Recording.open(target, None) as recording:
        counts = verify(recording).counts
    assert [(it.dropped, it.missing, it.seq) for it in counts.deficits] == [
        (it.dropped, it.missing, it.seq) for it in before.deficits
    ]
    assert counts.dropped == 3


def test_strict_fails_on_dropped_decisions(stage: Stage, tmp_path: Path) -> None:
    """They are known, and in no log: the record is not complete."""
    route(stage, "one")
    with stage.recording(tmp_path / "log") as recording:
        assert verify(recording).complete
    stage.tell(restated(4, dropped=3))
    with stage.recording(tmp_path / "log") as recording:
        found = verify(recording)
        text = render(verified_text(found, recording.names, strict=True))
    assert (found.holds, found.complete) == (True, False)
    assert "--strict: 3 decisions dropped" in text
