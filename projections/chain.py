"""The chain of one source in one stream: does the next message follow on what was applied?"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from core.codec import CHAIN_START, Message
from core.ids import SourceId, StreamName, StreamSeq
from core.subjects import ROUTING


class Link(Enum):
    """How a message stands to its source's chain."""

    NEXT = "next"
    """It follows: apply it."""
    REPEAT = "repeat"
    """It was applied already: skip it."""
    GAP = "gap"
    """Something before it is missing or another: what is folded of its source is void."""


class Missing(NamedTuple):
    """Messages of one source that its chain proves to exist and that were not there to be folded."""

    source: SourceId
    n_from: int
    n_to: int
    """The last of them."""


class Gap(NamedTuple):
    """The same with the place in the log where it was noticed."""

    stream: StreamName
    source: SourceId
    n_from: int
    n_to: int
    seq: StreamSeq
    """Of the first message behind them."""

    def __str__(self) -> str:
        source = f"{'replica' if self.stream == ROUTING else 'worker'} {self.source}"
        if self.n_to == self.n_from:
            return f"message {self.n_from} of {source} is missing before {self.stream}:{self.seq}"
        return f"messages {self.n_from} to {self.n_to} of {source} are missing before {self.stream}:{self.seq}"


class Chain(msgspec.Struct):
    """How far one source has been read; `n_next` 0 before its first message."""

    n_next: int = 0
    head: bytes = CHAIN_START

    def follow(self, message: Message, digest: bytes) -> Link:
        """The verdict on the message; after NEXT and GAP the chain stands behind it."""
        if message.n < self.n_next:
            return Link.REPEAT
        fits = message.n == self.n_next and message.prev == self.head
        self.n_next = message.n + 1
        self.head = digest
        return Link.NEXT if fits else Link.GAP


def missing(before: int, message: Message) -> Missing:
    """What a gap before the message lacks, where `before` messages had been read.

    If none is left out by number, the one just before it is another than the one that was read.
    """
    return Missing(message.source, min(before, max(message.n - 1, 0)), max(message.n - 1, 0))
