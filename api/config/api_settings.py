"""What an operator may change about the API."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Bounds of one API listener."""

    body_bytes_max: int = 16 * MIB
    """A longer request body is answered with 413; 128k tokens as JSON numbers are about 1 MiB."""
    inline_bytes_max: int = 4096
    """Bodies up to this size are rendered and tokenized on the event loop (about 1 ms), larger ones beside it."""
    ping_s: float = 10.0
    """A stream on which nothing was written for so long is pinged, and begins with that: what fails afterwards has no
    status of its own any more."""
