"""Explaining decisions of a log whose head is gone: by the snapshot in its place, or without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.event_json import time_text
from core.events import Event, LocalChanged, ReplicaJoined, SettingsChanged
from core.settings import RoutingSettings
from core.subjects import ROUTING
from replay.explain.explain import explain
from replay.explain.explanation import AttemptExplanation
from replay.explain.request_list import list_requests
from replay.state_at.state_at import summary_at
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.projections.facts import joined, stored
from tests.replay.staged import ASKED, HASHES, KV, A, B, R, S, Stage

GIVEN = RoutingSettings(policy="kv", prefill_weight_m=4000)


@pytest.fixture
def stage() -> Stage:
    """Two workers, of which `a` holds four blocks of the prompt."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:4]))
    it.say(KV, B, joined("b"))
    return it


@pytest.mark.parametrize(
    "said",
    [
        (SettingsChanged(revision=1, settings=GIVEN.to_mapping()),),
        (SettingsChanged(revision=0, settings=GIVEN.to_mapping()),),
        (),
    ],
    ids=["revision 1", "revision 0", "nothing"],
)
def test_what_a_snapshot_has_of_the_replica_counts(stage: Stage, tmp_path: Path, said: tuple[Event, ...]) -> None:
    """Its settings and what only it knew, told as recorded and decided again alike."""
    stage.replica()
    stage.tell(*said, LocalChanged(worker=A, reasons=("stale",)))
    snapshot = stage.snapshot()
    stage.route("r", ASKED)
    with stage.recording(tmp_path / "log", snapshot=snapshot) as recording:
        recorded, again = (explain(recording, "r", whole=whole).attempts[0] for whole in (False, True))
    assert (recorded.again, again.again) == ("not_made", "same")
    assert again.local == {f"a ({A})": ["stale"]}
    assert again.settings == (GIVEN if said else RoutingSettings()).to_mapping()
    assert judged(recorded) == judged(again)


def judged(attempt: AttemptExplanation) -> tuple[object, ...]:
    costs = [(row.name, row.cost, row.prefill_cost, row.decode_cost, row.wait_cost) for row in attempt.candidates]
    return attempt.settings, attempt.settings_changed, attempt.local, attempt.why, attempt.runner_up, costs


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (RoutingSettings(policy="kv"), "a costs 4 less than b; "),
        (RoutingSettings(policy="kv", temperature_m=2000), "b costs 4 more than a; "),
        (RoutingSettings(policy="kv", prefill_weight_m=0), " costs as much as "),
        (RoutingSettings(policy="session"), " costs as much as "),
        (RoutingSettings(policy="time"), "a costs 1.05 less than b: it computes 16 tokens fewer ("),
    ],
    ids=["kv", "a draw", "ties", "session", "time"],
)
@pytest.mark.parametrize("whole", [False, True])
def test_settings_that_are_gone_are_not_made_up(
    stage: Stage, tmp_path: Path, settings: RoutingSettings, why: str, whole: bool
) -> None:
    """Costs are told and not taken apart, nothing is said to have sufficed, and no draw to have decided."""
    stage.replica(settings=settings)
    stage.route("r", ASKED, seed=(1 << 64) - 5)
    with stage.recording(tmp_path / "log", {ROUTING: 2}) as recording:
        found = explain(recording, "r", whole=whole)
    (attempt,) = found.attempts
    assert (attempt.settings, attempt.settings_changed, attempt.draw) == (None, {}, None)
    assert attempt.why.endswith("revision 1 of the settings is not in this log")
    assert why in attempt.why
    assert attempt.runner_up is not None
    assert attempt.runner_up.needs == []
    assert "weights that are not in this log" in attempt.runner_up.text
    assert {row.probability for row in attempt.candidates} == {None}
    assert attempt.session is None
    if settings.policy == "kv":
        assert {(row.prefill_cost, row.decode_cost, row.request_cost) for row in attempt.candidates} == {(0, 0, 0)}
        page = render(explain_text(found))
        assert "settings revision 1, which the log does not have: costs are not taken apart" in page
        assert "       -         -           -  " in page


def test_revision_0_means_the_defaults_of_who_could_be_heard(stage: Stage, tmp_path: Path) -> None:
    """Of a whole log of everybody; of one without its head of those alone that join in it."""
    stage.replica()
    stage.replica(S, "r2")
    last = stage.route("r", ASKED, replica=S)
    seq = len(stage.frames[ROUTING])
    assert last.settings_revision == 0
    with stage.recording(tmp_path / "whole") as recording:
        assert [recording.replicas.settings(each, 0, seq) for each in (R, S)] == [RoutingSettings()] * 2
    with stage.recording(tmp_path / "cut", {ROUTING: 1}) as recording:
        assert [recording.replicas.settings(each, 0, seq) for each in (R, S)] == [None, RoutingSettings()]


# --- ids ---------------------------------------------------------------------------------------------------------


def test_ids_that_are_printed_are_known(stage: Stage, tmp_path: Path) -> None:
    """Everybody joined before it begins: who speaks, decides, or is sent anything, is called by the id."""
    stage.replica(settings=RoutingSettings(policy="round-robin"))
    stage.clock.advance(1000)
    stage.say(KV, A, stored(90))
    stage.route("r", ASKED)
    stage.route("s", ASKED)
    with stage.recording(tmp_path / "log", {KV: 2, ROUTING: 2}) as recording:
        names = recording.names
        assert (names.workers, names.replicas, names.streams) == ({A: A, B: B}, {R: R}, {A: KV})
        assert [each.request for each in list_requests(recording, worker=A).requests] == ["r"]
        assert [each.request for each in list_requests(recording, worker=B, replica=R).requests] == ["s"]
        held = summary_at(recording, {KV: 3, ROUTING: 4}, R)
        assert held.seat is not None
        assert (held.seat.request, held.time) == ("s", time_text(stage.clock.now_ms))
        (outcome,) = what_if(recording, [Scenario.parse({"without": A})])
        assert outcome.scenario.without == (A,)


def test_who_is_said_to_join_later_has_a_name(stage: Stage, tmp_path: Path) -> None:
    """Though it spoke before: a restatement says who it is."""
    stage.replica()
    stage.route("r", ASKED)
    stage.say(KV, A, stored(90), joined("a"))
    stage.say(ROUTING, R, ReplicaJoined(name="r1", version="1"))
    with stage.recording(tmp_path / "log", {KV: 2, ROUTING: 1}) as recording:
        assert (recording.names.worker(A), recording.names.replica(R)) == ("a", "r1")
