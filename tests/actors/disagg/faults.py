"""What goes wrong between decode and prefill workers, one fault a function; after each all is whole again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable

import msgspec

from actors.disagg.prefill_role import PrefillRole
from actors.disagg.worker_role import WorkerRole
from actors.worker.worker import Worker
from streams.memory.memory_log import MemoryLog
from tests.actors.disagg.disagg import SMALL, decode, decode_role, linked, prefill, prefill_role
from tests.actors.disagg.load import Load
from tests.actors.world import World
from tests.fixtures.eventually import eventually

Fault = Callable[["Site"], Awaitable[None]]


class Site:
    """Two decode workers, two prefill workers, a router, and clients that never stop."""

    def __init__(self, it: World, load: Load, chance: random.Random) -> None:
        self.it = it
        self.load = load
        self.chance = chance
        self._lives = 0

    def names(self, role: str) -> list[str]:
        """Of the workers that live, sorted."""
        return sorted(name for name in self.it.workers if name.startswith(role))

    async def kill(self, name: str) -> None:
        """The worker is gone without a word, with all its connections; its lease runs out at once."""
        worker = self.it.workers[name]
        cut_off(worker.role)
        who = await self.it.crash(name)
        await worker.role.stop()
        self.it.store.expire(f"workers/{who}")

    async def start(self, role: str) -> Worker:
        """Another of that role."""
        self._lives += 1
        make = prefill if role == "prefill" else decode
        return await make(self.it, f"{role}-{100 + self._lives}")

    async def pulled_more(self) -> None:
        """Blocks were pulled once more: remote prefill works."""
        before = self._pulled()
        await eventually(lambda: self._pulled() > before, "a prompt that another computed")

    def _pulled(self) -> int:
        return sum(decode_role(self.it.workers[name]).totals()["prefill_remote"] for name in self.names("decode"))

    async def linked(self) -> None:
        """Every decode worker can ask every prefill worker, and the router sees all of them."""
        await linked([self.it.workers[name] for name in self.names("decode")], len(self.names("prefill")))
        router = next(iter(self.it.routers.values()))
        await self.it.ready(router, len(self.names("decode")))


def cut_off(side: WorkerRole) -> None:
    """A prefill worker's connections break, before anything can be said over them."""
    if isinstance(side, PrefillRole):
        for client in side.requesters.clients.values():
            client.cut()


async def _when(site: Site, what: Callable[[Worker], int]) -> str:
    """The name of a prefill worker of which that is true."""
    found: list[str] = []

    def find() -> bool:
        found[:] = [name for name in site.names("prefill") if what(site.it.workers[name])]
        return bool(found)

    await eventually(find, "a prefill worker is at it")
    return site.chance.choice(found)


async def prefill_killed_before(site: Site) -> None:
    """A prefill worker dies that waits for jobs or has just taken one."""
    await site.kill(site.chance.choice(site.names("prefill")))
    await site.start("prefill")


async def prefill_killed_during(site: Site) -> None:
    """It dies while it computes."""
    await site.kill(await _when(site, lambda worker: prefill_role(worker).execution.started))
    await site.start("prefill")


async def prefill_killed_after(site: Site) -> None:
    """It dies when its answer is out and its blocks are not fetched yet."""
    await site.kill(await _when(site, lambda worker: len(prefill_role(worker).execution.leases)))
    await site.start("prefill")


async def decode_killed_while_waiting(site: Site) -> None:
    """A decode worker dies with jobs open."""

    def waits() -> str:
        return next((n for n in site.names("decode") if decode_role(site.it.workers[n]).describe()["jobs_open"]), "")

    await eventually(lambda: bool(waits()), "a job is open")
    await site.kill(waits())
    await site.start("decode")


async def log_away(site: Site) -> None:
    """The broker is away with jobs in flight."""
    assert isinstance(site.it.log, MemoryLog)
    site.it.log.away = True
    await site.load.more(2)
    site.it.log.away = False


async def delivered_twice(site: Site) -> None:
    """The queue hands out what is being computed, as if nobody had spoken for it."""
    assert isinstance(site.it.log, MemoryLog)
    for shared in site.it.log._queues.values():
        for out in shared._out.values():
            out.due_s = 0.0
        shared.stir()
    await site.load.more(1)


async def lease_over(site: Site) -> None:
    """Blocks are freed and written over before they are fetched, and the holder knows it."""
    name = await _when(site, lambda worker: len(prefill_role(worker).execution.leases))
    worker = site.it.workers[name]
    assert worker.engine.transfer is not None
    for lease in list(prefill_role(worker).execution.leases.values()):
        await worker.engine.transfer.release(lease.blocks)


async def registry_away(site: Site) -> None:
    """etcd is away for everybody."""
    for registry in site.it.registries.values():
        registry.away = True
    await site.load.more(3)
    for registry in site.it.registries.values():
        registry.away = False


async def other_engine_behind_the_port(site: Site) -> None:
    """What the registry says of a prefill worker's blocks leads to another engine: two on one side-channel port."""
    liar, other = (site.it.workers[name] for name in site.names("prefill")[:2])
    assert liar.membership is not None
    assert other.engine.transfer is not None
    assert liar.engine.transfer is not None
    theirs = other.engine.transfer.address
    wrong = msgspec.structs.replace(liar.engine.transfer.address, host=theirs.host, port=theirs.port)
    await liar.membership.register({**liar._details, "kv": msgspec.to_builtins(wrong)})
    await site.load.more(4)
    await liar.membership.register(liar._details)


async def other_block_size(site: Site) -> None:
    """A prefill worker comes whose blocks are of another size."""
    settings = dataclasses.replace(SMALL, block_size=SMALL.block_size * 2)
    worker = await prefill(site.it, f"odd-{site.chance.randrange(10**6)}", settings)
    await site.load.more(3)
    assert not prefill_role(worker).execution.counts["completed"]
    name = worker.options.name
    del site.it.workers[name]
    await worker.stop("over", drain=False)


FAULTS: tuple[Fault, ...] = (
    prefill_killed_before,
    prefill_killed_during,
    prefill_killed_after,
    decode_killed_while_waiting,
    log_away,
    delivered_twice,
    lease_over,
    registry_away,
    other_engine_behind_the_port,
    other_block_size,
)
