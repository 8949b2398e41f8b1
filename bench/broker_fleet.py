"""The messages of a fleet, set against what a broker takes: arithmetic alone.

A worker writes cache events and load reports, a front end the records of its requests and a report of digests. Every
front end follows all streams. Events of one source that come within its pace share a message.

`Needs` compares that with measured limits. A stream, a server and a front end are asked for HEADROOM of what they have
at most. `log.kv_partitions` spreads cache events alone: nothing spreads load reports and records over several streams,
and nothing takes a part of the log off a front end. Beyond that a fleet needs several logs, each with workers and front
ends of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, exp
from typing import NamedTuple

from actors.consistency.digest_exchange import REPORT_EVERY_MS as DIGESTS_EVERY_MS
from actors.membership.routing_publisher import LIMITS as ROUTER_LIMITS
from actors.worker.load_reporter import REPORT_EVERY_MS
from core.subjects import LOAD, ROUTING
from streams.outbox.backlog import OutboxLimits

KV = "kv"
"""All streams of cache events together."""
WORKERS = (8, 64, 256, 1000, 4000, 10_000)
PER_WORKER_S = (1.0, 10.0)
"""Requests per second of one worker."""
KV_MESSAGES = 2.0
"""Messages of cache events per request, by `bench.size` with 64 tokens per block and answers of 100 tokens."""
EVENTS = 3
"""Events of a request at its front end: decision, first token, end."""
PER_FRONT_END_S = 500
"""Requests per second that a front end is given: less than half of what one answers in `bench.frontdoor`."""
FRONT_ENDS_MIN = 2
FOLD_US = 34.0
"""CPU of one more replica to read and fold a request with its cache events, by `bench.append`."""
HEADROOM = 0.5
"""The part of a limit that is used in operation."""
SERVER_CORES = 8
"""Cores of one NATS server."""
SERVERS_MIN = 3
"""Servers of a log with three copies."""
WORKERS_MAX = 1_000_000
"""Bound of the search for a number of workers."""
BYTES_PER_MB = 1e6
HEADS = (
    "workers",
    "requests/s",
    "front ends",
    "messages/s: cache events, load, records",
    "MB/s in, out",
    "`kv_partitions`",
    "cores of one server",
    "servers, three copies",
    "core of a front end that follows",
    "one log is not enough for",
)


class Sizes(NamedTuple):
    """Bytes, by the encoders."""

    kv: int
    """A message of cache events."""
    load: int
    """A load report in its message."""
    request: int
    """The three events of a request at its front end, without a message around them …"""
    envelope: int
    """… and the message around them."""


class Limits(NamedTuple):
    """What was measured."""

    stream_s: float
    """Messages per second that one stream takes."""
    append_us: float
    """The broker's CPU for one message without followers, on one server."""
    deliver_us: float
    """The same for each follower of it."""
    copies_us: float
    """CPU of three servers together for a message with three copies, without followers."""


class Traffic(NamedTuple):
    """What a fleet writes."""

    workers: int
    requests_s: float
    front_ends: int
    messages_s: dict[str, float]
    """By the kind of stream."""
    bytes_s: float
    """Of all messages."""

    @property
    def all_s(self) -> float:
        """Messages per second of all streams."""
        return sum(self.messages_s.values())


class Needs(NamedTuple):
    """What a fleet's log needs."""

    partitions: int
    """`log.kv_partitions`."""
    one_server_cores: float
    """The broker's CPU on a single server."""
    cores: float
    """That of all servers with three copies."""
    servers: int
    """Servers for three copies."""
    following: float
    """The part of a core that each front end needs to follow the log."""
    beyond: tuple[str, ...]
    """Limits of one log that the fleet passes with any number of partitions and servers."""


def paced(events_s: float, pace_s: float) -> float:
    """Messages per second of a source whose events come at random: a message goes at the first event, and at the end
    of the pace if more came. So a message follows the one before after the pace, or at the next event if none came."""
    if events_s <= 0:
        return 0.0
    return 1 / (pace_s + exp(-events_s * pace_s) / events_s)


def traffic(workers: int, per_worker_s: float, sizes: Sizes) -> Traffic:
    """The messages of so many busy workers and the front ends that they need."""
    requests_s = workers * per_worker_s
    front_ends = max(FRONT_ENDS_MIN, ceil(requests_s / PER_FRONT_END_S))
    kv_s = workers * paced(KV_MESSAGES * per_worker_s, OutboxLimits().pace_s)
    load_s = workers * 1000 / REPORT_EVERY_MS
    records_s = front_ends * paced(EVENTS * requests_s / front_ends, ROUTER_LIMITS.pace_s)
    routing_s = records_s + front_ends * 1000 / DIGESTS_EVERY_MS
    bytes_s = kv_s * sizes.kv + load_s * sizes.load + routing_s * sizes.envelope + requests_s * sizes.request
    return Traffic(workers, requests_s, front_ends, {KV: kv_s, LOAD: load_s, ROUTING: routing_s}, bytes_s)


def needs(fleet: Traffic, limits: Limits) -> Needs:
    """The needs of that fleet's log by these limits."""
    stream_s = HEADROOM * limits.stream_s
    delivered_us = fleet.front_ends * limits.deliver_us
    one_server_cores = fleet.all_s * (limits.append_us + delivered_us) / 1e6
    cores = fleet.all_s * (limits.copies_us + delivered_us) / 1e6
    following = fleet.requests_s * FOLD_US / 1e6
    beyond: list[str] = [stream for stream in (LOAD, ROUTING) if fleet.messages_s[stream] > stream_s]
    if following > HEADROOM:
        beyond.append("front ends")
    return Needs(
        partitions=max(1, ceil(fleet.messages_s[KV] / stream_s)),
        one_server_cores=one_server_cores,
        cores=cores,
        servers=max(SERVERS_MIN, ceil(cores / (HEADROOM * SERVER_CORES))),
        following=following,
        beyond=tuple(beyond),
    )


class Threshold(NamedTuple):
    """A number of workers from which on something is necessary."""

    what: str
    workers: int | None
    """None: not up to WORKERS_MAX."""


def thresholds(per_worker_s: float, sizes: Sizes, limits: Limits) -> list[Threshold]:
    """The first numbers of workers that need more of something."""

    def first(holds: Callable[[Needs], bool]) -> int | None:
        return first_number(lambda workers: holds(needs(traffic(workers, per_worker_s, sizes), limits)))

    return [
        Threshold("kv_partitions above 1", first(lambda each: each.partitions > 1)),
        Threshold("more than one server", first(lambda each: each.one_server_cores > HEADROOM * SERVER_CORES)),
        Threshold("more than three servers", first(lambda each: each.servers > SERVERS_MIN)),
        Threshold("a second log, by the load stream", first(lambda each: LOAD in each.beyond)),
        Threshold("a second log, by the routing stream", first(lambda each: ROUTING in each.beyond)),
        Threshold("a second log, by what front ends follow", first(lambda each: "front ends" in each.beyond)),
    ]


def first_number(holds: Callable[[int], bool], last: int = WORKERS_MAX) -> int | None:
    """The least number from 1 to `last` for which that holds; it holds for all larger ones, too."""
    if not holds(last):
        return None
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def markdown(per_worker_s: float, sizes: Sizes, limits: Limits, workers: Iterable[int] = WORKERS) -> str:
    """The table of fleets at that rate."""
    lines = [
        f"| {' | '.join(HEADS)} |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for number in workers:
        fleet = traffic(number, per_worker_s, sizes)
        need = needs(fleet, limits)
        kinds = ", ".join(f"{fleet.messages_s[kind]:,.0f}" for kind in (KV, LOAD, ROUTING))
        mb_s = fleet.bytes_s / BYTES_PER_MB
        lines.append(
            f"| {number:,} | {fleet.requests_s:,.0f} | {fleet.front_ends} | {kinds} "
            f"| {mb_s:,.1f}, {mb_s * fleet.front_ends:,.0f} | {need.partitions} | {need.one_server_cores:,.2f} "
            f"| {need.servers} | {need.following:,.2f} | {', '.join(need.beyond)} |"
        )
    return "\n".join(lines)
