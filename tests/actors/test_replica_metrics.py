"""What a replica says of itself, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import generate_latest

from actors.metrics import FrontendMetrics
from actors.replica_metrics import COUNTERS, GAUGES
from tests.actors.world import world


async def test_every_metric_is_there_or_has_no_part() -> None:
    """Each name is read from a real replica's description; only snapshots are left out where nobody takes them here."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        metrics = FrontendMetrics()
        metrics.watch_replica(router.describe)
        text = generate_latest(metrics.registry).decode()
    for name in (*GAUGES, *(f"{name}_total" for name in COUNTERS)):
        assert (f"\n{name} " in text) == ("snapshot" not in name), name
