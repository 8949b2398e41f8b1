"""A sealed message: fixed from the moment when it is first offered to the log until the log has it."""

from __future__ import annotations

from typing import NamedTuple

from core.codec import decode_message, digest, encode_message, encode_readable
from core.events import UnknownEvent
from core.ids import SourceId


class SealedMessage(NamedTuple):
    """What an append carries."""

    n: int
    payload: bytes
    events: int

    def message_id(self, source: SourceId) -> str:
        """What tells the broker that an offer is a repeat."""
        return f"{source}:{self.n}"


def seal(
    source: SourceId, n: int, head: bytes, now_ms: int, encodings: list[bytes], *, readable: bool
) -> SealedMessage:
    """The source's message n behind the one with the digest `head`; as JSON if its events are all readable."""
    payload = encode_message(source, n, head, now_ms, encodings)
    if readable:
        events = decode_message(payload).events
        payload = encode_readable(source, n, head, now_ms, [e for e in events if not isinstance(e, UnknownEvent)])
    return SealedMessage(n, payload, len(encodings))


def chain_digest(sealed: SealedMessage, chain_key: bytes) -> bytes:
    """What the next message names as the one before it."""
    return digest(sealed.payload, chain_key)
