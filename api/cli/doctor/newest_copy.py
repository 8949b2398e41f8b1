"""NewestCopy: the end of the log in a file, with the newest decisions, for the checks of decisions and of traffic.

Its size is bounded: an idle fleet reports its load for hours between two decisions.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from api.cli.options import RecordingRange
from api.cli.output import show_progress
from api.cli.replay.recording_copy import copy_log
from api.config.deployment_ref import DeploymentRef
from core.codec import DECISION_TYPES
from core.ids import StreamSeq
from core.subjects import ROUTING
from replay.recording.moment import AtSequence
from replay.recording.recording import Recording
from streams.archive.message_envelope import envelope
from streams.log import EventLog, Record

DECISIONS_MAX = 1_000
"""The newest decisions that are judged: a second or two for each check."""
FEWER_DECISIONS = (100, 10)
"""Judged instead, where more take too many messages: an idle fleet reports its load for hours between them."""
ROUTING_MESSAGES_MAX = 4_000
"""Messages of the routing stream in which they are looked for."""
MESSAGES_MAX = 200_000
"""Messages that are copied at most: those since the snapshot before the oldest of these decisions; some ten seconds."""


class NewestCopy(NamedTuple):
    """The copied part of the log."""

    recording: Recording
    from_seq: StreamSeq
    """The oldest message of the routing stream with decisions to judge; earlier ones tell what was known by then."""
    is_whole: bool
    """True if the log holds no decision before it."""
    messages: int

    @property
    def text(self) -> str:
        """The part of the log that is judged."""
        return "the whole log" if self.is_whole else f"the log from {ROUTING}:{self.from_seq} on"


class TooLarge(NamedTuple):
    """Nothing was copied, since that takes so many messages."""

    messages: int


class _TooManyMessages(Exception):
    """A copy would hold more messages than are judged here."""


@asynccontextmanager
async def copy_newest(connection: DeploymentRef, log: EventLog) -> AsyncIterator[NewestCopy | TooLarge]:
    """A copy with the newest DECISIONS_MAX decisions, or fewer if that takes too many messages; it is gone behind the
    block. Unavailable, Refused or Corrupt if the log cannot be copied."""
    newest = await _newest(log)
    copied = 0
    shown = show_progress()

    def progress(done: int, of: int) -> None:
        nonlocal copied
        copied = of
        if of > MESSAGES_MAX:
            raise _TooManyMessages
        shown(done, of)

    with tempfile.TemporaryDirectory(prefix="contrail-") as folder:
        path = Path(folder) / "log"
        for most in (DECISIONS_MAX, *FEWER_DECISIONS):
            first, is_whole = newest.first(most)
            start = None if is_whole else AtSequence(ROUTING, first)
            try:
                await copy_log(log, connection.namespace, connection.key, path, RecordingRange(start, None), progress)
            except _TooManyMessages:
                continue
            with Recording.open(path, connection.key) as recording:
                yield NewestCopy(recording, first, is_whole, copied)
            return
    yield TooLarge(copied)


class _NewestDecisions(NamedTuple):
    """Messages of the routing stream with decisions, at its end."""

    decided: list[tuple[StreamSeq, int]]
    """The sequence of each, and its number of decisions."""
    begin: StreamSeq
    """The first message that was looked at."""
    last: StreamSeq
    is_whole: bool
    """True if the log holds none before `begin`."""

    def first(self, most: int) -> tuple[StreamSeq, bool]:
        """The oldest message such that it and those after it hold at most `most` decisions; True if none is older.

        At least the newest message with decisions counts.
        """
        total = 0
        for place, (_, count) in reversed(list(enumerate(self.decided))):
            total += count
            if total > most and place + 1 < len(self.decided):
                return self.decided[place + 1][0], False
        if not self.decided and most < DECISIONS_MAX:
            return self.last, False
        return self.begin, self.is_whole


async def _newest(log: EventLog) -> _NewestDecisions:
    """The decisions in the newest ROUTING_MESSAGES_MAX messages."""
    state = await log.state(ROUTING)
    begin = max(state.first_seq, state.last_seq - ROUTING_MESSAGES_MAX + 1, 1)
    decided: list[tuple[StreamSeq, int]] = []
    if state.messages:
        async for record in log.read(ROUTING, StreamSeq(begin)):
            if count := _decisions_in(record):
                decided.append((record.seq, count))
            if record.seq >= state.last_seq:
                break
    return _NewestDecisions(decided, StreamSeq(begin), state.last_seq, begin <= max(state.first_seq, 1))


def _decisions_in(record: Record) -> int:
    message = envelope(record.payload)
    return 0 if message is None else sum(event.type in DECISION_TYPES for event in message.events)
