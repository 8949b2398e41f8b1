"""The events of the log: immutable facts in the past tense, one closed union.

The message around an event has its writer and its time (`core.codec`). Each has its own
version `v`. Numbers of many blocks or candidates are columns (little-endian binary), so that an event costs a
reader well under a microsecond per block. No event holds prompt text or token ids.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from core.events.jobs import JobEvent, JobsRestated
from core.events.kv import (
    Adapter,
    AdapterChange,
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    BlocksEvent,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    KvEvent,
    LoadEvent,
    LoadReported,
    PoolAccess,
    PoolJoined,
    PoolLeft,
    PoolLost,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.events.routing import (
    CONTINUED_VERSION,
    AnswerDelayed,
    DecisionCounts,
    DivergenceFound,
    LocalChanged,
    Points,
    PromptBase,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReported,
    ReplicaRestated,
    RequestFinished,
    RequestMigrated,
    RequestPrefilled,
    RequestQueued,
    RequestRejected,
    RequestRouted,
    RequestTurnedAway,
    RoutingEvent,
    SettingsChanged,
)
from core.events.scale import (
    CapacityLearned,
    DemandRolled,
    ScaleApplied,
    ScaleDecided,
    ScaleEvent,
    ScaleFailed,
    ScaleSettingsChanged,
    WorkerStarting,
)

__all__ = [
    "Adapter",
    "AdapterChange",
    "AdapterEvicted",
    "AdapterLoaded",
    "AdapterUnloaded",
    "AnswerDelayed",
    "BlocksEvent",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "CacheRestated",
    "CapacityLearned",
    "DecisionCounts",
    "DemandRolled",
    "DivergenceFound",
    "EVENT_TYPES",
    "EVENT_VERSION",
    "Event",
    "JobEvent",
    "JobsRestated",
    "KvEvent",
    "LoadEvent",
    "LoadReported",
    "LocalChanged",
    "Points",
    "PoolAccess",
    "PoolJoined",
    "PoolLeft",
    "PoolLost",
    "PromptBase",
    "ReplicaJoined",
    "ReplicaLeft",
    "ReplicaLost",
    "ReplicaReported",
    "ReplicaRestated",
    "RequestFinished",
    "RequestMigrated",
    "RequestPrefilled",
    "RequestQueued",
    "RequestRejected",
    "RequestRouted",
    "RequestTurnedAway",
    "RoutingEvent",
    "ScaleApplied",
    "ScaleDecided",
    "ScaleEvent",
    "ScaleFailed",
    "ScaleSettingsChanged",
    "SettingsChanged",
    "UnknownEvent",
    "WorkerJoined",
    "WorkerLeft",
    "WorkerLost",
    "WorkerStarting",
]


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a type or version that this program does not know: kept, counted, shown, not folded."""

    name: str
    fields: dict[str, Any]


Event = KvEvent | LoadEvent | RoutingEvent | JobEvent | JobsRestated | ScaleEvent

EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
"""The only table from a name on the wire to a class."""

EVENT_VERSION = 1
"""The highest version of a map that this program reads of any event type but these:"""
EVENT_VERSIONS: dict[type[msgspec.Struct], int] = {RequestRouted: CONTINUED_VERSION}
