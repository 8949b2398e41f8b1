"""Simulated runs as records: what is run again is what was run, and what others would have made of it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.engines.simulated.simulated_settings import SimulatedSettings, mocker_settings
from core.errors import CallerError
from core.events import ReplicaLeft
from core.ids import RequestId
from core.settings import RoutingSettings
from core.subjects import LOAD
from replay.closed_loop.closed_loop import ClosedLoopOptions, ClosedLoopResult, Rerun, closed_loop, rank_reruns
from replay.recording.recording import Recording
from replay.simulate.options import Options, WorkerLife
from replay.simulate.report import report
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival, FollowUp
from replay.whatif.scenario import Scenario
from tests.projections.facts import finished, joined, load, prompt, routed
from tests.replay.simulate.families import BLOCK_SIZE, families
from tests.replay.staged import KV, A, R, S, Stage

ENGINE = SimulatedSettings(
    block_size=BLOCK_SIZE,
    capacity_blocks=200,
    context_max=4096,
    max_seqs=16,
    eos_every=0,
    prefill_us_per_token=101.5,
    prefill_us_per_pass=3000,
    decode_us_per_step=4000,
    decode_us_per_context_token=0.5,
)
BAD = RoutingSettings.parse({"policy": "random"})
GOOD = {"policy": "kv", "prefill_weight": 4.0}
OPTIONS = Options(workers=4, engine=ENGINE, routing=BAD)
GIVEN = {"max_seqs": 16}


def recorded(path: Path, options: Options = OPTIONS, arrivals: list[Arrival] | None = None, **given: Any) -> Path:
    simulate(options, arrivals or families(200), archive=path, **given)
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """Two hundred requests at random, one every 20 ms."""
    with Recording.open(recorded(tmp_path_factory.mktemp("loop") / "log")) as recording:
        yield recording


def asked(recording: Recording, *scenarios: dict[str, Any], **options: Any) -> ClosedLoopResult:
    wanted = ClosedLoopOptions(engine=options.pop("engine", GIVEN), **options)
    return closed_loop(recording, [Scenario.parse(each) for each in scenarios], wanted)


def test_the_record_itself_is_run_again(log: Recording) -> None:
    """The fitted engine is the one that was there, so times come out as they were, within a few in a hundred."""
    it = asked(log)
    engine = it.basis.engine
    assert engine["prefill_us_per_token"] == pytest.approx(101.5, rel=0.05)
    assert engine["prefill_us_per_pass"] == pytest.approx(3000, abs=1000)
    assert engine["decode_us_per_step"] == pytest.approx(4000, rel=0.1)
    assert (engine["capacity_blocks"], engine["block_size"]) == (200, BLOCK_SIZE)
    assert it.baseline.report.ttft_ms.mean == pytest.approx(it.recorded.ttft_ms.mean, rel=0.04)
    assert it.baseline.report.e2e_ms.mean == pytest.approx(it.recorded.e2e_ms.mean, rel=0.04)
    assert it.off.ttft == pytest.approx(it.baseline.report.ttft_ms.mean / it.recorded.ttft_ms.mean - 1)
    assert it.basis.requests == it.recorded.requests == it.baseline.report.requests == 200
    assert (it.best, it.outcomes, it.basis.policies) == (None, [], {"random": 200})


def test_the_record_is_shown_as_it_was(tmp_path: Path) -> None:
    """By the same measures as a simulation's own report, to the millisecond that records have."""
    found = simulate(OPTIONS, families(100), archive=tmp_path / "log")
    own = report(found.served, OPTIONS.workers)
    with Recording.open(tmp_path / "log") as recording:
        it = asked(recording).recorded
    assert it.hit_rate == own.hit_rate
    assert it.predicted_hit_rate == own.predicted_hit_rate
    assert it.ttft_ms.mean == pytest.approx(own.ttft_ms.mean, abs=1)
    assert it.e2e_ms.p99 == pytest.approx(own.e2e_ms.p99, abs=1)
    assert it.load_spread == own.load_spread
    assert it.output_tokens_per_s == pytest.approx(own.output_tokens_per_s, rel=0.001)


def test_what_other_settings_make_of_it(log: Recording) -> None:
    """As a run under them does: here the very same arrivals can be run for comparison."""
    it = asked(log, {"policy": "round-robin"}, GOOD, open_arrivals=True)
    options = dataclasses.replace(OPTIONS, routing=RoutingSettings.parse(GOOD))
    real = report(simulate(options, families(200)).served, OPTIONS.workers)
    assert it.best is not None
    assert it.best.scenario.settings == GOOD
    assert it.best.report.hit_rate == pytest.approx(real.hit_rate, rel=0.05)
    assert it.best.report.ttft_ms.mean == pytest.approx(real.ttft_ms.mean, rel=0.1)
    assert it.best.report.hit_rate > it.baseline.report.hit_rate + 0.02
    assert [each.label for each in it.outcomes] == ["policy kv prefill_weight 4", "policy round-robin"]


def test_caches_of_a_size_that_was_given(log: Recording) -> None:
    """All workers have it, whatever they had."""
    small, large = (asked(log, engine={**GIVEN, "capacity_blocks": blocks}) for blocks in (20, 4000))
    assert (small.basis.engine["capacity_blocks"], large.basis.engine["capacity_blocks"]) == (20, 4000)
    found = [each.baseline.report.hit_rate for each in (small, asked(log), large)]
    assert found == sorted(set(found))


def test_the_best_is_better(log: Recording) -> None:
    """Whoever has fewer failures stands first, and is no better if first tokens come later; then another may be."""
    it = asked(log, {"policy": "round-robin"})
    (other,) = it.outcomes

    def row(label: str, failed: int, mean_ms: float) -> Rerun:
        found = msgspec.structs.replace(
            other.report, failed=failed, ttft_ms=msgspec.structs.replace(other.report.ttft_ms, mean=mean_ms)
        )
        return msgspec.structs.replace(other, scenario=Scenario.parse({"policy": label}), report=found)

    was = row("kv", 5, 1000)
    rows = rank_reruns([row("random", 5, 200), row("time", 4, 1100), row("least-loaded", 6, 100)])
    best = msgspec.structs.replace(it, baseline=was, outcomes=rows).best
    assert best is not None
    assert best.label == "policy random"
    assert msgspec.structs.replace(it, baseline=was, outcomes=rows[:1]).best is None


def test_front_ends_that_were_started_again_are_one(tmp_path: Path) -> None:
    """It is run with as many as there were at once; the record's own ids stay apart."""
    it = Stage()
    it.say(KV, A, joined("left"))
    for number, replica in enumerate((R, S)):
        it.replica(replica, "front")
        it.tell(routed(f"r{number}", A, prompt(1), now_ms=it.clock.now_ms), replica=replica)
        it.tell(msgspec.structs.replace(finished(f"r{number}"), output_tokens=2, ttft_ms=10), replica=replica)
        it.tell(ReplicaLeft(reason="restarted"), replica=replica)
    with it.recording(tmp_path / "log") as recording:
        found = asked(recording, engine={"prefill_us_per_token": 70})
    assert found.basis.replicas == 1


def test_equal_questions_have_equal_answers(log: Recording) -> None:
    first, second = (asked(log, GOOD, seed=3) for _ in range(2))
    assert first.outcomes[0].report.digest == second.outcomes[0].report.digest
    assert first.basis == second.basis
    assert first.speeds == second.speeds
    assert asked(log, GOOD, seed=3, jobs=2).outcomes[0].report.digest == first.outcomes[0].report.digest
    assert asked(log, seed=4).baseline.report.digest != first.baseline.report.digest


def test_what_came_before_is_run_and_not_counted(log: Recording) -> None:
    """Caches are full when the range begins; what comes after its end is not run at all."""
    start, end = (log.routed(RequestId(f"request-{number}")) for number in (120, 160))
    it = asked(log, start=start, end=end)
    assert it.basis.warm_up + it.basis.requests == 160
    assert it.basis.requests == pytest.approx(40, abs=2)  # a message may hold several decisions
    assert it.recorded.requests == it.baseline.report.requests == it.basis.requests
    with pytest.raises(CallerError, match="none came there and ended"):
        asked(log, start=10**9)


def test_dynamos_engine_is_fitted_too(tmp_path: Path) -> None:
    """Its times are no straight lines."""
    options = dataclasses.replace(OPTIONS, engine=mocker_settings(BLOCK_SIZE, 200))
    with Recording.open(recorded(tmp_path / "log", options, families(200, every_us=60_000))) as recording:
        it = asked(recording, engine={"max_seqs": 256})
    assert abs(it.off.ttft) < 0.05
    assert abs(it.off.e2e) < 0.05


def test_who_waited_for_an_answer_waits_again(tmp_path: Path) -> None:
    """With engines ten times as slow, turns come later: as long after the answer as they did. Asked for open arrivals
    they come when they came, and pile up."""
    arrivals = [each for turn in range(4) for each in _turn(turn)]
    follows = {
        each.id: FollowUp(RequestId(each.id[:-1] + str(int(each.id[-1]) - 1)), 50_000)
        for each in arrivals
        if each.id[-1] != "0"
    }
    with Recording.open(recorded(tmp_path / "log", OPTIONS, arrivals, follows=follows)) as recording:
        slow = {**GIVEN, "prefill_us_per_token": 1015.0, "decode_us_per_step": 40_000}
        closed, opened = (asked(recording, engine=slow, open_arrivals=open_) for open_ in (False, True))
    assert (closed.basis.follow, opened.basis.follow) == (60, 0)
    assert closed.recorded.duration_s < opened.baseline.report.duration_s < closed.baseline.report.duration_s
    assert closed.baseline.report.ttft_ms.mean < opened.baseline.report.ttft_ms.mean


def _turn(turn: int) -> list[Arrival]:
    """Twenty talks; each turn's prompt is that of the one before and eight blocks more."""
    found = []
    for each in families(20, every_us=7_000):
        number = int(each.id.rpartition("-")[2])
        own = b"".join((number * 1000 + block + 1).to_bytes(8, "little") for block in range(8 * turn + 8))
        found.append(Arrival(RequestId(f"talk-{number}-{turn}"), each.at_us, len(own) * BLOCK_SIZE // 8 + 5, own, 8))
    return found


def test_a_worker_that_was_lost_is_lost_again(tmp_path: Path) -> None:
    """At its time: what it had goes on elsewhere; another of its name comes when it came."""
    stays = (
        WorkerLife(0), WorkerLife(1), WorkerLife(2), WorkerLife(3, 0, 2_000_000, 2_500_000), WorkerLife(3, 4_000_000),
    )  # fmt: skip
    options = dataclasses.replace(OPTIONS, stays=stays)
    with Recording.open(recorded(tmp_path / "log", options)) as recording:
        it = asked(recording, {"without": "worker-3"})
    assert (it.basis.lost, it.recorded.migrated > 0, it.recorded.failed) == (1, True, 0)
    assert it.basis.workers == ("worker-0", "worker-1", "worker-2", "worker-3")
    assert it.baseline.report.migrated > 0
    (without,) = it.outcomes
    assert (without.report.migrated, len(without.report.load_spread.requests.per_worker)) == (0, 3)


def test_settings_that_changed_are_told(tmp_path: Path) -> None:
    """What most decisions were made by is the baseline; how many were made by others is said."""
    it = Stage()
    it.say(KV, A, joined("left"))
    it.say(LOAD, A, load())
    it.replica(R, settings=RoutingSettings(policy="round-robin"))
    for number in range(5):
        if number == 3:
            it.settings(RoutingSettings(policy="least-loaded"))
        it.route(f"r{number}", prompt(1, number))
        it.clock.advance(50)
        it.tell(msgspec.structs.replace(finished(f"r{number}"), output_tokens=2, ttft_ms=10, duration_ms=30))
    with it.recording(tmp_path / "log") as recording:
        found = asked(recording, engine={"prefill_us_per_token": 70})
    assert (found.basis.settings["policy"], found.basis.other_settings) == ("round-robin", 2)
    assert found.basis.policies == {"least-loaded": 2, "round-robin": 3}


def test_what_cannot_be_asked(log: Recording, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="the record has blocks of 32 tokens"):
        asked(log, engine={"block_size": 64})
    with pytest.raises(CallerError, match="no worker 'nobody'"):
        asked(log, {"without": "nobody"})
    with Recording.open(recorded(tmp_path / "log", arrivals=families(5))) as recording:
        with pytest.raises(CallerError, match=r"fewer than 16 first tokens .* --engine prefill_us_per_token=N"):
            asked(recording)
        with pytest.raises(CallerError, match=r"fewer than 16 first tokens"):
            asked(recording, engine={"timing": "linear"})
        assert asked(recording, engine={"prefill_us_per_token": 70}).basis.requests == 5
        assert asked(recording, engine={"timing": "mocker"}).basis.requests == 5


def test_progress_is_told_over_all_runs(log: Recording) -> None:
    heard: list[tuple[int, int]] = []
    wanted = ClosedLoopOptions(engine=GIVEN)
    closed_loop(log, [Scenario.parse(GOOD), Scenario()], wanted, lambda done, of: heard.append((done, of)))
    assert heard[0] == (0, 400)  # the second scenario is the baseline
    assert heard[-1] == (400, 400)
    assert heard == sorted(heard)
