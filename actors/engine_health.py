"""Whether an engine still lives, asked again and again."""

from __future__ import annotations

import asyncio

from actors.engines.engine import Engine
from core.errors import EngineDead

CHECK_EVERY_S = 1.0
"""Between looks at the engine's health."""
CHECK_TIMEOUT_S = 30.0
"""An engine that cannot say for so long whether it lives does not."""


async def until_dead(engine: Engine) -> str:
    """Returns when the engine is dead, with the reason."""
    while True:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await engine.check()
        except (EngineDead, TimeoutError) as error:
            return str(error) or f"no answer for {CHECK_TIMEOUT_S:g} s"
        await asyncio.sleep(CHECK_EVERY_S)
