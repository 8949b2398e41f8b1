"""KvEndpoints: the sockets of the cache events of an engine that runs already."""

from __future__ import annotations

from typing import NamedTuple


class KvEndpoints(NamedTuple):
    """Both as ZeroMQ names them; the engine has bound them."""

    events: str
    """It publishes there."""
    replay: str
    """It answers replays there."""
