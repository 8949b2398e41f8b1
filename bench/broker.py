"""broker: what one nats-server takes, what three take, and what a fleet therefore needs.

Real servers are started here, with the streams of a deployment. Publishers append messages of the sizes that Contrail
writes, each source with one append in flight, as outboxes do; followers tail all streams, as front ends do, and count.
Each row has servers and processes of its own. It runs as fast as it can, then at half of that rate, several times; the
figures are medians. A rate counts until every append is acknowledged and every follower has every message.

Servers, publishers and followers share this machine's cores, so rates are lower bounds. The CPU of the servers for a
message is the figure to scale from. The last figures do that for fleets of several sizes (`bench.broker_fleet`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import linear_regression, median
from typing import IO, NamedTuple

import uvloop

from bench.broker_fleet import (
    KV,
    PER_WORKER_S,
    WORKERS,
    Limits,
    Sizes,
    markdown,
    needs,
    thresholds,
    traffic,
)
from bench.broker_messages import BATCH, payloads, sizes
from bench.broker_processes import FOLLOWER, NAMESPACE, PUBLISHER, Answer, given_credentials
from bench.figures import MICRO, Figure, main, refuse
from bench.processes import cpu_s, machine_s, started
from core.errors import PeerError
from core.ids import StreamName
from core.subjects import LOAD, ROUTING, kv_stream
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.broker_accounts import ADMIN, REPLICA, WORKER
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.nats_credentials import NatsCredentials
from streams.topology import Topology
from tests.chaos.cluster import NODES, Cluster

EXAMPLES = """examples:
  python -m bench.broker --json broker.json        all rows and the fleets; five minutes
  python -m bench.broker --rows servers            rows with that in their names
  python -m bench.broker --per-worker-s 2 5        fleets at other rates of requests
  python -m bench.broker --seconds 10 --repeats 5  longer runs, and more of them
"""
SECONDS, SECONDS_QUICK = 3.0, 1.0
REPEATS = 3
PUBLISHERS, CHAINS = 2, 32
FOLLOWERS = (1, 2, 4, 8)
FOLLOWERS_QUICK = (1, 2)
PARTITIONS = 4
"""Of cache events, in the row that has several."""
LOG_BYTES = 12 * 10**9
HALF = 0.5
RATE_KEPT = 0.9
"""The part of a paced rate that publishers must keep: else its times are those of an overload."""
WAIT_S = 60.0
"""Longest wait for a process beyond the time that it measures."""
STREAMS_S, STREAMS_PAUSE_S = 60.0, 0.5
"""Longest wait for a new cluster to make streams, and the pause between tries."""
END_S = 10.0
MS = 1e3
MB = 1e6
ONE_STREAM, ALL_STREAMS = "one stream, cache events", "all streams"
ONE_USER, THREE_SERVERS = "all streams, one user", "three servers, one user"
"""Names of rows that fleets are reckoned from, and of the one that three servers stand beside."""
ROLES = {"worker": WORKER, "replica": REPLICA}
"""Of publishers and followers."""


class Row(NamedTuple):
    """One measurement."""

    what: str
    chains: tuple[tuple[StreamName, str], ...]
    """Of each publisher: the stream and the kind of its message."""
    followers: int = 0
    servers: int = 1
    has_roles: bool = True
    """False: one user for all."""

    @property
    def streams(self) -> list[StreamName]:
        """The streams that it writes to."""
        return list(dict.fromkeys(stream for stream, _ in self.chains))

    @property
    def topology(self) -> Topology:
        """The streams of a deployment for it."""
        copies = NODES if self.servers > 1 else 1
        partitions = sum(stream not in {LOAD, ROUTING} for stream in self.streams)
        return Topology(kv_partitions=max(1, partitions), replicas=copies, max_bytes=LOG_BYTES)


def rows(followers: tuple[int, ...] = FOLLOWERS) -> list[Row]:
    """All of them, in their order."""
    kv = [kv_stream(number) for number in range(PARTITIONS)]
    one = tuple((kv[0], KV) for _ in range(CHAINS))
    batches = tuple((ROUTING, BATCH) for _ in range(CHAINS))
    several = tuple((kv[number % PARTITIONS], KV) for number in range(CHAINS))
    every = tuple([(kv[0], KV), (LOAD, LOAD), (kv[0], KV), (ROUTING, ROUTING)][number % 4] for number in range(CHAINS))
    return [
        Row(ONE_STREAM, one),
        Row("one stream, records of five requests", batches),
        Row(f"cache events in {PARTITIONS} partitions", several),
        Row(ALL_STREAMS, every),
        *(Row(f"{ALL_STREAMS}, {number} followers", every, number) for number in followers),
        Row(ONE_USER, every, has_roles=False),
        Row(THREE_SERVERS, every, servers=NODES, has_roles=False),
    ]


class Broker(NamedTuple):
    """Servers that run."""

    urls: list[str]
    admin: NatsCredentials
    credentials: dict[str, dict[str, str]]
    """Of workers and replicas, as JSON."""
    pids: list[int]


@asynccontextmanager
async def brokers(row: Row, folder: Path) -> AsyncIterator[Broker]:
    """The servers of a row, without streams."""
    if row.servers > 1:
        cluster = Cluster(folder)
        try:
            await cluster.start()
            given = given_credentials(cluster.credentials)
            yield Broker(
                cluster.urls, cluster.credentials, {"worker": given, "replica": given}, [*cluster.pids.values()]
            )
        finally:
            await cluster.stop()
        return
    user = None if row.has_roles else NatsCredentials(user="contrail", password="bench")  # noqa: S106 - of a server here
    partitions = row.topology.kv_partitions
    server = EmbeddedNats(folder, credentials=user, namespace=NAMESPACE, kv_partitions=partitions)
    await server.start()
    try:
        roles = {name: given_credentials(server.credentials_of(role)) for name, role in ROLES.items()}
        yield Broker([server.url], server.credentials_of(ADMIN), roles, [server.pid])
    finally:
        await server.stop()


@asynccontextmanager
async def opened(row: Row, broker: Broker) -> AsyncIterator[JetStreamLog]:
    """The log with its streams; a cluster needs some seconds to make them."""
    log = await JetStreamLog.connect(broker.urls, NAMESPACE, row.topology, broker.admin)
    try:
        async with asyncio.timeout(STREAMS_S):
            while True:
                try:
                    await log.ensure(row.topology.names())
                    break
                except PeerError:
                    if row.servers == 1:
                        raise
                    await asyncio.sleep(STREAMS_PAUSE_S)
        yield log
    finally:
        await log.close()


class Part:
    """A process that answers orders; see `bench.broker_processes`."""

    def __init__(self, kind: str, given: Answer, errors: IO[str]) -> None:
        self._kind = kind
        command = [sys.executable, "-m", "bench.broker_processes", kind]
        self._process = started(command, errors, None, talks=True)
        self._write(given)

    async def ready(self) -> None:
        """It is connected."""
        await self._read(WAIT_S)

    async def ask(self, order: Answer, within_s: float) -> Answer:
        """The answer; the program ends if it takes longer."""
        self._write(order)
        return await self._read(within_s + WAIT_S)

    def end(self) -> None:
        """The process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _write(self, what: Answer) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer will be missing, and that is noticed
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    async def _read(self, within_s: float) -> Answer:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                line = await asyncio.to_thread(self._process.stdout.readline)
        except TimeoutError:
            self._process.kill()  # which ends the thread that waits for its line
            sys.exit(f"a {self._kind} gave no answer within {within_s:g} s")
        if not line:
            sys.exit(f"a {self._kind} ended before its answer: its errors are above")
        found: Answer = json.loads(line)
        return found


class Run(NamedTuple):
    """One run of a row."""

    per_s: float
    bytes_s: float
    broker_us: float
    """CPU of all servers for a message …"""
    fullest_us: float
    """… and of the server that had most."""
    publisher_us: float
    follower_us: float
    """CPU of all followers for a message."""
    p50_ms: float
    p99_ms: float
    others: float
    """The part of the machine's processor time that other programs had."""


class MeasuredRow(NamedTuple):
    """Medians of the runs of one row."""

    row: Row
    limit: Run
    half: Run


async def measured(row: Row, options: argparse.Namespace) -> MeasuredRow:
    """The row on servers and processes of its own."""
    with tempfile.TemporaryDirectory(prefix="contrail-broker-") as folder:
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(brokers(row, Path(folder)))
            log = await stack.enter_async_context(opened(row, broker))
            parts = [Part(kind, given, sys.stderr) for kind, given in _givens(row, broker)]
            for part in parts:
                stack.callback(part.end)
            await asyncio.gather(*(part.ready() for part in parts))
            publishers, followers = parts[:PUBLISHERS], parts[PUBLISHERS:]
            limits, halves = list[Run](), list[Run]()
            for _ in range(1 if options.quick else options.repeats):
                limits.append(await _run(row, broker, log, publishers, followers, _seconds(options), None))
                half_s = HALF * limits[-1].per_s
                halves.append(await _run(row, broker, log, publishers, followers, _seconds(options), half_s))
    return MeasuredRow(row, _medians(limits), _medians(halves))


def _givens(row: Row, broker: Broker) -> Iterator[tuple[str, Answer]]:
    """The kind of each process, publishers first, with its first line."""
    made = payloads()
    for number in range(PUBLISHERS + row.followers):
        turn = number % len(broker.urls)
        given = {"urls": broker.urls[turn:] + broker.urls[:turn], "credentials": broker.credentials}
        if number < PUBLISHERS:
            yield PUBLISHER, {**given, "chains": [(stream, made[kind].hex()) for stream, kind in row.chains]}
        else:
            yield FOLLOWER, {**given, "streams": row.streams}


async def _run(
    row: Row,
    broker: Broker,
    log: JetStreamLog,
    publishers: list[Part],
    followers: list[Part],
    seconds: float,
    per_s: float | None,
) -> Run:
    """At that rate, or as fast as it goes. The program ends if a follower lacks messages."""
    began = [cpu_s(pid) for pid in broker.pids]
    began_s, began_own_s, (busy_s, there_s) = time.monotonic(), time.process_time(), machine_s()
    order = {"seconds": seconds, "per_s": None if per_s is None else per_s / len(publishers)}
    written = await asyncio.gather(*(part.ask(order, seconds) for part in publishers))
    ends = {stream: (await log.state(stream)).last_seq for stream in row.streams}
    read = await asyncio.gather(*(part.ask({"until": ends}, seconds) for part in followers))
    used = [cpu_s(pid) - before for pid, before in zip(broker.pids, began, strict=True)]
    others_s = machine_s()[0] - busy_s - sum(used) - (time.process_time() - began_own_s)
    others_s -= sum(each["cpu_s"] for each in (*written, *read))
    messages = sum(each["messages"] for each in written)
    if not messages or any(each["messages"] != messages for each in read):
        sys.exit(f"{row.what}: {messages} messages were acknowledged, followers have {[e['messages'] for e in read]}")
    took_s = max([each["ended_s"] for each in written] + [each["at_s"] for each in read]) - began_s
    if per_s is not None and messages / took_s < RATE_KEPT * per_s:
        print(f"{row.what}: {messages / took_s:,.0f} messages/s instead of {per_s:,.0f}", file=sys.stderr)
    took_us = sorted(us for each in written for us in each["took_us"])
    return Run(
        per_s=messages / took_s,
        bytes_s=sum(each["bytes"] for each in written) / took_s,
        broker_us=sum(used) / messages * MICRO,
        fullest_us=max(used) / messages * MICRO,
        publisher_us=sum(each["cpu_s"] for each in written) / messages * MICRO,
        follower_us=sum(each["cpu_s"] for each in read) / messages * MICRO,
        p50_ms=took_us[len(took_us) // 2] / MS,
        p99_ms=took_us[len(took_us) * 99 // 100] / MS,
        others=max(0.0, others_s / (machine_s()[1] - there_s)),
    )


def _medians(runs: list[Run]) -> Run:
    return Run(*(median(values) for values in zip(*runs, strict=True)))


def _seconds(options: argparse.Namespace) -> float:
    seconds: float = SECONDS_QUICK if options.quick else options.seconds
    return seconds


def figures(found: MeasuredRow) -> Iterator[Figure]:
    """Those of one row: CPU first."""
    what, limit, half = found.row.what, found.limit, found.half
    fullest = f"; {limit.fullest_us:.0f} us of it on the fullest server" if found.row.servers > 1 else ""
    parts = f"publishers {limit.publisher_us:.0f} us, followers {limit.follower_us:.0f} us"
    yield Figure(f"{what}: servers' CPU", limit.broker_us, "us/message", note=f"{parts}{fullest}")
    yield Figure(f"{what}: the same at half the rate", half.broker_us, "us/message")
    note = f"{limit.bytes_s / MB:.1f} MB/s; other programs had {limit.others:.0%} of the machine"
    yield Figure(f"{what}: limit", limit.per_s, "messages/s", lower_is_better=False, note=note)
    note = f"at {half.per_s:,.0f} messages/s"
    yield Figure(f"{what}: p50 of an append at half the limit", half.p50_ms, "ms", note=note)
    yield Figure(f"{what}: p99 of an append at half the limit", half.p99_ms, "ms", note=note)


def limits_of(found: list[MeasuredRow]) -> Limits | None:
    """The limits that fleets are compared with; None if a row for them was not measured. CPU is that at the limit: at
    half of it, servers on this machine spend more on waking up."""
    by_name = {each.row.what: each for each in found}
    if not {ONE_STREAM, ALL_STREAMS, THREE_SERVERS} <= by_name.keys():
        return None
    followed = [each for each in found if each.row.what.startswith(ALL_STREAMS) and each.row.has_roles]
    if len(followed) == 1:
        return None
    counts, costs = [each.row.followers for each in followed], [each.limit.broker_us for each in followed]
    return Limits(
        stream_s=by_name[ONE_STREAM].limit.per_s,
        append_us=by_name[ALL_STREAMS].limit.broker_us,
        deliver_us=linear_regression(counts, costs).slope,
        copies_us=by_name[THREE_SERVERS].limit.broker_us,
    )


def fleet_figures(per_worker_s: float, found: Sizes, limits: Limits) -> Iterator[Figure]:
    """Those of fleets whose workers have so many requests per second."""
    for workers in WORKERS:
        fleet = traffic(workers, per_worker_s, found)
        need, of = needs(fleet, limits), f"{workers:,} workers, {per_worker_s:g} requests/s each"
        beyond = f"; beyond one log: {', '.join(need.beyond)}" if need.beyond else ""
        note = f"{fleet.front_ends} front ends, {fleet.bytes_s / MB:.1f} MB/s, {need.servers} servers{beyond}"
        yield Figure(f"{of}: the log", fleet.all_s, "messages/s", note=note)
        yield Figure(f"{of}: kv_partitions", need.partitions, "partitions")
        yield Figure(f"{of}: CPU of one server", need.one_server_cores, "cores")
    for threshold in thresholds(per_worker_s, found, limits):
        if threshold.workers is not None:
            yield Figure(f"{per_worker_s:g} requests/s: {threshold.what}", threshold.workers, "workers")


def rows_markdown(found: list[MeasuredRow]) -> str:
    """The table of the rows."""
    lines = [
        "| | servers' CPU per message: at the limit, at half | limit, messages/s | MB/s | append at half: p50, p99 |",
        "|---|--:|--:|--:|--:|",
    ]
    for what, limit, half in ((each.row.what, each.limit, each.half) for each in found):
        lines.append(
            f"| {what} | {limit.broker_us:.0f} us, {half.broker_us:.0f} us | {limit.per_s:,.0f} "
            f"| {limit.bytes_s / MB:.1f} | {half.p50_ms:.2f}, {half.p99_ms:.1f} ms |"
        )
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """All figures, in order; then the tables for docs/benchmarks.md."""
    if options.seconds <= 0 or options.repeats < 1 or min(options.per_worker_s) <= 0:
        refuse("--seconds and --per-worker-s must be above 0, and --repeats at least 1")
    wanted = rows(FOLLOWERS_QUICK if options.quick else FOLLOWERS)
    if options.rows:
        wanted = [row for row in wanted if any(part in row.what for part in options.rows)]
    found = list[MeasuredRow]()
    for number, row in enumerate(wanted, 1):
        print(f"row {number} of {len(wanted)}: {row.what}", flush=True)
        found.append(uvloop.run(measured(row, options)))
        yield from figures(found[-1])
    size, limits = sizes(), limits_of(found)
    print("\n" + rows_markdown(found) + "\n")
    for name, count in size._asdict().items():
        yield Figure(f"bytes: {name}", count, "bytes")
    if limits is None:
        return
    holds = limits.deliver_us > 0
    note = "" if holds else "BELOW 0: the machine was too busy, and nothing is reckoned from this run"
    yield Figure("servers' CPU for one more follower", limits.deliver_us, "us/message", note=note, holds=holds)
    if not holds:
        return
    for per_worker_s in options.per_worker_s:
        yield from fleet_figures(per_worker_s, size, limits)
        print("\n" + markdown(per_worker_s, size, limits) + "\n")


def extend(parser: argparse.ArgumentParser) -> None:
    """The options of its own."""
    parser.description, parser.epilog = (__doc__ or "").partition("\n")[0], EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each run of a row ({SECONDS:g})")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"runs of each row ({REPEATS})")
    parser.add_argument("--rows", nargs="+", metavar="PART", help="only rows with one of these in their names")
    parser.add_argument(
        "--per-worker-s",
        type=float,
        nargs="+",
        default=PER_WORKER_S,
        metavar="N",
        help="requests/s of a worker",
    )


if __name__ == "__main__":
    main("broker", measure, extend)
