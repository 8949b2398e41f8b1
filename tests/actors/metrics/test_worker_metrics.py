"""Numbers of a worker's slower tiers, as Prometheus scrapes them."""

from __future__ import annotations

from prometheus_client import generate_latest

from actors.engines.engine import TierLoads
from actors.kv_blocks.disk_counts import NAMES
from actors.metrics.worker_metrics import CALLS_FAILED, DISK_LEVELS, DISK_TOTALS, REFUSED, WorkerMetrics

BY_TIER = {"load_blocks", "load_us"}
"""Shown with the loads of other tiers."""


def shown(metrics: WorkerMetrics, part: str = "_disk_") -> list[str]:
    return [line for line in generate_latest(metrics.registry).decode().splitlines() if part in line]


def test_a_worker_without_a_disk_tier_shows_none() -> None:
    assert shown(WorkerMetrics("tiny", "decode-0")) == []


def test_each_number_is_shown() -> None:
    """Each with its own value; refused files and failed calls by reason."""
    metrics = WorkerMetrics("tiny", "decode-0")
    metrics.watch_disk(lambda: {name: number for number, name in enumerate(NAMES)})
    lines = shown(metrics)
    for number, name in enumerate(NAMES):
        if name in BY_TIER:
            continue
        if name.startswith(REFUSED):
            reason = name.removeprefix(REFUSED)
            series = f'contrail_worker_disk_refused_total{{model="tiny",reason="{reason}",worker="decode-0"}}'
        elif name in CALLS_FAILED:
            reason = name.removeprefix("calls_")
            series = f'contrail_worker_disk_calls_failed_total{{model="tiny",reason="{reason}",worker="decode-0"}}'
        else:
            series = f"contrail_worker_disk_{name}{'' if name in DISK_LEVELS else '_total'}"
            series += '{model="tiny",worker="decode-0"}'
        assert f"{series} {number}.0" in lines
    known = {*DISK_LEVELS, *DISK_TOTALS, *CALLS_FAILED, *BY_TIER, *(name for name in NAMES if name.startswith(REFUSED))}
    assert known == set(NAMES)


def test_loads_are_shown_by_tier() -> None:
    """Blocks and seconds since the engine's start; none of a worker without a slower tier."""
    metrics = WorkerMetrics("tiny", "decode-0")
    assert shown(metrics, "_load") == []
    metrics.watch_loads(lambda: {"host": TierLoads(7, 1_500_000), "disk": TierLoads(3, 250_000)})
    found = [line for line in shown(metrics, "_load") if not line.startswith("#")]
    for name, host, disk in (("loaded_blocks", 7.0, 3.0), ("load_seconds", 1.5, 0.25)):
        for tier, number in (("host", host), ("disk", disk)):
            assert f'contrail_worker_{name}_total{{model="tiny",tier="{tier}",worker="decode-0"}} {number}' in found
