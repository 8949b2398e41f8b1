"""Checks of the record: how old the newest snapshot is, and from when on decisions can be verified. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from api.amounts import bytes_text, seconds_text
from api.doctor.finding import OK, WARNING, Finding
from api.snapshots.listed import Listed
from core.event_json import time_text
from core.subjects import SNAPSHOTS
from streams.jetstream.broker_inspection import BrokerStream

LATE_FACTOR = 2
"""A snapshot is late when so many of its intervals are over."""


class Record(NamedTuple):
    """What the checks need to know."""

    streams: list[BrokerStream]
    """All but that of the snapshots."""
    snapshots: list[Listed]
    """Newest first."""
    now_ms: int
    every_s: int | None
    """How often a snapshot is to be taken; None for never."""
    restate_every_s: float


def check_record(record: Record) -> Iterator[Finding]:
    """Snapshots, and what they are for."""
    kept = record._replace(streams=[it for it in record.streams if it.name != SNAPSHOTS])
    yield _snapshots(kept)
    yield _verifiable(kept)


def _snapshots(record: Record) -> Finding:
    held = sum(it.bytes for it in record.streams)
    if not record.snapshots:
        facts: dict[str, Any] = {"snapshot": None}
        if record.every_s is None:
            return Finding("snapshot", WARNING, "log.snapshot_every is off: every start folds the whole log.", facts)
        text = f"There is no snapshot yet: a start folds all {bytes_text(held)} of the log; `contrail snapshots take`."
        span_s = _span_s(record)
        return Finding("snapshot", WARNING if span_s > LATE_FACTOR * record.every_s else OK, text, facts)
    good = [it.manifest for it in record.snapshots if it.usable]
    if not good:
        newest_one = record.snapshots[0]
        text = f"No snapshot can be used ({newest_one.why}): take one with `contrail snapshots take`."
        return Finding("snapshot", WARNING, text, {"snapshot": newest_one.manifest.id, "usable": False})
    newest = good[0]
    age_s = (record.now_ms - newest.made_ms) / 1000
    facts = {"snapshot": newest.id, "age_s": round(age_s, 1), "size_bytes": newest.size_bytes, "usable": True}
    text = f"The newest snapshot that can be used is {seconds_text(max(age_s, 0))} old"
    if record.every_s is not None and age_s > LATE_FACTOR * record.every_s:
        text += f", though one is due every {seconds_text(record.every_s)}: see the front ends' logs for why."
        return Finding("snapshot", WARNING, text, facts)
    return Finding("snapshot", OK, text + ".", facts)


def _verifiable(record: Record) -> Finding:
    """From when on the state before a decision can be had."""
    if all(_first(it) <= 1 for it in record.streams):
        first = [it.first_ms for it in record.streams if it.first_ms is not None]
        facts = {"from_ms": min(first, default=None), "by": "start"}
        return Finding("verifiable", OK, "Every decision can be verified: the log has its start.", facts)
    good = [it.manifest for it in record.snapshots if it.usable]
    if good:
        oldest = min(it.made_ms for it in good)
        text = f"Decisions can be verified from {time_text(oldest)} on, by a snapshot."
        return Finding("verifiable", OK, text, {"from_ms": oldest, "by": "snapshot"})
    cut_ms = max((it.first_ms for it in record.streams if it.first_ms is not None), default=record.now_ms)
    whole_ms = cut_ms + round(record.restate_every_s * 1000)
    text = (
        f"The log's head was cut and no snapshot lies before what is left: decisions before {time_text(whole_ms)} "
        "cannot be verified; keep log.snapshot_every on."
    )
    return Finding("verifiable", WARNING, text, {"from_ms": whole_ms, "by": "restatement"})


def _first(stream: BrokerStream) -> int:
    """The oldest sequence retained; what follows the last if none is."""
    return stream.first_seq if stream.messages else stream.last_seq + 1


def _span_s(record: Record) -> float:
    first = [it.first_ms for it in record.streams if it.first_ms is not None]
    return (record.now_ms - min(first)) / 1000 if first else 0.0
