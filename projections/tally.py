"""Tally: what requests in flight weigh on each worker, and which prompts are being computed where."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from core.ids import RequestId, WorkerId
from core.prompt import Prompt

HASH_BYTES = 8

Key = tuple[RequestId, int]
"""A request and its attempt."""


class InFlight(msgspec.Struct, frozen=True):
    """One attempt between its routing and its end, with what was fixed when it was routed."""

    worker: WorkerId
    blocks: int
    prefill_tokens: int
    """Tokens still to be computed before its first one; 0 once that came."""
    hashes: bytes = b""
    """Block hashes of its prompt while it is prefilled."""

    def prefilled(self) -> InFlight:
        """The same after its first token."""
        return InFlight(self.worker, self.blocks, 0)


class Busy(msgspec.Struct):
    """The sum over one worker's requests in flight."""

    blocks: int = 0
    requests: int = 0
    prefill_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.blocks or self.requests or self.prefill_tokens)


class Tally:
    """Sums per worker, kept up to date with each change; O(1) each."""

    def __init__(self) -> None:
        self.busy: dict[WorkerId, Busy] = {}
        self._pending: dict[bytes, dict[Key, InFlight]] = {}

    def add(self, key: Key, entry: InFlight) -> None:
        """The entry counts."""
        self.weigh(entry, 1)
        if entry.hashes and entry.prefill_tokens:
            self._pending.setdefault(entry.hashes[:HASH_BYTES], {})[key] = entry

    def subtract(self, key: Key, entry: InFlight) -> None:
        """The entry counts no more; sums may be negative where it was added elsewhere."""
        self.weigh(entry, -1)
        first = entry.hashes[:HASH_BYTES]
        same_start = self._pending.get(first)
        if same_start is not None and same_start.get(key) is entry:
            del same_start[key]
            if not same_start:
                del self._pending[first]

    def weigh(self, entry: InFlight, sign: int) -> None:
        """The sums have the entry's weight once more, or once less for -1; what is pending stays."""
        busy = self.busy.get(entry.worker)
        if busy is None:
            busy = self.busy[entry.worker] = Busy()
        busy.blocks += sign * entry.blocks
        busy.requests += sign
        busy.prefill_tokens += sign * entry.prefill_tokens
        if not (busy.requests or busy.blocks or busy.prefill_tokens):  # as __bool__, without the call
            del self.busy[entry.worker]

    def pending(self, prompt: Prompt) -> Iterable[tuple[Key, InFlight]]:
        """Requests being prefilled whose first block is the prompt's."""
        if not self._pending or not prompt.blocks_reusable:
            return ()
        same_start = self._pending.get(prompt.key(1).to_bytes(HASH_BYTES, "little"))
        return () if same_start is None else same_start.items()


def shared_depth(hashes: bytes, prompt: Prompt) -> int:
    """How many first blocks the two have in common, at most those reusable; O(log blocks) probes."""
    low, high = 0, min(len(hashes) // HASH_BYTES, prompt.blocks_reusable)
    while low < high:
        middle = (low + high + 1) // 2
        start = (middle - 1) * HASH_BYTES
        if int.from_bytes(hashes[start : start + HASH_BYTES], "little") == prompt.key(middle):
            low = middle
        else:
            high = middle - 1
    return low
