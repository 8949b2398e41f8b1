"""`verify` with rules of several versions: each decision is made again by those that it records."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from msgspec import structs

from bench.replay_log import KEY as MADE_KEY
from bench.replay_log import Scale, made
from core.codec import encode_event
from core.events import LocalChanged, RequestRejected
from core.events.routing import DECIDE_VERSION, PROGRAM_VERSION
from core.ids import RequestId
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.candidates import CandidateSet
from projections.policy.cost import ScoredCandidate, score
from projections.policy.decide import decide, rejection
from projections.policy.rules import RULES
from projections.policy.view import RouteRequest, View
from replay.bisect.first_difference import find_first_difference
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.verify.verify import VerifyResult, verify
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.projections.facts import joined, load, prompt
from tests.replay.staged import KV, A, B, R, S, Stage

SCALE = Scale(300, replicas=3, workers=4, prefixes=12, kept=20)
NEWER = "9.0.0"
NEXT = DECIDE_VERSION + 1


def negated(*given: object) -> list[ScoredCandidate]:
    """A sign of the cost."""
    return [each._replace(cost=-each.cost) for each in score(*given)]  # type: ignore[arg-type]


@pytest.fixture
def two_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """This program has one more version of the rules: the sign of the cost is another one."""
    monkeypatch.setitem(RULES, NEXT, RULES[DECIDE_VERSION]._replace(score=negated))


def staged(program: str = PROGRAM_VERSION) -> Stage:
    """Two workers and a replica of this version of the program."""
    it = Stage()
    for name, worker in (("left", A), ("right", B)):
        it.say(KV, worker, joined(name))
        it.say(LOAD, worker, load())
    it.replica(R, "r1", RoutingSettings(policy="kv"), program=program)
    return it


def judged(it: Stage, path: Path) -> VerifyResult:
    with it.recording(path / "log") as recording:
        return verify(recording)


@pytest.mark.usefixtures("two_versions")
def test_a_log_of_two_versions_is_verified_wholly(tmp_path: Path) -> None:
    """Decisions of both, in turn: each is made again by its own, and its digest is taken under its version."""
    it = staged()
    it.replica(S, "r2", RoutingSettings(policy="kv"), program=NEWER)
    events = [
        it.route(
            f"r{number}", prompt(*range(number, 40)), replica=(R, S)[number % 2], version=DECIDE_VERSION + number % 2
        )
        for number in range(12)
    ]
    assert {event.decide_version for event in events} == {DECIDE_VERSION, NEXT}
    found = judged(it, tmp_path)
    assert (found.decisions, found.verified, found.holds) == (12, 12, True)


@pytest.mark.usefixtures("two_versions")
def test_the_digest_of_a_decision_is_of_its_version(tmp_path: Path) -> None:
    """A decision that records the other version than the one that made it does not follow."""
    it = staged()
    it.tell(structs.replace(it.decided("r", prompt(1, 2, 3)), decide_version=NEXT))
    found = judged(it, tmp_path)
    assert (found.verified, found.different) == (0, 1)


def test_a_sign_in_the_rules_of_an_earlier_version_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has a later version, and a bug in the one before: nothing of a log of that one is passed over."""
    path = made(tmp_path / "log", SCALE)
    monkeypatch.setitem(RULES, NEXT, RULES[DECIDE_VERSION])
    with Recording.open(path, MADE_KEY) as recording:
        found = verify(recording)
        assert (found.verified, found.different, found.not_judged) == (SCALE.decisions, 0, {})
        monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=negated))
        found = verify(recording)
    assert (found.not_judged, found.holds) == ({}, False)
    assert found.different > 0.9 * SCALE.decisions
    assert {each.term for each in found.differences} == {"cost"}


@pytest.mark.parametrize(
    ("program", "version", "term"),
    [
        (NEWER, NEXT, ""),
        (f"{PROGRAM_VERSION}.1", NEXT, ""),
        (PROGRAM_VERSION, NEXT, "rules"),
        ("0.0.9", NEXT, "rules"),
        ("", NEXT, "rules"),
        ("newest", NEXT, "rules"),
        (NEWER, 0, "rules"),
        (NEWER, DECIDE_VERSION, "cost"),
    ],
)
def test_rules_that_are_not_here_need_a_newer_program(tmp_path: Path, program: str, version: int, term: str) -> None:
    """Its replica joined with that version of the program: else the decision is different, in spite of gaps."""
    it = staged(program)
    event = it.decided("r", prompt(1, 2, 3))
    costs = tuple(cost + 1 for cost in event.columns["cost"])
    it.tell(structs.replace(event, decide_version=version, columns={**event.columns, "cost": costs}))
    found = judged(it, tmp_path)
    assert (found.verified, found.different, found.not_judged) == (0, bool(term), {} if term else {"version": 1})
    if term:
        assert [each.term for each in found.differences] == [term]
    else:
        assert program in found.not_judged_why["version"]
        assert "r1" in found.not_judged_why["version"]


def test_the_version_of_a_program_is_known_from_a_snapshot(tmp_path: Path) -> None:
    """Retention took the message with which the replica joined."""
    it = staged(NEWER)
    taken = it.snapshot()
    it.tell(structs.replace(it.decided("r", prompt(1, 2, 3)), decide_version=NEXT))
    with it.recording(tmp_path / "log", snapshot=taken) as recording:
        assert verify(recording).not_judged == {"version": 1}


def test_missing_messages_excuse_no_rules_that_are_not_here(tmp_path: Path) -> None:
    """A gap of its own chain excuses a decision by rules that are here, and no other."""
    it = staged()
    n, _ = it._chains[ROUTING, R]
    it._chains[ROUTING, R] = n + 1, bytes(16)
    event = it.decided("known", prompt(1, 2, 3))
    it.tell(structs.replace(event, digest="0" * 16))
    it.tell(structs.replace(it.decided("unknown", prompt(1, 2, 3)), decide_version=NEXT))
    found = judged(it, tmp_path)
    assert (found.different, sum(found.not_judged.values())) == (1, 1)
    assert (found.differences[0].request, found.differences[0].term) == ("unknown", "rules")
    assert (found.differences[0].term_recorded, found.differences[0].term_recomputed) == (NEXT, DECIDE_VERSION)


@pytest.mark.usefixtures("two_versions")
def test_a_refusal_is_made_again_by_its_own_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version stands in its event unless it is the first; rules that are not here are a difference."""
    monkeypatch.setitem(RULES, NEXT, RULES[DECIDE_VERSION]._replace(find_candidates=_none_but_draining))
    it = staged()
    it.tell(LocalChanged(worker=A, reasons=("not_connected",)), LocalChanged(worker=B, reasons=("not_connected",)))
    for version, name in ((1, "one"), (NEXT, "two")):
        it.tell(refused(it, name, version))
    event = refused(it, "three", 1)
    assert b"decide_version" not in encode_event(event)
    it.tell(structs.replace(event, decide_version=NEXT + 1))
    found = judged(it, tmp_path).refusals
    assert (found.verified, found.different, found.not_judged) == (2, 1, 0)


def refused(it: Stage, name: str, version: int) -> RequestRejected:
    seat, request = it.seat(R), RouteRequest(RequestId(name), 0, "tiny", prompt(1, 2, 3))
    decision = decide(seat.view, request, seat.settings, it.clock.now_ms, 0, version=version)
    return rejection(decision, request, seat.revision, 503)


def _none_but_draining(view: View, request: RouteRequest, settings: RoutingSettings, now_ms: int) -> CandidateSet:
    """The next version says `draining` of each that is left out."""
    found = RULES[DECIDE_VERSION].find_candidates(view, request, settings, now_ms)
    return found._replace(excluded={"draining": sorted(chain(*found.excluded.values()))})


@pytest.mark.usefixtures("two_versions")
def test_bisect_explain_and_what_if_decide_by_the_recorded_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mechanism serves all: where the next version made the decision, none of them finds a difference."""
    it = staged()
    for number in range(6):
        it.route(f"r{number}", prompt(*range(number, 40)), version=NEXT)
    with it.recording(tmp_path / "log") as recording:
        assert find_first_difference(recording) is None
        assert explain(recording, "r5", whole=True).attempts[0].again == "same"
        outcome = what_if(recording, [Scenario()])[0]
        assert (outcome.decisions, outcome.changed) == (6, 0)
        monkeypatch.delitem(RULES, NEXT)
        first = find_first_difference(recording)
        assert first is not None
        assert (first.difference.term, first.inputs_equal, first.near_total) == ("rules", True, 0)
        assert explain(recording, "r5", whole=True).attempts[0].again == "differs"
