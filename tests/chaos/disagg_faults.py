"""What goes wrong between decode and prefill workers, one fault a function, done to real processes under load.

A fault that must hit a moment stops the process first (SIGSTOP), looks into the log whether the moment was hit, and
lets it go on and tries again if it was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.chaos.disagg_site import ACK_WAIT_S, BLOCK_SIZE, DECODE, PREFILL, WAIT_MAX_S, Site, Worker
from tests.fixtures.eventually import eventually

Fault = Callable[[Site], Awaitable[None]]

SETTLE_S = 0.02
"""What a stopped process had sent is in the log after so long."""
MOMENT_S = 60.0
"""How long the moment for a fault may be waited for."""
LONGER_S = 0.4
"""By so much a pause is longer than what it is to exceed."""
WRITTEN_OVER_S = 1.5
"""So long after their time the blocks are likely to hold something else."""
AWAY_S = (1.0, 3.0)
"""How long a server is away."""
ANSWERS_MEANWHILE = 3


async def prefill_killed_before(site: Site) -> None:
    """A prefill worker dies that has a job which it has not begun."""
    (await _stopped(site, PREFILL, _waits)).kill()


async def prefill_killed_during(site: Site) -> None:
    """It dies while it computes."""
    (await _stopped(site, PREFILL, lambda site, worker: site.jobs.open("during", worker.id))).kill()


async def prefill_killed_after(site: Site) -> None:
    """It dies when its answer is out, and nobody has said that the blocks were fetched."""
    (await _stopped(site, PREFILL, lambda site, worker: site.jobs.open("after", worker.id))).kill()


async def decode_killed_while_waiting(site: Site) -> None:
    """A decode worker dies with jobs open."""
    (await _stopped(site, DECODE, _asks)).kill()


async def nats_killed(site: Site) -> None:
    """The broker is killed with jobs in flight, and comes back."""
    await site.jobs.until(lambda: any(life.phase for life in site.jobs.jobs.values()), "an open job", MOMENT_S)
    site.nats.kill()
    await asyncio.sleep(site.random.uniform(*AWAY_S))
    await site.nats.start()


async def delivered_twice(site: Site) -> None:
    """Nobody speaks for a job that is being computed, so it is handed out again; half of the time past its deadline."""
    worker = await _stopped(site, PREFILL, lambda site, worker: site.jobs.open("during", worker.id))
    await asyncio.sleep(LONGER_S + site.random.choice((ACK_WAIT_S, WAIT_MAX_S)))
    worker.thaw()


async def lease_over(site: Site) -> None:
    """The time of the blocks is over before they were fetched: one of the two sides slept."""
    role, moment = site.random.choice(
        ((DECODE, _asks), (PREFILL, lambda site, worker: site.jobs.open("after", worker.id)))
    )
    worker = await _stopped(site, role, moment)
    await asyncio.sleep(site.kind.keep_s + WRITTEN_OVER_S)
    worker.thaw()


async def two_on_one_port(site: Site) -> None:
    """A second prefill worker is to use the first one's side channel: it does not start, and says why."""
    there = site.random.choice(site.workers(PREFILL))
    second = site.make(PREFILL, there.port)
    second.launch()
    try:
        status = await second.ended(site.kind.start_s)
        last = second.said.strip().splitlines()[-1]
        assert status == 2, second.said
        assert last.startswith("contrail: "), last
        assert str(there.port) in last, last
    finally:
        second.lives = False
        second.clear()
    assert there.alive()


async def other_block_size(site: Site) -> None:
    """A prefill worker joins whose blocks are of another size: nobody gives it work."""
    odd = site.make(PREFILL, block_size=2 * BLOCK_SIZE)
    odd.lives = False  # it does not count
    await odd.start()
    connected = 1 + site.kind.decode
    await eventually(lambda: odd.state()["prefill"]["decode_workers"] == connected, "its connections", MOMENT_S)
    wanted = site.load.answered + ANSWERS_MEANWHILE
    await eventually(lambda: site.load.answered >= wanted, "answers", MOMENT_S)
    jobs = odd.state()["prefill"]["jobs"]
    await odd.stop()
    odd.clear()
    assert not jobs.get("completed"), jobs


async def etcd_killed(site: Site) -> None:
    """etcd is killed and away for some seconds."""
    site.etcd.kill()
    await asyncio.sleep(site.random.uniform(*AWAY_S))
    await site.etcd.start()


def _waits(site: Site, worker: Worker) -> bool:
    """Some job has been begun by nobody, and this worker computes nothing that is open."""
    return bool(site.jobs.open("before")) and not site.jobs.open("during", worker.id)


def _asks(site: Site, worker: Worker) -> list[str]:
    """Jobs that wait for an answer."""
    return site.jobs.open("before", worker.id) + site.jobs.open("during", worker.id)


async def _stopped(site: Site, role: str, moment: Callable[[Site, Worker], object]) -> Worker:
    """A worker of that role, stopped at such a moment."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + MOMENT_S
    while loop.time() < deadline_s:
        found: list[Worker] = []

        def look(found: list[Worker] = found) -> bool:
            found[:] = [worker for worker in site.workers(role) if moment(site, worker)]
            return bool(found)

        await site.jobs.until(look, f"the moment for {role}", MOMENT_S)
        worker = site.random.choice(found)
        worker.freeze()
        await asyncio.sleep(SETTLE_S)
        if moment(site, worker):
            return worker
        worker.thaw()
    raise AssertionError(f"the moment was not hit in {MOMENT_S:g} s")


FAULTS: tuple[Fault, ...] = (
    prefill_killed_before,
    prefill_killed_during,
    prefill_killed_after,
    decode_killed_while_waiting,
    nats_killed,
    delivered_twice,
    lease_over,
    two_on_one_port,
    other_block_size,
    etcd_killed,
)
