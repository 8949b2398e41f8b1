"""What-if over what two live replicas recorded: nothing changes under the recorded settings, and answers repeat."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from core.settings import RoutingSettings
from replay.recording.recording import Recording
from replay.whatif.scenario import USUAL_SCENARIOS, Scenario
from replay.whatif.whatif import what_if
from tests.actors.world import KEY, NAMESPACE, collect, request, world
from tests.replay.recorded import archived

POLICIES = (RoutingSettings(temperature_m=500), RoutingSettings(policy="round-robin"), RoutingSettings(policy="random"))
TURNS = 5


@pytest.fixture(scope="module")
async def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three replicas under a policy each, talks that share starts, a worker that dies and one that comes."""
    async with world() as it:
        for name in ("a", "b", "c"):
            await it.worker(name)
        routers = [await it.router(f"frontend-{at}", settings) for at, settings in enumerate(POLICIES)]
        for router in routers:
            await it.ready(router, 3)

        async def talk(number: int) -> None:
            for turn in range(TURNS):
                start = number % 4 * 1000
                asked = request(range(start, start + 40 + 32 * turn), max_tokens=4)
                await collect(routers[(number + turn) % len(routers)], asked)

        await asyncio.gather(*map(talk, range(8)))
        await it.crash("b")
        await it.worker("d")
        await asyncio.gather(*map(talk, range(8)))
        for router in routers:
            await it.settled(router)
        return await archived(it.log, NAMESPACE, KEY, tmp_path_factory.mktemp("lived") / "log")


@pytest.fixture
def recording(lived: Path) -> Recording:
    return Recording.open(lived, KEY)


def test_nothing_changes_under_the_recorded_settings(recording: Recording) -> None:
    """Draws, turns and dice included: not one choice, not one block."""
    with recording:
        found = what_if(recording, [Scenario()])
    for outcome in found:
        assert outcome.decisions >= 2 * 8 * TURNS
        assert (outcome.changed, outcome.regret_blocks, outcome.regret_ms) == (0, 0, 0)
        assert (outcome.refused, outcome.astray) == (0, 0)
        assert outcome.left_out.keys() <= {"declined"}
        assert outcome.hit_rate_new == outcome.hit_rate_recorded > 0
        assert outcome.requests_new == outcome.requests_recorded
        assert outcome.spread_new == outcome.spread_recorded
        assert outcome.ttft_new_ms == outcome.ttft_recorded_ms


def test_answers_repeat(lived: Path) -> None:
    """The same question gives the same bytes; a scenario gives the same alone and beside others; most of those
    that differ give others."""
    asked = [Scenario.parse(each) for each in (*USUAL_SCENARIOS, {"delay_ms": 30}, {"without": "c"}, {"delay_ms": 5})]
    with Recording.open(lived, KEY) as first, Recording.open(lived) as without_key:
        together = what_if(first, asked)
        again = what_if(without_key, asked)
        alone = [what_if(first, [each])[0] for each in asked]
    assert [outcome.digest for outcome in again] == [outcome.digest for outcome in together]
    assert again == together == alone
    assert len({outcome.digest for outcome in together}) > len(asked) // 2


def test_sums_are_those_of_the_decisions(recording: Recording) -> None:
    """Changes, requests per worker and refusals add up."""
    with recording:
        for outcome in what_if(recording, [Scenario.parse(each) for each in USUAL_SCENARIOS]):
            assert len(outcome.changes) == outcome.changed
            assert sum(outcome.requests_new.values()) + outcome.refused == outcome.decisions
            assert sum(outcome.requests_recorded.values()) == outcome.decisions
            assert all(change.recorded_worker != change.new_worker for change in outcome.changes)
            assert [change.seq for change in outcome.changes] == sorted(change.seq for change in outcome.changes)
            tops = sorted((change.regret_ms for change in outcome.changes), reverse=True)[: len(outcome.worst)]
            assert [change.regret_ms for change in outcome.worst] == tops


def test_what_is_not_kept_changes_nothing(recording: Recording) -> None:
    """Without the list of changes, and with fewer worst cases, the outcome is the same."""
    asked = [Scenario.parse({"policy": "least-loaded"})]
    heard = list[tuple[int, int]]()
    with recording:
        (whole,) = what_if(recording, asked)
        (short,) = what_if(recording, asked, 1, None, lambda *at: heard.append(at), worst=1, keep_changes=False)
    assert short.digest == whole.digest
    assert short.changed == whole.changed
    assert (len(short.changes), short.worst) == (0, whole.worst[:1])
    made = whole.decisions + sum(whole.left_out.values())
    assert heard[-1] == (made, made)
