"""Whether an engine still lives and gets on, asked again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.engines.engine import Engine
from core.errors import EngineDead

CHECK_EVERY_S = 1.0
"""Between looks at the engine's health."""
CHECK_TIMEOUT_S = 30.0
"""An engine that cannot say for so long whether it lives does not."""
ENGINE_STALL_S = 60.0
"""An engine that does nothing for so long, though requests wait for it, hangs. A long prompt is computed in chunks,
each a step of its own, so this need only be longer than the longest step: a chunk on a slow machine, or a kernel that
is compiled when it is first used. It is counted in looks, not by the clock: a machine that slept does not hang."""


async def until_dead(engine: Engine, evidence: Callable[[], object], stall_s: float = ENGINE_STALL_S) -> str:
    """Returns when the engine is dead or hangs, with the reason.

    `evidence` is another value whenever the engine has done anything, and None while nobody waits for it.
    """
    last, still = evidence(), 0
    while True:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await engine.check()
        except (EngineDead, TimeoutError) as error:
            return str(error) or f"no answer for {CHECK_TIMEOUT_S:g} s"
        await asyncio.sleep(CHECK_EVERY_S)
        before, last = last, evidence()
        still = still + 1 if last is not None and last == before else 0
        if still * CHECK_EVERY_S >= stall_s:
            return f"it hangs: no step for {stall_s:g} s though requests wait"
