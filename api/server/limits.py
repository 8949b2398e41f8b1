"""Bounds of one HTTP listener below the level of requests: sizes, times and numbers."""

from __future__ import annotations

from dataclasses import dataclass

from uvicorn.server import ServerState

CONNECTIONS_MAX = 8192
"""Open at once; each costs some 20 KB. One more is told to come again, and closed."""
FILES_RESERVED = 384
"""Of the files that a process may have open, so many are for others than clients: the log, the registry, workers."""
TURNED_AWAY_MAX = 256
"""So many of those may be reading why at once; what comes beyond is cut without a word."""
HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers; one read of the socket more may come in before it is noticed."""
HEADERS_MAX = 100
"""Header fields of one request, trailers included: some twenty are usual."""
PIPELINE_MAX = 16
"""Requests on one connection that wait for the answer of the one before."""
HEAD_TIMEOUT_S = 10.0
"""From a request's first byte to the end of its headers."""
BODY_TIMEOUT_S = 30.0
"""From there to the end of its body …"""
BODY_BYTES_PER_S_MIN = 8 * 1024
"""… and a second more for so many bytes that have come, up to BODY_TIMEOUT_S from then: a slow sender of a large body
is no attacker, one that stops is."""
KEEP_ALIVE_S = 75.0
"""Idle connections are kept so long: longer than common load balancers do, so that they never meet a closed one."""
IDLE_LINGER_S = 2.0
"""When the server stops, connections without a request are kept so long: what comes on them is answered, and told
that the connection closes. One that is used more often than this never meets a closed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The bounds of one listener."""

    connections_max: int = CONNECTIONS_MAX
    head_timeout_s: float = HEAD_TIMEOUT_S
    body_timeout_s: float = BODY_TIMEOUT_S
    body_bytes_per_s_min: int = BODY_BYTES_PER_S_MIN
    keep_alive_s: float = KEEP_ALIVE_S
    idle_linger_s: float = IDLE_LINGER_S


def connections_for(files: int) -> int:
    """Number of connections of a front end that may have so many files open."""
    return max(min(CONNECTIONS_MAX, files - FILES_RESERVED), 1)


class ListenerState(ServerState):
    """State that the connections of one listener share."""

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__()
        self.limits = limits
        self.stopping = False
        """Each connection closes with its next answer."""


SLOW_READER_S = 60.0
"""A write that waits for its client for so long ends the exchange: it takes some 50 KB, once in so long, to go on."""


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
