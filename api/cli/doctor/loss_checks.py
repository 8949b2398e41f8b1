"""Checks for history that the log should have and does not: heads that replicas kept or reported, and the messages that
workers count as acknowledged, are compared with the log.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple

from actors.consistency.log_heads import KeptHeads, LogLoss, StreamHead, find_losses, kept_heads
from api.cli.doctor.finding import Finding
from api.cli.inspect.replica_comparison import RECORDS_MAX, REPORT_WINDOW_MS
from api.cli.inspect.replica_state import loss_text, replica_status
from api.cli.process_query import ProcessReply, RegisteredProcess
from api.cli.renderer import OK, PROBLEM, WARNING
from core.codec import CHAIN_START, DIGEST_BYTES, decode_message, digest
from core.errors import Corrupt
from core.events import LoadReported, ReplicaReported
from core.events.routing import LOST_HISTORY
from core.ids import StreamName, StreamSeq
from core.subjects import LOAD, ROUTING, is_kv, subject
from streams.log import EventLog, Record
from streams.registry import Registry


class LogLosses(NamedTuple):
    """Losses that replicas noted, and those that show now."""

    kept: KeptHeads | None
    """None if no replica has kept any heads."""
    present: list[str]
    """Sentences on what the log lacks by the newest heads, without those that are noted."""


async def find_log_losses(
    log: EventLog,
    registry: Registry,
    namespace: str,
    chain_key: bytes,
    workers: Iterable[RegisteredProcess],
    now_ms: int,
) -> LogLosses:
    """The losses; each head costs some two reads. Unavailable if log or registry is away."""
    kept, reported = await kept_heads(registry), await _reported(log, now_ms)
    states = {stream: await log.state(stream) for stream in await log.streams()}
    present = dict[StreamName, LogLoss]()
    for heads, at_ms in ((reported, now_ms), (kept and kept.streams, kept.at_ms if kept else 0)):
        present |= await find_losses(log, chain_key, states, heads or {}, now_ms, at_ms)
    texts = [loss.text for loss in present.values()]
    texts += [text for worker in workers if (text := await _lost_by(log, namespace, chain_key, worker))]
    return LogLosses(kept, texts)


def check_losses(found: LogLosses) -> Finding:
    """The log has all that replicas had read and workers had written."""
    noted = [] if found.kept is None else [loss_text(loss.text, loss.at_ms) for loss in found.kept.losses]
    facts = {"losses": noted, "present": found.present}
    if found.present:
        text = (
            f"{'. '.join(found.present)}. Running front ends note it within seconds, and sources restate themselves: "
            "ask again in a minute; if this stays, start a front end."
        )
        return Finding("losses", PROBLEM, text, facts)
    if noted:
        text = (
            f"{'. '.join(noted)}. Decisions before that may not be verifiable; find out who restored, purged or "
            "deleted there, and take the right away."
        )
        return Finding("losses", WARNING, text, facts)
    if found.kept is None:
        return Finding("losses", OK, "No front end has kept heads of the log yet, so no loss could be seen.", facts)
    text = "The log holds the last messages that replicas kept and reported and that workers count as acknowledged."
    return Finding("losses", OK, text, facts)


def check_refused_snapshots(replicas: Sequence[ProcessReply]) -> Finding:
    """Replicas started from the newest snapshot."""
    statuses = [replica_status(reply) for reply in replicas]
    refused = {it.name: list(it.refused_snapshots) for it in statuses if it.refused_snapshots}
    facts = {"refused": refused}
    if not refused:
        return Finding("snapshots_refused", OK, "No front end refused a snapshot when it started.", facts)
    name, texts = next(iter(refused.items()))
    text = (
        f"{name} did not start from {texts[0]}{f', nor from {len(texts) - 1} more' if len(texts) > 1 else ''}: "
        "`contrail snapshots` lists them all; one that neither a front end nor an operator took was forged."
    )
    return Finding("snapshots_refused", WARNING, text, facts)


async def _reported(log: EventLog, now_ms: int) -> dict[StreamName, StreamHead]:
    """The newest head of each stream by the reports of replicas."""
    if ROUTING not in await log.streams():
        return {}
    last = (await log.state(ROUTING)).last_seq
    start = max(await log.seek(ROUTING, now_ms - REPORT_WINDOW_MS), last - RECORDS_MAX + 1, 1)
    heads = dict[StreamName, StreamHead]()
    records = log.read(ROUTING, StreamSeq(start))
    try:
        async for record in records:
            for event in _events(record):
                if isinstance(event, ReplicaReported):
                    heads |= _newest(event)
    finally:
        if isinstance(records, AsyncGenerator):
            await records.aclose()
    return heads


def _newest(report: ReplicaReported) -> dict[StreamName, StreamHead]:
    """The last point of each stream; the report does not tell how many messages were deleted by then."""
    return {
        StreamName(stream): StreamHead(points.epoch, points.seqs[-1], points.heads[-DIGEST_BYTES:].hex(), sys.maxsize)
        for stream, points in report.points.items()
        if points.seqs and not points.heads.endswith(CHAIN_START)
    }


async def _lost_by(log: EventLog, namespace: str, chain_key: bytes, worker: RegisteredProcess) -> str:
    """A sentence if the log has fewer messages of the worker's cache than it acknowledged, or another last one."""
    load = await log.last(LOAD, subject(namespace, LOAD, worker.id))
    reports = [event for event in _events(load) if isinstance(event, LoadReported)] if load is not None else []
    if not reports or not reports[-1].kv_n:
        return ""
    n, head = reports[-1].kv_n, reports[-1].kv_head
    for stream in await log.streams():
        last = await log.last(stream, subject(namespace, stream, worker.id)) if is_kv(stream) else None
        if last is None:
            continue
        try:
            there = decode_message(last.payload).n + 1
        except Corrupt:
            return ""
        if there < n or (there == n and digest(last.payload, chain_key) != head):
            which = f"has {there} messages" if there < n else "has another last message"
            return f"{stream} {LOST_HISTORY}: it {which} of {worker.name}, and acknowledged {n}"
    return ""


def _events(record: Record) -> tuple[object, ...]:
    try:
        return tuple(decode_message(record.payload).events)
    except Corrupt:
        return ()
