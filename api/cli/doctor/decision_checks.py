"""Check of the newest decisions: they are made again by the code of `contrail replay verify`, which gives the sentence.

The part of the log that this takes is copied first. Its size is bounded, and each sentence says how much was judged.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from api.cli.doctor.finding import Finding
from api.cli.options import RecordingRange
from api.cli.output import show_progress
from api.cli.quantities import count_text
from api.cli.renderer import OK, PROBLEM, WARNING
from api.cli.replay.recording_copy import copy_log
from api.cli.replay.text.verify_text import incomplete_text, verdict_text
from api.config.deployment_ref import DeploymentRef
from core.codec import DECISION_TYPES
from core.errors import Corrupt, Refused
from core.ids import StreamSeq
from core.subjects import ROUTING
from replay.recording.moment import AtSequence
from replay.recording.recording import Recording
from replay.verify.verify import VerifyResult, verify
from streams.archive.message_envelope import envelope
from streams.log import EventLog, Record

DECISIONS_MAX = 1_000
"""The newest decisions that are made again: a second or two."""
FEWER_DECISIONS = (100, 10)
"""Made again instead, where more take too many messages: an idle fleet reports its load for hours between them."""
ROUTING_MESSAGES_MAX = 4_000
"""Messages of the routing stream in which they are looked for."""
MESSAGES_MAX = 200_000
"""Messages that are copied at most: those since the snapshot before the oldest of these decisions; some ten seconds."""


class VerifiedPart(NamedTuple):
    """The findings of `replay verify` on the end of the log."""

    result: VerifyResult
    sentence: str
    """The first line of `contrail replay verify`."""
    lacking: str
    """The kinds that are not judged or not proved; empty if there are none."""
    from_seq: int
    """Of the oldest message of the routing stream in which decisions were made again."""
    is_whole: bool
    """True if the log holds no decision before it."""


class TooLarge(NamedTuple):
    """The decisions were not made again, since that takes so many messages."""

    messages: int


class _TooManyMessages(Exception):
    """A copy would hold more messages than are judged here."""


async def verify_newest(connection: DeploymentRef, log: EventLog) -> VerifiedPart | TooLarge:
    """The newest DECISIONS_MAX decisions, made again, or fewer if that takes too many messages. Unavailable, Refused or
    Corrupt if the log cannot be judged."""
    newest = await _newest(log)
    copied = 0
    shown = show_progress()

    def progress(done: int, of: int) -> None:
        nonlocal copied
        copied = of
        if of > MESSAGES_MAX:
            raise _TooManyMessages
        shown(done, of)

    for most in (DECISIONS_MAX, *FEWER_DECISIONS):
        first, is_whole = newest.first(most)
        with tempfile.TemporaryDirectory(prefix="contrail-") as folder:
            path = Path(folder) / "log"
            start = None if is_whole else AtSequence(ROUTING, first)
            try:
                await copy_log(log, connection.namespace, connection.key, path, RecordingRange(start, None), progress)
            except _TooManyMessages:
                continue
            return await asyncio.to_thread(_verified, path, connection, first, is_whole)
    return TooLarge(copied)


def _verified(path: Path, connection: DeploymentRef, first: StreamSeq, is_whole: bool) -> VerifiedPart:
    with Recording.open(path, connection.key) as recording:
        found = verify(recording, first, progress=show_progress("deciding again", "decisions"))
        return VerifiedPart(found, verdict_text(found, recording.names), incomplete_text(found), first, is_whole)


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


def check_decisions(found: VerifiedPart | TooLarge | Refused | Corrupt) -> Finding:
    """The newest decisions follow from the log, by the sentence of `contrail replay verify`; the status is a problem
    where its exit status is not 0."""
    if isinstance(found, Refused | Corrupt):
        return Finding("decisions", PROBLEM, f"The newest decisions cannot be judged: {found}.", {"judged": False})
    if isinstance(found, TooLarge):
        text = (
            f"No decision was made again here: that takes {count_text(found.messages, 'message')}, from a snapshot or "
            f"the log's start on, and doctor reads {MESSAGES_MAX:,} at most; ask `contrail replay verify`."
        )
        return Finding("decisions", WARNING, text, {"judged": False, "messages": found.messages})
    return _judged(found)


def _judged(found: VerifiedPart) -> Finding:
    result = found.result
    facts: dict[str, Any] = {
        "judged": True,
        "whole_log": found.is_whole,
        "from_seq": found.from_seq,
        "messages": result.proof.messages,
        "decisions": result.decisions,
        "verified": result.verified,
        "different": result.different,
        "not_judged": result.not_judged,
        "folds_different": result.folds.different,
        "chains_broken": result.proof.broken,
        "gaps": len(result.gaps),
    }
    part = "the whole log" if found.is_whole else f"the log from routing:{found.from_seq} on"
    text = f"In {part}, {count_text(result.proof.messages, 'message')}, by `replay verify`: {found.sentence}"
    if not result.holds:
        return Finding("decisions", PROBLEM, f"{text} {_cause(result)}".rstrip(), facts)
    if found.lacking:
        cause = _cause(result)
        text = f"{text} {_sentence(found.lacking)}{f' {cause}' if cause else ''}"
        return Finding("decisions", WARNING, text, facts)
    return Finding("decisions", OK, text, facts)


def _cause(result: VerifyResult) -> str:
    """The first reason of what is broken, different or not judged, with the command that names all; empty if none."""
    if result.proof.breaks:
        why = result.proof.breaks[0].what
    elif result.differences:
        it = result.differences[0]
        why = f"{it.request} by {it.replica_name} differs in {it.term}"
    else:
        why = next(iter(result.not_judged_why.values()), "")
    return f"The first: {why}; `contrail replay verify` names all." if why else ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
