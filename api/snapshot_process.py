"""A snapshot taken by a process of its own, so that neither its memory nor its work weighs on who serves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from core.errors import Unavailable

SAID_MAX = 500
"""How many of its last characters stand in the error if it fails."""


async def take_snapshot_apart(connection_words: Sequence[str], by: str, fence: int) -> None:
    """A snapshot of the log as it is now stands in the log. Unavailable, in the process's own words, if not.

    Cancelled, it ends the process.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "api.cli", "snapshots", "take"),
        *("--fence", str(fence), "--by", by, *connection_words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        text = said.decode(errors="replace").strip()[-SAID_MAX:]
        raise Unavailable(f"the snapshot was not taken (status {process.returncode}): {text}")
