"""VirtualSource: who writes one chain of messages into one stream of a simulation's log."""

from __future__ import annotations

from core.codec import CHAIN_START, READABLE, digest, encode_event, encode_message, encode_readable
from core.events import Event
from core.ids import SourceId, StreamName
from replay.simulating.virtual_log import KEY, VirtualLog
from streams.outbox.backlog import ENVELOPE_BYTES, OutboxLimits

MESSAGE_BYTES_MAX = OutboxLimits().message_bytes_max
EVENTS_MAX = OutboxLimits().events_max
CHAIN_KEY = KEY.chain_key


class VirtualSource:
    """Its messages follow each other as those of a real source do: number, digest of the one before, digest."""

    def __init__(self, log: VirtualLog, stream: StreamName, owner: str, source: str = "", token: str = "") -> None:
        """`source` is who writes, if not the owner of the subject; `token` is the end of the subject, if that is more
        than the owner."""
        self.n = 0
        """Of the next message."""
        self.head = CHAIN_START
        """Digest of the last one."""
        self._log = log
        self._stream = stream
        self._owner = owner
        self._token = token
        self._source = SourceId(source or owner)

    def __repr__(self) -> str:
        return f"<VirtualSource {self._source} in {self._stream}, {self.n} messages>"

    def ended_by(self, source: str) -> VirtualSource:
        """Who says under the same subject that this one has ended."""
        return VirtualSource(self._log, self._stream, self._owner, source, self._token)

    def say(self, events: list[Event]) -> None:
        """The events stand in the log, as one message, or as few as its bounds allow."""
        batch: list[Event] = []
        encodings: list[bytes] = []
        size = ENVELOPE_BYTES
        for event in events:
            encoding = encode_event(event)
            if batch and (size + len(encoding) > MESSAGE_BYTES_MAX or len(batch) == EVENTS_MAX):
                self._append(batch, encodings)
                batch, encodings, size = [], [], ENVELOPE_BYTES
            batch.append(event)
            encodings.append(encoding)
            size += len(encoding)
        if batch:
            self._append(batch, encodings)

    def _append(self, events: list[Event], encodings: list[bytes]) -> None:
        now_ms = self._log.now_ms
        if all(isinstance(event, READABLE) for event in events):
            payload = encode_readable(self._source, self.n, self.head, now_ms, events)
        else:
            payload = encode_message(self._source, self.n, self.head, now_ms, encodings)
        self.n, self.head = self.n + 1, digest(payload, CHAIN_KEY)
        self._log.append(self._stream, self._owner, payload, self.head, self._token)
