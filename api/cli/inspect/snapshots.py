"""`contrail snapshots`: snapshots of the folds, from which replicas start: listed with their coverage, taken,
verified."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import click
import msgspec

from api.cli.inspect.snapshot_verification import (
    SnapshotStatus,
    SnapshotVerification,
    snapshot_statuses,
    take_fenced,
    verify,
)
from api.cli.main import DefaultGroup
from api.cli.output import EXIT_NO, bytes_text, number_text, seconds_text, text_table
from api.config.deployment_options import deployment_options
from api.config.deployment_ref import DeploymentRef
from api.process.planes import open_log, open_registry
from core.clock import SystemClock
from core.errors import CallerError
from core.event_json import time_text
from core.snapshot_manifest import Manifest
from core.subjects import SNAPSHOTS
from projections.digest import FOLD_VERSION
from projections.runner.rebuild import take_snapshot
from streams.jetstream.jetstream_log import JetStreamLog
from streams.snapshot_store import Coverage, SnapshotStore, coverage

HEADS = ("snapshot", "made", "by", "messages", "size", "fold", "digest", "usable")
ALIGN = "<<<>>><<"


def snapshots_text(snapshots: list[SnapshotStatus], covered: Sequence[Coverage]) -> str:
    """The table, newest first, and the coverage below it."""
    if not snapshots:
        return "\n".join(["there is no snapshot: take one with `contrail snapshots take`", "", *_coverage(covered)])
    return "\n".join([*text_table(HEADS, list(map(_row, snapshots)), ALIGN), "", *_coverage(covered)])


def messages(manifest: Manifest) -> int:
    """How many messages of all streams the snapshot stands for."""
    return sum(at.seq for at in manifest.cursor.values())


def warnings(covered: Sequence[Coverage]) -> list[str]:
    """What of the history is not covered, and what to do."""
    return [
        f"{it.stream}: retention took messages that follow the newest snapshot; take snapshots more often "
        "(log.snapshot_every), or give log.max_bytes more"
        for it in covered
        if it.cut_behind_newest
    ]


def _row(it: SnapshotStatus) -> tuple[str, ...]:
    manifest = it.manifest
    return (
        manifest.id,
        time_text(manifest.made_ms),
        manifest.by,
        number_text(messages(manifest)),
        bytes_text(manifest.size_bytes),
        str(manifest.fold_version),
        manifest.digest,
        "yes" if it.usable else f"no: {it.why}",
    )


def _coverage(covered: Sequence[Coverage]) -> list[str]:
    rows = [(it.stream, number_text(it.first_seq), number_text(it.last_seq), _replayable(it)) for it in covered]
    lines = text_table(("stream", "oldest", "newest", "replayable"), rows, "<>><")
    return [*lines, *(f"warning: {text}" for text in warnings(covered))]


def _replayable(it: Coverage) -> str:
    if it.replayable_from is None:
        return "not yet: its head was cut and no snapshot lies before what is left"
    if it.snapshot_before:
        return "all that is retained"
    return f"from {it.stream}:{it.replayable_from} on"


OPERATOR = "contrail snapshots take"
PROGRESS_S = 1.0


class SnapshotsGroup(DefaultGroup):
    """Lists, unless told otherwise."""

    default: ClassVar[str] = "list"


class SnapshotListing(NamedTuple):
    """All snapshots, and what they cover."""

    snapshots: list[SnapshotStatus]
    coverage: list[Coverage]


@click.group(cls=SnapshotsGroup)
def snapshots() -> None:
    """Show, take or verify snapshots: what the log comes to up to a point, from which replicas start.

    \b
    contrail snapshots                    all of them, and what of the log they cover
    contrail snapshots take               one more, now
    contrail snapshots verify             the newest one, read back and compared with the log
    """


@snapshots.command("list")
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def list_command(connection: DeploymentRef, as_json: bool) -> None:
    """List the snapshots, newest first, and say from where on each stream's history can be replayed.

    \b
    contrail snapshots --data data
    contrail snapshots list --json
    """
    found = asyncio.run(_listing(connection))
    if as_json:
        _print_json(_listing_json(found))
    else:
        click.echo(snapshots_text(found.snapshots, found.coverage))


@snapshots.command()
@deployment_options
@click.option("--fence", type=int, hidden=True, help="The claim of the elected replica in whose name it is taken.")
@click.option("--by", default=OPERATOR, hidden=True, help="Who the manifest says has taken it.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def take(connection: DeploymentRef, fence: int | None, by: str, as_json: bool) -> None:
    """Take a snapshot now: the log is folded from the newest usable one, and what it comes to is written down.

    Replicas go on meanwhile; a snapshot that was begun by another writer loses to this one, or this one to it.

    \b
    contrail snapshots take
    contrail snapshots take --json
    """
    started_ms = SystemClock().monotonic_ms()
    manifest = asyncio.run(_take(connection, fence, by))
    took_s = (SystemClock().monotonic_ms() - started_ms) / 1000
    if as_json:
        _print_json({**msgspec.to_builtins(manifest), "messages": messages(manifest), "took_s": took_s})
    else:
        size, count = bytes_text(manifest.size_bytes), number_text(messages(manifest))
        click.echo(f"snapshot {manifest.id}: {count} messages in {size}, taken in {seconds_text(took_s)}")


@snapshots.command("verify")
@deployment_options
@click.argument("snapshot", required=False, metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def verify_command(connection: DeploymentRef, snapshot: str | None, as_json: bool) -> None:
    """Read a snapshot back, the newest if none is named, and compare it with the log folded without it.

    Exit status 1 if it is broken, or comes to something else than the log does.

    \b
    contrail snapshots verify
    contrail snapshots verify 20261120t140305-123-17 --json
    """
    found = asyncio.run(_verify(connection, snapshot))
    if as_json:
        _print_json({**msgspec.to_builtins(found), "ok": found.well})
    else:
        click.echo(verified_text(found))
    if not found.well:
        raise SystemExit(EXIT_NO)


def verified_text(found: SnapshotVerification) -> str:
    """What was found, in sentences."""
    if not found.whole:
        return f"snapshot {found.id} is broken: {found.why}; a start takes the one before it"
    count, blocks = number_text(found.messages), number_text(found.blocks)
    lines = [f"snapshot {found.id} is whole: {count} messages, {blocks} blocks in the index"]
    lines += [f"  {stream}: not compared, {why}" for stream, why in found.not_compared.items()]
    lines += [
        f"  {it.stream}:{it.seq}: the snapshot comes to {it.snapshot}, the log to {it.log}" for it in found.differences
    ]
    at = ", ".join(f"{stream}:{seq}" for stream, seq in found.compared.items())
    verdict = {
        True: f"folded on, it is what the log alone comes to at {at}",
        False: f"folded on, it is not what the log alone comes to: take another, and report this{_because(found)}",
        None: "it could not be compared with the log alone",
    }
    return "\n".join([*lines, verdict[found.agree]])


def _because(found: SnapshotVerification) -> str:
    return f" ({found.why})" if found.why else ""


@asynccontextmanager
async def _open(connection: DeploymentRef) -> AsyncIterator[tuple[JetStreamLog, SnapshotStore]]:
    async with open_log(connection) as log:
        yield log, SnapshotStore(log, connection.namespace, connection.key.chain_key)


async def _listing(connection: DeploymentRef) -> SnapshotListing:
    async with _open(connection) as (log, store):
        manifests = await store.manifests()
        found = await snapshot_statuses(log, manifests, FOLD_VERSION, connection.key.chain_key)
        ours = [manifest for manifest in manifests if manifest.fold_version == FOLD_VERSION]
        return SnapshotListing(found, await coverage(log, ours))


async def _take(connection: DeploymentRef, fence: int | None, by: str) -> Manifest:
    chain_key = connection.key.chain_key
    async with _open(connection) as (log, store):
        await log.ensure([SNAPSHOTS])
        async with _progress():
            if fence is not None:
                return await take_snapshot(log, store, chain_key, by, fence, SystemClock().wall_ms())
            async with open_registry(connection) as registry:
                return await take_fenced(log, registry, store, chain_key, by)


async def _verify(connection: DeploymentRef, named: str | None) -> SnapshotVerification:
    async with _open(connection) as (log, store):
        manifests = await store.manifests()
        chosen = [manifest for manifest in manifests if named in (None, manifest.id)]
        if not chosen:
            text = f"there is no snapshot {named}" if named else "there is no snapshot yet"
            raise CallerError(f"{text}: `contrail snapshots` lists them, `contrail snapshots take` takes one")
        async with _progress():
            return await verify(log, store, chosen[0], connection.key.chain_key)


@asynccontextmanager
async def _progress() -> AsyncIterator[None]:
    """Whoever waits at a terminal sees for how long it has been going on."""

    async def tick() -> None:
        started_ms = SystemClock().monotonic_ms()
        while True:
            await asyncio.sleep(PROGRESS_S)
            seconds = (SystemClock().monotonic_ms() - started_ms) // 1000
            click.echo(f"\rfolding the log, {seconds} s ...", nl=False, err=True)

    ticking = asyncio.create_task(tick()) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        if ticking is not None:
            ticking.cancel()
            click.echo("\r\x1b[K", nl=False, err=True)


def _listing_json(found: SnapshotListing) -> dict[str, Any]:
    return {
        "snapshots": [
            {
                **msgspec.to_builtins(it.manifest),
                "messages": messages(it.manifest),
                "usable": it.usable,
                "why": it.why,
            }
            for it in found.snapshots
        ],
        "coverage": [{**it._asdict(), "snapshot_before": it.snapshot_before} for it in found.coverage],
        "warnings": warnings(found.coverage),
    }


def _print_json(value: dict[str, Any]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)))
