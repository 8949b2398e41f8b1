"""The streams of a namespace as data."""

from __future__ import annotations

from core.subjects import JOBS
from streams.topology import Topology


def test_topology() -> None:
    """The reserved bytes are split among the streams, and never exceeded."""
    topology = Topology(kv_partitions=3, replicas=3, max_age_s=60, max_bytes=1_000_000)
    configs = topology.configs()
    assert [config.name for config in configs] == ["kv_0", "kv_1", "kv_2", "jobs", "load", "routing", "snapshots"]
    assert 999_000 <= sum(config.max_bytes for config in configs) <= 1_000_000
    assert [config.max_bytes for config in configs] == [150_000] * 3 + [50_000, 50_000, 300_000, 150_000]
    assert topology.config(JOBS).as_json("prod")["subjects"] == ["contrail.prod.jobs.>"]
    shown = configs[0].as_json("prod")
    assert shown["name"] == "contrail_prod_kv_0"
    assert shown["subjects"] == ["contrail.prod.kv_0.*"]
    assert shown["duplicate_window"] == shown["max_age"] == 60 * 10**9
    assert shown["num_replicas"] == 3
