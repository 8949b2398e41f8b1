"""SimulatedLog: the log of a simulation, and the sources that write its chains.

Messages are sealed in the real form, and each is decoded once for all readers. A reader has a message when its lag has
passed. If an archive is wanted, every message goes there when it is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from core.codec import Message, decode_message
from core.events import Event, UnknownEvent
from core.ids import Epoch, SourceId, StreamName, StreamSeq
from core.keys import DeploymentKey
from core.machine import TICK
from core.subjects import JOBS, LOAD, ROUTING, SCALE, kv_stream, subject
from projections.folds.jobs_fold import JobsFold
from replay.recording.recording import RecordedFrame
from replay.simulate.simulated_clock import NO_ERROR, ClockError, SimulatedClock
from replay.simulate.virtual_time import Agenda
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from streams.outbox.backlog import OutboxLimits
from streams.outbox.source_chain import Acknowledged, Append, Put, SourceChain, Start

NAMESPACE = "simulated"
KEY = DeploymentKey(b"a simulation's key is no secret.")
"""Key of the chains of every simulation: readers of its log can detect damage, not forgery."""
START_MS = 1_767_225_600_000
"""When a simulation begins, for people: 2026-01-01 00:00 UTC."""
EPOCH = Epoch(START_MS)
KV = kv_stream(0)
STREAMS = (KV, LOAD, ROUTING)


UNREAD_MAX = 4096
"""Messages that a reader could have read and did not: at so many it is told to, or a night without requests would fill
the memory with the loads of idle workers."""


class LogReader:
    """A reader of all streams, always `lag_us` behind the writers."""

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
        """Messages that have arrived at the reader since the last call, in the order of the log."""
        unread = self._unread
        while unread and unread[0][0] <= now_us:
            yield unread.popleft()[1]


class SimulatedLog:
    """One stream of each kind; those of jobs and of a planner only if there can be any."""

    def __init__(
        self,
        agenda: Agenda,
        archive: ArchiveWriter | None,
        *,
        jobs: bool = False,
        scale: bool = False,
        clock: ClockError = NO_ERROR,
    ) -> None:
        self.streams = (*STREAMS, JOBS) if jobs else STREAMS
        """Those that readers have: no router reads the planner's."""
        self.jobs = JobsFold()
        """The fold of the jobs stream, as workers have it: they do not lag."""
        self.messages = 0
        self.begun = False
        """Readers lag: a replica takes requests only when it has read the log up to its start."""
        self.agenda = agenda
        self.clock = SimulatedClock(agenda, START_MS, clock)
        """The broker's."""
        self._archive = archive
        self._readers: list[LogReader] = []
        self._last = dict.fromkeys((*self.streams, SCALE) if scale else self.streams, StreamSeq(0))
        if archive is not None:
            for stream in self._last:
                archive.open(stream, EPOCH, 1, 1)

    def __repr__(self) -> str:
        return f"<SimulatedLog {self.messages} messages, {len(self._readers)} readers>"

    @property
    def now_ms(self) -> int:
        """The broker's wall clock."""
        return self.clock.wall_ms()

    def reader(self, lag_us: int, much: Callable[[], object] = lambda: None) -> LogReader:
        """A reader of all messages from now on. It reads when it likes, and `much` is called when many wait."""
        self._readers.append(LogReader(lag_us, much))
        return self._readers[-1]

    def next_seq(self, stream: StreamName) -> StreamSeq:
        """Of the next message in the stream."""
        return StreamSeq(self._last[stream] + 1)

    def last_seq(self, stream: StreamName) -> StreamSeq:
        """Of the last message in the stream; 0 for none."""
        return self._last[stream]

    def append(self, stream: StreamName, owner: str, payload: bytes, head: bytes, token: str = "") -> Message:
        """The message stands at the end of its stream; `head` is its digest, and `token` the end of its subject, if
        that is more than the owner."""
        self.messages += 1
        seq = self._last[stream] = self.next_seq(stream)
        message = decode_message(payload)
        frame = RecordedFrame(stream, seq, self.now_ms, owner, head, message)
        if stream == JOBS:
            self.jobs.apply(owner, message, head)
        for reader in self._readers if stream in self.streams else ():
            reader.put(self.agenda.now_us, frame, begun=self.begun)
        if self._archive is not None:
            where = subject(NAMESPACE, stream, token or owner)
            self._archive.add(Record(stream, seq, frame.time_ms, where, payload))
        return message


CHAIN_KEY = KEY.chain_key
AT_ONCE = OutboxLimits(pace_s=0.0)


class SimulatedSource(SourceChain):
    """A source's chain in virtual time: the log takes each message at once, and is never cut."""

    def __init__(
        self,
        log: SimulatedLog,
        stream: StreamName,
        owner: str,
        source: str = "",
        token: str = "",
        *,
        limits: OutboxLimits = AT_ONCE,
        on_stored: Callable[[Sequence[Event | UnknownEvent]], None] = lambda _: None,
    ) -> None:
        """`source` writes, if that is not the owner of the subject; `token` is the end of the subject, if that is more
        than the owner. `on_stored` gets the events of each message that the log has taken."""
        super().__init__(subject(NAMESPACE, stream, token or owner), SourceId(source or owner), CHAIN_KEY, limits)
        self._log = log
        self._stream = stream
        self._owner = owner
        self._token = token
        self._on_stored = on_stored
        self._timer_us: int | None = None
        self.wall_offset_ms = START_MS
        self.step(Start(), log.agenda.now_us)

    def ended_by(self, source: str) -> SimulatedSource:
        """The chain of another source that writes the end of this one under the same subject."""
        return SimulatedSource(self._log, self._stream, self._owner, source, self._token)

    def put(self, event: Event) -> None:
        """The event stands in the log when the chain's pace lets it."""
        self.step(Put(event), self._log.agenda.now_us)
        self._set_timer()

    def append(self, events: Sequence[Event]) -> None:
        """The events stand in the log, as one message, or as few as its bounds allow."""
        for event in events:
            self.step(Put(event), self._log.agenda.now_us)
        self.flush()

    def flush(self) -> None:
        """All that was put stands in the log, before its pace allows it."""
        while not self.idle:
            assert self.due_us is not None
            self._take_turn(max(self.due_us, self._log.agenda.now_us))

    def _set_timer(self) -> None:
        due_us = self.due_us
        if due_us is not None and due_us != self._timer_us and not self.idle:
            self._timer_us = due_us
            self._log.agenda.put(due_us, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_us = None
        self._take_turn(self._log.agenda.now_us)
        self._set_timer()

    def _take_turn(self, now_us: int) -> None:
        """Events that are due are appended."""
        for command in self.step(TICK, now_us):
            assert isinstance(command, Append)
            self.step(Acknowledged(self._log.next_seq(self._stream)), now_us)  # now `head` is the message's digest
            message = self._log.append(self._stream, self._owner, command.payload, self.head, self._token)
            self._on_stored(message.events)
