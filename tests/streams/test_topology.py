"""The streams of a namespace as data."""

from __future__ import annotations

from core.subjects import JOBS, SCALE, SNAPSHOTS
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


def test_topology_with_a_planner() -> None:
    """Its stream is taken from the snapshots' share, and keeps a month at least."""
    topology = Topology(max_age_s=60, max_bytes=1_000_000, is_planned=True)
    configs = {config.name: config for config in topology.configs()}
    assert list(configs) == ["kv_0", "jobs", "load", "routing", "scale", "snapshots"]
    assert sum(config.max_bytes for config in configs.values()) == 1_000_000
    assert (configs[SCALE].max_bytes, configs[SNAPSHOTS].max_bytes) == (20_000, 130_000)
    assert (configs[SCALE].max_age_s, configs[SNAPSHOTS].max_age_s) == (30 * 86_400, 60)
