"""The chain of one source in one stream: does the next message follow on what was applied?"""

from __future__ import annotations

from enum import Enum

import msgspec

from core.codec import CHAIN_START, Message


class Link(Enum):
    """How a message stands to its source's chain."""

    NEXT = "next"
    """It follows: apply it."""
    REPEAT = "repeat"
    """It was applied already: skip it."""
    GAP = "gap"
    """Something before it is missing or another: what is folded of its source is void."""


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
