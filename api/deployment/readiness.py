"""Waiting until all processes of a start are ready, and showing what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from api.deployment.managed_process import ManagedProcess
from core.errors import CallerError, ContrailError, Unavailable

POLL_S = 0.25
START_MAX_S = 3600.0
"""Time for all processes to be ready; a large model may have to be downloaded first."""


class ProgressRow(NamedTuple):
    """One process of a start, and its state."""

    name: str
    what: str
    state: str
    """`ready`, or what it is doing."""
    waited_s: float
    ready: bool


class Progress(Protocol):
    """Output of a start: lines that stay, and the present state of all processes."""

    def write_line(self, line: str) -> None:
        """The line stands there for good."""

    def show(self, rows: Sequence[ProgressRow]) -> None:
        """This is how far the parts are now."""

    def done(self) -> None:
        """The rows shown last stay."""


class ProcessFailed(ContrailError):
    """A part ended before it was ready."""


async def wait_until_ready(parts: Sequence[ManagedProcess], progress: Progress) -> None:
    """All are ready; CallerError in the part's own words if it said what is wrong, ProcessFailed if it just ended."""
    clock_s = asyncio.get_running_loop().time
    started_s = clock_s()
    waits: dict[str, ProgressRow] = {}
    while not (waits and all(row.ready for row in waits.values())):
        for part in parts:
            _check(part)
        states = await asyncio.gather(*(_state(part) for part in parts if not _is_ready(waits, part)))
        waited_s = clock_s() - started_s
        waiting = [part for part in parts if not _is_ready(waits, part)]
        for part, state in zip(waiting, states, strict=True):
            waits[part.name] = ProgressRow(part.name, part.spec.what, state, waited_s, state == "ready")
        progress.show([waits[part.name] for part in parts])
        if waited_s > START_MAX_S:
            late = ", ".join(part.name for part in waiting)
            raise Unavailable(f"not ready after {START_MAX_S:g} s: {late}; their logs are in {parts[0].log.parent}")
        await asyncio.sleep(POLL_S)
    progress.done()


def _is_ready(waits: dict[str, ProgressRow], part: ManagedProcess) -> bool:
    return part.name in waits and waits[part.name].ready


def _check(part: ManagedProcess) -> None:
    if part.running:
        return
    if sentence := part.last_sentence():
        raise CallerError(f"{part.name}: {sentence}")
    raise ProcessFailed(f"{part.name} {part.ending()} (its log: {part.log})")


async def _state(part: ManagedProcess) -> str:
    if part.announcement is None:
        return "starting"
    answer = await part.ask("/ready")
    if answer is None:
        return "does not answer yet"
    if answer.ok:
        return "ready"
    return f"waits for {answer.reason}" if answer.reason else "not ready yet"
