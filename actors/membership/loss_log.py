"""LossLog: appends the end of a lost source to its subject, expecting the last message there."""

from __future__ import annotations

import logging

from core.clock import Clock
from core.codec import CHAIN_START, decode_message, encode_event, encode_message, newest_generation
from core.errors import ContrailError, Corrupt, WrongSequence
from core.events import PoolLost, ReplicaLost, WorkerLost
from core.ids import LOST_SUFFIX, SourceId, StreamName, StreamSeq, WorkerId
from core.subjects import JOBS, LOAD, ROUTING, answered_token, asked_token, subject
from projections.folds.state import State
from streams.log import EventLog, Record

_logger = logging.getLogger(__name__)


class LossLog:
    """The first append wins: a replica that also judges the source, or the source itself, excludes a second one."""

    def __init__(self, namespace: str, log: EventLog, state: State, clock: Clock) -> None:
        self._namespace = namespace
        self._log = log
        self._state = state
        self._clock = clock

    def __repr__(self) -> str:
        return f"<LossLog of {self._namespace}>"

    async def append(
        self,
        stream: StreamName,
        source: str,
        end: WorkerLost | PoolLost | ReplicaLost,
        messages_seen: int | None = None,
    ) -> bool:
        """True if the end is in the log, once, from any replica. False if the source wrote meanwhile (more than
        `messages_seen`: our fold may stand still), or if the log is away: then the source is judged again."""
        token = self._token(stream, source)
        if token is None:
            return True
        where = subject(self._namespace, stream, token)
        writer = SourceId(source + LOST_SUFFIX)
        try:
            last = await self._log.last(stream, where)
            never_wrote = last is None and stream == LOAD and source not in self._state.loads.chains
            if never_wrote or (last is not None and _is_written_by(writer, last)):
                return True  # nothing to end, or the end is there already
            if messages_seen is not None and last is not None and _has_more(source, messages_seen, last):
                return False
            payload = encode_message(
                writer,
                0,
                CHAIN_START,
                self._clock.wall_ms(),
                [encode_event(end)],
                newest_generation(self._state.chain_key),
            )
            expected = StreamSeq(0 if last is None else last.seq)
            await self._log.append(stream, where, payload, f"{writer}:{self._clock.wall_ms()}", expected)
        except WrongSequence:
            return False  # another replica was first, or the source lives
        except ContrailError as error:
            _logger.warning("could not write the end of %s now, trying again: %s", source, error)
            return False
        if stream not in {LOAD, JOBS}:
            kind = "replica" if stream == ROUTING else "worker"
            _logger.warning("%s is lost: no lease, no answer", source, extra={kind: source})
        return True

    def _token(self, stream: StreamName, source: str) -> str | None:
        """Of the subject to which the source writes there, so that its messages and its end exclude each other. None
        for a worker without jobs: it wrote none, or the end was read since, and its subject is forgotten with it."""
        if stream != JOBS:
            return source
        part = self._state.jobs.parts.get(WorkerId(source))
        if part is None:
            return None
        return answered_token(source) if part.answers else asked_token(source, part.kind)


def _has_more(source: str, messages_seen: int, record: Record) -> bool:
    try:
        message = decode_message(record.payload)
    except Corrupt:
        return False  # its writer is unknown
    return message.source == source and message.n >= messages_seen


def _is_written_by(source: SourceId, record: Record) -> bool:
    try:
        return decode_message(record.payload).source == source
    except Corrupt:
        return False  # damaged: the end can follow it all the same
