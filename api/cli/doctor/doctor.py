"""`contrail doctor`: both planes and every process are asked, and each check becomes one sentence.

A plane that is away is one problem; all other checks are still made.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import click
import orjson

from actors.membership.registration import Registration
from api.cli.doctor.broker_checks import (
    check_consumers,
    check_disk,
    check_registered_key,
    check_registry,
    check_rights,
    check_server,
)
from api.cli.doctor.decision_checks import check_decisions, verify_newest
from api.cli.doctor.finding import Finding
from api.cli.doctor.fold_checks import check_agreement, check_index
from api.cli.doctor.loss_checks import check_losses, check_refused_snapshots, find_log_losses
from api.cli.doctor.newest_copy import TooLarge, copy_newest
from api.cli.doctor.process_checks import check_processes, check_workers
from api.cli.doctor.stream_checks import LogHistory, check_key, check_record, check_streams
from api.cli.doctor.traffic_checks import check_traffic
from api.cli.inspect.replicas import ROUNDS_MAX, query_replicas
from api.cli.inspect.snapshot_verification import content_checked, snapshot_statuses
from api.cli.output import EXIT_NO, EXIT_NOT_ASKED, print_result
from api.cli.process_query import REPLICAS, WORKERS, RegisteredProcess, query_processes, registered_processes
from api.cli.quantities import count_text
from api.cli.renderer import OK, PROBLEM, WARNING, Mark, Table, Text
from api.config.data_folder import DataFolder
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.process.planes import named_remedy, open_log, open_registry
from core.clock import SystemClock
from core.errors import CallerError, Corrupt, PeerError, Refused
from core.ids import StreamName
from core.subjects import LOAD, ROUTING, subject
from projections.digest import FOLD_VERSION
from streams.etcd.etcd_inspection import etcd_status
from streams.jetstream.broker_accounts import READER, ROLES
from streams.jetstream.broker_inspection import BrokerInspection
from streams.jetstream.jetstream_log import JetStreamLog
from streams.key_check import registered_fingerprints
from streams.snapshot_store import SnapshotStore

MARKS = {OK: "ok", WARNING: "warning", PROBLEM: "PROBLEM"}


@click.command()
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def doctor(connection: DeploymentRef, as_json: bool) -> None:
    """Check a running deployment: one sentence for each check, with a remedy where there is a problem.

    Nothing is changed. Exit status 1 if there is a problem, 2 if neither NATS nor etcd answers.

    \b
    contrail doctor --data data
    contrail doctor --json
    """
    examined = asyncio.run(examine(connection))
    value = {"checks": examined.findings, "ok": examined.well}
    print_result(findings_text(examined.findings), value, as_json=as_json)
    if not examined.asked:
        raise SystemExit(EXIT_NOT_ASKED)
    if not examined.well:
        raise SystemExit(EXIT_NO)


def findings_text(findings: list[Finding]) -> Text:
    """One line for each check, and the counts by status."""
    rows = [(Mark(MARKS[finding.status], finding.status), finding.name, finding.text) for finding in findings]
    counts = Counter(finding.status for finding in findings)
    yield Table(("", "check", "what was found"), rows, "<<<")
    yield ""
    yield f"{counts[OK]} well, {count_text(counts[WARNING], 'warning')}, {count_text(counts[PROBLEM], 'problem')}"


PLANE_S = 30.0
"""Bound of all questions to one plane."""

Findings = list[Finding]


class Examination(NamedTuple):
    """All findings, and whether a plane answered."""

    findings: Findings
    asked: bool
    """True if at least one plane answered."""

    @property
    def well(self) -> bool:
        """True if no finding is a problem."""
        return all(finding.status != PROBLEM for finding in self.findings)


async def examine(connection: DeploymentRef) -> Examination:
    """The findings of all checks, one plane after the other; a plane that is away is a finding."""
    found: Findings = []
    log = await _answers("broker", connection.nats, found, lambda: _broker(connection, found))
    if log:
        await _answers("record", connection.nats, found, lambda: _record(connection, found))
        await _answers("decisions", connection.nats, found, lambda: _decisions(connection, found))
    registry = await _answers("registry", [connection.etcd], found, lambda: _registry(connection, found))
    if registry:
        await _answers("parts", [connection.etcd], found, lambda: _parts(connection, found))
    if log and registry:
        await _answers("agreement", connection.nats, found, lambda: _agreement(connection, found))
        await _answers("workers", connection.nats, found, lambda: _workers(connection, found))
    return Examination(found, log or registry)


async def _answers(name: str, where: list[str], found: Findings, ask: Callable[[], Awaitable[None]]) -> bool:
    """True if the questions were answered; if not, a finding says why."""
    try:
        async with asyncio.timeout(PLANE_S):
            await ask()
    except (PeerError, CallerError, TimeoutError) as error:
        why = str(error) or f"no answer within {PLANE_S:g} s"
        text = f"This could not be checked: {why}. Start it, or mend the address or the network."
        found.append(Finding(name, PROBLEM, text, {"asked": where}))
        return False
    return True


async def _broker(connection: DeploymentRef, found: Findings) -> None:
    async with BrokerInspection(connection.nats, connection.nats_credentials(READER), connection.namespace) as broker:
        server = await broker.server()
        found += check_server(server)
        streams = await broker.streams()
        found += check_streams(streams, connection.topology, server.cluster)
        if streams:
            found.append(check_key(streams, connection.checked_key))
            names = [stream.name for stream in streams]
            found += check_rights(await _rights(connection, names), names)
            found.append(check_consumers([one for it in streams for one in await broker.consumers(it.name)]))
    if (folder := _private_store(connection)) is not None:
        free = (await asyncio.to_thread(shutil.disk_usage, folder.path)).free
        found.append(check_disk(str(folder.path), free, streams))


async def _rights(connection: DeploymentRef, streams: list[StreamName]) -> dict[str, frozenset[str]]:
    """The rights at the broker by role; a role whose credentials are not on this machine is left out."""
    rights: dict[str, frozenset[str]] = {}
    for role in ROLES:
        credentials = connection.nats_credentials(role)
        if credentials is not None and credentials.nkey_file is not None and not credentials.nkey_file.exists():
            continue
        async with BrokerInspection(connection.nats, credentials, connection.namespace) as broker:
            rights[role] = await broker.rights(streams)
    return rights


async def _record(connection: DeploymentRef, found: Findings) -> None:
    async with BrokerInspection(connection.nats, connection.nats_credentials(READER), connection.namespace) as broker:
        streams = await broker.streams()
    async with open_log(connection) as log:
        chain_key = connection.key.chain_key
        store = SnapshotStore(log, connection.namespace, chain_key)
        found_ = await snapshot_statuses(log, await store.manifests(), FOLD_VERSION, chain_key)
        record = LogHistory(
            streams=streams,
            snapshots=await content_checked(store, found_, chain_key),
            now_ms=SystemClock().wall_ms(),
            every_s=connection.snapshot_every_s,
        )
    found += check_record(record)


async def _decisions(connection: DeploymentRef, found: Findings) -> None:
    async with open_log(connection) as log:
        if ROUTING not in await log.streams():
            return  # the check of the streams says it
        try:
            async with copy_newest(connection, log) as copy:
                if isinstance(copy, TooLarge):
                    found.append(check_decisions(copy))
                    return
                found.append(check_decisions(await asyncio.to_thread(verify_newest, copy)))
                now_ms = SystemClock().wall_ms() + round(await _clock_offset_ms(connection))
                found += await asyncio.to_thread(check_traffic, copy, now_ms)
        except (Refused, Corrupt) as error:
            found.append(check_decisions(error))


async def _agreement(connection: DeploymentRef, found: Findings) -> None:
    async with open_registry(connection) as registry, open_log(connection) as log:
        overview = await query_replicas(registry, log, connection.operations_token, ROUNDS_MAX)
    if any(it.answered for it in overview.replicas):
        found.append(check_agreement(overview))


async def _registry(connection: DeploymentRef, found: Findings) -> None:
    with named_remedy(connection):
        status = await etcd_status(connection.etcd, connection.etcd_credentials)
    found += check_registry(status, private=connection.data is not None and DataFolder(connection.data).etcd.is_dir())


async def _parts(connection: DeploymentRef, found: Findings) -> None:
    async with open_registry(connection) as registry:
        replicas, workers = (
            await registered_processes(registry, REPLICAS),
            await registered_processes(registry, WORKERS),
        )
        found.append(check_registered_key(await registered_fingerprints(registry), connection.checked_key))
    replies = await query_processes([*replicas, *workers], connection.operations_token)
    found += check_processes(replies[: len(replicas)], replies[len(replicas) :])
    found.append(check_refused_snapshots(replies[: len(replicas)]))
    if any(it.state is not None for it in replies[: len(replicas)]):
        found.append(check_index(replies[: len(replicas)]))


async def _workers(connection: DeploymentRef, found: Findings) -> None:
    async with open_registry(connection) as registry:
        # of two registrations of one name the later one counts
        workers = sorted(await registered_processes(registry, WORKERS), key=lambda part: part.revision)
        async with open_log(connection) as log:
            offset_ms = await _clock_offset_ms(connection)
            load_ages_s = {part.name: await _load_age_s(log, connection.namespace, part, offset_ms) for part in workers}
            now_ms, chain_key = SystemClock().wall_ms(), connection.key.chain_key
            losses = await find_log_losses(log, registry, connection.namespace, chain_key, workers, now_ms)
    found.append(check_losses(losses))
    found += check_workers({part.name: _registration(part) for part in workers}, load_ages_s)


async def _clock_offset_ms(connection: DeploymentRef) -> float:
    async with BrokerInspection(connection.nats, connection.nats_credentials(READER), connection.namespace) as broker:
        return (await broker.server()).clock_ahead_ms


async def _load_age_s(log: JetStreamLog, namespace: str, part: RegisteredProcess, offset_ms: float) -> float | None:
    """Age of the worker's last load report in the log, by the broker's clock; None without one."""
    last = await log.last(LOAD, subject(namespace, LOAD, part.id))
    return None if last is None else max(0.0, SystemClock().wall_ms() + offset_ms - last.time_ms) / 1000


def _registration(part: RegisteredProcess) -> Registration | None:
    try:
        return Registration.parse(orjson.dumps(part.about))
    except PeerError:
        return None


def _private_store(connection: DeploymentRef) -> DataFolder | None:
    """The data folder, if its own NATS keeps the log there."""
    if connection.data is None:
        return None
    folder = DataFolder(connection.data)
    return folder if folder.nats.is_dir() else None
