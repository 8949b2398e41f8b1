"""Gaps: messages that replicas read and a recording does not have, since retention cut them off, they were deleted,
or a chain lost them.

A fold notices a missing message only at the next message of its source, so a decision in between rests on something
that the recording does not have. `replay.verify.chain_proof` therefore finds all gaps before anything is folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

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


class Gaps:
    """All gaps of a recording."""

    def __init__(self, gaps: Iterable[RecordingGap] = ()) -> None:
        self.all = list(gaps)
        """By stream, in the order in which they were noticed."""
        self._cut = {(gap.stream, gap.source) for gap in self.all if gap.kind == CUT}

    def __repr__(self) -> str:
        return f"<Gaps {len(self.all)}>"

    def kind(self, stream: StreamName, source: str) -> str:
        """The kind of gap that keeps a fold from knowing this source."""
        return CUT if (stream, source) in self._cut else GAP

    def at(
        self, cursor: Mapping[str, tuple[int, int]], agreed: Mapping[StreamName, int] = MappingProxyType({})
    ) -> dict[str, str]:
        """Kind to text, of gaps that a replica may have read at the cursor and no fold knows yet. `agreed`: per stream
        the last place at which the replica reported the log's fold."""
        return {
            gap.kind: gap.text
            for gap in self.all
            if gap.stream in cursor
            and agreed.get(gap.stream, 0) < gap.sure
            and gap.after <= cursor[gap.stream][1]
            and (gap.noticed is None or cursor[gap.stream][1] < gap.noticed)
        }
