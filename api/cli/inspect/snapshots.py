"""`contrail snapshots`: lists, takes and verifies snapshots of the folds, from which replicas start."""

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
from api.cli.output import EXIT_NO, print_result
from api.cli.quantities import bytes_text, count_text, number_text, seconds_text
from api.cli.renderer import OK, PROBLEM, WARNING, Cell, Mark, Table, Text
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.process.planes import open_log, open_registry
from core.clock import SystemClock
from core.errors import CallerError
from core.event_json import time_text
from core.snapshot_manifest import Manifest
from core.subjects import SNAPSHOTS
from projections.digest import FOLD_VERSION
from projections.runner.rebuild import take_snapshot
from streams.jetstream.broker_accounts import READER, REPLICA
from streams.jetstream.jetstream_log import JetStreamLog
from streams.key_check import ensure_own
from streams.snapshot_store import Coverage, SnapshotStore, coverage

HEADS = ("snapshot", "made", "by", "messages", "size", "fold", "digest", "usable")
ALIGN = "<<<>>><<"


class SnapshotListing(NamedTuple):
    """All snapshots, and their coverage of the log."""

    snapshots: list[SnapshotStatus]
    coverage: list[Coverage]


def snapshots_text(found: SnapshotListing) -> Text:
    """The table, newest first, and the coverage below it."""
    if found.snapshots:
        yield Table(HEADS, list(map(_row, found.snapshots)), ALIGN)
    else:
        yield "there is no snapshot: take one with `contrail snapshots take`"
    yield ""
    rows = [(it.stream, number_text(it.first_seq), number_text(it.last_seq), _replayable(it)) for it in found.coverage]
    yield Table(("stream", "oldest", "newest", "replayable"), rows, "<>><")
    yield from (Mark(f"warning: {text}", WARNING) for text in warnings(found.coverage))


def messages(manifest: Manifest) -> int:
    """The count of messages, over all streams, that the snapshot replaces."""
    return sum(at.seq for at in manifest.cursor.values())


def warnings(covered: Sequence[Coverage]) -> list[str]:
    """A sentence for each stream with a gap before its newest snapshot, with the remedy."""
    return [
        f"{it.stream}: retention took messages that follow the newest snapshot; take snapshots more often "
        "(log.snapshot_every), or give log.max_bytes more"
        for it in covered
        if it.cut_behind_newest
    ]


def _row(it: SnapshotStatus) -> tuple[Cell, ...]:
    manifest = it.manifest
    return (
        manifest.id,
        time_text(manifest.made_ms),
        manifest.by,
        number_text(messages(manifest)),
        bytes_text(manifest.size_bytes),
        str(manifest.fold_version),
        manifest.digest,
        Mark("yes", OK) if it.usable else Mark(f"no: {it.why}", WARNING),
    )


def _replayable(it: Coverage) -> str:
    if it.replayable_from is None:
        return "not yet: its head was cut and no snapshot lies before what is left"
    if it.snapshot_before:
        return "all that is retained"
    return f"from {it.stream}:{it.replayable_from} on"


OPERATOR = "contrail snapshots take"
PROGRESS_S = 1.0


class SnapshotsGroup(DefaultGroup):
    """Commands of snapshots; `list` is the default."""

    default: ClassVar[str] = "list"


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
    print_result(snapshots_text(found), _listing_json(found), as_json=as_json)


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
    count, size = count_text(messages(manifest), "message"), bytes_text(manifest.size_bytes)
    lines: list[str | Mark] = [f"snapshot {manifest.id}: {count} in {size}, taken in {seconds_text(took_s)}"]
    if manifest.why_no_start:
        text = f"no replica starts from it: {manifest.why_no_start}; take another when they have restated themselves"
        lines.append(Mark(text, WARNING))
    value = {**msgspec.to_builtins(manifest), "messages": messages(manifest), "took_s": took_s}
    print_result(lines, value, as_json=as_json)


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
    print_result(verified_text(found), {**msgspec.to_builtins(found), "ok": found.well}, as_json=as_json)
    if not found.well:
        raise SystemExit(EXIT_NO)


def verified_text(found: SnapshotVerification) -> Text:
    """The result of a verification, in sentences."""
    if not found.whole:
        yield Mark(f"snapshot {found.id} is broken: {found.why}; a start takes the one before it", PROBLEM)
        return
    messages, blocks = count_text(found.messages, "message"), count_text(found.blocks, "block")
    yield f"snapshot {found.id} is whole: {messages}, {blocks} in the index"
    yield from (f"  {stream}: not compared, {why}" for stream, why in found.not_compared.items())
    for it in found.differences:
        yield f"  {it.stream}:{it.seq}: the snapshot comes to {it.snapshot}, the log to {it.log}"
    if found.agree is None:
        yield Mark("it could not be compared with the log alone", WARNING)
    elif found.agree:
        at = ", ".join(f"{stream}:{seq}" for stream, seq in found.compared.items())
        yield Mark(f"folded on, it is what the log alone comes to at {at}", OK)
    else:
        because = f" ({found.why})" if found.why else ""
        text = f"folded on, it is not what the log alone comes to: take another, and report this{because}"
        yield Mark(text, PROBLEM)


@asynccontextmanager
async def _open(connection: DeploymentRef, role: str = READER) -> AsyncIterator[tuple[JetStreamLog, SnapshotStore]]:
    async with open_log(connection, role) as log:
        yield log, SnapshotStore(log, connection.namespace, connection.key.chain_key)


async def _listing(connection: DeploymentRef) -> SnapshotListing:
    async with _open(connection) as (log, store):
        manifests = await store.manifests()
        found = await snapshot_statuses(log, manifests, FOLD_VERSION, connection.key.chain_key)
        ours = [it for it in manifests if it.fold_version == FOLD_VERSION and not it.why_no_start]
        return SnapshotListing(found, await coverage(log, ours))


async def _take(connection: DeploymentRef, fence: int | None, by: str) -> Manifest:
    chain_key = connection.key.chain_key
    async with _open(connection, REPLICA) as (log, store):
        await ensure_own(log, [SNAPSHOTS], (), connection.checked_key)
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
    """The elapsed time is shown on a terminal inside the context."""

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
