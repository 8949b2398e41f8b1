"""Replicas over one log whose DigestExchange machines run against each other in virtual time: no task, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.consistency.digest_exchange import (
    CheckpointPassed,
    ClaimAnswered,
    DigestCommand,
    DigestEvent,
    DigestExchange,
    FoldRebuilt,
    FoldReplaced,
    PublishDigests,
    RebuildFold,
    ReleaseClaim,
    ReplaceFold,
    ReportRead,
    ResolutionFailed,
    TakeClaim,
    VerdictRead,
)
from core.events import DivergenceFound, Event, ReplicaReported
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, WorkerId
from core.machine import TICK, Tick
from core.subjects import LOAD, ROUTING, kv_stream
from projections.folds.state import State
from tests.projections.facts import joined, restated, stored, worker_id
from tests.projections.speaker import CHAIN_KEY, Said, Speaker
from tests.projections.wrong_fold import corrupt

KV = kv_stream(0)
STREAMS = [KV, LOAD, ROUTING]
WORKER = WorkerId(worker_id(7))
ALIEN = 0xBAD
"""A block that no message stored."""


class ReplicaUnderTest:
    """One replica: a state, the machine, and a shell that executes every command at once."""

    def __init__(self, replicas: Replicas, name: str) -> None:
        self.id = ReplicaId(name * 16)
        self.state = State(CHAIN_KEY)
        self.exchange = DigestExchange(self.state, replicas.now_us)
        self.said: list[Event] = []
        """Everything that it published."""
        self.rebuilds = 0
        """How often it folded the log anew beside the fold that serves."""
        self.while_rebuilding: Callable[[], None] = lambda: None
        """Happens in the middle of that."""
        self.may_replace = True
        self.is_deaf = False
        """It hears neither of time nor of others."""
        self._replicas = replicas
        self._inbox: deque[DigestEvent | Tick] = deque()
        self._unsent: list[Event] = []
        self._speaker = Speaker(ROUTING, self.id)

    @property
    def verdicts(self) -> list[DivergenceFound]:
        return [event for event in self.said if isinstance(event, DivergenceFound)]

    @property
    def reports(self) -> list[ReplicaReported]:
        return [event for event in self.said if isinstance(event, ReplicaReported)]

    @property
    def agreed(self) -> dict[str, dict[str, dict[str, int]]]:
        """By replica and stream."""
        found: dict[str, dict[str, dict[str, int]]] = self.exchange.describe(self._replicas.now_us // 1000)["agreed"]
        return found

    def facts(self, *names: str) -> list[object]:
        described = self.exchange.describe(self._replicas.now_us // 1000)
        return [described[name] for name in names]

    def feed(self, event: DigestEvent | Tick) -> None:
        if self.is_deaf:
            return
        self._inbox.append(event)
        if len(self._inbox) > 1:
            return  # raised by a command: the loop below has it next
        while self._inbox:
            for command in self.exchange.step(self._inbox[0], self._replicas.now_us):
                self._execute(command)
            self._inbox.popleft()

    def read(self, replica: ReplicaId, event: ReplicaReported | DivergenceFound) -> None:
        """It reads this event of another replica."""
        self.feed(ReportRead(replica, event) if isinstance(event, ReplicaReported) else VerdictRead(replica, event))

    def pull(self) -> None:
        """The fold is at the end of the log."""
        self._pull(self.state)

    def flush(self) -> None:
        """The log has its events."""
        for event in self._unsent:
            self._replicas.append(self._speaker.say(event))
        self._unsent.clear()

    def corrupt(self, block: int = ALIEN) -> None:
        """It folded the last message wrongly: it has a block that no message stored."""
        corrupt(self.state, WORKER, block)

    def replace(self) -> None:
        """Another fold takes the place of the one that serves."""
        self.state.become(self._fold())
        self.feed(FoldReplaced())

    def _execute(self, command: DigestCommand) -> None:
        match command:
            case PublishDigests(event):
                self.said.append(event)
                self._unsent.append(event)
            case TakeClaim():
                self.feed(self._replicas.take_claim(self.id))
            case ReleaseClaim():
                self._replicas.release_claim(self.id)
            case RebuildFold():
                self.rebuilds += 1
                self.while_rebuilding()
                self.feed(ResolutionFailed() if self._replicas.log_away else FoldRebuilt(self._fold()))
            case ReplaceFold():
                if self.may_replace:
                    self.replace()

    def _fold(self) -> State:
        fresh = State(CHAIN_KEY)
        self._pull(fresh)
        return fresh

    def _pull(self, into: State) -> None:
        for stream in STREAMS:
            start = into.open(stream, Epoch(1))
            for seq, said in enumerate(self._replicas.log[stream][start:], start + 1):
                self._apply(into, StreamSeq(seq), said)

    def _apply(self, into: State, seq: StreamSeq, said: Said) -> None:
        applied = into.apply(said.stream, seq, said.subject, said.payload)
        if into is not self.state or applied is None:
            return
        if seq % CHECKPOINT_EVERY == 0:
            self.feed(CheckpointPassed(said.stream, seq))
        if said.stream == ROUTING and applied.owner != self.id:
            for event in applied.message.events:
                if isinstance(event, ReplicaReported | DivergenceFound):
                    self.read(ReplicaId(applied.owner), event)


class Replicas:
    """A namespace with one worker and some replicas; time stands still until `turn`."""

    def __init__(self, names: str) -> None:
        self.now_us = 1_000_000_000
        self.log: dict[StreamName, list[Said]] = {stream: [] for stream in STREAMS}
        self.log_away = False
        """No log can be folded anew."""
        self.registry_away = False
        self.claimed_by: ReplicaId | None = None
        self.worker = Speaker(KV, WORKER)
        self.blocks = 0
        self.append(self.worker.say(joined()))
        self.all = [ReplicaUnderTest(self, name) for name in names]

    def append(self, said: Said) -> None:
        self.log[said.stream].append(said)

    def take_claim(self, replica: ReplicaId) -> DigestEvent:
        if self.registry_away:
            return ClaimAnswered(None)
        if self.claimed_by not in (None, replica):
            return ClaimAnswered(granted=False)
        self.claimed_by = replica
        return ClaimAnswered(granted=True)

    def release_claim(self, replica: ReplicaId) -> None:
        if self.claimed_by == replica:
            self.claimed_by = None

    def work(self, messages: int) -> None:
        """The worker stores a block per message."""
        for _ in range(messages):
            self.blocks += 1
            self.append(self.worker.say(stored(self.blocks)))

    def restate(self) -> None:
        """The worker says again who it is and what it holds."""
        self.append(self.worker.say(joined(), restated(0, 1, self.blocks)))

    def turn(self, seconds: int = 1, messages: int = 3, among: list[ReplicaUnderTest] | None = None) -> None:
        """So many seconds pass; in each the worker works, and every replica reads, and does what is due."""
        for _ in range(seconds):
            self.now_us += 1_000_000
            self.work(messages)
            for replica in self.all if among is None else among:
                replica.pull()
                replica.feed(TICK)
                replica.flush()
