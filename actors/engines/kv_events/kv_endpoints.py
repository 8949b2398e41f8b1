"""The places of the cache events of an engine that runs already: its sockets, or a path that is polled."""

from __future__ import annotations

from typing import NamedTuple


class KvEndpoints(NamedTuple):
    """Both as ZeroMQ names them; the engine has bound them."""

    events: str
    """It publishes there."""
    replay: str
    """It answers replays there."""


class PolledEvents(NamedTuple):
    """A path at which a server gives, and forgets, the events since it was last asked. It has one reader."""

    events: str
