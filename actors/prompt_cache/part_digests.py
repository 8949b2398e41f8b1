"""Part digests: names of a prompt's leading parts, which a front end and a worker compute alike.

A digest is keyed BLAKE2b over the digest before it and the part's token ids; before the first part stands the digest of
the prompt's scope. So it names all tokens from the start of the prompt, with their adapter and salt. The key comes from
the deployment's: a client cannot look for two prompts with one digest.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

PART_DIGEST_BYTES = 16
_SCOPE, _PART, _END = b"contrail scope", b"contrail part", b"contrail end"
"""Personalizations of the three kinds of digests: 16 bytes at most."""


class NamedParts(NamedTuple):
    """The whole parts of a prompt, by their digests."""

    size: int
    """Of each part, in bytes of token ids."""
    start: bytes
    """Digest of the scope."""
    digests: tuple[bytes, ...]
    end: bytes
    """Digest of the whole prompt."""

    def before(self, known: int) -> bytes:
        """The digest of so many leading parts."""
        return self.digests[known - 1] if known else self.start


class PartDigests:
    """Computes the digests: 1.5 us and 1.9 us per KB each."""

    def __init__(self, link_key: bytes) -> None:
        """`link_key` is `core.keys.DeploymentKey.link_key`."""
        self._key = link_key

    def __repr__(self) -> str:
        return "<PartDigests>"

    def start(self, scope: bytes) -> bytes:
        """Of a scope, as `core.prompt.scope_bytes` gives it."""
        return self._digest(_SCOPE, scope)

    def part(self, before: bytes, tokens: bytes | memoryview) -> bytes:
        """Of a part behind those that `before` names."""
        return self._digest(_PART, before, tokens)

    def end(self, before: bytes, tokens: bytes | memoryview) -> bytes:
        """Of a whole prompt: its whole parts, and the tokens behind them."""
        return self._digest(_END, before, tokens)

    def _digest(self, kind: bytes, before: bytes, tokens: bytes | memoryview = b"") -> bytes:
        found = blake2b(before, key=self._key, person=kind, digest_size=PART_DIGEST_BYTES)
        found.update(tokens)
        return found.digest()
