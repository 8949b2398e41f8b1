"""Segment cache: tokens of texts seen lately, within a bound of memory."""

from __future__ import annotations

from threading import Lock

CHARS_MIN = 64
"""A shorter text, mostly what a template writes between messages, is kept beside the others, …"""
SHORT_MAX = 1024
"""… up to so many; then all of them are forgotten."""
BYTES_MAX = 32 * 1024 * 1024
"""Of texts and tokens together, with what Python adds to them; those used longest ago go first."""
ENTRY_BYTES = 256
"""What a text and its tokens take beside their own bytes: two objects, rounded up, and a place in a table."""


class SegmentCache:
    """Text to its tokens; least recently used leave. Threads may share it: each call is atomic."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[str, bytes] = {}
        """In the order of their last use."""
        self._short: dict[str, bytes] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<SegmentCache {len(self._kept)} kept, {self._bytes} bytes>"

    def get(self, text: str) -> bytes | None:
        """Its tokens, if they are kept."""
        if len(text) < CHARS_MIN:
            return self._short.get(text)
        with self._lock:
            tokens = self._kept.pop(text, None)
            if tokens is not None:
                self._kept[text] = tokens
        return tokens

    def put(self, text: str, tokens: bytes) -> None:
        """They are kept, unless they are more than all that may be."""
        if len(text) < CHARS_MIN:
            with self._lock:
                if len(self._short) >= SHORT_MAX:
                    self._short.clear()
                self._short[text] = tokens
            return
        size = _size(text, tokens)
        if size > self._bytes_max:
            return
        with self._lock:
            if text in self._kept:
                return
            self._kept[text] = tokens
            self._bytes += size
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._kept))
                self._bytes -= _size(oldest, self._kept.pop(oldest))


def _size(text: str, tokens: bytes) -> int:
    """About; text beyond ASCII takes up to four bytes a character."""
    return (len(text) if text.isascii() else 4 * len(text)) + len(tokens) + ENTRY_BYTES
