"""How long a decode worker takes to the first token, seen from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from actors.disagg.decode_role import DecodeRole
from actors.disagg.remote_prefill import CONFIRM_TIMEOUT_S
from actors.transport.frames import Generate
from core.generation import Output
from tests.simulation.loop import Process
from tests.simulation.options import Options
from tests.simulation.scale import PREFILL_WAIT_MAX_MS, PULL_TIMEOUT_S
from tests.simulation.witness import Witness

ENGINE_S = 10.0
"""How long a request may wait for its turn in an engine of a world, and be computed there."""


def most_job_s(options: Options, wait_ms: int) -> float:
    """From asking to the end of a job, whatever happens: deadline or the time that blocks are held, pull, its check."""
    return max(wait_ms, options.keep_ms) / 1000 + PULL_TIMEOUT_S + 2 * CONFIRM_TIMEOUT_S


def most_waited_s(options: Options) -> float:
    """To the first token: for others who pull the same blocks, then for our own."""
    return 2 * most_job_s(options, PREFILL_WAIT_MAX_MS) + ENGINE_S


def timed(role: DecodeRole, process: Process, witness: Witness, most_s: float) -> None:
    """The witness hears of every first token that comes later than that, unless the process stood still."""
    inner = role._generate

    async def generate(frame: Generate) -> AsyncGenerator[Output, None]:
        loop, pauses, request = asyncio.get_running_loop(), process.pauses, frame.request
        began_s, first = loop.time(), True
        async with aclosing(inner(request, frame.hint)) as outputs:
            async for output in outputs:
                waited_s = loop.time() - began_s
                if first and waited_s > most_s and process.pauses == pauses:
                    witness.late.append(
                        f"{frame.request.id} waited {waited_s:.3f} s at {process.name}, at most {most_s:g} s"
                    )
                first = False
                yield output

    role.generate = generate  # type: ignore[method-assign]
