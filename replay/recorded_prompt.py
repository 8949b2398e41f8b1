"""RecordedPrompt: a prompt of which the log has the length and the block hashes, and nothing else."""

from __future__ import annotations

from core.ids import BlockHash
from core.prompt import HASH_BYTES, Prompt


class RecordedPrompt(Prompt):
    """Answers for its hashes as the prompt itself did when it was routed."""

    __slots__ = ("_column", "_recorded")

    def __init__(self, tokens: int, block_size: int, hashes: bytes) -> None:
        super().__init__(b"", block_size, seed=0)
        self.tokens = tokens
        self._recorded = hashes
        self._column = memoryview(hashes)[: len(hashes) // HASH_BYTES * HASH_BYTES].cast("Q")

    def key(self, depth: int) -> BlockHash:
        """The hash of the first `depth` blocks; IndexError if it was not recorded."""
        return BlockHash(self._column[depth - 1])

    def hashes(self) -> bytes:
        """All of them, as they were recorded."""
        return self._recorded
