"""Faults as data: each is a coroutine that does its damage, waits, and mends what can be mended."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import orjson

from core.ids import StreamName, StreamSeq
from core.settings import POLICIES
from core.subjects import SNAPSHOTS
from streams.live_settings import SETTINGS_KEY
from streams.memory.memory_stream import MemoryStream
from tests.projections.wrong_fold import corrupt
from tests.simulation.scale import PREFILL_WAIT_MAX_MS

if TYPE_CHECKING:
    from tests.simulation.world import World

Fault = Callable[["World"], Coroutine[Any, Any, None]]


async def kill_worker(world: World) -> None:
    """Kill -9, and a new process under the same name after a while."""
    if world.workers:
        await world.killed(world.random.choice(list(world.workers.values())))


async def kill_replica(world: World) -> None:
    """The same for a replica."""
    if world.replicas:
        await world.killed(world.random.choice(list(world.replicas.values())))


async def pause_worker(world: World) -> None:
    """A worker stands still, engine and all; its lease runs out if that lasts."""
    parts = [part for part in world.workers.values() if part.started and not part.process.paused]
    if not parts:
        return
    part = world.random.choice(parts)
    world.witness.paused.add(part.id)
    part.process.pause()
    with world.away_from_registry([part]):
        await world.lasting(6.0, leases=[part])
    world.loop.go_on(part.process)


async def give_blocks_up(world: World) -> None:
    """A prefill worker's engine needs the blocks that it holds for others, and knows it."""
    parts = [part for part in world.movers if part.holding]
    if parts:
        world.random.choice(parts).give_blocks_up()


async def part_tcp(world: World) -> None:
    """A process hears nothing over TCP and is not heard; or its connections break once."""
    part = world.random.choice(world.parts)
    if world.random.random() < 0.5:
        world.network.reset(part.process)
        return
    world.network.hold(part.process)
    await world.lasting(6.0)
    world.network.release(part.process)


async def part_log(world: World) -> None:
    """A process cannot reach the log."""
    part = world.random.choice(world.parts)
    part.log.part(True)
    await world.lasting(8.0)
    part.log.part(False)


async def part_registry(world: World) -> None:
    """A process cannot reach the registry, and loses its lease if that lasts."""
    part = world.random.choice(world.parts)
    with world.away_from_registry([part]):
        await world.lasting(6.0, leases=[part])


async def lose_lease(world: World) -> None:
    """A lease is gone at once, and put again soon."""
    part = world.random.choice(world.parts)
    with world.away_from_registry([part]):
        world.expire(part)
        await world.lasting(2.0)


async def registry_away(world: World) -> None:
    """Nobody reaches the registry; no lease runs out meanwhile."""
    with world.away_from_registry(world.parts):
        await world.lasting(6.0)


async def registry_wiped(world: World) -> None:
    """The registry's data is gone: it comes back empty, and counts anew."""
    with world.away_from_registry(world.parts):
        world.store.wipe()
        await world.lasting(3.0)


async def change_settings(world: World) -> None:
    """An operator changes what decisions go by."""
    settings: dict[str, Any] = {
        "policy": world.random.choice(POLICIES),
        "request_weight": world.random.choice((0, 1, 4)),
        "hold_max_ms": world.random.choice((0, 100, 2000)),
    }
    if world.options.prefill_workers:
        settings |= {
            "remote_prefill_min_tokens": world.random.choice((0, 4, 16, 100)),
            "prefill_queue_max": world.random.choice((0, 1, 4)),
            "prefill_wait_max_ms": world.random.choice((300, 1000, PREFILL_WAIT_MAX_MS)),
        }
    world.store.put(SETTINGS_KEY, orjson.dumps(settings))


async def log_away(world: World) -> None:
    """The broker is down, and comes back with all it had."""
    world.log.away = True
    await world.lasting(6.0)
    world.log.away = False


async def log_full(world: World) -> None:
    """The broker's disk is full."""
    world.log.full = True
    await world.lasting(6.0)
    world.log.full = False


async def log_cut(world: World) -> None:
    """The broker lost the end of a stream: it had acknowledged before it synced."""
    stream = world.some_stream()
    last = world.stream(stream).last
    world.rewrite(stream, lambda: world.log.cut(stream, StreamSeq(max(0, last - world.random.randrange(1, 12)))))


async def log_restored(world: World) -> None:
    """The broker's data folder is put back to a copy made earlier."""
    copy = world.log.copy()
    await world.lasting(4.0)
    world.rewrite(None, lambda: world.log.restore(copy))


async def log_remade(world: World) -> None:
    """A stream is deleted and made anew."""
    stream = world.some_stream()
    world.rewrite(stream, lambda: world.log.remake(stream))


async def delete_message(world: World) -> None:
    """One message is deleted through the broker's own API."""
    stream = world.some_stream()
    seq = _some_seq(world, world.stream(stream))
    if seq:
        world.rewrite(stream, lambda: world.log.delete(stream, seq))


async def flip_byte(world: World) -> None:
    """One byte of a stored message is another; the broker serves it, or finds out and leaves the message out."""
    stream = world.some_stream()
    seq = _some_seq(world, world.stream(stream))
    record = world.stream(stream).at(seq) if seq else None
    if record is None:
        return
    payload = bytearray(record.payload)
    payload[world.random.randrange(len(payload))] ^= 1 << world.random.randrange(8)
    found = world.random.random() < 0.5
    world.rewrite(stream, lambda: world.log.rewrite(stream, record.seq, None if found else bytes(payload)))


async def expire_head(world: World) -> None:
    """Retention takes the start of a stream."""
    stream = world.some_stream()
    state = world.stream(stream).state()
    seq = StreamSeq(world.random.randint(state.first_seq, max(state.first_seq, state.last_seq)))
    if seq <= state.last_seq:
        world.rewrite(stream, lambda: world.log.expire(stream, seq))


async def tamper(world: World) -> None:
    """A replica folded a message wrongly: it has a block that no worker ever named."""
    if len(world.replicas) > 1 and not world.witness.tampered:
        part = world.random.choice(list(world.replicas.values()))
        alive = part.router.state.alive() if part.started else []
        if alive:
            world.witness.tampered.add(part.process)
            corrupt(part.router.state, alive[0].worker, world.random.getrandbits(64))


def _some_seq(world: World, stream: MemoryStream) -> StreamSeq:
    """Of a message that the stream holds, the newer the likelier; 0 if it is empty."""
    records = stream.from_seq(1)
    if not records:
        return StreamSeq(0)
    return records[-1 - min(len(records) - 1, int(world.random.expovariate(0.1)))].seq


def streams_of(world: World) -> list[StreamName]:
    """Those that are folded."""
    return sorted(name for name in world.log._streams if name != SNAPSHOTS)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill_worker,
        kill_replica,
        pause_worker,
        give_blocks_up,
        part_tcp,
        part_log,
        part_registry,
        lose_lease,
        registry_away,
        registry_wiped,
        change_settings,
        log_away,
        log_full,
        log_cut,
        log_restored,
        log_remade,
        delete_message,
        flip_byte,
        expire_head,
        tamper,
    )
}
"""By the name of their rate in `Options`."""
