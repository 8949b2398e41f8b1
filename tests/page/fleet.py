"""A fleet in virtual time whose log looks like a real one: queues, caches that fill and evict, a worker that is killed
and comes back, settings that change. Replicas decide by the one `decide` on a fold of all that was said, so every
decision comes out of the log again. Deterministic; some 400 us per decision.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY, DigestCheckpoints
from core.block_spans import stretch
from core.codec import CHAIN_START, Message, digest, encode_event, encode_message
from core.event_json import hash_text
from core.events import (
    BlocksRemoved,
    BlocksStored,
    Event,
    LoadReported,
    LocalChanged,
    ReplicaJoined,
    RequestFinished,
    RequestMigrated,
    RequestPrefilled,
    RequestRejected,
    SettingsChanged,
    WorkerJoined,
    WorkerLost,
)
from core.ids import LOST_SUFFIX, Epoch, ReplicaId, RequestId, SourceId, StreamName, StreamSeq, WorkerId
from core.keys import DeploymentKey
from core.prompt import Prompt, hashes_from_bytes, hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream, subject
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.decide import decide, record
from projections.policy.view import RouteRequest, View
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record

KEY = DeploymentKey(bytes(range(32)))
NAMESPACE = "prod"
KV = kv_stream(0)
MODEL = "llama-8b"
BLOCK_SIZE = 32
CAPACITY = 4096
START_MS = 1_790_000_000_000
PREFILL_MS_PER_TOKEN = 0.12
DECODE_MS_PER_TOKEN = 9.0
RUNNING_MAX = 24
RESTART_MS = 9_000
FIRST = RoutingSettings(policy="kv")
SECOND = RoutingSettings(policy="kv", decode_weight_m=2500, temperature_m=150)


class Scale(NamedTuple):
    """How much there is of everything."""

    decisions: int = 4000
    replicas: int = 4
    workers: int = 8
    requests_per_s: float = 55.0
    seed: int = 1
    prefix: str = ""
    """Of every name and every request's id."""


class Conversation:
    """A prompt that grows by turns behind a system prompt which others share."""

    def __init__(self, system: bytes, dice: random.Random) -> None:
        self.dice = dice
        self.tokens = system + dice.randbytes(4 * dice.randint(60, 500))

    def next_turn(self, answer: int) -> None:
        """The answer and the next question stand behind it."""
        self.tokens += self.dice.randbytes(4 * (answer + self.dice.randint(20, 160)))


class Asked(NamedTuple):
    """One request on its way."""

    request: RouteRequest
    conversation: Conversation
    replica: ReplicaId
    worker: WorkerId
    arrived_ms: int
    output: int


class Worker:
    """An engine with a queue, and a cache of chains that are evicted whole, the longest unused first."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet, self.name = fleet, name
        self.id = WorkerId(hash_text(fleet.dice.getrandbits(64)))
        self.chains: OrderedDict[bytes, list[int]] = OrderedDict()
        self.held: dict[int, int] = {}
        self.waiting: list[Asked] = []
        self.running: dict[tuple[str, int], Asked] = {}
        self.free_ms = 0
        self.alive = True
        fleet.say(
            KV,
            self.id,
            WorkerJoined(
                name=name, model=MODEL, role="decode", engine="simulated", block_size=BLOCK_SIZE,
                capacity_blocks=CAPACITY, context_max=16_384, address=f"10.0.0.{len(fleet.workers) + 1}:7000",
            ),
        )  # fmt: skip
        self.report()

    def report(self) -> None:
        """Its load is in the log, and will be again in a second."""
        if self.alive:
            self.fleet.say(
                LOAD,
                self.id,
                LoadReported(
                    running=len(self.running),
                    waiting=len(self.waiting),
                    blocks_used=len(self.held),
                    blocks_total=CAPACITY,
                ),
            )
            self.fleet.after(1000, self.report)

    def take(self, asked: Asked) -> None:
        """It is queued."""
        self.waiting.append(asked)
        self.work()

    def work(self) -> None:
        """Whoever can start does: prefills come one after the other."""
        while self.alive and self.waiting and len(self.running) < RUNNING_MAX:
            asked = self.waiting.pop(0)
            self.running[asked.request.id, asked.request.attempt] = asked
            prompt = asked.request.prompt
            chain = hashes_from_bytes(prompt.hashes())[: prompt.blocks_reusable]
            cached = next((at for at, block in enumerate(chain) if block not in self.held), len(chain)) * BLOCK_SIZE
            took = max(4, round((prompt.tokens - cached) * PREFILL_MS_PER_TOKEN))
            self.free_ms = max(self.free_ms, self.fleet.now_ms) + took
            self.fleet.after(self.free_ms - self.fleet.now_ms, lambda a=asked, c=cached: self.first(a, c))  # type: ignore[misc]

    def first(self, asked: Asked, cached: int) -> None:
        """The first token is out, and the prompt's blocks are cached."""
        if not self.alive:
            return
        self.keep(hashes_from_bytes(asked.request.prompt.hashes()))
        request, attempt = asked.request.id, asked.request.attempt
        ttft = self.fleet.now_ms - asked.arrived_ms
        self.fleet.say(
            ROUTING,
            asked.replica,
            RequestPrefilled(request=request, attempt=attempt, cached_tokens=cached, ttft_ms=ttft),
        )
        slow = 1 + len(self.running) / RUNNING_MAX
        left = round(asked.output * DECODE_MS_PER_TOKEN * slow)
        self.fleet.after(left, lambda: self.last(asked, cached, ttft))

    def last(self, asked: Asked, cached: int, ttft: int) -> None:
        """The answer is whole."""
        if self.alive:
            self.running.pop((asked.request.id, asked.request.attempt))
            outcome = "abort" if self.fleet.dice.random() < 0.01 else "stop"
            self.fleet.finished(asked, outcome, cached, ttft)
            self.work()

    def keep(self, chain: list[int]) -> None:
        """The chain is the newest in the cache; the oldest had to go. A held block has all blocks before it."""
        known = sum(block in self.held for block in chain)
        for block in chain:
            self.held[block] = self.held.get(block, 0) + 1
        self.chains[self.fleet.dice.randbytes(8)] = chain
        events: list[Event] = []
        if known < len(chain):
            events.append(BlocksStored(**stretch(hashes_to_bytes(chain), known, len(chain))._asdict()))
        while len(self.held) > CAPACITY * 0.97:
            oldest = self.chains.popitem(last=False)[1]
            for block in oldest:
                self.held[block] -= 1
                if not self.held[block]:
                    del self.held[block]
            left = sum(block in self.held for block in oldest)
            if left < len(oldest):
                events.append(BlocksRemoved(**stretch(hashes_to_bytes(oldest), left, len(oldest))._asdict()))
        if events:
            self.fleet.say(KV, self.id, *events)


class Fleet:
    """All of it, event by event."""

    def __init__(self, scale: Scale, writer: ArchiveWriter) -> None:
        self.scale, self.writer = scale, writer
        self.dice = random.Random(scale.seed)
        self.now_ms = START_MS
        self.state = State(KEY.chain_key)
        self.settings, self.revision = FIRST, 0
        self.local: dict[str, frozenset[WorkerId]] = {}
        self.workers: dict[WorkerId, Worker] = {}
        self.decisions = 0
        self._chains: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        for stream in (KV, LOAD, ROUTING):
            self.state.open(stream, Epoch(START_MS))
            writer.open(stream, Epoch(START_MS), 1, 1)
        self.replicas = [ReplicaId(hash_text(self.dice.getrandbits(64))) for _ in range(scale.replicas)]
        self._milestones = {replica: DigestCheckpoints(self.state) for replica in self.replicas}
        systems = [self.dice.randbytes(4 * self.dice.randint(400, 1600)) for _ in range(12)]
        self._conversations = [Conversation(self.dice.choice(systems), self.dice) for _ in range(160)]
        self._systems = systems

    def say(self, stream: StreamName, source: str, *events: Event, about: str = "") -> None:
        """It is in the log and folded, now."""
        n, head = self._chains.get((stream, source), (0, CHAIN_START))
        payload = encode_message(SourceId(source), n, head, self.now_ms, [encode_event(event) for event in events])
        message = Message(source=SourceId(source), n=n, prev=head, sent_ms=self.now_ms, events=events)
        head = digest(payload, KEY.chain_key)
        self._chains[stream, source] = n + 1, head
        seq, owner = StreamSeq(self.state.cursor[stream].seq + 1), about or source
        self.writer.add(Record(stream, seq, self.now_ms, subject(NAMESPACE, stream, owner), payload))
        self.state.fold(stream, seq, owner, message, head)
        if seq % CHECKPOINT_EVERY == 0:
            for milestones in self._milestones.values():
                milestones.passed(stream, seq)

    def after(self, ms: int, do: Callable[[], None]) -> None:
        """It is done then."""
        heapq.heappush(self._agenda, (self.now_ms + ms, next(self._numbers), do))

    def run(self) -> None:
        """Every decision is in the log."""
        for number, replica in enumerate(self.replicas):
            self.say(ROUTING, replica, ReplicaJoined(name=f"{self.scale.prefix}frontend-{number}", version="0.1.0"))
            self.say(ROUTING, replica, SettingsChanged(revision=0, settings=self.settings.to_mapping()))
            self.after(1000 + 1250 * number, lambda r=replica: self.report(r))  # type: ignore[misc]
        for number in range(self.scale.workers):
            worker = Worker(self, f"{self.scale.prefix}decode-{number}")
            self.workers[worker.id] = worker
        length_ms = round(self.scale.decisions / self.scale.requests_per_s * 1000)
        self.after(round(length_ms * 0.4), self.kill)
        self.after(round(length_ms * 0.65), self.change)
        self.after(10, self.arrive)
        self.resume()

    def resume(self) -> None:
        """It goes on until there are as many decisions as its scale says."""
        while self._agenda and self.decisions < self.scale.decisions:
            self.now_ms, _, do = heapq.heappop(self._agenda)
            do()

    def arrive(self) -> None:
        """A request, and the next one soon; load comes in waves."""
        turn = self.dice.randrange(len(self._conversations))
        if len(self._conversations[turn].tokens) > 4 * 9000 or self.dice.random() < 0.1:
            self._conversations[turn] = Conversation(self.dice.choice(self._systems), self.dice)
        conversation = self._conversations[turn]
        request = RequestId(f"{self.scale.prefix}req-{self.dice.getrandbits(64):016x}")
        self.route(request, 0, conversation, self.dice.choice(self.replicas), self.now_ms)
        wave = 1.25 if (self.now_ms - START_MS) // 12_000 % 2 else 0.8
        self.after(max(1, round(self.dice.expovariate(self.scale.requests_per_s * wave) * 1000)), self.arrive)

    def route(self, id: RequestId, attempt: int, about: Conversation, replica: ReplicaId, arrived_ms: int) -> None:
        """Decided, told, and on its way."""
        asked = RouteRequest(id, attempt, MODEL, Prompt(about.tokens, BLOCK_SIZE, 7))
        view = View(self.state, replica, PendingEvents(), self.local)
        decision = decide(view, asked, self.settings, self.now_ms, self.dice.getrandbits(64))
        assert decision.worker is not None
        self.say(ROUTING, replica, record(decision, asked, self.settings, self.revision))
        self.decisions += 1
        output = max(4, round(self.dice.expovariate(1 / 110)))
        self.workers[decision.worker].take(Asked(asked, about, replica, decision.worker, arrived_ms, output))

    def finished(self, asked: Asked, outcome: str, cached: int, ttft: int) -> None:
        """An attempt's end is told."""
        done = outcome != "worker_lost"
        self.say(
            ROUTING,
            asked.replica,
            RequestFinished(
                request=asked.request.id, attempt=asked.request.attempt, outcome=outcome,
                prompt_tokens=asked.request.prompt.tokens, output_tokens=asked.output if done else 0,
                cached_tokens=cached, ttft_ms=ttft, duration_ms=self.now_ms - asked.arrived_ms,
            ),
        )  # fmt: skip
        if done:
            asked.conversation.next_turn(asked.output)

    def kill(self) -> None:
        """The third worker is gone: its requests go to others, its end is told, and it is started again."""
        dead = list(self.workers.values())[2 % len(self.workers)]
        dead.alive = False
        for replica in self.replicas:
            self.say(ROUTING, replica, LocalChanged(worker=dead.id, reasons=("not_connected",)))
        self.local = {"not_connected": frozenset([dead.id])}
        under_way = [*dead.running.values(), *dead.waiting]
        for asked in under_way:
            self.finished(asked, "worker_lost", 0, -1)
            moved = RequestMigrated(
                request=asked.request.id, attempt=asked.request.attempt + 1, worker=dead.id, told_tokens=0,
                reason="the connection broke",
            )  # fmt: skip
            self.say(ROUTING, asked.replica, moved)
            self.route(asked.request.id, asked.request.attempt + 1, asked.conversation, asked.replica, asked.arrived_ms)
        self.say(ROUTING, self.replicas[0], self._rejection())
        lost = WorkerLost(by=self.replicas[0], reason="silent for 10 s")
        self.after(2500, lambda: self.bury(dead, lost))
        self.after(RESTART_MS, lambda: self.restart(dead))

    def bury(self, dead: Worker, lost: WorkerLost) -> None:
        """Its end stands in both streams, and nobody needs a doubt of his own any more."""
        for stream in (KV, LOAD):
            self.say(stream, dead.id + LOST_SUFFIX, lost, about=dead.id)
        for replica in self.replicas:
            self.say(ROUTING, replica, LocalChanged(worker=dead.id, reasons=()))
        self.local = {}
        del self.workers[dead.id]

    def restart(self, dead: Worker) -> None:
        """The same name under a new id."""
        new = Worker(self, dead.name)
        self.workers[new.id] = new

    def change(self) -> None:
        """Everybody decides under other settings from now on."""
        self.settings, self.revision = SECOND, 1
        for replica in self.replicas:
            self.say(ROUTING, replica, SettingsChanged(revision=1, settings=SECOND.to_mapping()))

    def report(self, replica: ReplicaId) -> None:
        """What its folds are, now and in five seconds again."""
        report = self._milestones[replica].report()
        if report is not None:
            self.say(ROUTING, replica, report)
        self.after(5000, lambda: self.report(replica))

    def _rejection(self) -> RequestRejected:
        return RequestRejected(
            request="req-refused", attempt=0, model=MODEL, reason="overloaded", status=503,
            cursor={stream: (at.epoch, at.seq) for stream, at in self.state.cursor.items()}, excluded={},
            settings_revision=0, now_ms=self.now_ms,
        )  # fmt: skip


def made(path: Path, scale: Scale = Scale()) -> Path:  # noqa: B008 - immutable
    """The archive of such a fleet's log."""
    writer = ArchiveWriter(path, NAMESPACE, KEY.chain_key, "contrail 0.1.0", START_MS)
    fleet = Fleet(scale, writer)
    fleet.run()
    writer.finish(writer.contents(0, fleet.now_ms))
    return path
