"""A simulated run: what its log says, and that the log proves it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from core.errors import CallerError
from core.events import (
    BlocksRemoved,
    BlocksStored,
    ReplicaJoined,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
)
from core.ids import StreamName
from core.keys import session_key
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY, KV, START_MS
from replay.simulate.simulation import SimulationResult, simulate
from replay.verify.verify import VerifyResult, verify
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

COUNT = 260
BY_KV = RoutingSettings(policy="kv")
ROOT = Path(__file__).resolve().parents[3]


def run(path: Path | None = None, **options: Any) -> SimulationResult:
    wanted = Options(**{"workers": 4, "engine": ENGINE, **options})
    return simulate(wanted, families(COUNT), archive=path)


def verified(path: Path) -> VerifyResult:
    with Recording.open(path, KEY) as recording:
        return verify(recording)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with one replica that does not lag."""
    path = tmp_path_factory.mktemp("simulated") / "log"
    run(path)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replicas": 3, "replica_lags_ms": (0, 40, 700)},
        {"replicas": 2, "lag_ms": 50, "failures_per_hour": 3000},
        {"routing": RoutingSettings(temperature_m=500), "concurrency": 20},
        {"routing": RoutingSettings(hold_max_ms=0), "replicas": 2, "lag_ms": 40},
        {"routing": BY_KV, "replicas": 2, "lag_ms": 50, "failures_per_hour": 3000},
    ],
    ids=["one replica", "three that lag", "workers that fail", "closed loop", "two that send at once", "by kv"],
)
def test_the_log_proves_every_decision(tmp_path: Path, options: dict[str, Any]) -> None:
    """No chain has a gap, every decision comes out again bit for bit, and so does every fold that a replica told."""
    path = tmp_path / "log"
    found = run(path, **options)

    proved = verified(path)
    assert proved.holds
    assert proved.proof.holds
    assert proved.gaps == []
    attempts = sum(each.attempts + each.declined for each in found.served)
    assert proved.verified == proved.decisions == attempts - proved.refusals.verified
    assert not proved.not_judged
    assert proved.folds.compared > 0 or "concurrency" in options  # which is over before anybody tells its folds


@pytest.mark.parametrize("policy", ["time", "random"])
def test_a_run_comes_out_alike_again(tmp_path: Path, policy: str) -> None:
    """Results, decisions and log, byte for byte. Another seed draws otherwise."""
    options: dict[str, Any] = {
        "replicas": 3,
        "lag_ms": 20,
        "failures_per_hour": 3000,
        "routing": RoutingSettings(policy=policy),
    }
    first, second = run(tmp_path / "first", **options), run(tmp_path / "second", **options)

    assert first == second
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    other = run(**options, seed=1)
    assert (other.digest, other.served) != (first.digest, first.served)


def test_a_run_comes_out_alike_in_another_process() -> None:
    """Where sets and dictionaries of texts have another order."""
    program = (
        "from tests.replay.simulate.test_simulation import run; "
        "print(run(replicas=3, lag_ms=20, failures_per_hour=3000).digest)"
    )
    order = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": order},
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.strip() == run(replicas=3, lag_ms=20, failures_per_hour=3000).digest


def test_results_are_those_of_the_log(log: Path) -> None:
    """What is returned of a request is what its events say, to the millisecond; written down or not."""
    found, events = run(), said(log, ROUTING)
    routed = {event.request: event for _, _, event in events if isinstance(event, RequestRouted)}
    first = {event.request: event for _, _, event in events if isinstance(event, RequestPrefilled)}
    ended = {event.request: event for _, _, event in events if isinstance(event, RequestFinished)}

    assert [each.id for each in found.served] == [each.id for each in families(COUNT)]
    for each, arrival in zip(found.served, families(COUNT), strict=True):
        choice, prefilled, end = routed[each.id], first[each.id], ended[each.id]
        assert each.routed_us >= each.arrival_us == arrival.at_us
        assert choice.now_ms - START_MS == each.routed_us // 1000
        assert (choice.predicted_cached_tokens, choice.prompt_tokens) == (each.predicted_tokens, arrival.prompt_tokens)
        assert (prefilled.cached_tokens, end.cached_tokens) == (each.cached_tokens,) * 2
        assert prefilled.ttft_ms == end.ttft_ms == (each.first_us - each.arrival_us) // 1000
        assert end.duration_ms == (each.end_us - each.arrival_us) // 1000
        assert end.outcome == "length"
        assert each.output_tokens == end.output_tokens == arrival.output_tokens
    assert len({each.worker for each in found.served}) == 4
    assert sum(each.cached_tokens for each in found.served) > 0


def test_the_log_has_what_caches_hold(log: Path) -> None:
    """Nothing is removed that was not stored, and a full cache does lose blocks."""
    held: dict[str, Counter[bytes]] = {}
    removed = 0
    for _, owner, event in said(log, KV):
        if isinstance(event, BlocksStored | BlocksRemoved):
            hashes = [event.hashes[at : at + 8] for at in range(0, len(event.hashes), 8)]
            blocks = held.setdefault(owner, Counter())
            (blocks.update if isinstance(event, BlocksStored) else blocks.subtract)(hashes)
            removed += isinstance(event, BlocksRemoved)
            assert set(blocks.values()) <= {0, 1}
            assert blocks.total() <= ENGINE.capacity_blocks
    assert len(held) == 4
    assert removed > 10


def test_loads_are_told_on_change_and_now_and_then(tmp_path: Path) -> None:
    """Each worker speaks every 2 s at least and 4 times a second at most; the chain of its kv stream is in it."""
    arrivals = families(COUNT)
    late = [
        each._replace(at_us=each.at_us + (30_000_000 if place >= 200 else 0)) for place, each in enumerate(arrivals)
    ]
    simulate(Options(workers=4, engine=ENGINE), late, archive=tmp_path / "log")

    times: dict[str, list[int]] = {}
    for at_ms, owner, _ in said(tmp_path / "log", LOAD):
        times.setdefault(owner, []).append(at_ms)
    assert len(times) == 4
    for each in times.values():
        between = [late - early for early, late in pairwise(each)]
        assert (min(between), max(between)) == (250, 2000)


def test_a_replica_decides_on_what_it_has_read(tmp_path: Path) -> None:
    """Of every stream all that was written when its lag began, and nothing later: of the others' decisions too."""
    lags_ms = (0, 40, 700)
    run(tmp_path / "log", replicas=3, replica_lags_ms=lags_ms)
    with Recording.open(tmp_path / "log", KEY) as recording:
        written = {stream: [frame.time_ms for frame in recording.frames(stream)] for stream in recording.streams}
    told = said(tmp_path / "log", ROUTING)
    names = {owner: event.name for _, owner, event in told if isinstance(event, ReplicaJoined)}
    lag_ms = {owner: lags_ms[int(name.removeprefix("replica-"))] for owner, name in names.items()}

    decided = [(owner, event) for _, owner, event in told if isinstance(event, RequestRouted)]
    for owner, event in decided:
        read_ms = event.now_ms - lag_ms[owner]
        for stream, (_, seq) in event.cursor.items():
            times = written[StreamName(stream)]
            assert seq == 0 or times[seq - 1] <= max(read_ms, START_MS)
            assert seq == len(times) or times[seq] >= read_ms
    last = {lag_ms[owner]: event.cursor[ROUTING][1] for owner, event in decided}
    assert last[700] < min(last[0], last[40])


def test_a_replica_knows_its_own_decisions_at_once() -> None:
    """However far it is behind the log: requests that come together go to different workers. Two replicas that do not
    hear of each other send two to some."""
    asked = families(8, every_us=0)
    settings = RoutingSettings(policy="least-loaded")

    def per_worker(replicas: int) -> list[int]:
        wanted = Options(workers=8, engine=ENGINE, routing=settings, replicas=replicas, lag_ms=60_000)
        return sorted(Counter(each.worker for each in simulate(wanted, asked).served).values())

    assert per_worker(1) == [1] * 8
    assert max(per_worker(2)) == 2


def test_sessions_of_different_tenants_are_different_ones(tmp_path: Path) -> None:
    """Though they have one name; no name is no session. As a real front end has it."""
    three = [("a", "chat"), ("b", "chat"), ("b", "")]
    asked = [each._replace(tenant=t, session=s) for each, (t, s) in zip(families(6), three * 2, strict=True)]
    simulate(Options(workers=2, engine=ENGINE), asked, archive=tmp_path / "log")
    keys = [event.session for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestRouted)]

    assert keys[:3] == [session_key("a/chat", KEY.hash_seed), session_key("b/chat", KEY.hash_seed), ""]
    assert keys[3:] == keys[:3]


def test_requests_can_be_explained(log: Path) -> None:
    """As those of any log: the decision comes out again, with what every worker would have cost."""
    with Recording.open(log, KEY) as recording:
        found = explain(recording, f"request-{COUNT - 1}", whole=True)

    (attempt,) = found.attempts
    assert attempt.again == "same"
    assert len(attempt.candidates) == 4


def test_replicas_learn_how_long_prefills_last(tmp_path: Path) -> None:
    """From first tokens alone, and decide by it: some 50 us a token, as ENGINE has it, and the wait for a pass."""
    run(tmp_path / "log")
    routed = [event for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestRouted)]

    assert routed[0].prefill_time == ()
    base_us, per_token_m = routed[-1].prefill_time
    assert 0 <= base_us < 10_000
    assert 40_000 < per_token_m < 60_000


def test_closed_loop(tmp_path: Path) -> None:
    """So many requests are under way from the start to the last arrival, and never more; their times do not count."""
    found = run(concurrency=7).served

    moments = sorted({each.arrival_us for each in found})
    under_way = [sum(each.arrival_us <= at_us < each.end_us for each in found) for at_us in moments]
    assert set(under_way) == {7}
    assert max(moments) < families(COUNT)[-1].at_us


def test_progress_is_told() -> None:
    """From nothing to all; the last word says that all is done."""
    told: list[tuple[int, int]] = []
    simulate(Options(workers=2, engine=ENGINE), families(230), progress=lambda done, of: told.append((done, of)))

    assert told == [(0, 230), (100, 230), (200, 230), (230, 230)]


def test_what_no_engine_can_serve_fails(tmp_path: Path) -> None:
    """The log says so, and the rest goes on."""
    asked = families(3)
    asked[1] = asked[1]._replace(output_tokens=100_000)
    few = replace(ENGINE, context_max=1 << 20)
    found = simulate(Options(engine=few), asked, archive=tmp_path / "log").served

    assert [(each.first_us < 0, each.worker < 0, each.attempts) for each in found] == [
        (place == 1, place == 1, 1) for place in range(3)
    ]
    ends = [event for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestFinished)]
    assert {event.request: event.detail for event in ends if event.outcome == "error"} == {
        asked[1].id: "the engine refused the request"
    }


def test_nothing_to_simulate() -> None:
    """Is nothing simulated."""
    assert simulate(Options(), []).served == []


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """One sentence, and no half of a log."""
    with pytest.raises(CallerError, match="two requests of the trace have the same id"):
        simulate(Options(engine=ENGINE), families(2) + families(1), archive=tmp_path / "log")
    for wrong in ({"hashes": b"12345678"}, {"prompt_tokens": 0, "hashes": b""}, {"output_tokens": 0}):
        with pytest.raises(CallerError, match="request-0: a prompt of "):
            simulate(Options(engine=ENGINE), [families(1)[0]._replace(**wrong)])
    with pytest.raises(CallerError, match="cannot be written"):
        simulate(Options(engine=ENGINE), families(2), archive=tmp_path / "nowhere" / "log")
    with pytest.raises(KeyboardInterrupt):
        simulate(Options(engine=ENGINE), families(2), progress=interrupt, archive=tmp_path / "log")

    assert list(tmp_path.iterdir()) == []


def interrupt(done: int, _of: int) -> None:
    if done:
        raise KeyboardInterrupt
