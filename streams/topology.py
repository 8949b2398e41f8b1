"""The streams of a namespace as data: which there are and how much each may keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.ids import StreamName
from core.subjects import JOBS, LOAD, ROUTING, SCALE, SNAPSHOTS, broker_stream, is_kv, kv_stream, wildcard

DUPLICATE_WINDOW_S = 600
"""Time for which the broker remembers message ids; at most the age that a stream keeps."""
KV_PERCENT = 45
"""Share of the reserved bytes that all kv streams have together."""
ROUTING_PERCENT = 30
SNAPSHOTS_PERCENT = 15
LOAD_PERCENT = 5
JOBS_PERCENT = 5
SCALE_PERCENT = 2
"""Taken from the snapshots' share, where there is a planner."""
SCALE_AGE_S = 30 * 24 * 3600
"""Least age that the scale stream keeps: forecasts rest on earlier days."""
PAYLOAD_MIN = 768 * 1024
"""Least message size that a broker must take: a chunk of a snapshot, the largest of ours, with its headers and room to
spare."""

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """One stream: files, limits retention, the oldest discarded first."""

    name: StreamName
    replicas: int
    max_age_s: int
    max_bytes: int
    """Reserved when the stream is made."""

    def as_json(self, namespace: str) -> dict[str, Any]:
        """The configuration in the broker's words."""
        return {
            "name": broker_stream(namespace, self.name),
            "subjects": [wildcard(namespace, self.name)],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "num_replicas": self.replicas,
            "max_age": self.max_age_s * _NS_PER_S,
            "max_bytes": self.max_bytes,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "max_consumers": -1,
            "duplicate_window": min(DUPLICATE_WINDOW_S, self.max_age_s) * _NS_PER_S,
            "allow_direct": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The streams of a deployment's log, with their limits."""

    kv_partitions: int = 1
    replicas: int = 1
    """Copies of each stream: 1 embedded, 3 in production."""
    max_age_s: int = 7 * 24 * 3600
    max_bytes: int = 50 * 1024**3
    """Of all streams together, reserved at the start."""
    is_planned: bool = False
    """There is a planner, which has a stream of its own."""

    def __post_init__(self) -> None:
        assert self.kv_partitions > 0
        assert self.max_age_s > 0

    def names(self) -> list[StreamName]:
        """The short names of the streams that a deployment starts with."""
        planned = [SCALE] if self.is_planned else []
        kv = [kv_stream(partition) for partition in range(self.kv_partitions)]
        return [*kv, JOBS, LOAD, ROUTING, *planned, SNAPSHOTS]

    def configs(self) -> list[StreamConfig]:
        """One configuration per stream; their bytes add up to `max_bytes` at most."""
        return [self.config(name) for name in self.names()]

    def config(self, name: StreamName) -> StreamConfig:
        """The configuration of a stream, also of a kv partition beyond those that the deployment starts with."""
        age_s = max(self.max_age_s, SCALE_AGE_S) if name == SCALE else self.max_age_s
        return StreamConfig(name=name, replicas=self.replicas, max_age_s=age_s, max_bytes=self._share(name))

    def _share(self, name: StreamName) -> int:
        if is_kv(name):
            return self.max_bytes * KV_PERCENT // 100 // self.kv_partitions
        scale = SCALE_PERCENT if self.is_planned else 0
        percent = {
            JOBS: JOBS_PERCENT,
            LOAD: LOAD_PERCENT,
            ROUTING: ROUTING_PERCENT,
            SCALE: scale,
            SNAPSHOTS: SNAPSHOTS_PERCENT - scale,
        }
        assert name in percent, f"no share of the bytes is set for stream {name}"
        return self.max_bytes * percent[name] // 100
