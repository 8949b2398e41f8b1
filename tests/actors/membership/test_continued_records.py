"""Live replicas record the turns of a talk as decisions that continue each other, in the latest version that all live
ones read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import UNSET, UnsetType

from actors.router import router as router_module
from actors.router.router import Router
from core.events import PromptBase, ReplicaRestated, RequestFinished, RequestPrefilled, RequestRouted
from core.events.routing import COMPACT_VERSION, CONTINUED_VERSION, PROGRESS_VERSION, ROUTED_VERSION, SHORT_VERSION
from core.ids import StreamSeq
from core.subjects import ROUTING
from replay.recording.recording import Recording
from replay.verify.verify import verify
from tests.actors.world import KEY, NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate
from tests.replay.recorded import archived

TURNS = [range(1200), range(1300), range(1450), range(1450)]
"""Prompts of a talk, in tokens: some eighty blocks, then more, then the same again."""


async def ask(it: World, router: Router, tokens: range) -> None:
    """The turn is answered, and every replica has read its decision."""
    await collect(router, request(tokens))
    await read(it)


async def continued(it: World) -> list[bool]:
    """For each decision whether it continues another."""
    return [each.base is not UNSET for each in await it.told(ROUTING, RequestRouted)]


async def read(it: World) -> None:
    """Every replica has folded the routing stream as it is now."""
    routers = it.routers.values()
    await eventually(lambda: not any(len(each.publisher.pending_events) for each in routers), "their own events")
    last = (await it.log.state(ROUTING)).last_seq
    await eventually(lambda: all(each.state.cursor[ROUTING].seq >= last for each in routers), "the end of the log")


EARLIER = [UNSET, CONTINUED_VERSION, COMPACT_VERSION]
"""The versions that replicas of earlier programs state."""


def written(earlier: int | UnsetType, *, continued: bool = True) -> int:
    """The version of a decision while such a replica lives."""
    return earlier if isinstance(earlier, int) and (continued or earlier >= COMPACT_VERSION) else 1


async def restated(it: World) -> list[ReplicaRestated]:
    """The restatements for the replica `old`; the first is waited for."""
    while True:
        every = await it.told(ROUTING, ReplicaRestated)
        if found := [each for each in every if "old does not read" in each.reason]:
            return found
        await asyncio.sleep(0.01)


async def progress_versions(it: World) -> list[int]:
    """Those of all first tokens and ends."""
    kinds = RequestPrefilled, RequestFinished
    return [each.v for kind in kinds for each in await it.told(ROUTING, kind)]


@pytest.fixture(params=EARLIER, ids=["version 1", "version 2", "version 3"])
def earlier(request: pytest.FixtureRequest) -> int | UnsetType:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch, earlier: int | UnsetType) -> AsyncIterator[World]:
    """A worker and two replicas, of which `old` is of an earlier program."""
    async with world() as it:
        await it.worker("a")
        await it.ready(await it.router("new"))
        monkeypatch.setattr(router_module, "ROUTED_VERSION", earlier)
        await it.ready(await it.router("old"))
        monkeypatch.setattr(router_module, "ROUTED_VERSION", ROUTED_VERSION)
        yield it


async def test_each_turn_continues_the_one_before_on_whichever_replica(tmp_path: Path) -> None:
    async with world() as it:
        await it.worker("a")
        routers = [await it.router(name) for name in ("one", "other")]
        for router in routers:
            await it.ready(router)
        await read(it)
        for number, turn in enumerate(TURNS):
            await ask(it, routers[number % 2], turn)
        told = await it.told(ROUTING, RequestRouted)
        assert [each.v for each in told] == [ROUTED_VERSION] * 4
        assert await progress_versions(it) == [PROGRESS_VERSION] * 8
        assert [each.base.blocks for each in told if isinstance(each.base, PromptBase)] == [75, 81, 90]
        assert [len(each.hashes) // 8 for each in told] == [75, 6, 9, 0]
        assert routers[0].state.routing.digest == routers[1].state.routing.digest
        assert not any(each.background_tasks.in_flight_audit.damaged for each in routers)
        path = await archived(it.log, NAMESPACE, KEY, tmp_path / "log")
        with Recording.open(path, KEY) as recording:
            found = verify(recording)
        assert (found.verified, found.different, found.not_judged) == (len(TURNS), 0, {})


async def test_records_are_of_the_version_that_all_replicas_read(
    two: World, earlier: int | UnsetType, tmp_path: Path
) -> None:
    """As in a rolling upgrade: with the end of the earlier one they are of the latest version. All of them verify."""
    await read(two)
    for turn in TURNS[:2]:
        await ask(two, two.routers["new"], turn)
    await two.routers.pop("old").stop("upgraded")
    await read(two)
    for turn in TURNS[2:]:
        await ask(two, two.routers["new"], turn)
    told = await two.told(ROUTING, RequestRouted)
    assert [each.v for each in told] == [written(earlier, continued=False), written(earlier), *[ROUTED_VERSION] * 2]
    assert await progress_versions(two) == 2 * [1, 1, *[PROGRESS_VERSION] * 2]
    assert [each.base is UNSET for each in told] == [True, earlier is UNSET, False, False]
    path = await archived(two.log, NAMESPACE, KEY, tmp_path / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    assert (found.verified, found.different, found.not_judged) == (len(TURNS), 0, {})


async def test_requests_in_flight_are_restated_for_a_replica_of_an_earlier_program(
    monkeypatch: pytest.MonkeyPatch, earlier: int | UnsetType
) -> None:
    """It could not count the requests of such records; the restatement names them all, once."""
    async with world() as it:
        await it.worker("a")
        new = await it.router("new")
        await it.ready(new)
        await ask(it, new, TURNS[0])
        long = generate(new, "sim", request(TURNS[1], max_tokens=4000))
        await anext(long)
        await read(it)
        assert [each.v for each in await it.told(ROUTING, RequestRouted)] == [ROUTED_VERSION] * 2
        monkeypatch.setattr(router_module, "ROUTED_VERSION", earlier)
        old = await it.router("old")
        await it.ready(old)

        found = await restated(it)
        assert len(found[0].requests) == 1
        await ask(it, new, TURNS[2])
        assert (await it.told(ROUTING, RequestRouted))[-1].v == written(earlier)
        assert (await it.told(ROUTING, RequestFinished))[-1].v == 1
        old.membership.restate("once more")
        await read(it)
        assert len(await restated(it)) == 1
        await long.aclose()


async def test_the_highest_version_since_the_last_restatement_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs read version 2; a third that reads version 1 joins. A whole decision, which that one reads, follows
    a continued one."""
    async with world() as it:
        await it.worker("a")
        monkeypatch.setattr(router_module, "ROUTED_VERSION", CONTINUED_VERSION)
        new = await it.router("new")
        await it.ready(new)
        for turn in (TURNS[0], TURNS[1], range(100)):
            await ask(it, new, turn)
        assert [each.v for each in await it.told(ROUTING, RequestRouted)] == [1, CONTINUED_VERSION, 1]
        monkeypatch.setattr(router_module, "ROUTED_VERSION", UNSET)
        await it.ready(await it.router("old"))
        async with asyncio.timeout(10):
            (found,) = await restated(it)
        assert "old does not read version 2 of decisions" in found.reason


async def test_requests_are_restated_for_a_replica_that_cannot_read_their_ends(
    monkeypatch: pytest.MonkeyPatch, earlier: int | UnsetType
) -> None:
    """Though no decision since the last restatement was of a version that it does not read."""
    async with world() as it:
        await it.worker("a")
        new = await it.router("new")
        await it.ready(new)
        long = generate(new, "sim", request(TURNS[0], max_tokens=4000))
        await anext(long)
        new.membership.restate("test")
        assert new.publisher.version_written == 1
        await long.aclose()
        await eventually(lambda: new.publisher.version_written == SHORT_VERSION, "the end")
        await read(it)
        monkeypatch.setattr(router_module, "ROUTED_VERSION", earlier)
        await it.ready(await it.router("old"))
        found = await restated(it)
        assert [each.requests for each in found] == [()]


async def test_nothing_is_continued_after_the_log_was_folded_anew() -> None:
    """Until other decisions were read: the log may have lost those of before."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await ask(it, router, TURNS[0])
        await router.runner.rebuild("test")
        await eventually(lambda: not len(router.membership.bases), "no base")
        await ask(it, router, TURNS[1])
        await ask(it, router, TURNS[2])
        assert await continued(it) == [False, False, True]


async def test_a_chain_ends_by_what_the_stream_may_keep() -> None:
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await ask(it, router, TURNS[0])
        state = await it.log.state(ROUTING)
        router.membership.bases.retained(state._replace(bytes_max=8 * state.bytes, age_max_s=0.0))
        await ask(it, router, TURNS[1])
        router.membership.bases.retained(state._replace(first_seq=StreamSeq(state.last_seq + 1)))
        await ask(it, router, TURNS[2])
        assert await continued(it) == [False, True, False]
