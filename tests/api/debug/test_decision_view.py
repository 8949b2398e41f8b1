"""What the page is told of decisions by estimated time, and of waits in the router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.debug.decision_view import decision
from api.debug.timeline.timeline_scan import TimelineScan
from core.events import ReplicaLost, RequestRouted
from core.events.routing import HELD, RequestQueued, RequestTurnedAway
from core.ids import LOST_SUFFIX, ReplicaId
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.cost import TURNOVER_TIMES
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from streams.archive.archive_reader import ArchiveReader
from tests.fixtures.passes import one_prompt_a_pass
from tests.projections.facts import finished, joined, load, prompt
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import ASKED, KV, A, B, R, S, Stage
from tests.replay.staged import KEY as STAGED_KEY

__all__ = ["one_prompt_a_pass"]


def scanned(path: Path) -> TimelineScan:
    scan = TimelineScan()
    with ArchiveReader.open(path) as archive:
        for _ in scan.steps(archive):
            pass
    return scan


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two workers under more than they can prefill at once, so that the router holds."""
    path = tmp_path_factory.mktemp("timed") / "log"
    routing = RoutingSettings(policy="time", hold_max_ms=5000, prefill_us_per_token_m=0)
    simulate(Options(workers=2, engine=ENGINE, routing=routing), families(80, every_us=5_000), archive=path)
    return path


def test_the_terms_are_those_of_the_explanation(log: Path) -> None:
    """Of every decision, without a fold: in milliseconds, adding up to the cost; and what a prefill was taken for."""
    timeline, sources = scanned(log).timeline, set()
    with ArchiveReader.open(log) as archive, Recording.open(log, KEY) as recording:
        for n in timeline.decisions.column("n")[::4]:
            shown = decision(archive, timeline, n)
            (attempt,) = explain(recording, shown["request"]).attempts
            assert shown["unit"] == "ms"
            assert attempt.estimates is not None
            assert shown["prefill_time"] == {
                name: getattr(attempt.estimates, name)
                for name in (
                    "base_ms",
                    "per_token_us",
                    "source",
                    "first_active_times",
                    "first_active_tokens",
                    "turnover_times",
                    "loading",
                )
            }
            sources.add(attempt.estimates.source)
            for row, told in zip(shown["candidates"], attempt.candidates, strict=True):
                assert told.timed is not None
                names = (
                    "worker", "cost", "prefill_cost", "decode_cost", "request_cost", "wait_cost", "turnover_cost",
                )  # fmt: skip
                assert {name: row[name] for name in names} == {name: getattr(told, name) for name in names}
                timed = ("tokens", "outstanding_ms", "held_ms")
                assert {name: row[name] for name in timed} == {name: getattr(told.timed, name) for name in timed}
                assert row["outstanding_ms"] + row["held_ms"] == pytest.approx(row["wait_cost"])
    assert "default" in sources


def test_what_a_prompt_pushes_out_is_shown(tmp_path: Path) -> None:
    """Its term and its price are those of the explanation."""
    it = Stage()
    it.pair()
    it.replica(settings=RoutingSettings())
    it.say(LOAD, A, load(turnover=30))
    it.route("r", ASKED)
    path = it.archived(tmp_path / "log")
    with ArchiveReader.open(path) as archive, Recording.open(path, STAGED_KEY) as recording:
        timeline = scanned(path).timeline
        shown = decision(archive, timeline, timeline.decisions.column("n")[0])
        (attempt,) = explain(recording, "r").attempts
    assert shown["prefill_time"]["turnover_times"] == TURNOVER_TIMES
    costs = {row["worker"]: row["turnover_cost"] for row in shown["candidates"]}
    assert costs == {row.worker: row.turnover_cost for row in attempt.candidates}
    assert (costs[A] > 0, costs[B]) == (True, 0)


def test_the_time_in_the_router_is_what_the_log_says(log: Path) -> None:
    """From the word that it waits to its decision; 0 for those that had not to."""
    decisions = scanned(log).timeline.decisions
    since, expected = dict[str, int](), dict[str, int]()
    with Recording.open(log, KEY) as recording:
        for _, message in recording.messages(ROUTING):
            for event in message.events:
                if isinstance(event, RequestQueued):
                    since.setdefault(event.request, event.now_ms)
                elif isinstance(event, RequestRouted):
                    expected[event.request] = event.now_ms - since.get(event.request, event.now_ms)
    assert sum(expected.values()) > 0
    assert dict(zip(decisions.requests, decisions.column("waited_ms"), strict=True)) == expected


def queued(stage: Stage, request: str, why: str = HELD) -> RequestQueued:
    return RequestQueued(
        request=request, model="tiny", priority=0, tenant="", prompt_tokens=25, why=why, depth=0,
        now_ms=stage.clock.now_ms,
    )  # fmt: skip


def test_waits_that_end_otherwise_are_forgotten(tmp_path: Path) -> None:
    """A request that waited for a place first and was held then waited all that time. One that was turned away, or
    whose replica was lost, and whose id is used again, did not wait; nor did that of another replica."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"))
    it.replica()
    it.replica(S, "r2")
    it.tell(queued(it, "twice", "full"), queued(it, "gone"), queued(it, "elsewhere"))
    it.tell(queued(it, "lost"), replica=S)
    it.clock.advance(30)
    it.tell(queued(it, "twice"))
    it.tell(RequestTurnedAway(request="gone", model="tiny", reason="client_gone", status=499, waited_ms=30))
    it.say(ROUTING, S + LOST_SUFFIX, ReplicaLost(by=R, reason="silent"), about=S)
    it.clock.advance(12)
    again = ReplicaId("cc" * 8)
    it.replica(again, "r3")
    for name, replica in (("twice", R), ("gone", R), ("lost", again), ("elsewhere", again)):
        it.route(name, ASKED, replica=replica)
    decisions = scanned(it.archived(tmp_path / "log")).timeline.decisions
    waited = dict(zip(decisions.requests, decisions.column("waited_ms"), strict=True))
    assert waited == {"twice": 42, "gone": 0, "lost": 0, "elsewhere": 0}


def test_attempts_count_from_when_the_request_came(tmp_path: Path) -> None:
    """It waits in the router as long as workers decline it; what a worker had and lost was not in the router."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"))
    it.replica()
    for name, outcome in (("declined", "declined"), ("lost", "worker_lost")):
        it.tell(queued(it, name))
        it.clock.advance(20)
        for attempt in range(3):
            it.route(name, ASKED, attempt=attempt)
            it.clock.advance(7)
            if attempt < 2:
                it.tell(msgspec.structs.replace(finished(name, attempt=attempt), outcome=outcome))
            it.clock.advance(3)
    it.route("open", ASKED)
    it.clock.advance(100)
    it.say(ROUTING, R + LOST_SUFFIX, ReplicaLost(by=S, reason="silent"), about=R)
    decisions = scanned(it.archived(tmp_path / "log")).timeline.decisions
    rows = zip(decisions.requests, decisions.column("before_ms"), decisions.column("waited_ms"), strict=True)
    assert list(rows) == [
        ("declined", 20, 20), ("declined", 30, 30), ("declined", 40, 40),
        ("lost", 20, 20), ("lost", 30, 0), ("lost", 40, 0), ("open", 0, 0),
    ]  # fmt: skip
    gone = [decisions.column("duration_ms")[at] for at in (2, 5, 6)]
    assert gone == [40 + 10 + 50 + 100, 40 + 10 + 100, 100]


@pytest.mark.parametrize(
    ("given", "unit", "terms"),
    [
        ({"policy": "kv"}, "blocks", {"prefill_cost", "request_cost", "decode_cost"}),
        ({"policy": "approximate"}, "blocks", {"prefill_cost", "request_cost", "decode_cost"}),
        ({"policy": "session"}, "ms", {"tokens", "outstanding_ms", "held_ms"}),
        ({"policy": "least-loaded"}, "requests", set()),
        ({"policy": "power-of-two"}, "requests", set()),
        ({"policy": "random"}, "", set()),
    ],
)
def test_each_policy_has_its_unit(tmp_path: Path, given: dict[str, Any], unit: str, terms: set[str]) -> None:
    """And the terms that its cost is made of, if it is a sum."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings.parse(given))
    it.route("x", prompt(*range(60, 90)))
    it.route("r", ASKED)
    shown = last(it, tmp_path)
    assert shown["unit"] == unit
    assert (shown["prefill_time"] is not None) == (unit == "ms")
    usual = {
        "worker", "chosen", "cost", "overlap", "overlap_device", "pending", "to_prefill", "active_blocks",
        "active_requests", "waiting", "cache_known",
    }  # fmt: skip
    assert all(row.keys() == usual | terms for row in shown["candidates"])
    sums = [sum(row[term] for term in terms) for row in shown["candidates"] if "decode_cost" in terms]
    assert sums == pytest.approx([row["cost"] for row in shown["candidates"]] if sums else [], abs=1e-3)


def test_costs_by_settings_that_are_not_known_are_not_taken_apart(tmp_path: Path) -> None:
    """The waits are: they stand in the record."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.replica(settings=RoutingSettings(policy="time", own_weight_m=700))
    it.tell(msgspec.structs.replace(it.decided("r", ASKED), settings_revision=9))
    shown = last(it, tmp_path)
    assert not shown["settings_known"]
    assert all("prefill_cost" not in row and row["outstanding_ms"] == 0 for row in shown["candidates"])


def last(stage: Stage, tmp_path: Path) -> dict[str, Any]:
    """The newest decision as the page is told it."""
    path = stage.archived(tmp_path / "log")
    with ArchiveReader.open(path) as archive:
        return decision(archive, scanned(path).timeline, len(stage.frames[ROUTING]) * PLACES)
