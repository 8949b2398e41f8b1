"""UnverifiedBlocks: blocks that are being fetched and not yet known to be right; no other request may build on them.

Blocks that were pulled too late or from the wrong place look like any others, and stay in the cache under the names
of right ones. Between their arrival and the holder's word that they were held, a request with the same prefix would
take them for good. So it waits, and then finds them in the cache, or computes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from core.prompt import Prompt


class UnverifiedBlocks:
    """Of one engine's requests."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Event, tuple[int, int]] = {}
        """Depth and key of the first block that is being fetched."""
        self._live: dict[int, Prompt] = {}
        self._numbers = 0
        self.waiting = 0
        """Requests that wait for others' blocks."""

    def __repr__(self) -> str:
        return f"<UnverifiedBlocks {len(self._open)} open, {len(self._live)} requests>"

    @contextmanager
    def live(self, prompt: Prompt) -> Iterator[None]:
        """Within, the engine has a request with this prompt, or will."""
        self._numbers += 1
        number = self._numbers
        self._live[number] = prompt
        try:
            yield
        finally:
            del self._live[number]

    @contextmanager
    def about(self, prompt: Prompt, depth: int) -> Iterator[None]:
        """Within, the prompt's blocks from that depth on (from 1) are not to be built on."""
        over = asyncio.Event()
        self._open[over] = (depth, prompt.key(depth))
        try:
            yield
        finally:
            del self._open[over]
            over.set()

    def shared(self, prompt: Prompt, depth: int) -> bool:
        """Whether the block at that depth belongs to another live request too. O(live requests)."""
        if depth > prompt.blocks:
            return False
        key = prompt.key(depth)
        return any(
            other is not prompt and other.blocks >= depth and other.key(depth) == key for other in self._live.values()
        )

    async def clear(self, prompt: Prompt) -> None:
        """Returns when the prompt can be computed: none of its blocks is in doubt. Bounded by what the others wait."""
        self.waiting += 1
        try:
            while (doubt := self._first(prompt)) is not None:
                await doubt.wait()
        finally:
            self.waiting -= 1

    def _first(self, prompt: Prompt) -> asyncio.Event | None:
        for over, (depth, key) in self._open.items():
            if prompt.blocks >= depth and prompt.key(depth) == key:
                return over
        return None
