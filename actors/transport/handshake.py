"""Mutual proof at the start of a connection between parts: both ends show that they hold the deployment's link key.

1. The client sends `ClientHello` with a nonce. The worker answers with `WorkerHello`: a nonce of its own and its proof.
   The client checks that proof, and sends its own in `ClientProof`. The worker checks it and sends `Welcome`. Neither
   the key nor anything else that opens another connection is ever sent.
2. A proof is a keyed BLAKE2b digest over the `HandshakeTranscript`: both nonces, both ids, the worker's address, the
   namespace, and the worker's certificate where the connection has TLS. The digests of the two sides are
   personalized, so that the proof of one side is none of the other.
3. A process that has taken the port of a dead worker cannot make the worker's proof. It cannot relay the proof of
   a live worker either: that proof is about another address.
4. For the time of an upgrade both ends also take the handshake of the version before (`LegacyHandshake`), which sends
   a static key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from actors.transport.frames import PROTOCOL, ClientHello, ClientProof, LegacyHello, WorkerHello
from actors.transport.link_tls import LinkTls
from core.clock import Clock
from core.errors import PeerError
from core.ids import WorkerId
from core.keys import DeploymentKey

NONCE_BYTES = 32
PROOF_BYTES = 32
LEGACY_PROTOCOL = 1
LEGACY_REFUSAL = f"not a frame of protocol {LEGACY_PROTOCOL}"
"""Beginning of the refusal by which a worker of the version before answers a `ClientHello`."""
_WORKER, _CLIENT = b"contrail worker", b"contrail client"
"""Personalizations of the two sides' digests: 16 bytes at most."""


class HandshakeTranscript(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """All facts that the two ends of a connection must agree on. A proof covers every field."""

    protocol: int
    namespace: str
    client: str
    """Id of the part that connects."""
    worker: str
    """Id of the worker that the client asked for."""
    address: str
    """HOST:PORT at which the worker is registered, and which the client dialed; without brackets."""
    steps: bool
    client_nonce: bytes
    worker_nonce: bytes
    certificate: bytes
    """SHA-256 of the worker's certificate; empty without TLS."""

    def worker_proof(self, key: bytes) -> bytes:
        """The worker's proof that it holds the key: PROOF_BYTES. About 2 us."""
        return self._digest(key, _WORKER)

    def client_proof(self, key: bytes) -> bytes:
        """The client's proof that it holds the key: PROOF_BYTES."""
        return self._digest(key, _CLIENT)

    def renamed(self, client: str) -> HandshakeTranscript:
        """The transcript of the same connection after the client took another id."""
        return msgspec.structs.replace(self, client=client)

    def _digest(self, key: bytes, side: bytes) -> bytes:
        return hashlib.blake2b(_encoder.encode(self), key=key, person=side, digest_size=PROOF_BYTES).digest()


_encoder = msgspec.msgpack.Encoder()
"""Each field of a msgpack array has its length before it, so that no two transcripts have the same bytes."""


class LegacyHandshake:
    """The handshake of the version before, taken until a stated time: it sends the static key `door_key`."""

    def __init__(self, door_key: str, until_ms: int, clock: Clock) -> None:
        """`until_ms` is a time of the wall clock. The time left is measured by the monotonic clock, which is never set
        back."""
        self.door_key = door_key
        self.until_ms = until_ms
        self._clock = clock
        self._ends_ms = clock.monotonic_ms() + until_ms - clock.wall_ms()

    def __repr__(self) -> str:
        return f"<LegacyHandshake, {self.remaining_s:.0f} s left>"

    @property
    def remaining_s(self) -> float:
        """The time for which it is still taken; 0 afterwards."""
        return max(0, self._ends_ms - self._clock.monotonic_ms()) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSecurity:
    """The credentials of a process for its connections to other parts. Its `repr` shows no key."""

    key: bytes
    """The deployment's link key."""
    namespace: str
    tls: LinkTls | None = None
    """None: connections are not encrypted."""
    legacy: LegacyHandshake | None = None
    """None: only the mutual proof is taken."""

    def __repr__(self) -> str:
        return f"<LinkSecurity of {self.namespace!r}, {self.tls!r}, {self.legacy!r}>"

    def describe(self) -> dict[str, object]:
        """For `/state`: whether connections are encrypted, and until when the handshake of the version before is
        admitted, in ISO 8601; null if it is not."""
        legacy = self.legacy_now
        until = None if legacy is None else datetime.fromtimestamp(legacy.until_ms / 1000, UTC)
        return {
            "tls": self.tls is not None,
            "old_handshake_until": None if until is None else until.isoformat(timespec="seconds"),
        }

    def degraded(self) -> dict[str, str]:
        """A line for `/ready` while the handshake of the version before is admitted."""
        until = self.describe()["old_handshake_until"]
        return {} if until is None else {"link": f"the handshake of the version before is admitted until {until}"}

    @property
    def legacy_now(self) -> LegacyHandshake | None:
        """The handshake of the version before, while it is taken."""
        return self.legacy if self.legacy is not None and self.legacy.remaining_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """The deployment's options for the connections between its parts."""

    tls: LinkTls | None = None
    """None: connections are not encrypted."""
    old_handshake_until_ms: int = 0
    """Until then the handshake of the version before is taken, too; milliseconds since 1970."""

    def security(self, key: DeploymentKey, namespace: str, clock: Clock) -> LinkSecurity:
        """The credentials of a process that starts now."""
        until_ms = self.old_handshake_until_ms
        legacy = LegacyHandshake(key.legacy_door_key, until_ms, clock) if until_ms > clock.wall_ms() else None
        return LinkSecurity(key=key.link_key, namespace=namespace, tls=self.tls, legacy=legacy)


NO_LINK_OPTIONS = LinkOptions()
"""No TLS, and only the mutual proof."""


class ClientHandshake:
    """The client's side of one handshake."""

    def __init__(self, link: LinkSecurity, client: str, worker: WorkerId, address: str, *, steps: bool) -> None:
        """`steps` is true if the client reads `StepTokens`."""
        self.hello = ClientHello(
            protocol=PROTOCOL,
            namespace=link.namespace,
            client=client,
            worker=worker,
            nonce=secrets.token_bytes(NONCE_BYTES),
            steps=steps,
        )
        self._link = link
        self._address = address
        self._transcript: HandshakeTranscript | None = None

    def check(self, answer: WorkerHello, certificate: bytes) -> ClientProof:
        """The client's proof, once the worker's is right; PeerError if it is not. `certificate` is the digest of the
        one that the worker showed."""
        transcript = _transcript(self.hello, self._address, answer.nonce, certificate)
        if not hmac.compare_digest(answer.proof, transcript.worker_proof(self._link.key)):
            raise PeerError(
                "it does not prove to be this deployment's worker: another program has its port, or another key"
            )
        self._transcript = transcript
        return ClientProof(proof=transcript.client_proof(self._link.key))

    def proof_of(self, client: str) -> bytes:
        """The proof that the client of this connection goes on under another id."""
        assert self._transcript is not None
        return self._transcript.renamed(client).client_proof(self._link.key)


class WorkerHandshake:
    """The worker's side of one handshake, from a `ClientHello` on."""

    def __init__(self, link: LinkSecurity, hello: ClientHello, worker: str, address: str, certificate: bytes) -> None:
        """PeerError says why the client is refused before any proof. `certificate` is the digest of the worker's."""
        if (hello.protocol, hello.namespace) != (PROTOCOL, link.namespace):
            theirs = f"protocol {hello.protocol}, namespace {hello.namespace!r}"
            raise PeerError(f"you: {theirs}; here: protocol {PROTOCOL}, namespace {link.namespace!r}")
        if hello.worker != worker:
            raise PeerError(f"worker {worker} answers here")
        if len(hello.nonce) != NONCE_BYTES:
            raise PeerError(f"a nonce has {NONCE_BYTES} bytes")
        self._key = link.key
        self._transcript = _transcript(hello, address, secrets.token_bytes(NONCE_BYTES), certificate)

    @property
    def steps(self) -> bool:
        """True if the client reads `StepTokens`."""
        return self._transcript.steps

    @property
    def answer(self) -> WorkerHello:
        """The worker's nonce and proof."""
        transcript = self._transcript
        return WorkerHello(nonce=transcript.worker_nonce, proof=transcript.worker_proof(self._key))

    def is_proved(self, proof: bytes) -> bool:
        """True if the client holds the key, and dialed the address at which this worker is registered."""
        return hmac.compare_digest(proof, self._transcript.client_proof(self._key))

    def speaks_as(self, client: str, proof: bytes) -> bool:
        """True if the client proved this id: in its handshake, or by `proof`. From then on it has this id."""
        if client == self._transcript.client:
            return True
        renamed = self._transcript.renamed(client)
        if not hmac.compare_digest(proof, renamed.client_proof(self._key)):
            return False
        self._transcript = renamed
        return True


def _transcript(hello: ClientHello, address: str, worker_nonce: bytes, certificate: bytes) -> HandshakeTranscript:
    return HandshakeTranscript(
        protocol=hello.protocol,
        namespace=hello.namespace,
        client=hello.client,
        worker=hello.worker,
        address=address.replace("[", "").replace("]", ""),  # brackets around a host change nothing
        steps=hello.steps,
        client_nonce=hello.nonce,
        worker_nonce=worker_nonce,
        certificate=certificate,
    )


def legacy_hello(legacy: LegacyHandshake, namespace: str, client: str, *, steps: bool) -> LegacyHello:
    """The first frame for a worker of the version before."""
    return LegacyHello(protocol=LEGACY_PROTOCOL, key=legacy.door_key, namespace=namespace, replica=client, steps=steps)


def legacy_fault(link: LinkSecurity, hello: LegacyHello) -> str:
    """The reason why a client with the handshake of the version before is refused; empty if it is admitted."""
    legacy = link.legacy_now
    if legacy is None:
        return "your handshake is of an earlier version: upgrade (link.old_handshake_until admits it meanwhile)"
    if not hmac.compare_digest(hello.key.encode(), legacy.door_key.encode()):
        return "the deployment's key is another one here"
    if (hello.protocol, hello.namespace) != (LEGACY_PROTOCOL, link.namespace):
        theirs = f"protocol {hello.protocol}, namespace {hello.namespace!r}"
        return f"you: {theirs}; here: protocol {LEGACY_PROTOCOL}, namespace {link.namespace!r}"
    return ""
