"""A fleet's messages to fold, second by second: what one replica follows.

Each worker has a request a second: it stores the new blocks of a turn, removes as many others, and reports its load
four times. Two front ends record the requests, BATCHED to a message. Each second a part of the workers leave with full
caches, and others take their places.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace

from bench.append import finished, prefilled
from bench.broker_fleet import KV_MESSAGES, PER_WORKER_S
from bench.broker_messages import BATCHED, asked, continued, report
from bench.fold_log import CHAIN_KEY, NAMESPACE
from core.block_spans import stretch
from core.codec import CHAIN_START, digest, encode_event, encode_message
from core.events import BlocksRemoved, BlocksStored, Event, WorkerJoined, WorkerLeft
from core.ids import Epoch, SourceId, StreamName, StreamSeq, WorkerId
from core.prompt import hashes_to_bytes
from core.subjects import LOAD, ROUTING, kv_stream, subject
from projections.folds.state import State

KV = kv_stream(0)
STREAMS = (KV, LOAD, ROUTING)
NEW_BLOCKS = 16
"""Of a turn, with 64 tokens each."""
CACHE_BLOCKS = 1024
REPORTS_S = 4
FRONT_ENDS = 2
LIFE_S = 500
"""Of a worker, in the mean: a fleet of 1 000 changes two workers a second."""
LEAVES = WorkerLeft(reason="drained")

assert KV_MESSAGES * PER_WORKER_S[0] == 2, "a message that stores and one that removes, for each request"


class FleetLog:
    """The messages of one fleet, and the state of a replica that folds them."""

    def __init__(self, workers: int) -> None:
        """All workers have joined, with full caches, and are folded."""
        self.state = State(CHAIN_KEY)
        for stream in STREAMS:
            self.state.open(stream, Epoch(1))
        self._dice = random.Random(workers)
        self._chains: dict[tuple[StreamName, str], tuple[int, bytes]] = {}
        self._caches: dict[str, deque[bytes]] = {}
        """Stored runs of each worker, oldest first; in the order in which workers joined."""
        self._requests = 0
        self._joined = 0
        self.fold([message for _ in range(workers) for message in self._join()])

    def fold(self, messages: list[tuple[StreamName, str, bytes]]) -> None:
        """The replica has folded these."""
        for stream, to, payload in messages:
            self.state.apply(stream, StreamSeq(self.state.cursor[stream].seq + 1), to, payload)

    def second(self) -> list[tuple[StreamName, str, bytes]]:
        """The messages of one more second."""
        found = [self._message(LOAD, worker, report()) for _ in range(REPORTS_S) for worker in self._caches]
        for worker, runs in self._caches.items():
            found.append(self._message(KV, worker, self._store(worker)))
            found.append(self._message(KV, worker, BlocksRemoved(**stretch(runs.popleft(), 0, NEW_BLOCKS)._asdict())))
        for number in range(len(self._caches) // BATCHED):
            front_end = f"fe{number % FRONT_ENDS:014x}"
            found.append(self._message(ROUTING, front_end, *(event for _ in range(BATCHED) for event in self._turn())))
        for worker in list(self._caches)[: max(1, len(self._caches) // LIFE_S)]:
            del self._caches[worker]
            found += [self._message(stream, worker, LEAVES) for stream in (KV, LOAD)]
            found += self._join()
        return found

    def _join(self) -> Iterator[tuple[StreamName, str, bytes]]:
        self._joined += 1
        worker = f"{self._joined * 0x9E3779B97F4A7C15 % 2**64:016x}"
        self._caches[worker] = deque()
        joined = WorkerJoined(
            name=f"w-{worker}", model="model", role="decode", engine="bench", block_size=64,
            capacity_blocks=CACHE_BLOCKS, context_max=1 << 17, address="127.0.0.1:1",
        )  # fmt: skip
        stores = [self._store(worker) for _ in range(CACHE_BLOCKS // NEW_BLOCKS)]
        yield self._message(KV, worker, joined, *stores)
        yield self._message(LOAD, worker, report())

    def _store(self, worker: str) -> BlocksStored:
        run = hashes_to_bytes(self._dice.getrandbits(64) for _ in range(NEW_BLOCKS))
        self._caches[worker].append(run)
        return BlocksStored(**stretch(run, 0, NEW_BLOCKS)._asdict())

    def _turn(self) -> list[Event]:
        self._requests += 1
        worker = WorkerId(self._dice.choice(list(self._caches)))
        turn = asked(self._requests)
        return [replace(continued(self._requests), worker=worker), prefilled(turn), finished(turn)]

    def _message(self, stream: StreamName, source: str, *events: Event) -> tuple[StreamName, str, bytes]:
        n, head = self._chains.get((stream, source), (0, CHAIN_START))
        payload = encode_message(SourceId(source), n, head, 1, [encode_event(event) for event in events])
        self._chains[stream, source] = n + 1, digest(payload, CHAIN_KEY)
        return stream, subject(NAMESPACE, stream, source), payload
