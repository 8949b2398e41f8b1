"""One world from its seed to its verdict."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.simulation.chance import seeded
from tests.simulation.faults import FAULTS
from tests.simulation.holding_laws import count_holds
from tests.simulation.invariants import LAWS, snapshots_are_true
from tests.simulation.loop import Stuck, VirtualLoop
from tests.simulation.options import drawn
from tests.simulation.prefill_laws import count_jobs
from tests.simulation.reuse_rates import count_reuse
from tests.simulation.scale import scaled
from tests.simulation.verified_logs import verify_names_no_difference
from tests.simulation.witness import Broken
from tests.simulation.world import World

BURY_TURNS_MAX = 50
"""A task may catch a few cancellations on its way out."""


class Failed(AssertionError):
    """A world in which a law did not hold; says how to see it again."""


class Outcome(NamedTuple):
    """What became of a world."""

    seed: int
    trace: str
    """16 hex digits over all that happened."""
    virtual_s: float
    counts: dict[str, int]


def simulate(seed: int, changes: Mapping[str, Any] | None = None) -> Outcome:
    """The world of this seed went through its chaos and was whole again. Failed if a law did not hold.

    `changes` are fields of Options that are not as the seed draws them.
    """
    changes = changes or {}
    options = replace(drawn(random.Random(f"options {seed}"), frozenset(FAULTS)), **changes)
    loop = VirtualLoop(random.Random(f"order {seed}") if options.shuffle else None)
    ids = random.Random(f"ids {seed}")
    with seeded(ids), scaled(options), _defects() as defects, TemporaryDirectory(dir=_memory()) as folder:
        loop.set_exception_handler(lambda _loop, context: defects.append(_told(context)))
        world = World(loop, seed, options, Path(folder), defects)
        try:
            loop.run_until_complete(_life(world))
            world.check_defects()
        except (Broken, Stuck) as error:
            by_hand = "".join(f" --set {name}={value}" for name, value in changes.items())
            raise Failed(
                f"{error}\n  at {loop.now_s:.3f} virtual s of seed {seed}: {options!r}\n"
                f"  replay: .venv/bin/python -m tests.simulation --seed {seed}{by_hand}"
            ) from error
        finally:
            _bury(loop, world)
    return Outcome(seed, world.witness.trace, loop.now_s, world.witness.counts)


async def _life(world: World) -> None:
    await world.begin()
    world.broker.healed = world.network.healed = True
    await world.rest(())
    for _ in range(world.options.rounds):
        world.resume()
        await _chaos(world)
        await world.heal()
        await world.rest(LAWS)
        await snapshots_are_true(world)
        await _probe(world)
    count_jobs(world)
    count_holds(world)
    count_reuse(world)
    if world.options.verified:
        await verify_names_no_difference(world)


async def _chaos(world: World) -> None:
    loops = [world.strike(name, rate) for name, rate in world.options.rates.items()]
    tasks = [world.loop.create_task(each, context=world.host.context) for each in (world.clients(), *loops)]
    done, _ = await asyncio.wait(tasks, timeout=world.options.chaos_s)
    for task in done:
        task.result()  # none of them ends by itself
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _probe(world: World) -> None:
    """A world that rests serves requests."""
    for part in list(world.replicas.values()):
        task = world.ask(part)
        async with asyncio.timeout(30):
            if not await task:
                raise Broken(f"{part.name} serves nobody though all is whole")


def _bury(loop: VirtualLoop, world: World) -> None:
    """What was killed, and what still runs, is taken down without being looked at any more."""
    for part in world.dead:
        loop.bury(part.process)
    for _ in range(BURY_TURNS_MAX):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _memory() -> str | None:
    """Where files cost least, if the system has such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _told(context: dict[str, object]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"


@contextmanager
def _defects() -> Iterator[list[str]]:
    """Collects what the code under test logs with an exception: it does so for defects only."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                found.append(f"{record.name}: {record.getMessage()}: {record.exc_info[1]!r}")

    root, collector = logging.getLogger(), Collector(logging.ERROR)
    before, disabled = root.handlers[:], logging.root.manager.disable
    root.handlers = [collector]
    logging.disable(logging.WARNING)
    try:
        yield found
    finally:
        root.handlers = before
        logging.disable(disabled)
