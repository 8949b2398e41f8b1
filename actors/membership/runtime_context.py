"""RuntimeContext: the planes of one deployment, its clock and its key, as every part of a replica needs them."""

from __future__ import annotations

from typing import NamedTuple

from core.clock import Clock
from core.keys import DeploymentKey
from streams.log import EventLog
from streams.registry import Registry


class RuntimeContext(NamedTuple):
    """The planes of one deployment, its clock and its key."""

    namespace: str
    log: EventLog
    registry: Registry
    clock: Clock
    key: DeploymentKey
