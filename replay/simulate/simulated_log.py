"""SimulatedLog: the log of a simulation, and the sources that write its chains.

Messages are sealed in the real form, and each is decoded once for all readers. A reader has a message when its lag has
passed. If an archive is wanted, every message goes there when it is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from core.codec import CHAIN_START, READABLE, decode_message, digest, encode_event, encode_message, encode_readable
from core.events import Event
from core.ids import Epoch, SourceId, StreamName, StreamSeq
from core.keys import DeploymentKey
from core.subjects import JOBS, LOAD, ROUTING, kv_stream, subject
from projections.folds.jobs_fold import JobsFold
from replay.recording.recording import RecordedFrame
from replay.simulate.virtual_time import Agenda
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from streams.outbox.backlog import ENVELOPE_BYTES, OutboxLimits

NAMESPACE = "simulated"
KEY = DeploymentKey(b"a simulation's key is no secret.")
"""Seals the chains of every simulation, so that whoever has its log can check them: they tell damage, not forgery."""
START_MS = 1_767_225_600_000
"""When a simulation begins, for people: 2026-01-01 00:00 UTC."""
EPOCH = Epoch(START_MS)
KV = kv_stream(0)
STREAMS = (KV, LOAD, ROUTING)


UNREAD_MAX = 4096
"""Messages that a reader could have read and did not: at so many it is told to, or a night without requests would fill
the memory with the loads of idle workers."""


class LogReader:
    """Who reads all streams, always `lag_us` behind what was written."""

    def __init__(self, lag_us: int, much: Callable[[], object]) -> None:
        """`much` is called when so much is unread that all that can be had by now is to be read."""
        self._lag_us = lag_us
        self._much = much
        self._unread: deque[tuple[int, RecordedFrame]] = deque()

    def __repr__(self) -> str:
        return f"<LogReader {self._lag_us} us behind, {len(self._unread)} messages unread>"

    def __len__(self) -> int:
        return len(self._unread)

    def put(self, now_us: int, frame: RecordedFrame, *, begun: bool) -> None:
        """The message was written now; what stands in the log before the run has begun is read at once."""
        self._unread.append((now_us + begun * self._lag_us, frame))
        if len(self._unread) >= UNREAD_MAX and self._unread[UNREAD_MAX - 1][0] <= now_us:
            self._much()

    def until(self, now_us: int) -> Iterator[RecordedFrame]:
        """What the reader has by now and was not given before, in the order of the log."""
        unread = self._unread
        while unread and unread[0][0] <= now_us:
            yield unread.popleft()[1]


class SimulatedLog:
    """One stream of each kind; one of jobs only if there can be any."""

    def __init__(self, agenda: Agenda, archive: ArchiveWriter | None, *, jobs: bool = False) -> None:
        self.streams = (*STREAMS, JOBS) if jobs else STREAMS
        self.jobs = JobsFold()
        """The fold of the jobs stream, as workers have it: they do not lag."""
        self.messages = 0
        self.begun = False
        """Whether readers lag: a replica takes requests only when it has read what the log had at its start."""
        self._agenda = agenda
        self._archive = archive
        self._readers: list[LogReader] = []
        self._last = dict.fromkeys(self.streams, 0)
        if archive is not None:
            for stream in self.streams:
                archive.open(stream, EPOCH, 1, 1)

    def __repr__(self) -> str:
        return f"<SimulatedLog {self.messages} messages, {len(self._readers)} readers>"

    @property
    def now_ms(self) -> int:
        """The virtual wall clock."""
        return START_MS + self._agenda.now_us // 1000

    def reader(self, lag_us: int, much: Callable[[], object] = lambda: None) -> LogReader:
        """Reads whatever is written from now on, when it likes or when it is told that it is `much`."""
        self._readers.append(LogReader(lag_us, much))
        return self._readers[-1]

    def append(self, stream: StreamName, owner: str, payload: bytes, head: bytes, token: str = "") -> None:
        """The message stands at the end of its stream; `head` is its digest, and `token` the end of its subject, if
        that is more than the owner."""
        self.messages += 1
        seq = self._last[stream] = self._last[stream] + 1
        message = decode_message(payload)
        frame = RecordedFrame(stream, StreamSeq(seq), self.now_ms, owner, head, message)
        if stream == JOBS:
            self.jobs.apply(owner, message, head)
        for reader in self._readers:
            reader.put(self._agenda.now_us, frame, begun=self.begun)
        if self._archive is not None:
            where = subject(NAMESPACE, stream, token or owner)
            self._archive.add(Record(stream, StreamSeq(seq), frame.time_ms, where, payload))


MESSAGE_BYTES_MAX = OutboxLimits().message_bytes_max
EVENTS_MAX = OutboxLimits().events_max
CHAIN_KEY = KEY.chain_key


class SimulatedSource:
    """Its messages follow each other as those of a real source do: number, digest of the one before, digest."""

    def __init__(self, log: SimulatedLog, stream: StreamName, owner: str, source: str = "", token: str = "") -> None:
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
        return f"<SimulatedSource {self._source} in {self._stream}, {self.n} messages>"

    def ended_by(self, source: str) -> SimulatedSource:
        """Who says under the same subject that this one has ended."""
        return SimulatedSource(self._log, self._stream, self._owner, source, self._token)

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
