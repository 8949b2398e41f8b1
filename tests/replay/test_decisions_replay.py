"""The replay contract, seen early: every decision made live comes out of the log again, bit for bit."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from core.codec import decode_message
from core.events import Event, LocalChanged, ReplicaRestated, RequestRouted, SettingsChanged
from core.ids import BlockHash, ReplicaId, RequestId, SourceId, StreamName, StreamSeq, WorkerId
from core.prompt import Prompt, hashes_from_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.ahead import Ahead
from projections.decide import decide
from projections.state import State
from projections.view import RouteRequest, View
from streams.log import Record
from tests.actors.world import KEY, World, collect, request, world
from tests.fixtures.eventually import eventually


class RecordedPrompt(Prompt):
    """A prompt of which only length and block hashes are known."""

    def __init__(self, event: RequestRouted) -> None:
        super().__init__(bytes(4 * event.prompt_tokens), event.block_size, seed=0)
        self._hashes = hashes_from_bytes(event.hashes)

    def key(self, depth: int) -> BlockHash:
        return BlockHash(self._hashes[depth - 1])


class Said(NamedTuple):
    """One event of a replica and where it stands."""

    seq: StreamSeq
    event: Event


async def replayed(it: World, replica: ReplicaId) -> list[tuple[str, str]]:
    """Per decision of the replica: the digest recorded, and the one that the log gives."""
    records = {name: [r async for r in it.log.read(name, StreamSeq(1))] for name in await it.log.streams()}
    epochs = {name: (await it.log.state(name)).epoch for name in records}
    own = [
        Said(record.seq, event)  # type: ignore[arg-type]  # nothing unknown is written here
        for record in records[ROUTING]
        if decode_message(record.payload).source == SourceId(replica)
        for event in decode_message(record.payload).events
    ]
    found = []
    for number, said in enumerate(own):
        if isinstance(said.event, RequestRouted):
            state = _fold(records, said.event.cursor)
            assert {name: at.epoch for name, at in state.cursor.items()} == {n: epochs[n] for n in state.cursor}
            found.append((said.event.digest, _again(state, replica, own[:number], said.event)))
    return found


def _fold(records: dict[StreamName, list[Record]], cursor: dict[str, tuple[int, int]]) -> State:
    state = State(KEY.chain_key)
    for name, (epoch, end) in cursor.items():
        state.open(StreamName(name), epoch)  # type: ignore[arg-type]
        for record in records[StreamName(name)]:
            if record.seq <= end:
                state.apply(record.stream, record.seq, record.subject, record.payload)
    return state


def _again(state: State, replica: ReplicaId, before: list[Said], event: RequestRouted) -> str:
    """What `decide` says on the fold up to the cursor and on what the replica had said itself by then."""
    ahead, folded = Ahead(), state.routing.replicas.get(replica)
    local: dict[str, set[WorkerId]] = {}
    settings = RoutingSettings()
    for said in before:
        match said.event:
            case SettingsChanged():
                settings = RoutingSettings.parse(said.event.settings)
            case ReplicaRestated():
                local.clear()
            case LocalChanged():
                for workers in local.values():
                    workers.discard(WorkerId(said.event.worker))
                for reason in said.event.reasons:
                    local.setdefault(reason, set()).add(WorkerId(said.event.worker))
            case _:
                pass
        if said.seq > state.cursor[ROUTING].seq:
            ahead.emit(said.event, folded)
    view = View(state, replica, ahead, {reason: frozenset(workers) for reason, workers in local.items()})
    prompt = RecordedPrompt(event)
    asked = RouteRequest(RequestId(event.request), event.attempt, event.model, prompt, event.tenant, event.priority)
    return decide(view, asked, settings, event.now_ms, event.seed).digest


async def test_decisions_come_out_of_the_log_again() -> None:
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
            pairs = await replayed(it, router.voice.id)
            assert len(pairs) >= 100
            assert sum(recorded != again for recorded, again in pairs) == 0
