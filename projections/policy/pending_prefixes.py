"""PendingPrefixes: which prefixes of many prompts are being computed on which workers, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from core.ids import WorkerId
from core.prompt import HASH_BYTES, Prompt
from projections.folds.in_flight import InFlight, known_depth
from projections.policy.view import HASHED_AT_ONCE_MAX, View

ALONE = 8
"""The first so many of those that begin alike are looked up one by one: the tables for all pay off from there on."""
NOWHERE: Mapping[WorkerId, int] = MappingProxyType({})
_Workers = dict[WorkerId, None]
"""A set of workers in insertion order."""
_NO_WORKERS: _Workers = {}


class PendingPrefixes:
    """As `View.pending` has them; the view must not change meanwhile.

    Prompts in flight are looked through once for each depth at which somebody looks, and not once for each prompt: for
    64 prompts beside 50 to 130 in flight that takes less than half of the time.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._asked: dict[bytes, int] = {}
        """Prompts that began with that block."""
        self._alike: dict[bytes, _SamePrefix] = {}
        """Those in flight, by their first block."""

    def __repr__(self) -> str:
        return f"<PendingPrefixes {len(self._asked)} first blocks>"

    def pending(self, prompt: Prompt) -> Mapping[WorkerId, int]:
        """Per worker: the longest start of the prompt that is being computed there, in blocks."""
        if not prompt.blocks_reusable:
            return NOWHERE
        if prompt.blocks <= HASHED_AT_ONCE_MAX:
            prompt.hashes()
        first = prompt.block(1)
        asked = self._asked[first] = self._asked.get(first, 0) + 1
        if asked <= ALONE:
            return self._view.pending(prompt)
        alike = self._alike.get(first)
        if alike is None:
            alike = self._alike[first] = _SamePrefix(self._view.computing(prompt))
        return alike.pending(prompt)


class _SamePrefix:
    """Prompts with the same first block. A block's hash covers all blocks before it, so prompts that share a block
    share all before it: fewer prompts with each depth. Prompts that continue a decision show a few of their hashes
    alone, and are looked up one by one."""

    def __init__(self, entries: list[InFlight]) -> None:
        self._entries = [entry for entry in entries if not entry.base_blocks]
        self._continued = [entry for entry in entries if entry.base_blocks]
        self._workers = len({entry.worker for entry in self._entries})
        self._deepest = max((len(entry.hashes) for entry in self._entries), default=0) // HASH_BYTES
        self._layers: dict[int, dict[bytes, _Workers]] = {}
        """By depth and block: the workers that compute a prompt with that block there."""
        self._guess = 1
        """Depth of the last search: most prompts share a system prompt and no more."""

    def pending(self, prompt: Prompt) -> Mapping[WorkerId, int]:
        found: dict[WorkerId, int] = {}
        high = min(self._deepest, prompt.blocks_reusable)
        near = self._guess
        while len(found) < self._workers and high:
            depth = self._reach(prompt, high, len(found), min(near, high))
            for worker in self._who(prompt, depth):
                found.setdefault(worker, depth)
            near = high = depth - 1
            self._guess = depth
        for entry in self._continued:
            if further := known_depth(entry, prompt, found.setdefault(entry.worker, 1)):
                found[entry.worker] = further
        return found

    def _reach(self, prompt: Prompt, high: int, found: int, near: int) -> int:
        """The depth down to which more prompts than `found` match, searched near a depth first, then twice as far each
        time; there is such a prompt at depth 1."""
        low, step = 1, 1
        if near == 1 or len(self._who(prompt, near)) > found:
            low = near
            while low < high:
                at = min(high, near + step)
                if len(self._who(prompt, at)) == found:
                    high = at - 1
                    break
                low, step = at, 2 * step
        else:
            high = near - 1
            while low < high:
                at = max(1, near - step)
                if len(self._who(prompt, at)) > found:
                    low = at
                    break
                high, step = at - 1, 2 * step
        while low < high:
            middle = (low + high + 1) // 2
            if len(self._who(prompt, middle)) > found:
                low = middle
            else:
                high = middle - 1
        return low

    def _who(self, prompt: Prompt, depth: int) -> _Workers:
        """Those that compute a prompt which shares so many blocks; all that were found deeper are among them."""
        layer = self._layers.get(depth)
        if layer is None:
            layer = self._layers[depth] = {}
            end = depth * HASH_BYTES
            for entry in self._entries:
                if len(entry.hashes) >= end:
                    layer.setdefault(entry.hashes[end - HASH_BYTES : end], {})[entry.worker] = None
        return layer.get(prompt.block(depth), _NO_WORKERS)
