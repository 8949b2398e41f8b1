"""What a replica says of itself, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import generate_latest

from actors.metrics.frontend_metrics import OUTCOMES, FrontendMetrics
from actors.metrics.replica_metrics import COUNTERS, GAUGES
from core.events.routing import TURNED_AWAY
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


def test_what_alerts_watch_counts_from_zero() -> None:
    """A series that appears with its first request has no increase for it: all are there before anybody asks."""
    metrics = FrontendMetrics()
    metrics.watch_replica(lambda: {"admission": {}})
    metrics.watch_workers("m", lambda: 0)
    value = metrics.registry.get_sample_value
    for outcome in OUTCOMES:
        assert value("contrail_requests_total", {"model": "m", "outcome": outcome}) == 0
    for outcome in ("error", "unavailable", "rejected"):
        assert value("contrail_requests_total", {"model": "", "outcome": outcome}) == 0
    for reason in TURNED_AWAY:
        assert value("contrail_requests_turned_away_total", {"model": "m", "reason": reason}) == 0


def test_what_was_counted_stands_in_its_place() -> None:
    """One series for each model and reason, with the count where there is one."""
    row = {"model": "m", "reason": "queue_full", "requests": 3}
    metrics = FrontendMetrics()
    metrics.watch_replica(lambda: {"admission": {"models": [], "turned_away": [row]}})
    metrics.of_model("m").finished("stop", 0.1)
    text = generate_latest(metrics.registry).decode()
    assert 'contrail_requests_turned_away_total{model="m",reason="queue_full"} 3.0\n' in text
    assert text.count('reason="queue_full"') == 1
    assert 'contrail_requests_total{model="m",outcome="stop"} 1.0\n' in text
