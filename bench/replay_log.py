"""A log of decisions, made as a deployment makes one: replicas that fold at their own pace and decide, workers that
cache, evict and finish. Deterministic: the same numbers give the same bytes. Some 300 us per decision.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY, DigestCheckpoints
from core.codec import CHAIN_START, decode_message, digest, encode_event, encode_message
from core.events import (
    BlocksRemoved,
    BlocksStored,
    Event,
    LoadReported,
    LocalChanged,
    ReplicaJoined,
    RequestFinished,
    RequestPrefilled,
    SettingsChanged,
    WorkerJoined,
)
from core.ids import Epoch, ReplicaId, RequestId, SourceId, StreamName, StreamSeq, WorkerId
from core.keys import DeploymentKey
from core.prompt import HashedPrompt, hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream, subject
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.decide import decide, record
from projections.policy.view import RouteRequest, View
from replay.recording.recording import RecordedFrame
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record

NAMESPACE = "bench"
KEY = DeploymentKey(bytes(range(32)))
KV = kv_stream(0)
MODEL = "m"
BLOCK_SIZE = 16
EPOCH = Epoch(1_700_000_000_000)
STEP_US = 2_500
"""Between two requests."""
SETTINGS = (
    RoutingSettings(),
    RoutingSettings(temperature_m=200),
    RoutingSettings(policy="least-loaded"),
    RoutingSettings(policy="kv", decode_weight_m=500, tie_margin_m=1000),
)
"""Each holds for a quarter of the log."""


class Scale(NamedTuple):
    """Numbers of workers, replicas and requests."""

    decisions: int
    replicas: int = 4
    workers: int = 8
    prefixes: int = 40
    """System prompts that requests share."""
    prefix_blocks: int = 24
    own_blocks: int = 8
    """Blocks of a prompt that no other request has."""
    kept: int = 60
    """Requests of which a worker keeps the own blocks."""
    lag_max: int = 6
    """Messages that a replica may be behind, per stream."""
    report_every: int = 2000
    """Requests between two reports of the replicas' folds."""


class Source:
    """One source in one stream."""

    def __init__(self, log: Log, stream: StreamName, source: str) -> None:
        self._log = log
        self._stream = stream
        self._source = SourceId(source)
        self._n = 0
        self._head = CHAIN_START

    def append(self, *events: Event) -> None:
        """The next message of the chain stands in the log."""
        payload = encode_message(self._source, self._n, self._head, self._log.now_ms, list(map(encode_event, events)))
        self._n, self._head = self._n + 1, digest(payload, KEY.chain_key)
        self._log.append(self._stream, self._source, payload, self._head)


class Log:
    """The streams so far, each message decoded once for all replicas."""

    def __init__(self) -> None:
        self.now_us = EPOCH * 1000
        self.records: dict[StreamName, list[Record]] = {KV: [], LOAD: [], ROUTING: []}
        self.frames: dict[StreamName, list[RecordedFrame]] = {KV: [], LOAD: [], ROUTING: []}

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def append(self, stream: StreamName, source: str, payload: bytes, head: bytes) -> None:
        """The message stands at the stream's end."""
        seq = StreamSeq(len(self.records[stream]) + 1)
        where = subject(NAMESPACE, stream, source)
        self.records[stream].append(Record(stream, seq, self.now_ms, where, payload))
        self.frames[stream].append(RecordedFrame(stream, seq, self.now_ms, source, head, decode_message(payload)))

    def archived(self, path: Path) -> Path:
        """All of it stands in the file."""
        writer = ArchiveWriter(path, NAMESPACE, KEY.chain_key, "bench", self.now_ms)
        for stream, records in self.records.items():
            writer.open(stream, EPOCH, 1, 1)
            for each in records:
                writer.add(each)
        writer.finish(writer.contents(0, self.now_ms))
        return path


class Worker:
    """A cache that keeps the prefixes for ever and the rest of the last few prompts."""

    def __init__(self, log: Log, number: int, kept: int) -> None:
        self.id = WorkerId(f"{number + 1:016x}")
        self._kv, self._load = Source(log, KV, self.id), Source(log, LOAD, self.id)
        self._kept = kept
        self._held: set[int] = set()
        self._own: OrderedDict[str, list[int]] = OrderedDict()
        self.running = 0
        self._kv.append(
            WorkerJoined(
                name=f"worker-{number}", model=MODEL, role="decode", engine="simulated", block_size=BLOCK_SIZE,
                capacity_blocks=100_000, context_max=1 << 16, address=f"127.0.0.1:{number + 1}",
            )
        )  # fmt: skip
        self.report()

    def report(self) -> None:
        """Its load is in the log."""
        waiting = max(0, self.running - 16)
        self._load.append(
            LoadReported(running=self.running, waiting=waiting, blocks_used=len(self._held), blocks_total=9)
        )

    def prefill(self, request: str, blocks: list[int], own: int) -> int:
        """The prompt's blocks are cached; returns how many were."""
        new = [block for block in blocks if block not in self._held]
        self._own[request] = blocks[-own:]
        gone = self._own.popitem(last=False)[1] if len(self._own) > self._kept else []
        self._held.update(new)
        self._held.difference_update(gone)
        events: list[Event] = [BlocksRemoved(hashes=hashes_to_bytes(gone))] if gone else []
        self._kv.append(BlocksStored(hashes=hashes_to_bytes(new)), *events)
        return len(blocks) - len(new)


class Replica:
    """Folds what the log had a few messages ago, and decides."""

    def __init__(self, log: Log, number: int, lag_max: int, dice: random.Random) -> None:
        self.id = ReplicaId(f"{0xEE00 + number:016x}")
        self.settings, self._revision = SETTINGS[0], 0
        self.waiting: list[Event] = []
        """Events that are not in the log yet."""
        self._log, self._lag_max, self._dice = log, lag_max, dice
        self._source = Source(log, ROUTING, self.id)
        self._state, self._pending = State(KEY.chain_key), PendingEvents()
        self._milestones = DigestCheckpoints(self._state)
        self._local: tuple[str, ...] = ()
        for stream in log.records:
            self._state.open(stream, EPOCH)
        self._catch_up(0)
        self.append(ReplicaJoined(name=f"replica-{number}", version="1"))
        self.change_settings(0)

    def append(self, event: Event) -> None:
        """The event is pending here at once, and waits for the log."""
        self._pending.emit(event, self._state.routing.replicas.get(self.id))
        self.waiting.append(event)

    def flush(self) -> None:
        """The log has all that was said."""
        if self.waiting:
            self._source.append(*self.waiting)
            self.waiting.clear()

    def change_settings(self, revision: int) -> None:
        """From now on it decides under these."""
        self.settings, self._revision = SETTINGS[revision], revision
        self.append(SettingsChanged(revision=revision, settings=self.settings.to_mapping()))

    def report(self) -> None:
        """The log hears what its folds are."""
        found = self._milestones.report()
        if found is not None:
            self.append(found)

    def decide(self, request: RouteRequest, doubted: WorkerId) -> WorkerId:
        """Chosen on what is folded now; now and then it has a doubt of its own."""
        self._catch_up(self._lag_max)
        local = ("stale",) if self._dice.random() < 0.05 else ()
        if local != self._local:
            self.append(LocalChanged(worker=doubted, reasons=local))
            self._local = local
        known = {reason: frozenset([doubted]) for reason in local}
        view = View(self._state, self.id, self._pending, known)
        decision = decide(view, request, self.settings, self._log.now_ms, self._dice.getrandbits(64))
        assert decision.worker is not None
        self.append(record(decision, request, self.settings, self._revision))
        return decision.worker

    def _catch_up(self, lag_max: int) -> None:
        """All is folded but for at most so many messages of each stream."""
        for stream, frames in self._log.frames.items():
            at = self._state.cursor[stream].seq
            for frame in frames[at : len(frames) - self._dice.randint(0, lag_max)]:
                self._state.fold(stream, frame.seq, frame.owner, frame.message, frame.head)
                if frame.seq % CHECKPOINT_EVERY == 0:
                    self._milestones.passed(stream, frame.seq)
                if frame.owner == self.id and frame.message is not None:
                    for event in frame.message.events:
                        self._pending.read_back(event)  # type: ignore[arg-type]  # of types that we know


class Site:
    """All of them, step by step."""

    def __init__(self, scale: Scale, seed: int = 1) -> None:
        self.scale = scale
        self.log = Log()
        self.dice = random.Random(seed)
        self.workers = {worker.id: worker for worker in (Worker(self.log, n, scale.kept) for n in range(scale.workers))}
        self.doubted = next(iter(self.workers))
        self.replicas = [Replica(self.log, n, scale.lag_max, self.dice) for n in range(scale.replicas)]
        self._prefixes = [self._blocks(scale.prefix_blocks) for _ in range(scale.prefixes)]
        self._due: deque[tuple[int, Replica, WorkerId, str, list[int], bool]] = deque()
        """Requests in flight: step, replica, worker, request, blocks, and a flag for prefilled."""

    def run(self) -> Iterator[int]:
        """Every decision is made and in the log; yields how many are."""
        scale = self.scale
        for step in range(scale.decisions):
            self.log.now_us += STEP_US
            self._work(step)
            self._route(step)
            if step % 4 == 3:
                for replica in self.replicas:
                    replica.flush()
            if step % 100 == 99:
                for worker in self.workers.values():
                    worker.report()
            if step % scale.report_every == scale.report_every - 1:
                for replica in self.replicas:
                    replica.report()
            yield step + 1
        for replica in self.replicas:
            replica.flush()

    def _route(self, step: int) -> None:
        quarter = step * len(SETTINGS) // self.scale.decisions
        replica = self.dice.choice(self.replicas)
        if replica.settings is not SETTINGS[quarter]:
            replica.change_settings(quarter)
        blocks = [*self.dice.choice(self._prefixes), *self._blocks(self.scale.own_blocks)]
        request = f"req-{step:08}"
        prompt = HashedPrompt(len(blocks) * BLOCK_SIZE + 5, BLOCK_SIZE, hashes_to_bytes(blocks))
        worker = replica.decide(RouteRequest(RequestId(request), 0, MODEL, prompt), self.doubted)
        self.workers[worker].running += 1
        self._due.append((step + 12, replica, worker, request, blocks, False))

    def _work(self, step: int) -> None:
        """First tokens and ends that are due."""
        while self._due and self._due[0][0] <= step:
            _, replica, worker, request, blocks, prefilled = self._due.popleft()
            if prefilled:
                self.workers[worker].running -= 1
                replica.append(
                    RequestFinished(
                        request=request, attempt=0, outcome="stop", prompt_tokens=len(blocks) * BLOCK_SIZE + 5,
                        output_tokens=40, cached_tokens=0, ttft_ms=30, duration_ms=180,
                    )
                )  # fmt: skip
                continue
            cached = self.workers[worker].prefill(request, blocks, self.scale.own_blocks)
            replica.append(RequestPrefilled(request=request, attempt=0, cached_tokens=cached * BLOCK_SIZE, ttft_ms=30))
            self._due.append((step + 60, replica, worker, request, blocks, True))

    def _blocks(self, count: int) -> list[int]:
        return [self.dice.getrandbits(64) for _ in range(count)]


def made(path: Path, scale: Scale, seed: int = 1) -> Path:
    """An archive of such a log."""
    site = Site(scale, seed)
    for _ in site.run():
        pass
    return site.log.archived(path)
