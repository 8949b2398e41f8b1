"""`contrail replicas`: every replica of the deployment as a table, how far it is, and whether they agree."""

from __future__ import annotations

import asyncio
import sys
from typing import NamedTuple

import click
import msgspec

from api.cli.inspect.replica_comparison import ComparisonResult, ReplicaDigestComparison, recent_observations
from api.cli.inspect.replica_state import ReplicaStatus, replica_status
from api.cli.output import EXIT_NO, print_result, print_text
from api.cli.process_query import REPLICAS, RegisteredProcess, query_processes, registered_processes
from api.cli.quantities import OFFSET_SHOWN_MS, UNKNOWN, bytes_text, count_text, number_text, offset_text
from api.cli.renderer import OK, PROBLEM, WARNING, Cell, Mark, Table, Text
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.process.planes import open_log, open_registry
from core.clock import SystemClock
from core.errors import CallerError
from streams.log import EventLog
from streams.registry import Registry

HEADS = (
    "replica",
    "id",
    "cursor",
    "lag",
    "lag ms",
    "digest",
    "events/s",
    "memory",
    "fold",
    "in flight",
    "waiting",
    "gaps",
    "agrees",
)
ALIGN = "<<>>><>>>>>><"


AGREES = {True: Mark("yes", OK), False: Mark("NO", PROBLEM), None: Mark("not comparable yet", WARNING)}


def _row(it: ReplicaStatus) -> tuple[Cell, ...]:
    if not it.answered:
        return (it.name, it.id, *[UNKNOWN] * (len(HEADS) - 3), Mark("no answer", PROBLEM))
    return (
        it.name,
        it.id,
        number_text(it.applied),
        number_text(it.lag_events),
        UNKNOWN if it.lag_ms is None else f"{it.lag_ms:,.1f}",
        it.digest or UNKNOWN,
        number_text(it.events_per_s),
        bytes_text(it.rss_bytes),
        number_text(it.fold_version),
        number_text(it.in_flight),
        number_text(it.waiting),
        number_text(it.gaps),
        AGREES[it.agrees],
    )


def _cursor(it: ReplicaStatus) -> str:
    return f"{it.name}  " + "  ".join(f"{stream}:{seq}" for stream, seq in sorted(it.cursor.items()))


REFUSED_SHOWN = 3
"""Refused snapshots shown of each replica; JSON has all."""
ROUNDS_MAX = 10
"""Most rounds of questions until the replicas are found at equal cursors."""
ROUND_PAUSE_S = 0.1
WATCH_ROUNDS_MAX = 3
WATCH_PAUSE_S = 1.0
CLEAR = "\x1b[H\x1b[J"


class ReplicaOverview(NamedTuple):
    """The replicas' statuses at one time, and the comparison of their digests."""

    replicas: list[ReplicaStatus]
    verdict: ComparisonResult

    @property
    def well(self) -> bool:
        """True if all answer and none differs."""
        return bool(self.replicas) and self.verdict.agree is not False and all(it.answered for it in self.replicas)

    @property
    def losses(self) -> list[str]:
        """Losses of the log that any of the replicas knows, each once."""
        return list(dict.fromkeys(loss for it in self.replicas for loss in it.losses))


def _dropped_lines(replicas: list[ReplicaStatus]) -> Text:
    """Decisions that no log has: of these replicas, then those that others stated before they ended."""
    others = {name: count for it in replicas for name, count in it.dropped_by_others.items() if count}
    for it in replicas:
        if it.dropped:
            others.pop(f"{it.name} ({it.id})", None)  # its own line has them
            text = f"{it.name} dropped {count_text(it.dropped, 'decision')} since it joined: no log has them"
            yield Mark(text, WARNING)
    for name, count in others.items():
        yield Mark(f"{name} dropped {count_text(count, 'decision')}, by its statement: no log has them", WARNING)


def replicas_text(found: ReplicaOverview, *, streams: bool = False) -> Text:
    """The table, and below it whether they agree; with `streams` each one's cursor by stream."""
    yield Table(HEADS, [_row(it) for it in found.replicas], ALIGN)
    if streams:
        yield ""
        yield from (_cursor(it) for it in found.replicas if it.answered)
    if found.replicas:
        yield ""
    yield from (Mark(f"{it.name} ({it.id}) {it.why}", PROBLEM) for it in found.replicas if not it.answered)
    for it in found.replicas:
        if it.in_flight_damaged:
            checks = count_text(it.in_flight_damaged, "check")
            text = f"{it.name} ({it.id}) had counted requests in flight wrong in {checks}: `/state` names them"
            yield Mark(text, WARNING)
    yield from _dropped_lines(found.replicas)
    for it in found.replicas:
        yield from (
            Mark(f"{it.name} did not start from {text}", WARNING) for text in it.refused_snapshots[:REFUSED_SHOWN]
        )
    for it in found.replicas:
        if it.unexplained or it.disputed:
            times = count_text(it.unexplained or 0, "time")
            disputed = count_text(it.disputed or 0, "stream")
            yield Mark(
                f"{it.name} found {times} that another's fold was not the log's, unexplained; {disputed} disputed now",
                WARNING,
            )
    yield from (Mark(text, WARNING) for text in found.losses)
    yield from map(_clock_line, filter(_has_shown_offset, found.replicas))
    yield _judged(found)


def _has_shown_offset(it: ReplicaStatus) -> bool:
    return abs(it.clock_offset_ms or 0) >= OFFSET_SHOWN_MS


def _clock_line(it: ReplicaStatus) -> Mark:
    return Mark(f"{it.name} corrects its clock, which is {offset_text(it.clock_offset_ms or 0)}", WARNING)


def _judged(found: ReplicaOverview) -> Mark:
    verdict = found.verdict
    if not found.replicas:
        return Mark("no replica is registered: start one with `contrail up` or `contrail frontend`", PROBLEM)
    if verdict.agree is None:
        return Mark(f"not comparable yet: {verdict.text}", WARNING)
    if verdict.agree:
        return Mark(f"agree: {verdict.text}", OK)
    names = {it.id: it.name for it in found.replicas}
    return Mark(f"differ ({', '.join(sorted(names[who] for who in verdict.wrong))}): {verdict.text}", PROBLEM)


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
        asyncio.run(_watch(connection, verbose))
        return
    overview = asyncio.run(_once(connection))
    verdict = overview.verdict
    value = {
        "replicas": overview.replicas,
        "agree": verdict.agree,
        "text": verdict.text,
        "losses": overview.losses,
    }
    print_result(replicas_text(overview, streams=verbose), value, as_json=as_json)
    if not overview.well:
        raise SystemExit(EXIT_NO)


async def _once(connection: DeploymentRef) -> ReplicaOverview:
    async with open_registry(connection) as registry, open_log(connection) as log:
        return await query_replicas(registry, log, connection.operations_token, ROUNDS_MAX)


async def _watch(connection: DeploymentRef, verbose: bool) -> None:
    async with open_registry(connection) as registry, open_log(connection) as log:
        while True:
            seen = await query_replicas(registry, log, connection.operations_token, WATCH_ROUNDS_MAX)
            click.echo(CLEAR, nl=False)
            print_text(replicas_text(seen, streams=verbose))
            await asyncio.sleep(WATCH_PAUSE_S)


async def query_replicas(registry: Registry, log: EventLog, token: str | None, rounds_max: int) -> ReplicaOverview:
    """The replicas now, compared at equal cursors; if those are never met, at the points that they reported."""
    parts = await registered_processes(registry, REPLICAS)
    comparison = ReplicaDigestComparison()
    replicas = await _ask(parts, comparison, token)
    for _ in range(rounds_max - 1):
        if not _open(replicas, comparison):
            break
        await asyncio.sleep(ROUND_PAUSE_S)
        replicas = await _ask(parts, comparison, token)
    if _open(replicas, comparison):
        comparison.add_observations(await recent_observations(log, SystemClock().wall_ms()))
    verdict = comparison.verdict(replicas)
    return ReplicaOverview([msgspec.structs.replace(it, agrees=_agrees(it, verdict)) for it in replicas], verdict)


async def _ask(
    parts: list[RegisteredProcess], comparison: ReplicaDigestComparison, token: str | None
) -> list[ReplicaStatus]:
    replicas = [replica_status(answer) for answer in await query_processes(parts, token)]
    comparison.add_replies(replicas)
    return replicas


def _open(replicas: list[ReplicaStatus], comparison: ReplicaDigestComparison) -> bool:
    """True if another round may decide the comparison."""
    return sum(it.answered for it in replicas) > 1 and comparison.verdict(replicas).agree is None


def _agrees(it: ReplicaStatus, verdict: ComparisonResult) -> bool | None:
    if it.id in verdict.wrong:
        return False
    return True if it.id in verdict.seen else None
