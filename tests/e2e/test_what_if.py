"""Bad weights are found in their own record, and what is named instead is better when it is tried."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from actors.engines.simulated.simulated_engine import SimulatedSettings
from api.cli.main import contrail
from core.events import RequestFinished
from core.settings import RoutingSettings
from core.subjects import ROUTING
from tests.actors.world import KEY, NAMESPACE, collect, request, world
from tests.replay.recorded import archived

ENGINE = SimulatedSettings(
    prefill_us_per_token=100, decode_us_per_step=1000, eos_every=0, block_size=16, capacity_blocks=1024
)
WORKERS = 8
TALKS = 13
TURNS = 6
TURN_TOKENS = 96
GAP_S = 0.15
"""Between the answer to a turn of a talk and its next turn."""
BAD = {"policy": "kv", "prefill_weight": 0.0, "tie_margin": 0.001}
"""No cache is worth anything, not even between equal costs: within a margin the hash decides."""
LONG_TOKENS = 640
"""Of the first turn of a talk of which a cache holds but a few: then it counts where the others are."""
SMALL = dataclasses.replace(ENGINE, capacity_blocks=256)
GOOD = {**BAD, "prefill_weight": 4.0, "decode_weight": 0.25}
SWEEP = ("--sweep", "prefill_weight=0,1,4", "--sweep", "decode_weight=0.25,1")


class Lived(NamedTuple):
    log: Path
    hit_rate: float
    """Cached tokens per prompt token, as the engines said."""


async def lived(
    settings: Mapping[str, Any], log: Path, engine: SimulatedSettings = ENGINE, begun: int = TURN_TOKENS
) -> Lived:
    """The same talks each time: each turn's prompt begins like the one before, and waits for its answer. The first one
    has `begun` tokens."""
    async with world() as it:
        for number in range(WORKERS):
            await it.worker(f"decode-{number}", settings=engine)
        router = await it.router(settings=RoutingSettings.parse(settings))
        await it.ready(router, WORKERS)

        async def talk(number: int) -> None:
            await asyncio.sleep(number * GAP_S / TALKS)
            for turn in range(TURNS):
                tokens = range(number * 100_000, number * 100_000 + begun + TURN_TOKENS * turn)
                await collect(router, request(tokens, max_tokens=4, id=f"talk{number}-{turn}"))
                await asyncio.sleep(GAP_S)

        await asyncio.gather(*(talk(number) for number in range(TALKS)))
        await it.settled(router)
        ends = await it.told(ROUTING, RequestFinished)
        assert len(ends) == TALKS * TURNS
        await archived(it.log, NAMESPACE, KEY, log)
    return Lived(log, sum(end.cached_tokens for end in ends) / sum(end.prompt_tokens for end in ends))


def what_if(log: Path, *words: str) -> Any:
    """What `contrail replay what-if` says of it."""
    found = CliRunner().invoke(contrail, ["replay", "what-if", "--log", str(log), "--json", *words])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


async def test_what_is_named_instead_of_bad_weights_is_better(tmp_path: Path) -> None:
    """Weights that ignore caches: the sweep over their record names others by regret, and the same arrivals under
    those find much more in the caches."""
    bad = await lived(BAD, tmp_path / "bad.contrail")
    named = what_if(bad.log, *SWEEP)
    best, worst = named["outcomes"][0], named["outcomes"][-1]
    assert best["scenario"]["settings"] == named["best"]
    assert named["best"]["prefill_weight"] >= 1
    assert worst["scenario"]["settings"]["prefill_weight"] == 0
    assert best["regret_blocks"] > 0
    assert best["hit_rate_new"] > best["hit_rate_recorded"]
    good = await lived({**BAD, **named["best"]}, tmp_path / "good.contrail")
    assert good.hit_rate > bad.hit_rate + 0.15

    back = what_if(good.log, "--try", "prefill_weight=0,decode_weight=1", "--try", "policy=round-robin")
    assert back["best"] is None  # asked the other way round, the record of the good ones names nothing better
    assert all(outcome["regret_blocks"] < 0 for outcome in back["outcomes"])


async def test_recorded_settings_change_nothing(tmp_path: Path) -> None:
    """Asked under what it was recorded under, a live run says so: no choice differs, and nothing is regretted."""
    run = await lived({"policy": "round-robin"}, tmp_path / "run.contrail")
    (same,) = what_if(run.log, "--policy", "round-robin")["outcomes"]
    assert (same["decisions"], same["changed"], same["regret_blocks"]) == (TALKS * TURNS, 0, 0)
    assert same["hit_rate_new"] == same["hit_rate_recorded"]
    assert abs(same["hit_rate_recorded"] - run.hit_rate) < 0.1


async def test_a_closed_loop_tells_the_hit_rate_of_a_live_run(tmp_path: Path) -> None:
    """From the record of a run that ignores its caches, which throw out what does not fit: what other settings make of
    the same talks is told within a tenth of what a live run under them then finds."""
    bad = await lived({**GOOD, **BAD}, tmp_path / "bad.contrail", SMALL, LONG_TOKENS)
    told = what_if(bad.log, "--closed-loop", "--jobs", "1", "--set", "prefill_weight=4")
    good = await lived(GOOD, tmp_path / "good.contrail", SMALL, LONG_TOKENS)

    (outcome,) = told["outcomes"]
    assert told["best"] == {"prefill_weight": 4.0}
    assert told["recorded"]["hit_rate"] == bad.hit_rate
    assert told["basis"]["follow"] == TALKS * (TURNS - 1)
    assert outcome["hit_rate"] == pytest.approx(good.hit_rate, rel=0.1)
    assert good.hit_rate > bad.hit_rate + 0.15
