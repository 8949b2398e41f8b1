"""The mutual proof of both ends of a connection: every fact is covered, and neither side's proof serves the other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from actors.transport.frames import PROTOCOL, ClientHello, WorkerHello
from actors.transport.handshake import (
    NONCE_BYTES,
    PROOF_BYTES,
    ClientHandshake,
    HandshakeTranscript,
    LegacyHandshake,
    LinkOptions,
    LinkSecurity,
    WorkerHandshake,
)
from core.clock import ManualClock
from core.errors import PeerError
from core.ids import WorkerId
from core.keys import DeploymentKey

KEY = b"k" * 32
LINK = LinkSecurity(key=KEY, namespace="test")
WORKER = WorkerId("00000000000000aa")
ADDRESS = "10.0.0.7:9100"
TRANSCRIPT = HandshakeTranscript(
    protocol=PROTOCOL,
    namespace="test",
    client="r",
    worker=WORKER,
    address=ADDRESS,
    steps=False,
    client_nonce=bytes(NONCE_BYTES),
    worker_nonce=bytes(NONCE_BYTES),
    certificate=b"",
)


def client(link: LinkSecurity = LINK, worker: WorkerId = WORKER, address: str = ADDRESS) -> ClientHandshake:
    return ClientHandshake(link, "r", worker, address, steps=True)


def test_both_ends_prove_themselves() -> None:
    near = client()
    far = WorkerHandshake(LINK, near.hello, WORKER, ADDRESS, b"")
    assert far.is_proved(near.check(far.answer, b"").proof)
    assert far.steps


@pytest.mark.parametrize("field", HandshakeTranscript.__struct_fields__)
def test_a_proof_covers_every_fact(field: str) -> None:
    value = getattr(TRANSCRIPT, field)
    other = {str: "x", bytes: b"x", int: 7, bool: True}[type(value)]
    changed = msgspec.structs.replace(TRANSCRIPT, **{field: other})
    assert changed.worker_proof(KEY) != TRANSCRIPT.worker_proof(KEY)
    assert changed.client_proof(KEY) != TRANSCRIPT.client_proof(KEY)


def test_the_proof_of_one_side_is_none_of_the_other() -> None:
    """Else a client's own proof, sent back to it, would be the worker's."""
    assert TRANSCRIPT.worker_proof(KEY) != TRANSCRIPT.client_proof(KEY)
    assert len(TRANSCRIPT.worker_proof(KEY)) == PROOF_BYTES


def test_facts_cannot_be_moved_from_one_field_to_the_next() -> None:
    moved = msgspec.structs.replace(TRANSCRIPT, namespace="testr", client="")
    assert moved.worker_proof(KEY) != TRANSCRIPT.worker_proof(KEY)


@pytest.mark.parametrize("answer", [bytes(PROOF_BYTES), b"", TRANSCRIPT.worker_proof(KEY)])
def test_a_worker_without_the_key_gets_no_proof(answer: bytes) -> None:
    with pytest.raises(PeerError, match="does not prove"):
        client().check(WorkerHello(nonce=bytes(NONCE_BYTES), proof=answer), b"")


def test_a_relayed_proof_is_for_another_address() -> None:
    """A program on a dead worker's port passes the hello on to a live worker, and its answer back."""
    near = client(address="10.0.0.7:1")
    far = WorkerHandshake(LINK, near.hello, WORKER, ADDRESS, b"")
    with pytest.raises(PeerError, match="does not prove"):
        near.check(far.answer, b"")


def test_a_relay_between_two_tls_connections_shows_another_certificate() -> None:
    near = client()
    far = WorkerHandshake(LINK, near.hello, WORKER, ADDRESS, b"the worker's")
    with pytest.raises(PeerError, match="does not prove"):
        near.check(far.answer, b"the relay's")


def test_an_old_answer_is_of_no_use() -> None:
    """Each handshake has nonces of its own."""
    first, second = client(), client()
    answer = WorkerHandshake(LINK, first.hello, WORKER, ADDRESS, b"").answer
    with pytest.raises(PeerError, match="does not prove"):
        second.check(answer, b"")
    far = WorkerHandshake(LINK, first.hello, WORKER, ADDRESS, b"")
    proof = first.check(far.answer, b"").proof
    assert not WorkerHandshake(LINK, first.hello, WORKER, ADDRESS, b"").is_proved(proof)


def test_an_id_must_be_proved() -> None:
    """The id of the handshake, or a later one by a proof over the same connection."""
    near = client()
    far = WorkerHandshake(LINK, near.hello, WORKER, ADDRESS, b"")
    assert far.is_proved(near.check(far.answer, b"").proof)
    assert far.speaks_as("r", b"")
    assert not far.speaks_as("other", b"")
    assert not far.speaks_as("other", near.proof_of("another"))
    assert far.speaks_as("other", near.proof_of("other"))
    assert far.speaks_as("other", b"")
    assert not far.speaks_as("r", b"")


CHANGES: dict[str, Callable[[ClientHello], ClientHello]] = {
    "protocol": lambda hello: msgspec.structs.replace(hello, protocol=1),
    "namespace": lambda hello: msgspec.structs.replace(hello, namespace="prod"),
    "worker": lambda hello: msgspec.structs.replace(hello, worker="another"),
    "nonce": lambda hello: msgspec.structs.replace(hello, nonce=b"short"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_hello_that_does_not_fit_is_refused(change: str) -> None:
    with pytest.raises(PeerError):
        WorkerHandshake(LINK, CHANGES[change](client().hello), WORKER, ADDRESS, b"")


def test_no_repr_shows_a_key() -> None:
    legacy = LegacyHandshake("d00r", 10_000, ManualClock(0))
    link = LinkSecurity(key=KEY, namespace="test", legacy=legacy)
    assert "kkk" not in repr(link)
    assert "d00r" not in repr(link)


def test_the_old_handshake_ends_by_itself() -> None:
    """At the stated time, to the millisecond."""
    clock = ManualClock(1_000)
    link = LinkOptions(old_handshake_until_ms=61_000).security(DeploymentKey(KEY), "test", clock)
    assert link.degraded() == {
        "link": "the handshake of the version before is admitted until 1970-01-01T00:01:01+00:00"
    }
    clock.advance(59_999)
    assert link.legacy_now is not None
    clock.advance(1)
    assert link.legacy_now is None
    assert link.degraded() == {}
    assert link.describe() == {"tls": False, "old_handshake_until": None}


def test_the_old_handshake_is_off_by_default() -> None:
    assert LinkOptions().security(DeploymentKey(KEY), "test", ManualClock(0)).legacy is None
