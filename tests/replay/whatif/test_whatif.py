"""What-if by hand: choices, regret and loads of scenarios over a log in which every number is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from core.errors import CallerError
from core.events import BlocksStored, RequestPrefilled, WorkerLeft
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import LOAD
from replay.recording.recording import Recording
from replay.whatif.outcome import Outcome, evenness, ranked
from replay.whatif.scenario import SCENARIOS_MAX, Scenario, scenarios
from replay.whatif.whatif import what_if
from streams.archive.archive_writer import ArchiveWriter
from tests.projections.facts import finished, joined, load, prompt, worker_id
from tests.replay.staged import KEY, KV, A, B, C, R, Stage

D = worker_id(4)
KV_ONLY = {"policy": "kv", "decode_weight": 0}
"""Wherever most is cached, whatever else goes on there."""


def stage(settings: RoutingSettings, *workers: str) -> Stage:
    """Workers called a, b, …, and a replica that decides under these settings."""
    it = Stage()
    for number, worker in enumerate(workers):
        it.say(KV, worker, joined(chr(ord("a") + number)))
        it.say(LOAD, worker, load())
    it.replica(R, settings=settings)
    return it


def holds(it: Stage, worker: str, asked: Prompt) -> None:
    """The worker has all full blocks of the prompt."""
    it.say(KV, worker, BlocksStored(hashes=asked.hashes()))


def asked_of(it: Stage, path: Path, *scenarios: dict[str, object], **options: int) -> list[Outcome]:
    with it.recording(path / "log") as recording:
        return what_if(recording, [Scenario.parse(each) for each in scenarios], **options)  # type: ignore[arg-type]


def choices(outcome: Outcome, recorded: list[str]) -> list[str]:
    """Where every request goes, in order."""
    changed = {change.request: change.new_worker for change in outcome.changes}
    return [changed.get(f"r{number}", worker) for number, worker in enumerate(recorded)]


def named(wanted: Callable[[str], bool]) -> str:
    """A request id of which that is true."""
    return next(name for name in (f"x{number}" for number in range(100)) if wanted(name))


def test_regret_is_what_need_not_have_been_computed(tmp_path: Path) -> None:
    """Round-robin sent r1 to b, though a had its five blocks: five blocks of regret, and both hit rates by hand."""
    it = stage(RoutingSettings(policy="round-robin"), A, B)
    long, short = prompt(1, 2, 3, 4, 5), prompt(8)
    holds(it, A, long)
    recorded = [it.route("r0", short).worker, it.route("r1", long).worker]
    assert recorded == [A, B]
    (kv,) = asked_of(it, tmp_path, KV_ONLY)

    assert (kv.decisions, kv.regret_blocks) == (2, 5)
    change = next(change for change in kv.changes if change.request == "r1")
    assert (change.recorded_worker, change.new_worker, change.regret_blocks, change.attempt) == (B, A, 5, 0)
    assert kv.hit_rate_recorded == 0
    assert kv.hit_rate_new == 20 / (21 + 5)
    assert kv.requests_recorded == {A: 1, B: 1}
    assert sum(kv.requests_new.values()) == 2
    assert kv.worst == [change]
    assert kv.losses == []
    assert kv.names == {A: "a", B: "b"}
    assert kv.policies == {"round-robin": 2}


def test_where_the_scenario_is_worse_is_told_too(tmp_path: Path) -> None:
    """The other way round: the record followed the cache, and round-robin would not have."""
    it = stage(RoutingSettings(policy="kv", decode_weight_m=0), A, B)
    long = prompt(1, 2, 3)
    holds(it, B, long)
    assert it.route("r0", long).worker == B
    (turns,) = asked_of(it, tmp_path, {"policy": "round-robin"})

    assert turns.regret_blocks == -3
    assert [loss.regret_blocks for loss in turns.losses] == [-3]
    assert turns.worst == []
    assert not turns.better


def test_turns_are_the_scenarios_own(tmp_path: Path) -> None:
    """Round-robin over a record that always chose a: its turns go by the replica's decisions, over who is there."""
    it = stage(RoutingSettings(policy="kv", decode_weight_m=0), A, B, C)
    long = prompt(1, 2, 3)
    holds(it, A, long)
    recorded = [it.route(f"r{number}", long).worker for number in range(6)]
    assert recorded == [A] * 6
    turns, fewer = asked_of(it, tmp_path, {"policy": "round-robin"}, {"policy": "round-robin", "without": "b"})

    assert choices(turns, recorded) == [A, B, C] * 2
    assert choices(fewer, recorded) == [A, C] * 3
    assert fewer.requests_new == {A: 3, B: 0, C: 3}
    assert fewer.spread_new.requests_cv == 0


def test_loads_stay_as_recorded(tmp_path: Path) -> None:
    """The record put r0 on a. The scenario puts it on b, and a stays the busier one when the next comes."""
    it = stage(RoutingSettings(policy="kv", decode_weight_m=0), A, B)
    long = prompt(1, 2, 3)
    holds(it, A, long)
    first = named(lambda name: it.decided(name, prompt(9)).worker == B)
    assert it.route(first, long).worker == A
    it.route("second", long)
    (outcome,) = asked_of(it, tmp_path, {"policy": "least-loaded"})

    assert {change.request: change.new_worker for change in outcome.changes} == {first: B, "second": B}
    assert outcome.requests_recorded == {A: 2, B: 0}
    assert outcome.requests_new == {A: 0, B: 2}


def test_blocks_under_way_are_waited_for_where_they_were_recorded(tmp_path: Path) -> None:
    """Blocks that a recorded request computes are pending on its worker, wherever the scenario puts the request."""
    it = stage(RoutingSettings(policy="round-robin"), A, B, C)
    long = prompt(1, 2, 3, 4, 5, 6)
    holds(it, B, prompt(1, 2, 3))
    recorded = [it.route("r0", long).worker, it.route("r1", long).worker, it.route("r2", long).worker]
    assert recorded == [A, B, C]
    (kv,) = asked_of(it, tmp_path, KV_ONLY)

    assert choices(kv, recorded)[:2] == [B, A]  # r1 waits for the six that r0 computes on a
    assert {change.request: change.regret_blocks for change in kv.changes} == {"r0": 3, "r1": 3, "r2": 6}


def test_event_lag_hides_what_came_late(tmp_path: Path) -> None:
    """A cache event of 100 ms ago counts for a decision that sees the log 50 ms late, and not 200 ms late; what the
    choice really finds there is judged by the log. The replica's own decision of a moment ago is never hidden."""
    it = stage(RoutingSettings(policy="kv"), A, B)
    it.clock.advance(1000)
    long = prompt(1, 2, 3, 4, 5)
    holds(it, B, long)
    it.clock.advance(100)
    recorded = [it.route("r0", long).worker, it.route("r1", prompt(7, 8, 9)).worker]
    assert recorded == [B, A]
    prompt_seen, late, never = asked_of(it, tmp_path, {"delay_ms": 50}, {"delay_ms": 200}, {"delay_ms": 2000})

    assert prompt_seen.changed == 0
    assert prompt_seen.regret_blocks == 0
    by_request = {change.request: change for change in late.changes}
    assert by_request["r0"].new_worker == A
    assert by_request["r0"].regret_blocks == -5
    assert choices(late, recorded) == [A, A]  # the weight of r0 stays on b
    assert never.refused == 2
    assert [change.new_worker for change in never.changes] == ["", ""]


def test_an_event_of_just_that_long_ago_is_seen(tmp_path: Path) -> None:
    it = stage(RoutingSettings(policy="kv"), A, B)
    it.clock.advance(1000)
    holds(it, B, prompt(1, 2, 3, 4, 5))
    it.clock.advance(100)
    assert it.route("r0", prompt(1, 2, 3, 4, 5)).worker == B
    just, later = asked_of(it, tmp_path, {"delay_ms": 100}, {"delay_ms": 101})

    assert (choices(just, [B]), choices(later, [B])) == ([B], [A])


def test_a_worker_can_be_left_out_by_name_or_id(tmp_path: Path) -> None:
    it = stage(RoutingSettings(policy="kv", decode_weight_m=0), A, B)
    holds(it, A, prompt(1, 2))
    it.route("r0", prompt(1, 2))
    name, one, both = asked_of(it, tmp_path, {"without": "a"}, {"without": [A]}, {"without": ["a", "b"]})

    assert name.changes == one.changes
    assert name.digest == one.digest
    assert name.regret_blocks == -2
    assert (both.refused, both.changed) == (1, 1)
    assert ranked([both, name])[0] is name
    with pytest.raises(CallerError, match=r"'decode-9'.*a, b"):
        asked_of(it, tmp_path, {"without": "decode-9"})


def test_loads_are_even_by_name_and_without_prefill_workers(tmp_path: Path) -> None:
    """A worker that was started again is the same worker, and one that computes prompts for others answers nobody."""
    it = stage(RoutingSettings(policy="round-robin"), A, B)
    it.say(KV, C, replace(joined("p"), role="prefill"))
    for number in range(4):
        it.route(f"r{number}", prompt(number))
    it.say(KV, A, WorkerLeft(reason="restart"))
    it.say(KV, D, joined("a"))
    for number in range(4, 8):
        it.route(f"r{number}", prompt(number))
    same, without_life, without_name = asked_of(it, tmp_path, {}, {"without": [A]}, {"without": "a"})

    assert same.requests_recorded == {A: 2, B: 4, D: 2}
    assert (same.spread_recorded.requests_cv, same.spread_recorded.requests_max_over_mean) == (0.0, 1.0)
    assert same.spread_new == same.spread_recorded
    assert without_life.requests_new == {A: 0, B: 6, D: 2}
    assert without_life.spread_new.requests_max_over_mean == 1.5  # of two workers, one of which came late
    assert without_name.spread_new.requests_max_over_mean == 1.0  # of the one that is left


def test_a_part_of_the_record_is_asked_about(tmp_path: Path) -> None:
    """Only decisions from `start` to `end`."""
    it = stage(RoutingSettings(policy="round-robin"), A, B)
    for number in range(6):
        it.route(f"r{number}", prompt(number))
    with it.recording(tmp_path / "log") as recording:
        third = recording.routed("r2")  # type: ignore[arg-type]
        (some,) = what_if(recording, [Scenario()], third, third + 2)
        (none,) = what_if(recording, [Scenario()], 10_000)

    assert (some.decisions, some.changed) == (2, 0)
    assert (none.decisions, none.hit_rate_new, none.changes) == (0, 0.0, [])


def without_first(it: Stage, path: Path, count: int) -> Recording:
    """The record without the first messages of its kv stream, and without a snapshot."""
    writer = ArchiveWriter(path, "test", KEY.chain_key, "contrail test", it.clock.now_ms)
    for stream, frames in it.frames.items():
        first = count + 1 if stream == KV else 1
        writer.open(stream, 1, first, first)  # type: ignore[arg-type]
        for stored in it._records:
            if stored.stream == stream and stored.seq >= first:
                writer.add(stored)
        writer.reached(stream, len(frames))
    writer.finish(writer.contents(0, it.clock.now_ms))
    return Recording.open(path, KEY)


def test_what_cannot_be_judged_is_counted(tmp_path: Path) -> None:
    """A record that lacks the start: what comes out as recorded all the same is judged; what does not, because a
    worker or what it held is not known, is left out by reason, and not taken for a changed choice."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"), BlocksStored(hashes=prompt(1, 2).hashes()))
    it.say(KV, B, joined("b"))
    it.say(KV, C, joined("c"))
    it.replica(R, settings=RoutingSettings(policy="kv", decode_weight_m=0))
    to_a = named(lambda name: it.decided(name, prompt(9)).worker == A)
    to_c = named(lambda name: it.decided(name, prompt(9)).worker == C)
    assert it.route(to_a, prompt(9)).worker == A
    assert it.route(to_c, prompt(8)).worker == C
    it.tell(finished(to_a), finished(to_c))
    assert it.route(to_c, prompt(1, 2)).worker == B
    with without_first(it, tmp_path / "cut", 2) as recording:
        (outcome,) = what_if(recording, [Scenario()])

    assert (outcome.decisions, outcome.changed) == (1, 0)
    assert sum(outcome.left_out.values()) == 2
    assert all("cut" in reason for reason in outcome.left_out)


def test_a_turn_that_nobody_takes_is_none(tmp_path: Path) -> None:
    """Requests for which no worker is left do not count as turns of round-robin, as refused ones never do."""
    it = stage(RoutingSettings(policy="kv"), A)
    it.clock.advance(1000)
    recorded = [it.route("r0", prompt(1)).worker]
    it.say(KV, B, joined("b"))
    it.say(KV, C, joined("c"))
    it.clock.advance(1000)
    recorded += [it.route(f"r{number}", prompt(number)).worker for number in range(1, 5)]
    turns, without, late = asked_of(
        it,
        tmp_path,
        {"policy": "round-robin"},
        {"policy": "round-robin", "without": "a"},
        {"policy": "round-robin", "delay_ms": 1500},
    )

    assert choices(turns, recorded) == [A, B, C, A, B]
    assert choices(without, recorded) == ["", B, C, B, C]
    assert choices(late, recorded) == ["", A, A, A, A]  # a itself was not known when r0 came, b and c never were
    assert [each.refused for each in (turns, without, late)] == [0, 1, 1]


def test_times_are_of_the_record(tmp_path: Path) -> None:
    """First tokens of the record give the price of a token, computed for the request or queued before it on the
    worker; regret in ms is by that price."""
    it = stage(RoutingSettings(policy="round-robin"), A, B)
    told: list[RequestPrefilled] = []
    for number in range(0, 160, 4):
        queued = {A: 0, B: 0}
        names = [f"r{number + nth}" for nth in range(4)]  # two on each worker
        for nth, name in enumerate(names):
            asked = prompt(*range(number * 100 + nth * 10, number * 100 + nth * 10 + 1 + (number // 4 + 3 * nth) % 7))
            worker = it.route(name, asked).worker
            ttft_ms = 3 + 4 * (asked.tokens + queued[worker])
            queued[worker] += asked.tokens
            told.append(RequestPrefilled(request=name, attempt=0, cached_tokens=0, ttft_ms=ttft_ms))
        it.tell(*told[-4:])
        it.tell(*map(finished, names))
    long = prompt(10001, 10002, 10003, 10004, 10005)
    holds(it, B, long)
    assert it.route("late", long).worker == A
    (kv,) = asked_of(it, tmp_path, KV_ONLY)

    fitted = kv.fitted["tiny"]
    assert (fitted.base_ms, fitted.per_token_ms) == (3, 4)
    assert fitted.samples == 160
    assert (fitted.explained, fitted.error_ms) == pytest.approx((1, 0))
    assert kv.worst[0].request == "late"
    assert kv.worst[0].regret_ms == pytest.approx(4 * 20)
    assert kv.ttft_recorded_ms - kv.ttft_new_ms == pytest.approx(kv.regret_ms / 161)


def test_scenarios_are_parsed() -> None:
    """Settings by their own keys or in one object; what cannot be is named."""
    parsed = Scenario.parse({"prefill_weight": 2, "settings": {"policy": "random"}, "without": "a", "delay_ms": 5})
    assert parsed == Scenario(settings={"policy": "random", "prefill_weight": 2}, without=("a",), delay_ms=5)
    assert parsed.set_text == "policy random prefill_weight 2"
    assert parsed.label == "policy random prefill_weight 2, without a, log 5 ms later"
    assert Scenario().label == "as recorded"
    wrong: list[dict[str, object]] = [
        {"weight": 1},
        {"policy": "best"},
        {"without": [1]},
        {"delay_ms": -1},
        {"settings": []},
        {"follow_load": True},
    ]
    for given in wrong:
        with pytest.raises(CallerError, match=next(iter(given))):
            Scenario.parse(given)


def test_scenarios_are_combined() -> None:
    """Every combination of sweeps, each try, all over the base, each once; not without bound."""
    found = scenarios({"policy": "kv"}, [{"policy": "random"}], {"prefill_weight": [1, 2], "decode_weight": [1, 2]})
    assert len(found) == 5
    assert found[0].settings == {"policy": "random"}
    assert found[-1].settings == {"policy": "kv", "prefill_weight": 2, "decode_weight": 2}
    assert scenarios({"policy": "kv"}, [], {}) == [Scenario(settings={"policy": "kv"})]
    assert len(scenarios({}, [{"policy": "kv"}, {"policy": "kv"}], {})) == 1
    with pytest.raises(CallerError, match="too many"):
        scenarios({}, [], {"prefill_weight": list(range(SCENARIOS_MAX + 1))})


def test_evenness_is_zero_for_equal_loads() -> None:
    assert evenness([5, 5, 5]) == (0.0, 1.0)
    assert evenness([0, 10]) == (1.0, 2.0)
    assert evenness([]) is None
    assert evenness([0, 0]) is None
