"""Watchdog of an engine: polls its health and its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.engines.engine import Engine
from core.errors import EngineDead

CHECK_EVERY_S = 1.0
"""Between checks of the engine's health."""
CHECK_TIMEOUT_S = 30.0
"""An engine that cannot say for so long whether it lives does not."""
ENGINE_STALL_S = 60.0
"""An engine that does nothing for so long, though requests wait for it, hangs. A long prompt is computed in chunks,
each a step of its own, so this need only be longer than the longest step: a chunk on a slow machine, or a kernel that
is compiled when it is first used. It is counted in looks, not by the clock: a machine that slept does not hang."""
ENGINE_STALL_CPU_S = 300.0
"""The same for an engine that computes on the CPU, where a chunk of a large model takes minutes and nothing is heard of
it meanwhile. That it computes can be seen there: one that does not hangs after ENGINE_STALL_S."""
BUSY_SHARE = 0.1
"""An engine that uses more than this of a core computes; the threads of one that does not still look around. One that
moves blocks has a thread that never rests: of that one it cannot be seen, and it always has ENGINE_STALL_CPU_S."""


async def wait_until_dead(engine: Engine, evidence: Callable[[], object], stall_s: float | None = None) -> str:
    """Returns when the engine is dead or hangs, with the reason.

    `evidence` returns another value after each step of the engine, and None while no request waits for it. `stall_s`
    bounds the time without a step; None chooses the bound by the kind of the engine.
    """
    cpu_s = engine.info.cpu_s
    stall_s = stall_s or (ENGINE_STALL_CPU_S if cpu_s else ENGINE_STALL_S)
    last, used_s, still, idle = evidence(), 0.0, 0, 0
    while True:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await engine.check()
        except (EngineDead, TimeoutError) as error:
            return str(error) or f"no answer for {CHECK_TIMEOUT_S:g} s"
        await asyncio.sleep(CHECK_EVERY_S)
        before, last = last, evidence()
        still = still + 1 if last is not None and last == before else 0
        if cpu_s is not None:
            used_before_s, used_s = used_s, cpu_s()
            computes = used_s - used_before_s > BUSY_SHARE * CHECK_EVERY_S
            idle = 0 if computes else min(still, idle + 1)
        if still * CHECK_EVERY_S >= stall_s:
            return f"it hangs: no step for {stall_s:g} s though requests wait"
        if idle * CHECK_EVERY_S >= ENGINE_STALL_S:
            return f"it hangs: it does not compute for {ENGINE_STALL_S:g} s though requests wait"
