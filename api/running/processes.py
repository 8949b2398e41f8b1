"""Process groups: whether they live, and how to end them. Only leaders of groups of ours are ever named here."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from api.run_file import PartEntry

POLL_S = 0.05
LEFTOVER_END_MAX_S = 10.0
"""How long processes of a run that was killed may take to end; then they are killed too."""


def started_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None if it is gone or the system does not say."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def spent_ticks(pid: int) -> int | None:
    """How long a process has computed by now, in the kernel's ticks; None as above."""
    fields = _stat(pid)
    return None if fields is None else int(fields[11]) + int(fields[12])


def _stat(pid: int) -> list[str] | None:
    """What proc(5) has of a process from its state on."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields


def is_same(entry: PartEntry) -> bool:
    """Whether the process of the entry still runs, and is not a later one with its number."""
    return entry.started_ticks is not None and started_ticks(entry.pid) == entry.started_ticks


def signal_group(pid: int, number: signal.Signals) -> None:
    """The process group of that leader got the signal, if there still is one."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


async def end_leftovers(entries: Iterable[PartEntry]) -> list[str]:
    """Processes of a run whose `contrail up` was killed are gone; returns their names."""
    left = [entry for entry in entries if is_same(entry)]
    for entry in left:
        signal_group(entry.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(LEFTOVER_END_MAX_S):
            while any(is_same(entry) for entry in left):  # noqa: ASYNC110 - the kernel sets no event
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        for entry in left:
            signal_group(entry.pid, signal.SIGKILL)
    return [entry.name for entry in left]
