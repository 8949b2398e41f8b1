"""Checks of the streams: existence, limits, contents and history; the newest snapshot, and the beginning of the
history. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from api.cli.doctor.finding import NATS_CLI, Finding
from api.cli.inspect.snapshot_verification import SnapshotStatus
from api.cli.quantities import bytes_text, count_text, plural, seconds_text
from api.cli.renderer import OK, PROBLEM, WARNING
from core.ids import StreamName
from core.subjects import ROUTING, SNAPSHOTS, is_kv
from streams.jetstream.broker_inspection import BrokerStream
from streams.key_check import CheckedKey, fault
from streams.topology import Topology

SPAN_S_MIN = 60.0
"""A shorter history is too short to measure the growth per hour."""
SERVERS_MIN_FOR_COPIES = 3
BESIDE_SHARE = 0.5
"""Share of the configured age: load and jobs kept for less shorten the verifiable history too much."""


def check_streams(streams: list[BrokerStream], topology: Topology, cluster: str | None) -> Iterator[Finding]:
    """The findings on the streams, one for each rule."""
    yield check_existence(streams, topology)
    if streams:
        yield check_limits(streams, topology)
        yield check_copies(streams, topology, cluster)
        yield check_deleted(streams)
        yield check_history(streams)


def check_existence(streams: list[BrokerStream], topology: Topology) -> Finding:
    """Every stream that the deployment writes to is there."""
    there = [stream.name for stream in streams]
    missing = [name for name in topology.names() if name not in there]
    facts = {"streams": there, "missing": missing}
    if missing:
        text = f"There is no stream {', '.join(missing)}: any front end or worker makes them when it starts."
        return Finding("streams", PROBLEM, text, facts)
    return Finding("streams", OK, f"All {len(there)} streams are there: {', '.join(there)}.", facts)


def check_limits(streams: list[BrokerStream], topology: Topology) -> Finding:
    """The streams have the configured limits; a stream that existed before keeps its own."""
    facts: dict[str, Any] = {it.name: {"max_bytes": it.max_bytes, "max_age_s": it.max_age_s} for it in streams}
    kept = ("file", "default", "limits", "old")
    foreign = [it.name for it in streams if (it.storage, it.persist_mode, it.retention, it.discard) != kept]
    if foreign:
        text = (
            f"{', '.join(foreign)} does not keep history in files, written before the acknowledgement, under limits, "
            "the oldest discarded first: no part makes such streams; remove it, or change it at the broker."
        )
        return Finding("stream_limits", PROBLEM, text, facts)
    differ = [_difference(it, topology) for it in streams if it.name in topology.names()]
    if texts := [text for text in differ if text]:
        text = (
            f"{'; '.join(texts)}: change the streams at the broker (`nats stream edit`; {NATS_CLI}), or the "
            "configuration."
        )
        return Finding("stream_limits", WARNING, text, facts)
    total = bytes_text(sum(it.max_bytes for it in streams))
    age = seconds_text(topology.max_age_s)
    return Finding("stream_limits", OK, f"The streams keep what is configured: {age}, {total}.", facts)


def check_key(streams: list[BrokerStream], checked: CheckedKey) -> Finding:
    """Every stream has the fingerprints of this deployment's key, and of no other one."""
    own = dict(checked.fingerprints)
    facts: dict[str, Any] = {"key": own, "streams": {it.name: dict(it.fingerprints) for it in streams}}
    faults = [text for it in streams if (text := fault(it.fingerprints, f"stream {it.name}", checked)) is not None]
    if faults:
        return Finding("key", PROBLEM, f"{faults[0]}.", facts)
    bare = [it.name for it in streams if not own.keys() <= it.fingerprints.keys()]
    if bare:
        text = (
            f"{', '.join(bare)} {plural(len(bare), 'lacks', 'lack')} a fingerprint of this key, so that a deployment "
            "with another key could start here: `contrail up` and `contrail nats streams` write it."
        )
        return Finding("key", WARNING, text, facts)
    return Finding("key", OK, "The streams name the key of this deployment.", facts)


def check_copies(streams: list[BrokerStream], topology: Topology, cluster: str | None) -> Finding:
    """Each stream has as many copies as configured, and all of them are there."""
    facts: dict[str, Any] = {
        it.name: {"replicas": it.replicas, "leader": it.leader, "behind": list(it.offline)} for it in streams
    }
    away = {server for it in streams for server in it.offline}
    if away:
        text = f"Copies of streams on {', '.join(sorted(away))} are away or behind: see to these servers."
        return Finding("stream_copies", PROBLEM, text, facts)
    differ = [it.name for it in streams if it.replicas != topology.replicas]
    if differ:
        copies = f"{streams[0].replicas} {plural(streams[0].replicas, 'copy', 'copies')}"
        text = (
            f"log.replicas is {topology.replicas}, but {', '.join(differ)} has {copies}: "
            "change it at the broker (`nats stream edit --replicas`; "
            f"{NATS_CLI})."
        )
        return Finding("stream_copies", WARNING, text, facts)
    if cluster and topology.replicas < SERVERS_MIN_FOR_COPIES:
        text = (
            f"NATS is a cluster, but each stream is on {count_text(topology.replicas, 'server')}: if that goes, the "
            "log is away; set log.replicas to 3."
        )
        return Finding("stream_copies", WARNING, text, facts)
    copies = f"{topology.replicas} of {topology.replicas} {plural(topology.replicas, 'copy', 'copies')}"
    return Finding("stream_copies", OK, f"Each stream has {copies}.", facts)


def check_deleted(streams: list[BrokerStream]) -> Finding:
    """Nothing between the oldest and the newest message is missing, by the broker's account."""
    counts = {it.name: it.deleted for it in streams if it.deleted and it.name != SNAPSHOTS}
    facts = {"deleted": counts}
    if counts:
        where = ", ".join(f"{count} of {name}" for name, count in counts.items())
        text = (
            f"Messages inside the log are missing at the broker ({where}): deleted, or lost by its store. Decisions "
            "that rest on them may not be judged; see who may delete (docs/deploy.md, Roles at NATS), and to the disk."
        )
        return Finding("stream_deletions", WARNING, text, facts)
    return Finding(
        "stream_deletions",
        OK,
        "The broker counts no message missing between the oldest and the newest of a stream.",
        facts,
    )


def check_history(streams: list[BrokerStream]) -> Finding:
    """The limits hold the configured history, at the rate measured."""
    facts: dict[str, Any] = {it.name: _history(it) for it in streams if it.name != SNAPSHOTS}
    held = sorted((fact["held_s"], name) for name, fact in facts.items() if fact["held_s"] is not None)
    if not held:
        return Finding(
            "history", OK, "No stream spans a minute yet: how much history the limits hold is not known.", facts
        )
    age_s: dict[str, float] = {it.name: it.max_age_s for it in streams}
    short = [(held_s, name) for held_s, name in held if held_s < age_s[name]]
    if warned := [(held_s, name) for held_s, name in short if held_s < age_s[name] * _share_min(name)]:
        held_s, name = warned[0]
        text = (
            f"At {bytes_text(facts[name]['bytes_per_hour'])} per hour, {name} is full after {seconds_text(held_s)}, "
            f"before its {seconds_text(age_s[name])} are over: give log.max_bytes more, and the stream too, which "
            f"keeps the size it has (`nats stream edit`; {NATS_CLI}); or expect less history."
        )
        return Finding("history", WARNING, text, facts)
    total = bytes_text(sum(fact["bytes_per_hour"] or 0 for fact in facts.values()))
    but = "".join(f", but of {name} only {seconds_text(held_s)}" for held_s, name in short)
    configured = seconds_text(max(age_s[name] for _, name in held))
    text = (
        f"At its mean rate so far, {total} per hour, the log's limits hold the {configured} that are configured{but}."
    )
    return Finding("history", OK, text, facts)


def _share_min(name: str) -> float:
    """The least share of the configured age: 1 for cache events and decisions, less for the other streams."""
    return 1.0 if is_kv(StreamName(name)) or name == ROUTING else BESIDE_SHARE


def _difference(it: BrokerStream, topology: Topology) -> str:
    limits = topology.config(StreamName(it.name))
    if it.max_bytes != limits.max_bytes:
        return f"{it.name} keeps {bytes_text(it.max_bytes)} and not the {bytes_text(limits.max_bytes)} of log.max_bytes"
    if it.max_age_s != limits.max_age_s:
        return (
            f"{it.name} keeps {seconds_text(it.max_age_s)} and not the {seconds_text(limits.max_age_s)} of log.max_age"
        )
    return ""


def _history(it: BrokerStream) -> dict[str, float | None]:
    span_s = (it.last_ms - it.first_ms) / 1000 if it.first_ms is not None and it.last_ms is not None else 0.0
    if span_s < SPAN_S_MIN:
        return {"span_s": span_s, "bytes": it.bytes, "bytes_per_hour": None, "held_s": None}
    per_s = it.bytes / span_s
    held_s = it.max_bytes / per_s if it.max_bytes > 0 else float("inf")
    return {"span_s": span_s, "bytes": it.bytes, "bytes_per_hour": per_s * 3600, "held_s": held_s}


LATE_FACTOR = 2
"""Intervals after which a snapshot is late."""
CLOCKS_APART_MS = 1_000
"""A time this far ahead of our clock is stated as a difference of the clocks."""


class LogHistory(NamedTuple):
    """Streams and snapshots, for the checks of the history."""

    streams: list[BrokerStream]
    """All streams but that of the snapshots."""
    snapshots: list[SnapshotStatus]
    """Newest first."""
    now_ms: int
    every_s: int | None
    """Interval of snapshots; None if they are off."""


def check_record(record: LogHistory) -> Iterator[Finding]:
    """The findings on snapshots, and on the beginning of the history."""
    kept = record._replace(streams=[it for it in record.streams if it.name != SNAPSHOTS])
    yield _snapshots(kept)
    yield _verifiable(kept)


def _snapshots(record: LogHistory) -> Finding:
    if not record.snapshots:
        return _no_snapshot(record)
    good = [it for it in record.snapshots if it.usable]
    newest_one = record.snapshots[0]
    if not good:
        text = f"No snapshot can be used (the newest: {newest_one.why}): take one with `contrail snapshots take`."
        return Finding("snapshot", WARNING, text, {"snapshot": newest_one.manifest.id, "usable": False})
    status = good[0]
    newest = status.manifest
    age_s = (record.now_ms - newest.made_ms) / 1000
    facts = {
        "snapshot": newest.id,
        "age_s": round(age_s, 1),
        "size_bytes": newest.size_bytes,
        "usable": True,
        "content_read": status.is_content_read,
    }
    how = "its content has the digests of its manifest" if status.is_content_read else "its content was not read"
    text = f"The newest snapshot that can be used is {_age(record.now_ms, newest.made_ms)}; {how}"
    if newest_one is not status:
        newer = record.snapshots.index(status)
        text += f"; {count_text(newer, 'newer one')} cannot be used (the newest: {newest_one.why})."
        return Finding("snapshot", WARNING, text, facts)
    if record.every_s is not None and age_s > LATE_FACTOR * record.every_s:
        text += f"; one is due every {seconds_text(record.every_s)}: see the front ends' logs for why."
        return Finding("snapshot", WARNING, text, facts)
    if newest.made_ms > record.now_ms + CLOCKS_APART_MS:
        return Finding("snapshot", WARNING, f"{text}; let all machines follow NTP.", facts)
    return Finding("snapshot", OK, f"{text}.", facts)


def _no_snapshot(record: LogHistory) -> Finding:
    facts: dict[str, Any] = {"snapshot": None}
    if record.every_s is None:
        return Finding("snapshot", WARNING, "log.snapshot_every is off: every start folds the whole log.", facts)
    held = bytes_text(sum(it.bytes for it in record.streams))
    text = f"No snapshot can be read: a start folds all {held} of the log; `contrail snapshots take`."
    return Finding("snapshot", WARNING if _span_s(record) > LATE_FACTOR * record.every_s else OK, text, facts)


def _age(now_ms: int, then_ms: int) -> str:
    """`5m old`, or by how much its time is ahead of our clock."""
    if then_ms > now_ms + CLOCKS_APART_MS:
        ahead = seconds_text((then_ms - now_ms) / 1000)
        return f"dated {ahead} ahead of our clock, so that its writer's clock and ours differ by that or more"
    return f"{seconds_text(max(now_ms - then_ms, 0) / 1000)} old"


def _verifiable(record: LogHistory) -> Finding:
    """The beginning of the history: the log's start, or else a snapshot. Decisions themselves are judged by
    `check_decisions`."""
    cut = {it.name: _first(it) for it in record.streams if _first(it) > 1}
    if not cut:
        first = [it.first_ms for it in record.streams if it.first_ms is not None]
        facts = {"from_ms": min(first, default=None), "by": "start"}
        return Finding("verifiable", OK, "Each stream holds its first message since it was made, if it has any.", facts)
    streams = ", ".join(f"{name} before {seq:,}" for name, seq in cut.items())
    good = [it.manifest.made_ms for it in record.snapshots if it.usable]
    if not good:
        text = (
            f"Messages are no longer in the log ({streams}), and no snapshot can be used: decisions before their "
            "sources' next restatement cannot be judged; keep log.snapshot_every on."
        )
        return Finding("verifiable", WARNING, text, {"from_ms": None, "by": "restatement"})
    oldest = min(good)
    text = (
        f"Messages are no longer in the log ({streams}); the oldest snapshot that can be used is "
        f"{_age(record.now_ms, oldest)}, and decisions from before it may not be judged."
    )
    return Finding("verifiable", OK, text, {"from_ms": min(oldest, record.now_ms), "by": "snapshot"})


def _first(stream: BrokerStream) -> int:
    """The oldest retained sequence; the one after the last if none is."""
    return stream.first_seq if stream.messages else stream.last_seq + 1


def _span_s(record: LogHistory) -> float:
    first = [it.first_ms for it in record.streams if it.first_ms is not None]
    return (record.now_ms - min(first)) / 1000 if first else 0.0
