"""What the log is told of a simulated cache with a host tier."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random

import pytest

from actors.engines.simulated.engine_state import EngineState, Submit
from actors.engines.simulated.engine_step import step
from actors.engines.simulated.sequence import BlockHashPrompt
from core.events import BlocksRemoved, BlocksStored, RequestRouted
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, WorkerId
from core.prompt import hashes_to_bytes
from core.settings import TIERS
from core.subjects import ROUTING
from projections.index.prefix_index import PrefixIndex
from projections.policy import cost
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY
from replay.simulate.simulated_worker import BlockCopies, TieredCopies
from replay.simulate.simulation import SimulationResult, simulate
from replay.verify.verify import verify
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

WORKER = WorkerId("a" * 16)
PROMPTS = [[1000 * number + depth for depth in range(30)] for number in range(6)]


def asked(name: str, hashes: list[int], size: int) -> Submit:
    known = BlockHashPrompt(len(hashes) * size + 1, hashes_to_bytes(hashes))
    return Submit(GenerateRequest(id=RequestId(name), tokens=b"", sampling=Sampling(max_tokens=9)), known=known)


@pytest.mark.parametrize("seed", range(3))
def test_an_index_of_the_events_knows_what_is_where(seed: int) -> None:
    """Each tier's blocks, as many as the engine has, and closed; on the device those of an engine without a host."""
    dice, now_us = Random(seed), 0
    engine = dataclasses.replace(ENGINE, capacity_blocks=64, host_blocks=100, host_us_per_block=5)
    state, plain = EngineState(engine), EngineState(dataclasses.replace(engine, host_blocks=0))
    copies, plainly, index = TieredCopies(engine.block_size), BlockCopies(), PrefixIndex()
    for number in range(80):
        prompt = dice.choice(PROMPTS)[: dice.randrange(1, 31)]
        for of, where in ((state, copies), (plain, plainly)):
            done = step(of, now_us, [asked(str(number), prompt, engine.block_size)])
            changes = done.changes
            while done.due_us is not None:
                done = step(of, done.due_us)
                changes = changes + done.changes
            events = where.apply(changes)
            if where is plainly:
                continue
            for event in events:
                assert isinstance(event, BlocksStored | BlocksRemoved)
                change = index.store if isinstance(event, BlocksStored) else index.remove
                change(WORKER, event.tier, event.blocks)
        now_us = max(state.now_us, plain.now_us) + 1
        held = {tier: index.held(WORKER, tier) for tier in TIERS}
        assert len(copies) == sum(map(len, held.values()))
        assert all(block in copies for blocks in held.values() for block in blocks)
        assert copies.overlap(prompt) == len(prompt), "what was computed just now"
        assert len(held["host"]) <= engine.host_blocks
    assert held["host"]
    assert len(copies) > len(plainly)
    assert repr(copies) == f"<TieredCopies of {len(copies)} blocks>"


def test_every_decision_over_two_tiers_follows_from_the_log(tmp_path: Path) -> None:
    """With replicas that lag and workers that fail; the host gives what small devices lose, as it was expected."""
    engine = dataclasses.replace(ENGINE, capacity_blocks=24, host_us_per_block=200)
    options = Options(workers=4, engine=engine, replicas=2, lag_ms=20, failures_per_hour=1000)
    without = simulate(options, families(300))
    tiered = dataclasses.replace(options, engine=dataclasses.replace(engine, host_blocks=400))
    found = simulate(tiered, families(300), archive=tmp_path / "log")
    assert _cached(found) > _cached(without) * 1.2
    with Recording.open(tmp_path / "log", KEY) as recording:
        proved = verify(recording)
    routed = [event for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestRouted)]
    assert proved.proof.holds
    assert (proved.verified, proved.different) == (len(routed), 0)
    assert sum(event.expects_load for event in routed) > 20


def test_a_slow_disk_makes_no_first_token_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its first blocks have come: it is slower than computing, nothing is read from it, and no decision counts it.
    A fast one serves. Each decision follows from the log.

    Without the price of turnover: by that, the few slow loads at first send families to other workers for the rest of
    the run, and the runs would differ by which families share a cache."""
    monkeypatch.setattr(cost, "TURNOVER_TIMES", 0)
    engine = dataclasses.replace(ENGINE, capacity_blocks=24, host_blocks=12, host_us_per_block=20)
    options = Options(workers=4, engine=engine)
    without = simulate(options, families(300, 60_000))
    found = {}
    for name, us in (("slow", 5_000), ("very slow", 40_000), ("fast", 40)):
        tiered = dataclasses.replace(engine, disk_blocks=4000, disk_us_per_block=us)
        run = simulate(dataclasses.replace(options, engine=tiered), families(300, 60_000), archive=tmp_path / name)
        routed = [event for _, _, event in said(tmp_path / name, ROUTING) if isinstance(event, RequestRouted)]
        with Recording.open(tmp_path / name, KEY) as recording:
            proved = verify(recording)
        assert (proved.verified, proved.different) == (len(routed), 0)
        learned = [event.load_time[1] for event in routed if event.load_time]
        assert {*learned[-100:]} == {(us + 20) * 1000}
        found[name] = run
    assert _mean_ms(found["slow"], 0) < _mean_ms(without, 0) * 1.01
    assert _mean_ms(found["very slow"], 2) < _mean_ms(without, 2) * 1.01
    assert _mean_ms(found["fast"], 0) < _mean_ms(without, 0) * 0.9
    assert _cached(found["fast"]) > _cached(without) * 1.1


def _mean_ms(found: SimulationResult, after_s: int) -> float:
    times_us = [each.first_us - each.arrival_us for each in found.served if each.arrival_us >= after_s * 1_000_000]
    return sum(times_us) / len(times_us) / 1000


def _cached(found: SimulationResult) -> int:
    return sum(each.cached_tokens for each in found.served)
