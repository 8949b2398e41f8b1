"""UnconfirmedPulls: pulled blocks of an engine with KV tiers that their holder has not confirmed yet.

Blocks that were pulled too late or from the wrong place look like any others. A copy of them on a disk would have a
valid seal, and other workers would read it. So no request stores a block from the first unconfirmed one of its prompt
on: not the request that pulled it, nor one that found it on the device. A block's name stands for its whole prompt, so
two requests that share a pulled block share the first one of that pull, too.

Nothing here knows vLLM: names of blocks are its hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PULLS_MAX = 4096
"""Unconfirmed pulls of one engine, which runs fewer requests at once. Beyond it no request stores a block."""


@dataclass(slots=True)
class Pull:
    """One request's."""

    tokens: int = 0
    """Tokens of its prompt that the device had before; 0 until that is known."""
    first: bytes = b""
    """The first block that is pulled; empty until it is known, and if no whole block is."""


class UnconfirmedPulls:
    """By the name under which their end is told. Each call but `limit` is O(1)."""

    def __init__(self, tokens_per_hash: int, pulls_max: int = PULLS_MAX) -> None:
        self._tokens_per_hash = tokens_per_hash
        self._pulls_max = pulls_max
        self._pulls: dict[str, Pull] = {}
        """By the engine's name of the request."""
        self._requests: dict[str, list[str]] = {}
        """Those names by the name of the pull; more than one if the same blocks are pulled again."""
        self._beyond: set[str] = set()
        """Names beyond the bound: of them only that they are open is known."""

    def __repr__(self) -> str:
        return f"<UnconfirmedPulls {len(self)} open>"

    def __len__(self) -> int:
        return len(self._pulls) + len(self._beyond)

    def begin(self, name: str, request: str) -> None:
        """The request stores nothing from now on."""
        if len(self._pulls) >= self._pulls_max:
            self._beyond.add(name)
        else:
            self._pulls[request] = Pull()
            self._requests.setdefault(name, []).append(request)

    def place(self, request: str, tokens: int, hashes: Sequence[bytes]) -> None:
        """The request pulls what lies behind so many tokens of its prompt, whose blocks have these names; again if
        that has changed before the pull."""
        pull = self._pulls.get(request)
        if pull is not None:
            depth = tokens // self._tokens_per_hash
            pull.tokens, pull.first = tokens, bytes(hashes[depth]) if depth < len(hashes) else b""

    def end(self, name: str) -> None:
        """The pull's blocks are right, or none of them is in the cache. A pull that is not open is no fault."""
        self._beyond.discard(name)
        for request in self._requests.pop(name, ()):
            del self._pulls[request]

    def clear(self) -> None:
        """No block of before is in the cache."""
        self._pulls.clear()
        self._requests.clear()
        self._beyond.clear()

    def limit(self, request: str, hashes: Sequence[bytes]) -> int | None:
        """Tokens of the request, whose blocks have these names, that may be stored; None if all may. O(pulls)."""
        if self._beyond:
            return 0
        limits = []
        own = self._pulls.get(request)
        if own is not None:
            limits.append(own.tokens)
        for pull in self._pulls.values():
            depth = pull.tokens // self._tokens_per_hash
            if pull.first and depth < len(hashes) and hashes[depth] == pull.first:
                limits.append(depth * self._tokens_per_hash)
        return min(limits, default=None)
