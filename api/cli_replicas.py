"""`contrail replicas`: every replica of the deployment, how far it is, and whether they agree."""

from __future__ import annotations

import asyncio
import sys
from typing import NamedTuple

import click
import msgspec

from api.census import REPLICAS, Part, ask_all, registered
from api.config.deployment_options import deployment_options
from api.config.deployment_ref import DeploymentRef
from api.process.planes import open_log, open_registry
from api.replicas.comparison import Comparison, Verdict
from api.replicas.replica import Replica, replica_of
from api.replicas.reports import recent_sightings
from api.replicas.table import replicas_text
from core.clock import SystemClock
from core.errors import CallerError
from streams.log import EventLog
from streams.registry import Registry

ROUNDS_MAX = 10
"""How often the replicas are asked, at most, until they are found at equal cursors."""
ROUND_PAUSE_S = 0.1
WATCH_ROUNDS_MAX = 3
WATCH_PAUSE_S = 1.0
CLEAR = "\x1b[H\x1b[J"
SAYS_NO = 1


class Look(NamedTuple):
    """The replicas as they were just found."""

    replicas: list[Replica]
    verdict: Verdict

    @property
    def well(self) -> bool:
        """Whether all answer and none differs."""
        return bool(self.replicas) and self.verdict.agree is not False and all(it.answered for it in self.replicas)

    @property
    def as_json(self) -> str:
        """Stable snake_case keys."""
        value = {
            "replicas": [msgspec.to_builtins(it) for it in self.replicas],
            "agree": self.verdict.agree,
            "text": self.verdict.text,
        }
        return msgspec.json.format(msgspec.json.encode(value)).decode()


@click.command()
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
@click.option("-v", "--verbose", is_flag=True, help="Also each one's cursor by stream.")
@click.option("--watch", is_flag=True, help="Again every second, until Ctrl-C; for a terminal.")
def replicas(connection: DeploymentRef, as_json: bool, verbose: bool, watch: bool) -> None:
    """Show every replica: how far it has folded the log, how far behind it is, and whether all agree.

    Replicas at equal cursors must have equal digests. Exit status 1 if some differ or do not answer.

    \b
    contrail replicas --data data
    contrail replicas --watch
    contrail replicas --json
    """
    if watch and (as_json or not sys.stdout.isatty()):
        raise CallerError("--watch is for a terminal: leave it out, and call again for what is so then")
    if watch:
        _watched(connection, verbose)
        return
    look = asyncio.run(_once(connection))
    click.echo(look.as_json if as_json else replicas_text(look.replicas, look.verdict, streams=verbose))
    if not look.well:
        raise SystemExit(SAYS_NO)


def _watched(connection: DeploymentRef, verbose: bool) -> None:
    try:
        asyncio.run(_watch(connection, verbose))
    except KeyboardInterrupt:
        click.echo()


async def _once(connection: DeploymentRef) -> Look:
    async with open_registry(connection) as registry, open_log(connection) as log:
        return await look(registry, log, ROUNDS_MAX)


async def _watch(connection: DeploymentRef, verbose: bool) -> None:
    async with open_registry(connection) as registry, open_log(connection) as log:
        while True:
            seen = await look(registry, log, WATCH_ROUNDS_MAX)
            click.echo(CLEAR + replicas_text(seen.replicas, seen.verdict, streams=verbose))
            await asyncio.sleep(WATCH_PAUSE_S)


async def look(registry: Registry, log: EventLog, rounds_max: int) -> Look:
    """The replicas now, compared at equal cursors; if those are never met, at the points that they reported."""
    parts = await registered(registry, REPLICAS)
    comparison = Comparison()
    replicas = await _ask(parts, comparison)
    for _ in range(rounds_max - 1):
        if not _open(replicas, comparison):
            break
        await asyncio.sleep(ROUND_PAUSE_S)
        replicas = await _ask(parts, comparison)
    if _open(replicas, comparison):
        comparison.see(await recent_sightings(log, SystemClock().wall_ms()))
    verdict = comparison.verdict(replicas)
    return Look([msgspec.structs.replace(it, agrees=_agrees(it, verdict)) for it in replicas], verdict)


async def _ask(parts: list[Part], comparison: Comparison) -> list[Replica]:
    replicas = [replica_of(answer) for answer in await ask_all(parts)]
    comparison.hear(replicas)
    return replicas


def _open(replicas: list[Replica], comparison: Comparison) -> bool:
    """Whether another round may tell more."""
    return sum(it.answered for it in replicas) > 1 and comparison.verdict(replicas).agree is None


def _agrees(it: Replica, verdict: Verdict) -> bool | None:
    if it.id in verdict.wrong:
        return False
    return True if it.id in verdict.seen else None
