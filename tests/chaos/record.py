"""What the log itself must show after any faults: whole chains, every decision once, heads that fit.

Each law returns sentences about what breaks it; none if it holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from core.codec import CHAIN_START, Message, decode_message, digest
from core.events import (
    Event,
    LoadReported,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    RequestFinished,
    RequestMigrated,
    RequestRouted,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.ids import StreamSeq
from core.subjects import ROUTING, SNAPSHOTS, owner
from streams.log import EventLog, Record
from streams.outbox.journal_recovery import REASON as TOLD_BY_JOURNAL

LOST = "-lost"
SHOWN_MAX = 5
"""How many examples of one fault are told."""


class Entry(NamedTuple):
    """One message where it stands."""

    stream: str
    seq: int
    owner: str
    message: Message
    head: bytes


class LogRecord:
    """The whole log, read once."""

    def __init__(self, records: Iterable[Record], chain_key: bytes) -> None:
        self.entries = [
            Entry(r.stream, r.seq, owner(r.subject), decode_message(r.payload), digest(r.payload, chain_key))
            for r in records
        ]
        self.routed: dict[tuple[str, int], list[str]] = defaultdict(list)
        """Replicas that wrote a decision, by request and attempt."""
        self.finished: Counter[tuple[str, int]] = Counter()
        self.left: set[str] = set()
        """Workers and replicas that ended by themselves."""
        self.told: set[str] = set()
        """Replicas that were killed, and whose journal told their end."""
        self.migrated = 0
        """Answers that another worker went on with."""
        self.lost: Counter[str] = Counter()
        self.joined: dict[str, str] = {}
        """Everybody who ever joined: `worker` or `replica`, by id."""
        for entry, event in self.events():
            self._note(entry, event)

    def events(self) -> Iterator[tuple[Entry, Event | UnknownEvent]]:
        """Every event with where it stands."""
        return ((entry, event) for entry in self.entries for event in entry.message.events)

    def _note(self, entry: Entry, event: Event | UnknownEvent) -> None:
        match event:
            case RequestRouted():
                self.routed[event.request, event.attempt].append(entry.owner)
            case RequestFinished():
                self.finished[event.request, event.attempt] += 1
            case RequestMigrated():
                self.migrated += 1
            case WorkerJoined():
                self.joined[entry.owner] = "worker"
            case ReplicaJoined():
                self.joined[entry.owner] = "replica"
            case ReplicaLeft(reason=reason) if reason == TOLD_BY_JOURNAL:
                self.told.add(entry.owner)
            case WorkerLeft() | ReplicaLeft():
                self.left.add(entry.owner)
            case WorkerLost() | ReplicaLost():
                self.lost[f"{entry.stream}/{entry.owner}"] += 1
            case _:
                pass

    @property
    def ended(self) -> set[str]:
        """Ids whose end is in the log."""
        return self.left | self.told | {key.partition("/")[2] for key in self.lost}

    def broken_chains(self) -> list[str]:
        """Every source counts from 0 without a gap or a repeat, each message naming the one before."""
        wrong: list[str] = []
        following: dict[tuple[str, str], tuple[int, bytes]] = {}
        for entry in self.entries:
            source = (entry.stream, entry.message.source)
            n, head = following.get(source, (0, CHAIN_START))
            if (entry.message.n, entry.message.prev) != (n, head):
                wrong.append(f"{entry.stream}:{entry.seq} of {source[1]} is n={entry.message.n}, expected {n}")
            following[source] = (entry.message.n + 1, entry.head)
        return _told("breaks in chains", wrong)

    def stored_twice(self) -> list[str]:
        """Every message of a source stands in its stream once."""
        times = Counter((entry.stream, entry.message.source, entry.message.n) for entry in self.entries)
        return _told("messages stored twice", [f"{key}" for key, count in times.items() if count > 1])

    def foreign_messages(self) -> list[str]:
        """A subject holds its owner's messages and one end that another wrote; nothing follows it but what a dead
        replica's journal still held."""
        wrong, over = [], set()
        for entry in self.entries:
            where = (entry.stream, entry.owner)
            if entry.message.source not in {entry.owner, entry.owner + LOST}:
                wrong.append(f"{entry.stream}:{entry.seq} of {entry.message.source} on the subject of {entry.owner}")
            elif where in over and entry.stream != ROUTING:
                wrong.append(f"{entry.stream}:{entry.seq} follows the end of {entry.owner}")
            if entry.message.source == entry.owner + LOST:
                over.add(where)
        return _told("messages where they should not be", wrong)

    def ends_told_twice(self) -> list[str]:
        """An end is told once in a stream, whoever finds it."""
        return _told("ends told twice", [f"{key}: {count}" for key, count in self.lost.items() if count > 1])

    def ends_missing(self, alive: set[str]) -> list[str]:
        """Whoever joined and is not alive has an end in the log; whoever is alive has none."""
        over = alive | self.ended
        wrong = [f"{kind} {who} is gone without an end" for who, kind in self.joined.items() if who not in over]
        wrong += [f"{who} is alive and has an end" for who in alive & self.ended]
        return _told("ends that do not fit", wrong)

    def decisions_missing(self, answered: Iterable[str]) -> list[str]:
        """Every attempt of an answered request has its decision, once; no decision at all is there twice."""
        attempts: dict[str, list[int]] = defaultdict(list)
        for request, attempt in self.routed:
            attempts[request].append(attempt)
        wrong = [
            f"{request}: attempts {sorted(attempts[request])}"
            for request in answered
            if not attempts[request] or sorted(attempts[request]) != list(range(len(attempts[request])))
        ]
        twice = [f"{key} by {by}" for key, by in self.routed.items() if len(by) > 1]
        return _told("answered requests without their decisions", wrong) + _told("decisions told twice", twice)

    def finishes_missing(self, alive: set[str]) -> list[str]:
        """Every attempt has its end, once, if its replica lives or left by itself."""
        lived = alive | self.left
        wrong = [
            f"{key} of {by[0]}: {self.finished[key]} ends"
            for key, by in self.routed.items()
            if self.finished[key] != 1 and (by[0] in lived or self.finished[key] > 1)
        ]
        return _told("attempts without their one end", wrong)

    def heads_unknown(self) -> list[str]:
        """What a load report says of its worker's kv chain (acknowledged!) is so in the log."""
        heads: dict[tuple[str, int], bytes] = {
            (entry.message.source, entry.message.n): entry.head
            for entry in self.entries
            if entry.stream.startswith("kv_")
        }
        wrong = [
            f"load:{entry.seq} of {entry.owner} names message {event.kv_n - 1}"
            for entry, event in self.events()
            if isinstance(event, LoadReported)
            and event.kv_n
            and heads.get((entry.owner, event.kv_n - 1)) != event.kv_head
        ]
        return _told("acknowledged kv messages that the log has not", wrong)


async def read_record(log: EventLog, chain_key: bytes) -> LogRecord:
    """The whole log as it is now, without its snapshots.

    A message names only messages that stood in the log before it: routing those of all streams, load those of kv. The
    naming stream is read first, so that each named message is read too while the log grows."""
    streams = sorted(await log.streams(), reverse=True)
    read = [record for stream in streams if stream != SNAPSHOTS async for record in log.read(stream, StreamSeq(1))]
    return LogRecord(read, chain_key)


def _told(what: str, wrong: list[str]) -> list[str]:
    if not wrong:
        return []
    more = f" and {len(wrong) - SHOWN_MAX} more" if len(wrong) > SHOWN_MAX else ""
    return [f"{len(wrong)} {what}: {'; '.join(wrong[:SHOWN_MAX])}{more}"]
