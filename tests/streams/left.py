"""A journal as a dead process leaves it, for tests."""

from __future__ import annotations

from pathlib import Path

from core.codec import decode_message, digest, encode_message
from core.events import CacheCleared, Event
from core.keys import DeploymentKey
from core.subjects import ROUTING
from streams.outbox.backlog import OutboxLimits, SealedMessage
from streams.outbox.journal import Journal, identity
from streams.outbox.journal_file import JournalIdentity
from streams.outbox.source_chain import seal
from tests.streams.source import SOURCE, said

NAMESPACE = "test"
DEPLOYMENT = DeploymentKey(bytes(32))
KEY = DEPLOYMENT.chain_key
SMALL_BYTES = 4096
LIMITS = OutboxLimits()


def whose(source: str = SOURCE, namespace: str = NAMESPACE, key: bytes = KEY) -> JournalIdentity:
    return identity(namespace, ROUTING, source, key)


def new_journal(folder: Path, capacity: int = SMALL_BYTES, limits: OutboxLimits = LIMITS) -> Journal:
    return Journal.create(folder, whose(), limits, capacity)


def left_journal(path: Path, limits: OutboxLimits = LIMITS) -> Journal:
    """The journal that a dead process left, scanned."""
    journal = Journal.open_left(path, whose(), limits)
    assert journal is not None
    for _ in journal.scan():
        pass
    return journal


def put(journal: Journal, *names: object) -> None:
    for name in names:
        assert journal.offer(said(name))


def seal_next(journal: Journal) -> SealedMessage:
    """What waits is in a message, as an outbox makes it."""
    at, batch = journal.standing, journal.take()
    sealed = seal(journal.source, at.n_acked, at.head, 5, batch.encodings, readable=batch.readable)
    journal.seal(sealed)
    return sealed


def acknowledge(journal: Journal, sealed: SealedMessage, seq: int) -> None:
    journal.acknowledge(sealed.n + 1, digest(sealed.payload, KEY), seq)


def waiting(journal: Journal) -> list[str]:
    """What is not sealed; the journal has nothing after this."""
    found = []
    while (encoded := journal.peek()) is not None:
        found += _names(encode_message(SOURCE, 0, bytes(16), 0, [encoded]))
        journal.skip()
    return found


def told_by(journal: Journal) -> list[str]:
    """All that a successor would tell: the message in flight, then what waits. Empties the journal."""
    sealed = journal.in_flight()
    return ([] if sealed is None else _names(sealed.payload)) + waiting(journal)


def _names(payload: bytes) -> list[str]:
    return [name(event) for event in decode_message(payload).events]  # type: ignore[arg-type]


def name(event: Event) -> str:
    assert isinstance(event, CacheCleared)
    return event.reason
