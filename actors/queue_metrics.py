"""What admission shows: who is active, who waits, how long that took, and who was turned away; read at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from actors.queue_counts import WAIT_MS
from core.events.routing import TURNED_AWAY


def queue_metrics(about: Mapping[str, Any], known: Iterable[str] = ()) -> Iterator[Metric]:
    """`about` is what `actors.admission` says of itself; `known` are models that nobody may have asked for yet."""
    models = about.get("models", ())
    yield _gauge("contrail_requests_waiting", "Requests that wait for a worker with a free place", models, "waiting")
    yield _gauge("contrail_requests_active", "Requests that have a place on a worker", models, "active")
    yield _of_tenants(about.get("tenants", ()))
    yield _refused(about.get("turned_away", ()), [*known, *(row["model"] for row in models)])
    yield _waits(about.get("waits", ()))


def _refused(rows: Any, models: Iterable[str]) -> Metric:
    """Every reason counts from 0, of every model: what first appears with its first request shows no increase."""
    family = CounterMetricFamily(
        "contrail_requests_turned_away", "Requests that ended before any worker was chosen", labels=["model", "reason"]
    )
    counts = {(model, reason): 0 for model in models for reason in TURNED_AWAY}
    counts |= {(row["model"], row["reason"]): row["requests"] for row in rows}
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _gauge(name: str, text: str, rows: Any, key: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["model"])
    for row in rows:
        family.add_metric([row["model"]], row[key])
    return family


def _of_tenants(rows: Any) -> Metric:
    family = GaugeMetricFamily(
        "contrail_tenant_requests_active",
        "Requests that have a place on a worker, of the tenants with most of them, and of all others",
        labels=["model", "tenant"],
    )
    for row in rows:
        family.add_metric([row["model"], row["tenant"]], row["active"])
    return family


def _waits(rows: Any) -> Metric:
    family = HistogramMetricFamily(
        "contrail_queue_wait_seconds", "How long requests waited that then got a place", labels=["model"]
    )
    for row in rows:
        sums = list(accumulate(row["counts"]))
        bounds = [*(str(ms / 1000) for ms in WAIT_MS), "+Inf"]
        family.add_metric([row["model"]], list(zip(bounds, sums, strict=True)), row["sum_ms"] / 1000)
    return family
