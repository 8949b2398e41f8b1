"""Decisions by estimated time taken apart: to the microsecond, by whatever they went; and what holding had in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.events import RequestPrefilled, RequestRouted
from core.events.routing import HELD, RequestQueued
from core.ids import RequestId, WorkerId
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.cost import FIRST_ACTIVE_TIMES, FIRST_ACTIVE_TOKENS, TURNOVER_TIMES
from projections.policy.decide import decide, record
from projections.policy.load_time import LoadTime
from projections.policy.prefill_time import PrefillTime
from projections.policy.rules import FIRST_ACTIVE_VERSION, TURNOVER_VERSION
from projections.policy.view import RouteRequest
from replay.explain.explain import explain
from replay.explain.explanation import AttemptExplanation
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from tests.fixtures.passes import one_prompt_a_pass
from tests.projections.facts import finished, joined, load, prefilled, prompt, routed, stored
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import ASKED, HASHES, KV, A, B, C, R, Stage

__all__ = ["one_prompt_a_pass"]

SLOW = {"policy": "time", "prefill_base_us": 0, "prefill_us_per_token": 1000}
WEIGHTS = {"own_weight": 4, "active_weight": 0.04, "own_request_weight": 0.03}


def staged(**given: float | str) -> Stage:
    """Two workers, of which `a` holds four blocks of the prompt; a millisecond a token, weights of our own."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:4]))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings.parse({**SLOW, **WEIGHTS, **given}))
    return it


def decided(stage: Stage, name: str, asked: Prompt, **more: Any) -> RequestRouted:
    """A decision whose request has more inputs: what was learned, who is held, the session."""
    seat = stage.seat(R)
    request = RouteRequest(RequestId(name), 0, "tiny", asked, **more)
    decision = decide(seat.view, request, seat.settings, stage.clock.now_ms, 0)
    event = record(decision, request, seat.settings, seat.revision)
    stage.tell(event)
    return event


def explain_last(stage: Stage, tmp_path: Path, request: str = "r", *, whole: bool = True) -> AttemptExplanation:
    path = tmp_path / "log"
    path.unlink(missing_ok=True)
    with stage.recording(path) as recording:
        return explain(recording, request, whole=whole).attempts[-1]


def in_us(ms: float) -> int:
    return round(ms * 1000)


@pytest.mark.parametrize(
    "routing",
    [
        RoutingSettings(),
        RoutingSettings(hold_max_ms=0, own_weight_m=1700, active_weight_m=33),
        RoutingSettings(prefill_base_us=8000, prefill_us_per_token_m=20_500, own_request_weight_m=700),
        RoutingSettings(policy="session", session_wait_max_ms=50),
    ],
    ids=["held", "sent at once", "times as set", "session"],
)
def test_every_cost_is_the_sum_of_what_is_said(tmp_path: Path, routing: RoutingSettings) -> None:
    """Of a whole simulated run, folded and as recorded: term by term as the form has it, in whole microseconds."""
    arrivals = families(60, every_us=8_000 if routing.holds else 20_000)
    simulate(Options(workers=2, engine=ENGINE, routing=routing), arrivals, archive=tmp_path / "log")
    sources, held, pushing = set(), 0, 0
    with Recording.open(tmp_path / "log", KEY) as recording:
        for tried in recording.requests.between():
            folded, plain = (explain(recording, tried.request, whole=whole).attempts[-1] for whole in (True, False))
            assert (folded.estimates, folded.session, folded.hold) == (plain.estimates, plain.session, plain.hold)
            assert [row.timed for row in folded.candidates] == [row.timed for row in plain.candidates]
            assert folded.estimates is not None
            assert folded.estimates.exact
            sources.add(folded.estimates.source)
            held += sum(row.timed is not None and row.timed.held_ms > 0 for row in folded.candidates)
            pushing += any(row.turnover_cost > 0 for row in folded.candidates)
            for attempt in (folded, plain):
                check_costs(attempt)
    assert sources == ({"set"} if routing.prefill_us_per_token_m else {"default", "learned"})
    assert (held > 0) == routing.holds
    assert (pushing > 0) == (routing.policy == "time")


def check_costs(attempt: AttemptExplanation) -> None:
    """The formula of `Estimates`, by what the explanation itself says."""
    estimates = attempt.estimates
    assert estimates is not None
    for row in attempt.candidates:
        assert row.timed is not None
        wait_us = in_us(row.timed.outstanding_ms) + in_us(row.timed.held_ms)
        if attempt.policy == "session":
            assert in_us(row.cost) == max(0, wait_us - in_us(estimates.weights["session_wait_max_ms"]))
            continue
        assert row.timed.own_ms is not None
        own, decode, request = (
            round(1000 * estimates.weights[name]) for name in ("own_weight", "active_weight", "own_request_weight")
        )
        size, per_token_ns = attempt.block_size, round(estimates.per_token_us * 1000)
        own_us = in_us(estimates.base_ms) + per_token_ns * row.timed.tokens // 1000
        assert in_us(row.timed.own_ms) == own_us
        per_block_ns, blocks = decode * per_token_ns * size // 1000, row.timed.decode_tokens // size
        terms = (
            own * own_us // 1000, wait_us, per_block_ns * blocks // 1000,
            request * own_us * row.active_requests // 1000,
            round(64 * row.timed.turnover) * round(estimates.turnover_times) * own_us // 64,
        )  # fmt: skip
        parts = (row.prefill_cost, row.wait_cost, row.decode_cost, row.request_cost, row.turnover_cost)
        assert tuple(map(in_us, parts)) == terms
        assert sum(terms) == in_us(row.cost)


@pytest.mark.parametrize("whole", [True, False])
def test_loads_are_taken_apart(tmp_path: Path, *, whole: bool) -> None:
    """From the log, and from the record alone: the time of each tier, the load of a candidate, and a tier that is
    slower than computing, which counts nothing. A block is computed in 4 ms."""
    it = staged(delay_weight=0)
    it.say(KV, A, stored(HASHES[4], tier="host"), stored(HASHES[5], tier="disk"))
    for name, disk_m, blocks, load_ms in (("fast", 500_000, 6, 0.6), ("slow", 4_000_000, 5, 0.1)):
        decided(it, name, ASKED, load_time=LoadTime(100_000, disk_m, 0))
        attempt = explain_last(it, tmp_path, name, whole=whole)
        row = next(row for row in attempt.candidates if row.name == "a")
        assert row.timed is not None and attempt.estimates is not None
        assert (row.overlap_device, row.overlap) == (4, blocks)
        assert (row.load_cost, row.timed.load_ms, attempt.estimates.exact) == (load_ms, load_ms, True)
        costs = row.prefill_cost + row.wait_cost + row.decode_cost + row.request_cost + row.load_cost
        assert in_us(costs) == in_us(row.cost)
        tiers = [(tier.tier, tier.ms, tier.slow) for tier in attempt.estimates.loading]
        assert tiers == [("host", 0.1, False), ("disk", disk_m / 10**6, name == "slow")]
        with it.recording(tmp_path / f"again {name}") as recording:
            text = " ".join(render(explain_text(explain(recording, name, whole=whole))).split())
        late = ": slower than computing it, so none is counted or loaded" if name == "slow" else ""
        assert f"a block is loaded from the host in 0.1 ms, from the disk in {disk_m / 10**6:g} ms{late}" in text
        assert text.count("+ load") == 2  # in the formula, and over the column


@pytest.mark.parametrize("whole", [True, False])
def test_first_active_tokens_are_taken_apart(tmp_path: Path, *, whole: bool) -> None:
    """By the formula of `EstimateBasis`, from the log and from the record alone, with b below FIRST_ACTIVE_TOKENS and a
    above. A decision of version 6 and one without talks have no such term."""
    it, blocks = staged(), {"a": FIRST_ACTIVE_TOKENS // 4 + 50, "b": 3000}
    for worker, name in ((A, "a"), (B, "b")):
        it.tell(structs.replace(routed(f"in {name}", worker), blocks=blocks[name]), prefilled(f"in {name}"))
    it.route("alone", ASKED)
    it.tell(finished("alone"))
    it.say(LOAD, B, load(reuse_rate=3000))
    it.route("before", ASKED, version=FIRST_ACTIVE_VERSION - 1)
    it.tell(finished("before"))
    it.route("r", ASKED)
    costs = {}
    for name in ("alone", "before", "r"):
        attempt = explain_last(it, tmp_path, name, whole=whole)
        found = attempt.estimates
        assert found is not None and found.exact
        given = (FIRST_ACTIVE_TIMES, FIRST_ACTIVE_TOKENS) if name == "r" else (0, 0)
        assert (found.first_active_times, found.first_active_tokens) == given
        assert found.talks == (0 if name == "alone" else 31 / 64)
        for row in attempt.candidates:
            assert row.timed is not None and row.timed.decode_tokens == 4 * blocks[row.name]
            first = min(row.timed.decode_tokens, found.first_active_tokens)
            first_us = int(found.first_active_times * 40 * found.talks) * first
            assert in_us(row.decode_cost) == 40 * row.timed.decode_tokens + first_us
            terms = (row.prefill_cost, row.wait_cost, row.decode_cost, row.request_cost, row.reuse_cost, row.delay_cost)
            assert sum(map(in_us, terms)) == in_us(row.cost)
            costs[name, row.name] = row.cost
        with it.recording(tmp_path / f"again {name}") as recording:
            text = " ".join(render(explain_text(explain(recording, name, whole=whole))).split())
        times, tokens = f"{FIRST_ACTIVE_TIMES:g} times more", f"{FIRST_ACTIVE_TOKENS:,} tokens"
        said = f"in active blocks, {times} * 0.484375 for the first {tokens}"
        assert (said in text) == (name == "r")
    assert costs["before", "b"] < costs["r", "b"]


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_prompt_pushes_out_is_taken_apart(tmp_path: Path, *, whole: bool) -> None:
    """By the formula of `EstimateBasis`, from the log and from the record alone. A decision of version 7, and one
    before any worker had more turnover than the other, have no such term."""
    it = staged()
    for worker in (A, B):
        it.say(LOAD, worker, load(turnover=10))
    it.route("alike", ASKED)
    it.tell(finished("alike"))
    it.say(LOAD, A, load(turnover=26))
    it.route("before", ASKED, version=TURNOVER_VERSION - 1)
    it.tell(finished("before"))
    it.route("r", ASKED)
    costs = {}
    for name in ("alike", "before", "r"):
        attempt = explain_last(it, tmp_path, name, whole=whole)
        found = attempt.estimates
        assert found is not None and found.exact
        assert found.turnover_times == (TURNOVER_TIMES if name == "r" else 0)
        for row in attempt.candidates:
            assert row.timed is not None and row.timed.own_ms is not None
            share = 16 / 64 if (name, row.name) == ("r", "a") else 0
            assert row.timed.turnover == share
            assert in_us(row.turnover_cost) == int(found.turnover_times * share * in_us(row.timed.own_ms))
            terms = (row.prefill_cost, row.wait_cost, row.decode_cost, row.request_cost, row.turnover_cost)
            assert sum(map(in_us, terms)) == in_us(row.cost)
            costs[name, row.name] = row.cost
        with it.recording(tmp_path / f"again {name}") as recording:
            text = " ".join(render(explain_text(explain(recording, name, whole=whole))).split())
        said = f"+ {TURNOVER_TIMES} * prefill * how much more of the cache prompts filled of late than elsewhere"
        assert (said in text, "+ pushed out" in text) == (name == "r", name == "r")
    assert costs["before", "a"] < costs["r", "a"]
    assert costs["before", "b"] == costs["r", "b"]


def test_less_turnover_is_a_reason(tmp_path: Path) -> None:
    """The explanation says by how much the chosen worker pushes out less."""
    it = staged(own_weight=1)
    it.say(LOAD, A, load(turnover=64))
    assert it.route("r", ASKED).worker == B
    attempt = explain_last(it, tmp_path)
    row = next(row for row in attempt.candidates if row.name == "a")
    assert row.turnover_cost > 0
    assert "pushes out less" in attempt.why


def test_what_was_learned_is_named(tmp_path: Path) -> None:
    """With base and price per token; before there is enough, that it is the default."""
    it = staged(prefill_us_per_token=0)
    decided(it, "before", ASKED)
    decided(it, "r", ASKED, time=PrefillTime(2500, 1_234_000))
    attempt = explain_last(it, tmp_path)
    assert attempt.estimates is not None
    estimates = attempt.estimates
    assert (estimates.base_ms, estimates.per_token_us, estimates.source) == (2.5, 1234, "learned")
    before = explain_last(it, tmp_path, "before").estimates
    assert before is not None
    assert (before.base_ms, before.per_token_us, before.source) == (8, 20.5, "default")
    with it.recording(tmp_path / "again") as recording:
        page = render(explain_text(explain(recording, "r")))
    assert "2.5 ms and 1234 us per token that it computes, as this replica had learned" in page
    assert "own_weight 4 * prefill + wait + active_weight 0.04 * prefill of the tokens in active blocks" in page


@pytest.mark.parametrize("usual", [True, False])
def test_settings_that_the_log_does_not_have(tmp_path: Path, usual: bool) -> None:
    """If the defaults give the recorded costs they are shown as such; else nothing is taken apart, and that is said."""
    it = staged()
    settings = RoutingSettings() if usual else RoutingSettings(own_weight_m=RoutingSettings().own_weight_m + 1000)
    seat, asked = it.seat(R), RouteRequest(RequestId("r"), 0, "tiny", ASKED)
    it.tell(record(decide(seat.view, asked, settings, it.clock.now_ms, 0), asked, settings, revision=99))
    attempt = explain_last(it, tmp_path, whole=False)
    assert attempt.settings is None
    assert attempt.estimates is not None
    assert (attempt.estimates.exact, attempt.estimates.weights_known) == (usual, False)
    assert bool(attempt.estimates.weights) == usual
    for row in attempt.candidates:
        assert row.timed is not None
        assert (row.timed.own_ms is not None) == usual
        assert bool(row.prefill_cost) == usual
    with it.recording(tmp_path / "again") as recording:
        page = render(explain_text(explain(recording, "r", whole=False)))
    said = "these weights are the defaults" if usual else "weighed by settings that the log does not have"
    assert said in page


def test_who_was_held_and_behind_whom(tmp_path: Path) -> None:
    """What its worker computed meanwhile, who was held beside it and where they went; in words and as JSON."""
    it = staged()
    assert it.route("long", prompt(*range(1, 5), *range(50, 60))).worker == A
    it.clock.advance(5)
    for name in ("r", "later"):
        it.tell(RequestQueued(
            request=name, model="tiny", priority=0, tenant="", prompt_tokens=25, why=HELD, depth=0,
            now_ms=it.clock.now_ms,
        ))  # fmt: skip
    it.clock.advance(40)
    it.tell(RequestPrefilled(request="long", attempt=0, cached_tokens=16, ttft_ms=45))
    it.clock.advance(2)
    event = decided(it, "r", ASKED, held={WorkerId(A): 5250})
    assert event.worker == A
    it.clock.advance(11)
    assert decided(it, "later", ASKED).worker == A
    attempt = explain_last(it, tmp_path)
    assert attempt.hold is not None
    assert attempt.hold.held_ms == 42
    assert [(by.request, by.tokens, by.after_ms) for by in attempt.hold.by] == [("long", 41, 40)]
    (beside,) = attempt.hold.beside
    assert (beside.request, beside.name, beside.tokens, beside.after_ms) == ("later", "a", 25, 11)
    ours = next(row for row in attempt.candidates if row.chosen)
    assert ours.timed is not None
    assert (ours.timed.outstanding_ms, ours.timed.held_ms, ours.wait_cost) == (0, 5.25, 5.25)
    with it.recording(tmp_path / "again") as recording:
        found = explain(recording, "r")
    page = render(explain_text(found))
    assert "waited   42 ms, since" in page
    assert "meanwhile a was done with" in page
    assert "+40 ms long, of which it computed 41 tokens" in page
    assert "beside   held too when it was sent: later (25 tokens), which went to a 11 ms later" in page
    assert "+ held" in page
    assert max(map(len, page.splitlines())) < 200
    as_json = json.loads(msgspec.json.encode(found))["attempts"][0]
    assert as_json["hold"]["by"] == [{"request": "long", "tokens": 41, "after_ms": 40}]
    assert as_json["estimates"]["weights"] == WEIGHTS
    assert explain_last(it, tmp_path, "long").hold is None


def test_a_wait_for_a_place_before_it_was_held_counts(tmp_path: Path) -> None:
    """The whole time in the router is told, and which part of it it was held; both come before the first token."""
    it = staged()
    for why in ("full", HELD):
        it.tell(RequestQueued(
            request="r", model="tiny", priority=0, tenant="", prompt_tokens=25, why=why, depth=0,
            now_ms=it.clock.now_ms,
        ))  # fmt: skip
        it.clock.advance(30)
    decided(it, "r", ASKED)
    it.clock.advance(5)
    it.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=65))
    attempt = explain_last(it, tmp_path)
    assert attempt.queued is not None
    assert (attempt.queued.why, attempt.queued.waited_ms) == ("full", 60)
    assert attempt.hold is not None
    assert (attempt.hold.held_ms, attempt.hold.by) == (30, [])
    assert attempt.phases is not None
    assert (attempt.phases.before_ms, attempt.phases.rest_ms) == (60, 5)
    with it.recording(tmp_path / "again") as recording:
        assert "for 30 ms of it held in the router; meanwhile a computed nothing" in render(
            explain_text(explain(recording, "r"))
        )


@pytest.mark.parametrize("named", [True, False])
def test_the_order_of_a_session(tmp_path: Path, named: bool) -> None:
    """By which key, which place in it the worker has, and who before it had too long to wait."""
    it = staged(policy="session", session_wait_max_ms=10)
    it.say(KV, C, joined("c"))
    names = {A: "a", B: "b", C: "c"}
    more = {"session": "5e55" * 4} if named else {}
    at_first = decided(it, "first", prompt(*range(1, 40)), **more).worker
    then = decided(it, "r", prompt(*range(1, 40), 99), **more).worker
    assert then != at_first
    attempt = explain_last(it, tmp_path)
    order = attempt.session
    assert order is not None
    assert (order.position, order.wait_max_ms, [each.name for each in order.passed]) == (2, 10, [names[at_first]])
    assert order.passed[0].wait_ms > 10
    event = next(e for e in events(it) if e.request == "r")
    if named:
        assert (order.of, order.key, order.blocks) == ("session", "5e55" * 4, 0)
    else:
        block = int.from_bytes(event.hashes[31 * 8 : 32 * 8], "little")
        assert (order.of, order.key, order.blocks) == ("prefix", f"{block:016x}", 32)
    whose = f"the session {order.key}" if named else f"prompts that begin so (32 blocks, hash {order.key})"
    assert attempt.why.startswith(f"{names[then]} is number 2 in the order of {whose}; before it, ")
    assert "beyond the bound of 10 ms (session_wait_max_ms)" in attempt.why
    first = explain_last(it, tmp_path, "first").session
    assert first is not None
    assert (first.position, first.passed) == (1, [])


def test_an_order_of_which_the_record_holds_a_part(tmp_path: Path) -> None:
    """Nobody says which place the worker has; but whole, yes."""
    it = staged(policy="session", candidates_recorded_max=1)
    decided(it, "r", ASKED)
    attempt = explain_last(it, tmp_path, whole=False)
    assert attempt.session is not None
    assert attempt.session.position is None
    assert "only candidate" in attempt.why or "is the first in the order of" in attempt.why
    whole = explain_last(it, tmp_path).session
    assert whole is not None
    assert whole.position == 1


def events(stage: Stage) -> list[RequestRouted]:
    messages = (frame.message for frame in stage.frames[ROUTING] if frame.message is not None)
    return [event for message in messages for event in message.events if isinstance(event, RequestRouted)]
