"""Gaps: messages that replicas read and a recording does not have, since retention cut them off, they were deleted,
or a chain lost them.

A fold notices a missing message only at the next message of its source, so a decision in between rests on something
that the recording does not have. `replay.verify.chain_proof` therefore finds all gaps before anything is folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from core.ids import SourceId, StreamName, StreamSeq
from core.subjects import ROUTING

CUT, GAP, DELETED, UNTOLD = "cut", "gap", "deleted", "untold"


class RecordingGap(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are not in the recording, or are not what they were."""

    kind: str
    """`cut`: retention took them, and no snapshot has what they said; `deleted`: they are missing in the middle of the
    stream; `gap`: the chain proves that they were, the stream has no hole for them; `untold`: a replica was found
    lost, and its journal is not in the log: the number of missing messages, if any, is unknown."""
    stream: StreamName
    source: SourceId | None
    """The sender; None if unknown."""
    name: str
    """The name of the sender; empty if no message has it."""
    n_from: int
    n_to: int
    """The last of them."""
    after: StreamSeq
    """From this cursor on a replica may have read them …"""
    noticed: StreamSeq | None
    """… and from this one on the fold knows that they are missing; None for never."""
    sure: StreamSeq
    """A replica with the same fold as the log's here had not read them, or they changed nothing."""

    @property
    def messages(self) -> int:
        """The number known to be missing."""
        return self.n_to - self.n_from + 1

    @property
    def text(self) -> str:
        """The gap as a phrase."""
        if self.kind == UNTOLD:
            return (
                f"replica {self.name or self.source} was found lost at {self.stream}:{self.noticed}, its journal was "
                f"not told: what it decided behind {self.stream}:{self.after}, if anything, is in no log"
            )
        count = f"{self.messages} messages" if self.messages > 1 else "1 message"
        kind = "replica" if self.stream == ROUTING else "worker"
        whose = f" of {kind} {self.name or self.source}" if self.source else ""
        where = f"before {self.stream}:{self.noticed}" if self.noticed else f"from {self.stream}:{self.after} on"
        how = {CUT: "cut off by retention", DELETED: "deleted", GAP: "missing"}[self.kind]
        return f"{count}{whose} {how} {where}"


class ReplacedHistory(NamedTuple):
    """Places of a stream at which other messages stood than stand there now."""

    stream: StreamName
    first: int
    last: int | None
    """None if that is unknown."""
    noticed: int
    """A replica that had read the message that stands here now has left the old history."""
    text: str
    """The evidence, as a phrase."""
    sources: frozenset[str] = frozenset()
    """Sources with messages in the old history alone, as far as they are known."""
    rolled_back: bool = False
    """True if its messages are missing and others stand there: the store went back, and with it maybe every stream."""
    sent_again: bool = False
    """True if the stream went back and none of its messages is known to be missing: all that stood there must stand
    elsewhere in the chains."""


class Gaps:
    """All gaps of a recording."""

    def __init__(self, gaps: Iterable[RecordingGap] = (), contradicted: Iterable[ReplacedHistory] = ()) -> None:
        """`contradicted`: histories that a witness had read, and that are not here."""
        self.all = list(gaps)
        """By stream, in the order in which they were noticed."""
        self.replaced = [*_overwritten(self.all), *contradicted]
        """Histories that were replaced, by the numbers that are missing in chains, and by witnesses."""
        self._cut = {(gap.stream, gap.source) for gap in self.all if gap.kind == CUT}

    def __repr__(self) -> str:
        return f"<Gaps {len(self.all)}>"

    def kind(self, stream: StreamName, source: str) -> str:
        """The kind of gap that keeps a fold from knowing this source."""
        return CUT if (stream, source) in self._cut else GAP

    def at(
        self, cursor: Mapping[str, tuple[int, int]], agreed: Mapping[StreamName, int] = MappingProxyType({})
    ) -> Iterator[RecordingGap]:
        """The gaps that a replica may have read at the cursor and no fold knows yet. `agreed`: per stream the last
        place at which the replica reported the log's fold."""
        return (
            gap
            for gap in self.all
            if gap.stream in cursor
            and agreed.get(gap.stream, 0) < gap.sure
            and gap.after <= cursor[gap.stream][1]
            and (gap.noticed is None or cursor[gap.stream][1] < gap.noticed)
        )

    def replaced_at(
        self, cursor: Mapping[str, tuple[int, int]], seq: int, read: Mapping[StreamName, int] = MappingProxyType({})
    ) -> Iterator[ReplacedHistory]:
        """The histories that were replaced since a replica read them at the cursor of its message at `seq` of the
        routing stream. `read`: per stream the last place at which the replica reported the message that stands
        there."""
        for each in self.replaced:
            at = cursor.get(each.stream)
            if at is None or at[1] < each.first or read.get(each.stream, 0) >= each.noticed:
                continue
            if at[1] <= (each.last or at[1]) or (each.stream == ROUTING and at[1] >= seq):  # it had read its own place
                yield each


def _overwritten(gaps: list[RecordingGap]) -> Iterator[ReplacedHistory]:
    """Messages that are missing though the stream has no hole for them stood where others stand now: as many places,
    from the first on at which one is known to be missing."""
    known = [gap for gap in gaps if gap.kind == GAP and gap.noticed is not None]
    for stream in dict.fromkeys(gap.stream for gap in known):
        lost: list[RecordingGap] = []
        for gap in [*sorted((gap for gap in known if gap.stream == stream), key=lambda gap: gap.noticed or 0), None]:
            if lost and (gap is None or gap.after > (lost[0].noticed or 0)):
                noticed, messages = lost[0].noticed or 0, sum(each.messages for each in lost)
                text = f"{messages} messages of {stream} that stood from {stream}:{noticed} on are missing, and others "
                sources = frozenset(str(each.source) for each in lost)
                yield ReplacedHistory(
                    stream, noticed, noticed + messages - 1, noticed, text + "stand there", sources, rolled_back=True
                )
                lost = []
            if gap is not None:
                lost.append(gap)
