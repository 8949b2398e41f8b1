"""The replay contract: every decision made live comes out of the log again, bit for bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from projections.decide import decide
from replay.playback import Playback, Situation
from tests.actors.world import KEY, NAMESPACE, collect, request, world
from tests.fixtures.eventually import eventually
from tests.replay.recorded import recorded


def again(situation: Situation) -> str:
    event = situation.event
    return decide(situation.view, situation.request, situation.settings, event.now_ms, event.seed).digest


async def test_decisions_come_out_of_the_log_again(tmp_path: Path) -> None:
    """Two replicas under load, workers that come and go, the log away for a while: no decision differs."""
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        routers = [await it.router(f"frontend-{number}") for number in range(2)]
        for router in routers:
            await eventually(lambda router=router: router.ready()[0], "ready")  # type: ignore[misc]

        async def client(number: int) -> None:
            for turn in range(8):
                start = number % 3 * 1000
                await collect(routers[number % 2], request(range(start, start + 60 + 16 * turn), max_tokens=4))

        await asyncio.gather(*map(client, range(12)))
        await it.worker("c")
        it.log.away = True  # type: ignore[attr-defined]
        await asyncio.gather(*map(client, range(6)))
        it.log.away = False  # type: ignore[attr-defined]
        await asyncio.gather(*map(client, range(12)))
        for router in routers:
            await it.settled(router)
        ids = {router.voice.id for router in routers}
        recording = await recorded(it.log, NAMESPACE, KEY, tmp_path / "run.contrail")
    with recording:
        found = list[tuple[str, str, dict[str, str]]]()
        for situation in Playback(recording):
            assert situation.replica in ids
            found.append((situation.event.digest, again(situation), situation.doubts))
        assert len(found) == 8 * 30
        assert sum(recorded != replayed for recorded, replayed, _ in found) == 0
        assert not any(doubts for _, _, doubts in found)
        middle = sorted(situation.seq for situation in Playback(recording))[120]
        later = [(situation.event.digest, again(situation)) for situation in Playback(recording, start=middle)]
        assert len(later) >= 100
        assert all(recorded == replayed for recorded, replayed in later)
