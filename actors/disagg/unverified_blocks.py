"""UnverifiedBlocks: blocks that are being fetched and not yet known to be right; no other request may build on them.

Blocks that were pulled too late or from the wrong place look like any others, and stay in the cache under the names
of right ones. Between their arrival and the holder's word that they were held, a request with the same prefix would
take them for good. So it waits, and then finds them in the cache, or computes them.
"""

from __future__ import annotations

from core.prompt import Prompt


class UnverifiedBlocks:
    """Of one engine's cache, by job: each entry is the first block that is fetched for it."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, int]] = {}
        """Depth (from 1) and key of the block."""

    def __repr__(self) -> str:
        return f"<UnverifiedBlocks of {len(self._first)} jobs>"

    def add(self, job: str, prompt: Prompt, depth: int) -> None:
        """The prompt's blocks from that depth on (from 1) are not to be built on. A partial block is named by none."""
        if depth <= prompt.blocks:
            self._first[job] = (depth, prompt.key(depth))

    def remove(self, job: str) -> None:
        """The job's blocks are right, or gone from the cache."""
        self._first.pop(job, None)

    def block(self, prompt: Prompt) -> bool:
        """Whether the prompt builds on an unverified block. O(jobs)."""
        return any(prompt.blocks >= depth and prompt.key(depth) == key for depth, key in self._first.values())


def share_block(prompt: Prompt, other: Prompt, depth: int) -> bool:
    """Whether the block at that depth (from 1) is the same in both prompts."""
    return prompt.blocks >= depth <= other.blocks and prompt.key(depth) == other.key(depth)
