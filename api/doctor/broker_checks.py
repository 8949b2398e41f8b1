"""Checks of the broker itself: version, rights, sizes, clock, readers. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api.amounts import bytes_text, seconds_text
from api.doctor.finding import NATS_CLI, OK, PROBLEM, WARNING, Finding, version_of
from core.subjects import JOBS
from streams.jetstream.broker_inspection import BrokerConsumer, BrokerServer
from streams.jetstream.pull_consumer import INACTIVE_S
from streams.topology import PAYLOAD_MIN

VERSION_MIN = (2, 11)
"""Older ones lack what the log uses, or were not tried."""
CLOCK_WARNING_MS = 1_000.0
CLOCK_PROBLEM_MS = 30_000.0
"""Moments that people type, and ages that we show, are wrong by that much; decisions rest on no clock but their own."""
ABANDONED_S = 120.0
"""A reader without a request for so long does not live: readers always have some waiting."""


def check_server(server: BrokerServer) -> Iterator[Finding]:
    """The server as it introduces itself."""
    facts = {"version": server.version, "cluster": server.cluster}
    if version_of(server.version) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        yield Finding("broker_version", PROBLEM, f"NATS {server.version} is too old: use {wanted} or newer.", facts)
    else:
        place = f"in cluster {server.cluster}" if server.cluster else "one server"
        yield Finding("broker_version", OK, f"NATS {server.version}, {place}.", facts)
    yield _payload(server)
    yield _clock(server)


def check_rights(missing: list[str]) -> Finding:
    """All that the log needs is allowed."""
    if missing:
        text = f"NATS does not let us {', '.join(missing)}: give the user of log.credentials these rights."
        return Finding("broker_rights", PROBLEM, text, {"missing": missing})
    return Finding("broker_rights", OK, "NATS lets us append, read, and make streams and consumers.", {"missing": []})


def check_consumers(consumers: list[BrokerConsumer]) -> Finding:
    """No reader left anything behind that the broker must keep: positions are our own, but for the queues of jobs."""
    durable = [it.name for it in consumers if it.durable and it.stream != JOBS]
    left = [it.name for it in consumers if not it.durable and not it.waiting and it.age_s > ABANDONED_S]
    facts = {"consumers": len(consumers), "durable": durable, "abandoned": left}
    if durable:
        text = (
            f"{len(durable)} durable consumers are at the broker, and none is ours: {', '.join(durable[:3])}; "
            f"if nobody reads with them, remove them (`nats consumer rm`; {NATS_CLI})."
        )
        return Finding("broker_consumers", WARNING, text, facts)
    if left:
        text = (
            f"{len(left)} consumers are at the broker and nobody reads with them: {', '.join(left[:3])}; the broker "
            f"drops them {seconds_text(INACTIVE_S)} after their readers went, so ask again then."
        )
        return Finding("broker_consumers", WARNING, text, facts)
    return Finding("broker_consumers", OK, f"{len(consumers)} consumers are at the broker, and all are read.", facts)


def _payload(server: BrokerServer) -> Finding:
    facts = {"max_payload_bytes": server.max_payload}
    size = bytes_text(server.max_payload)
    if server.max_payload < PAYLOAD_MIN:
        text = f"max_payload of NATS is {size}: set it to 1MB, else snapshots and large caches do not fit."
        return Finding("broker_max_payload", PROBLEM, text, facts)
    return Finding("broker_max_payload", OK, f"max_payload of NATS is {size}.", facts)


def _clock(server: BrokerServer) -> Finding:
    ahead_ms = server.clock_ahead_ms
    facts = {"ahead_ms": round(ahead_ms, 1), "round_trip_ms": round(server.round_trip_ms, 2)}
    if abs(ahead_ms) <= CLOCK_WARNING_MS:
        return Finding("broker_clock", OK, f"The broker's clock and ours differ by {abs(ahead_ms):.0f} ms.", facts)
    way = "ahead of" if ahead_ms > 0 else "behind"
    text = f"The broker's clock is {seconds_text(abs(ahead_ms) / 1000)} {way} ours: let both follow NTP."
    return Finding("broker_clock", PROBLEM if abs(ahead_ms) > CLOCK_PROBLEM_MS else WARNING, text, facts)
