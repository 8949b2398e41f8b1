"""append: what the log costs, in CPU of the process that writes, per routed request and per request on a worker.

The same loop runs with the log and without it, one after the other, several times; the figure is the difference.
Arrivals, first tokens and ends come on timers in both; the log's part is the record of the decision, three events,
the journal, sealing, the chain's digest, and appends to a real nats-server that is started here. The steps below it
are measured alone, without a loop around them, so they do not add up to it: waking up costs too, and on a core that
sleeps most of the time every step finds its caches cold. So busier routers are measured as well, up to one that fills
two thirds of its core.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import uvloop

from actors.membership.routing_publisher import LIMITS as ROUTER_LIMITS
from api.process.lifecycle import tune_garbage_collection
from bench.figures import MICRO, Figure, main
from core.block_spans import stretch
from core.clock import SystemClock
from core.codec import digest, encode_event
from core.events import BlocksStored, Event, RequestFinished, RequestPrefilled, RequestRouted
from core.events.routing import PROGRESS_VERSION, ROUTED_VERSION
from core.ids import RequestId, SourceId, StreamName, StreamSeq, WorkerId, new_id
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import ROUTING, kv_stream, subject
from projections.folds.state import State
from projections.policy.cost import ScoredCandidate
from projections.policy.decide import Decision, record
from projections.policy.view import Candidate, RouteRequest
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.outbox.backlog import Backlog, MemoryBacklog, OutboxLimits
from streams.outbox.journal import Journal, identity
from streams.outbox.outbox import Outbox
from streams.outbox.source_chain import seal
from streams.topology import Topology

NAMESPACE = "bench"
CHAIN_KEY = bytes(32)
PROMPT_TOKENS = 2000
BLOCK_SIZE = 64
WORKERS = 8
RATES = (1, 3, 8)
"""Times the rate that was asked for."""
FIRST_TOKEN_S, END_S = 0.02, 0.1
SETTINGS = RoutingSettings()
KV = kv_stream(0)
Put = Callable[[Event], None]


def request(number: int) -> RouteRequest:
    """A prompt that no other has."""
    tokens = secrets.token_bytes(8) + bytes(4 * PROMPT_TOKENS - 8)
    return RouteRequest(RequestId(f"req-{number:012d}"), 0, "model", Prompt(tokens, BLOCK_SIZE, 7))


def decision() -> Decision:
    """A decision among eight workers, made outside the measurement: a router without a log decides too."""
    workers = sorted(WorkerId(new_id()) for _ in range(WORKERS))
    ranked = [
        ScoredCandidate(
            Candidate(w, "model", BLOCK_SIZE, 10_000, True, (9,), 0, 100 + i, i, 0, 0, False), 31_000 + i, 22_000
        )
        for i, w in enumerate(workers)
    ]
    cursor = dict.fromkeys(("kv_0", "load", "routing"), (1790000000000, 1000000))
    return Decision(workers[0], ranked, {}, {}, cursor, 1_790_000_000_000, 2**63 + 1, 1424, 576, "0" * 16)


def routed(asked: RouteRequest, decided: Decision) -> RequestRouted:
    return record(decided, asked, SETTINGS, 3, ROUTED_VERSION)


def prefilled(asked: RouteRequest) -> RequestPrefilled:
    return RequestPrefilled(request=asked.id, attempt=0, cached_tokens=576, ttft_ms=35, v=PROGRESS_VERSION)


def finished(asked: RouteRequest) -> RequestFinished:
    return RequestFinished(
        request=asked.id,
        attempt=0,
        outcome="stop",
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=200,
        cached_tokens=576,
        ttft_ms=35,
        duration_ms=2100,
        v=PROGRESS_VERSION,
    )


def stored(asked: RouteRequest) -> BlocksStored:
    return BlocksStored(**stretch(asked.prompt.hashes(), 0, asked.prompt.blocks)._asdict())


class Router:
    """Three words per request."""

    def __init__(self, put: Put | None) -> None:
        self._put = put
        self._decided = decision()

    def arrive(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        asked = request(number)
        if self._put is not None:
            self._put(routed(asked, self._decided))
        loop.call_later(FIRST_TOKEN_S, self._first, asked)
        loop.call_later(END_S, self._end, asked)

    def _first(self, asked: RouteRequest) -> None:
        if self._put is not None:
            self._put(prefilled(asked))

    def _end(self, asked: RouteRequest) -> None:
        if self._put is not None:
            self._put(finished(asked))


class Worker:
    """One word per request: its blocks are in the cache."""

    def __init__(self, put: Put | None) -> None:
        self._put = put

    def arrive(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        asked = request(number)
        loop.call_later(FIRST_TOKEN_S, self._stored, asked)

    def _stored(self, asked: RouteRequest) -> None:
        if self._put is not None:
            self._put(stored(asked))


async def drive(part: Router | Worker, per_s: int, seconds: float) -> float:
    """Microseconds of this process's CPU per request, at that rate."""
    loop, count = asyncio.get_running_loop(), int(per_s * seconds)
    began_s, cpu_s = loop.time(), time.process_time()
    for number in range(count):
        wait_s = began_s + number / per_s - loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        part.arrive(number, loop)
    await asyncio.sleep(2 * END_S)
    return (time.process_time() - cpu_s) / count * MICRO


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[JetStreamLog]:
    """A log at a nats-server of its own."""
    server = EmbeddedNats(folder)
    await server.start()
    try:
        log = await JetStreamLog.connect([server.url], NAMESPACE, Topology(max_bytes=8 * 10**9), server.credentials)
        await log.ensure([ROUTING, KV])
        yield log
        await log.close()
    finally:
        await server.stop()


@asynccontextmanager
async def speaking(
    log: JetStreamLog, stream: StreamName, limits: OutboxLimits, backlog: Backlog
) -> AsyncIterator[Outbox]:
    """An outbox at work; all is in the log when it ends."""
    source = SourceId(new_id())
    outbox = Outbox(
        log,
        stream,
        subject(NAMESPACE, stream, source),
        source,
        CHAIN_KEY,
        SystemClock(),
        on_overflow=list,
        on_superseded=lambda _: None,
        limits=limits,
        backlog=backlog,
    )
    task = asyncio.create_task(outbox.run())
    yield outbox
    if not await outbox.drain(10):
        raise RuntimeError(f"not drained: {outbox!r}")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextmanager
def journal(folder: Path, limits: OutboxLimits) -> Iterator[Journal]:
    """A new one that is gone afterwards."""
    made = Journal.create(folder, identity(NAMESPACE, ROUTING, new_id(), CHAIN_KEY), limits)
    yield made
    made.close(delete=True)


async def router_cost(
    log: JetStreamLog, folder: Path, limits: OutboxLimits, per_s: int, options: argparse.Namespace
) -> Figure:
    """The difference, and how large the messages were."""
    costs, sizes = [], []
    for _ in range(repeats(options)):
        without = await drive(Router(None), per_s, seconds(options))
        with journal(folder, limits) as backlog:
            async with speaking(log, ROUTING, limits, backlog) as outbox:
                costs.append(await drive(Router(outbox.put), per_s, seconds(options)) - without)
            sizes.append(3 * per_s * seconds(options) / outbox.counts.stored)
    note = f"{median(sizes):.1f} events a message, {limits.pace_s * 1000:g} ms apart, {spread(costs)}"
    return Figure(f"router: log per request at {per_s}/s", median(costs), "us", note=note)


async def worker_cost(log: JetStreamLog, per_s: int, options: argparse.Namespace) -> Figure:
    """The same for one worker that stores 31 blocks per request."""
    costs, limits, sizes = [], OutboxLimits(), []
    for _ in range(repeats(options)):
        without = await drive(Worker(None), per_s, seconds(options))
        async with speaking(log, KV, limits, MemoryBacklog(limits)) as outbox:
            costs.append(await drive(Worker(outbox.put), per_s, seconds(options)) - without)
        sizes.append(per_s * seconds(options) / outbox.counts.stored)
    note = f"{median(sizes):.1f} events a message, {limits.pace_s * 1000:g} ms apart, {spread(costs)}"
    return Figure(f"worker: log per request at {per_s}/s", median(costs), "us", note=note)


def alone(folder: Path, limits: OutboxLimits, batch: int) -> Iterator[Figure]:
    """Each step in a tight loop, per request; messages of as many requests as they had at the pace."""
    decided, asked = decision(), [request(number) for number in range(2000)]
    yield step("record of the decision, hashes included", lambda: [routed(one, decided) for one in asked])
    events = [event for one in asked for event in (routed(one, decided), prefilled(one), finished(one))]
    yield step("two more events", lambda: [(prefilled(one), finished(one)) for one in asked])
    yield step("encode", lambda: [encode_event(event) for event in events])
    with journal(folder, limits) as held:
        yield step("encode and write to the journal", lambda: [held.offer(event) for event in events])
    with journal(folder, limits) as held:
        messages = [events[at : at + 3 * batch] for at in range(0, len(events), 3 * batch)]
        what = f"the same, then seal, digest, journal; {batch} requests a message"
        yield step(what, lambda: through(held, messages))


def through(held: Journal, messages: Iterable[Sequence[Event]]) -> None:
    """Each message's events wait, are sealed, and are acknowledged."""
    for events in messages:
        for event in events:
            held.offer(event)
        taken, at = held.take(), held.standing
        sealed = seal(held.source, at.n_acked, at.head, 1, taken.encodings, readable=taken.readable)
        held.seal(sealed)
        held.acknowledge(at.n_acked + 1, digest(sealed.payload, CHAIN_KEY), 1)


def step(what: str, work: Callable[[], object], requests: int = 2000) -> Figure:
    """One run of the work over so many requests."""
    began_s = time.process_time()
    work()
    return Figure(f"  {what}", (time.process_time() - began_s) / requests * MICRO, "us")


async def append_cost(log: JetStreamLog, batch: int) -> Figure:
    """One append after another, each of a message as large as at the pace."""
    decided = decision()
    asked = [request(number) for number in range(batch)]
    encodings = [encode_event(e) for one in asked for e in (routed(one, decided), prefilled(one), finished(one))]
    source, seq, count = SourceId(new_id()), StreamSeq(0), 1000
    where = subject(NAMESPACE, ROUTING, source)
    payloads = [seal(source, n, bytes(16), 1, encodings, readable=False) for n in range(count)]
    began_s = time.process_time()
    for sealed in payloads:
        seq = await log.append(ROUTING, where, sealed.payload, sealed.message_id, seq)
    used = (time.process_time() - began_s) / count * MICRO
    return Figure("  append", used / batch, "us", note=f"{used:.0f} us a message of {len(sealed.payload)} bytes")


async def reader_cost(log: JetStreamLog, batch: int) -> Figure:
    """CPU of one more replica that reads and folds the log, with messages as large as at the pace.

    They have the three events of each request, and the blocks that a worker stored for it.
    """
    decided, state = decision(), State(CHAIN_KEY)
    rounds = 2000 // batch
    router, worker = SourceId(new_id()), SourceId(new_id())
    heads = {ROUTING: bytes(16), KV: bytes(16)}
    seqs = dict.fromkeys(heads, StreamSeq(0))
    starts = {stream: StreamSeq((await log.state(stream)).last_seq + 1) for stream in heads}
    for n in range(rounds):
        asked = [request(n * batch + number) for number in range(batch)]
        events: dict[StreamName, list[Event]] = {
            ROUTING: [event for one in asked for event in (routed(one, decided), prefilled(one), finished(one))],
            KV: [stored(one) for one in asked],
        }
        for stream, source in ((ROUTING, router), (KV, worker)):
            sealed = seal(source, n, heads[stream], 1, [encode_event(e) for e in events[stream]], readable=False)
            where = subject(NAMESPACE, stream, source)
            seqs[stream] = await log.append(stream, where, sealed.payload, sealed.message_id, seqs[stream])
            heads[stream] = digest(sealed.payload, CHAIN_KEY)
    for stream in heads:
        state.open(stream, (await log.state(stream)).epoch)
    began_s = time.process_time()
    for stream, start in starts.items():
        async for found in log.read(stream, start):
            state.apply(stream, found.seq, found.subject, found.payload)
    used = (time.process_time() - began_s) / (rounds * batch) * MICRO
    assert state.index.blocks(WorkerId(worker)) == rounds * batch * (PROMPT_TOKENS // BLOCK_SIZE)
    return Figure("one more replica: read and fold per request", used, "us", note="31 new blocks each")


def repeats(options: argparse.Namespace) -> int:
    return 1 if options.quick else 5


def seconds(options: argparse.Namespace) -> float:
    return 1.0 if options.quick else 4.0


def spread(costs: list[float]) -> str:
    return f"{min(costs):.0f} to {max(costs):.0f} in {len(costs)} runs"


async def collect(options: argparse.Namespace) -> list[Figure]:
    found: list[Figure] = []
    tune_garbage_collection()  # as front ends and workers do
    paces = options.pace_ms or [ROUTER_LIMITS.pace_s * 1000]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with broker(folder / "nats") as log:
            for pace_ms in paces:
                limits = replace(ROUTER_LIMITS, pace_s=pace_ms / 1000)
                rates = [times * options.per_s for times in RATES]
                found += [await router_cost(log, folder, limits, per_s, options) for per_s in rates]
            batch = max(1, round(options.per_s * paces[-1] / 1000))
            found += [*alone(folder, limits, batch), await append_cost(log, batch)]
            found.append(await reader_cost(log, batch))
            for per_s in (options.per_s // WORKERS, options.per_s):
                found.append(await worker_cost(log, per_s, options))
    return found


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """All figures, in order."""
    yield from uvloop.run(collect(options))


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--per-s", type=int, default=1000, help="requests per second")
    parser.add_argument("--pace-ms", type=float, action="append", help="try this pace of the router; may be repeated")


if __name__ == "__main__":
    main("append", measure, extend)
