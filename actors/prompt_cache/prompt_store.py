"""Prompt store: the parts of prompts that a worker was sent, so that a front end names them the next time.

A part lies here under its digest (`actors.prompt_cache.part_digests`), with the digest before it. Talks that begin
alike share parts. Parts leave by their last use, the last part of a prompt before those in front of it.
"""

from __future__ import annotations

from collections import OrderedDict

from actors.prompt_cache.part_digests import PartDigests
from core.errors import PeerError
from core.prompt import TOKEN_BYTES

PROMPTS_BYTES_MAX = 256 * 2**20
"""Bound on the memory of the store: 67 million tokens, less what the parts take beside their tokens."""
ENTRY_BYTES = 320
"""Memory of a part beside its tokens: three objects and a place in an ordered table."""


class PromptStore:
    """Parts by their digests, within a bound; owned by one event loop."""

    def __init__(self, digests: PartDigests, bytes_max: int = PROMPTS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.size = 0
        """Memory of all parts, in bytes."""
        self._digests = digests
        self._kept: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()
        """The digest before a part, and its tokens; in the order of their last use."""

    def __repr__(self) -> str:
        return f"<PromptStore {len(self._kept)} parts, {self.size} of {self.bytes_max} bytes>"

    def __len__(self) -> int:
        return len(self._kept)

    def whole(self, tokens: bytes, size: int, known: int, before: bytes, end: bytes, scope: bytes) -> bytes | None:
        """The token ids of a whole prompt, of which `tokens` are those behind the first `known` parts of `size` bytes;
        its whole parts are kept from now on. None if a part of those known is not kept.

        `before` is the digest of the known parts, `end` that of the whole prompt. PeerError if the digests are not
        those of the prompt in its scope: then no engine may see it.
        """
        if size <= 0 or size % TOKEN_BYTES or known < 0:
            raise PeerError(f"{known} parts of {size} bytes are no start of a prompt")
        start = self._digests.start(scope)
        parts = self._known(before, known)
        if parts is None:
            return None
        if (parts[0][1][0] if parts else before) != start:
            raise PeerError("the prompt's parts are named in another scope")
        new: list[tuple[bytes, tuple[bytes, bytes]]] = []
        digest, full = before, len(tokens) // size * size
        for at in range(0, full, size):
            part = tokens[at : at + size]
            after = self._digests.part(digest, part)
            new.append((after, (digest, part)))
            digest = after
        if self._digests.end(digest, tokens[full:]) != end:
            raise PeerError("the prompt is another one than its digest says")
        self._keep([*parts, *new])
        return b"".join([*[part for _, (_, part) in parts], tokens])

    def _known(self, digest: bytes, count: int) -> list[tuple[bytes, tuple[bytes, bytes]]] | None:
        """So many parts up to the one with that digest, the first one first; None if one is not kept."""
        found = []
        for _ in range(count):
            entry = self._kept.get(digest)
            if entry is None:
                return None
            found.append((digest, entry))
            digest = entry[0]
        found.reverse()
        return found

    def _keep(self, parts: list[tuple[bytes, tuple[bytes, bytes]]]) -> None:
        """The parts of a prompt are kept and count as used now, the first one last."""
        for digest, entry in reversed(parts):
            if digest not in self._kept:
                self._kept[digest] = entry
                self.size += len(entry[1]) + ENTRY_BYTES
            self._kept.move_to_end(digest)
        while self.size > self.bytes_max:
            _, (_, part) = self._kept.popitem(last=False)
            self.size -= len(part) + ENTRY_BYTES
