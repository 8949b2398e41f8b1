"""The policy `approximate` with engines that report their caches and with those that do not: the log proves it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.events import BlocksStored, RequestPrefilled, RequestRouted
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from replay.explain.explain import explain
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY, KV
from replay.simulate.simulation import SimulationResult, simulate
from replay.verify.verify import verify
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.actors import world as actors_world
from tests.actors.world import FAST, collect, request, world
from tests.projections.histories import believed
from tests.replay.recorded import archived
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

COUNT = 260
SILENT = replace(ENGINE, kv_events=False)
BELIEVING = RoutingSettings(policy="approximate")


def run(path: Path | None = None, **options: Any) -> SimulationResult:
    wanted = Options(**{"workers": 4, "engine": SILENT, "routing": BELIEVING, **options})
    return simulate(wanted, families(COUNT), archive=path)


def reused(found: SimulationResult) -> int:
    """Prompt tokens that engines took from their caches."""
    return sum(each.cached_tokens for each in found.served)


def expected(found: SimulationResult) -> int:
    """The same as decisions expected it."""
    return sum(each.predicted_tokens for each in found.served)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"engine": ENGINE, "replicas": 3, "replica_lags_ms": (0, 40, 700)},
        {"replicas": 2, "lag_ms": 50, "failures_per_hour": 3000},
        {"routing": RoutingSettings(policy="approximate", approximate_ttl_s=1, approximate_blocks_max=40)},
        {"routing": RoutingSettings(policy="approximate", temperature_m=300, approximate_ttl_s=0), "concurrency": 20},
    ],
    ids=["one replica", "three that lag", "workers that fail", "short and small", "closed loop"],
)
def test_the_log_proves_every_decision(tmp_path: Path, options: dict[str, Any]) -> None:
    """Each comes out again bit for bit, and so does every fold that a replica told; and something was believed."""
    path = tmp_path / "log"
    run(path, **options)
    with Recording.open(path, KEY) as recording:
        proved = verify(recording)
        assert (proved.holds, proved.not_judged, proved.gaps) == (True, {}, [])
        assert proved.folds.compared > 0 or "concurrency" in options
        events = [at.event for at in Playback(recording, gaps=Gaps())]
    assert proved.verified - proved.refusals.verified == len(events) >= COUNT
    assert sum(any(event.columns["overlap"]) for event in events) > COUNT // 2


def test_engines_need_not_report(tmp_path: Path) -> None:
    """Under `approximate` the same is reused whether they do; where they do not, `kv` expects nothing but what is
    computed at that moment."""
    silent, telling = run(tmp_path / "silent"), run(tmp_path / "telling", engine=ENGINE)
    assert silent.served == telling.served
    blind = run(routing=RoutingSettings(policy="kv"))
    assert reused(silent) > reused(blind)
    assert expected(silent) > 4 * expected(blind)
    assert not any(isinstance(each.event, BlocksStored) for each in said(tmp_path / "silent", KV))
    assert any(isinstance(each.event, BlocksStored) for each in said(tmp_path / "telling", KV))


def test_a_snapshot_taken_anywhere_goes_on_alike(tmp_path: Path) -> None:
    """What is believed, and in which order it goes, is in it; some of it had been pushed out."""
    run(tmp_path / "log", replicas=2, engine=replace(SILENT, capacity_blocks=60))
    seen = 0
    with Recording.open(tmp_path / "log", KEY) as recording:
        for number, situation in enumerate(Playback(recording, gaps=Gaps())):
            if number % 40 == 39:
                state: State = situation.view.state
                again = decode(KEY.chain_key, b"".join(encode(state)))
                assert again.digest == state.digest
                assert believed(again.routing) == believed(state.routing)
                parts = state.routing.believed.values()
                seen += sum(part.blocks for part in parts)
                assert all(len(kept.hashes) // 8 <= 60 for part in parts for kept in part.kept())
    assert seen


def test_explain_shows_what_was_believed(tmp_path: Path) -> None:
    """Per candidate, as its cached blocks; made again from the log they are those of the record."""
    run(tmp_path / "log")
    with Recording.open(tmp_path / "log", KEY) as recording:
        events = [at.event for at in Playback(recording, gaps=Gaps())]
        event = max(events, key=lambda each: each.columns["overlap"][0])
        (attempt,) = explain(recording, event.request).attempts
    assert attempt.again == "same"
    shown = [row.overlap_device for row in attempt.candidates]
    assert shown == list(event.columns["overlap"])
    assert shown[0] > 0
    for row in attempt.candidates:
        assert row.prefill_cost + row.decode_cost + row.request_cost == pytest.approx(row.cost)
    assert attempt.runner_up is not None
    assert attempt.runner_up.needs


@pytest.mark.parametrize("engine", [SILENT, ENGINE], ids=["silent", "telling"])
def test_what_if_weighs_what_is_known_of_caches(tmp_path: Path, engine: SimulatedSettings) -> None:
    """By what engines report, or by what the record's decisions had where they do not; the recorded settings change
    nothing, others do."""
    run(tmp_path / "log", replicas=2, lag_ms=20, engine=engine)
    with Recording.open(tmp_path / "log", KEY) as recording:
        same, other = what_if(recording, [Scenario(), Scenario.parse({"decode_weight": 0.2})])
    assert (same.changed, same.regret_blocks, same.astray) == (0, 0, 0)
    assert other.changed > 0
    assert 0 < same.hit_rate_recorded == pytest.approx(same.hit_rate_real, rel=0.05)


async def test_real_routers_decisions_come_out_again(tmp_path: Path) -> None:
    """Two replicas over workers of which one tells its cache: who asks on is sent where its prompt was computed, and
    the engine has what was believed."""
    async with world() as it:
        for name, engine in (("a", replace(FAST, kv_events=False)), ("b", replace(FAST, kv_events=False)), ("c", FAST)):
            await it.worker(name, settings=engine)
        routers = [await it.router(f"frontend-{at}", BELIEVING) for at in range(2)]
        for router in routers:
            await it.ready(router, 3)
        for client in range(6):
            for turn in range(3):
                start = 1000 * client
                wanted = request(range(start, start + 70 + 32 * turn), max_tokens=3, id=f"talk-{client}-{turn}")
                await collect(routers[client % 2], wanted)
        asked = [request(range(number % 5 * 100, number % 5 * 100 + 90), max_tokens=3) for number in range(30)]
        await asyncio.gather(*(collect(routers[at % 2], each) for at, each in enumerate(asked)))
        for router in routers:
            await it.settled(router)
        routed = await it.told(ROUTING, RequestRouted)
        first = {event.request: event.cached_tokens for event in await it.told(ROUTING, RequestPrefilled)}
        told = [it.workers[name].mirror for name in "ab"]
        assert [mirror.reported for mirror in told if mirror is not None] == [0, 0]
        path = await archived(it.log, actors_world.NAMESPACE, actors_world.KEY, tmp_path / "log")
    by_id = {event.request: event for event in routed}
    for client in range(6):
        talk = [by_id[f"talk-{client}-{turn}"] for turn in range(3)]
        assert len({event.worker for event in talk}) == 1
        assert [event.predicted_cached_tokens for event in talk] == [0, 64, 96]
        assert [first[event.request] for event in talk] == [0, 64, 96]
    assert {event.policy for event in routed} == {"approximate"}
    with Recording.open(path, actors_world.KEY) as recording:
        found = verify(recording)
        assert (found.holds, found.verified, found.not_judged) == (True, len(routed), {})
