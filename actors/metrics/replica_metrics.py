"""Prometheus metrics of a replica: its folds, its journal, its digest exchange, admission; read from `/state` at each
scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from actors.metrics.histogram import cumulative
from core.events.routing import TURNED_AWAY

WAIT_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)
"""Upper bounds of the buckets of waits; one more bucket has longer ones."""
WAIT_S = tuple(ms / 1000 for ms in WAIT_MS)


def queue_metrics(about: Mapping[str, Any], known: Iterable[str] = ()) -> Iterator[Metric]:
    """`about` is the description of the scheduler; `known` are models that may have had no request yet."""
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
        family.add_metric([row["model"]], cumulative(WAIT_S, row["counts"]), row["sum_ms"] / 1000)
    return family


GAUGES: dict[str, tuple[str | int, ...]] = {
    "contrail_log_away_seconds": ("For how long the log has acknowledged nothing though something waits", "log_away_s"),
    "contrail_log_lag_seconds": ("How much older the last folded message is than the newest", "lag_ms", 1000),
    "contrail_clock_offset_seconds": ("How far this host's clock is ahead of the broker's", "clock", "offset_ms", 1000),
    "contrail_incomplete_sources": ("Sources that are unknown until they restate themselves", "incomplete"),
    "contrail_journal_events": ("Events in the journal that the log does not have yet", "journal", "events"),
    "contrail_journal_bytes": ("Bytes in the journal that the log does not have yet", "journal", "bytes"),
    "contrail_journal_capacity_bytes": ("How many bytes the journal can hold", "journal", "capacity_bytes"),
    "contrail_requests_held": ("Requests held until the worker that is best for them is free", "held"),
    "contrail_reservations_open": (
        "Requests routed for a proxy whose end was not reported yet",
        "reservations",
        "open",
    ),
    "contrail_prefill_jobs_waiting": ("Prefill jobs that nobody has taken yet", "prefill", "waiting"),
    "contrail_prefill_jobs_open": ("Prefill jobs asked for and not over", "prefill", "open"),
    "contrail_prefill_jobs_taken": ("Prefill jobs that somebody computes", "prefill", "taken"),
    "contrail_prefill_waiting_tokens": ("Prompt tokens of the jobs that wait", "prefill", "waiting_tokens"),
    "contrail_prefill_oldest_seconds": ("How long the oldest of them has waited", "prefill", "oldest_ms", 1000),
    "contrail_snapshot_age_seconds": ("Since the newest snapshot; -1 if there is none", "snapshot", "age_s"),
}
"""Name to what it is and where it stands; a number at the end divides."""
COUNTERS: dict[str, tuple[str | int, ...]] = {
    "contrail_chain_gaps": ("Times that messages were missing in a chain", "gaps_found"),
    "contrail_corrupt_records": ("Records that are no messages of ours", "corrupt"),
    "contrail_decisions_dropped": ("Decisions that are in no log: the journal was full", "dropped", "decisions"),
    "contrail_rebuilds": ("Folds made anew that took the live one's place", "rebuilds"),
    "contrail_history_resets": ("Streams whose history was replaced", "resets"),
    "contrail_divergences": ("Differences found between replicas' folds", "agreement", "divergences"),
    "contrail_divergences_rebuilt": ("Of those, settled by replacing our own fold", "agreement", "rebuilt"),
    "contrail_divergences_unexplained": ("Of those, with every fold confirmed", "agreement", "unexplained"),
    "contrail_requests_declined": ("Held requests sent to a worker that computed another replica's", "declined"),
    "contrail_reservations_expired": ("Of those, ended because no end was reported", "reservations", "expired"),
    "contrail_prefill_dead_letters": ("Prefill jobs handed out too often and given up", "prefill", "dead_letters"),
    "contrail_index_damages": ("Times that the index differed from the log's events, for any reason", "index_damaged"),
    "contrail_in_flight_damages": ("Times that counts of what is in flight were wrong", "in_flight_damaged"),
    "contrail_snapshots_taken": ("Snapshots that this replica took", "snapshot", "taken"),
    "contrail_snapshots_failed": ("Snapshots that it tried to take and could not", "snapshot", "failed"),
}
VERDICTS: dict[str, tuple[str | int, ...]] = {
    "contrail_prefill_verdicts": ("Prompts, by why they were computed where, and what came of the job", "requests"),
    "contrail_prefill_wait_seconds": ("From asking to the answer, or to giving up", "wait_ms", 1000),
    "contrail_prefill_pull_seconds": ("From the answer to the first token", "pull_ms", 1000),
    "contrail_prefill_pulled_tokens": ("Prompt tokens that came from prefill workers", "pulled_tokens"),
}
"""Counted for each kind of verdict (`actors.router.scheduler_counts`), by these labels."""
VERDICT_LABELS = ("model", "reason", "outcome")


class ReplicaMetrics(Collector):
    """Reads one description per scrape. `known` are models with counters from 0 on, even if no request was turned
    away."""

    def __init__(self, describe: Callable[[], dict[str, Any]], known: Collection[str] = ()) -> None:
        self._describe = describe
        self._known = known

    def collect(self) -> Iterator[Metric]:
        """The metrics of the replica; parts that it lacks (a journal, snapshots) are left out."""
        about = self._describe()
        for name, (text, *path) in GAUGES.items():
            if (value := _at(about, path)) is not None:
                yield GaugeMetricFamily(name, str(text), value=value)
        for name, (text, *path) in COUNTERS.items():
            if (value := _at(about, path)) is not None:
                yield CounterMetricFamily(name, str(text), value=value)
        if "admission" in about:
            yield from queue_metrics(about["admission"], self._known)
        yield from _verdicts(about.get("prefill", {}).get("verdicts", ()))


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    for name, (text, *path) in VERDICTS.items() if rows else ():
        family = CounterMetricFamily(name, str(text), labels=VERDICT_LABELS)
        for row in rows:
            family.add_metric([row[label] for label in VERDICT_LABELS], _at(row, path) or 0.0)
        yield family


def _at(about: Mapping[str, Any], path: list[Any]) -> float | None:
    found: Any = about
    for step in path:
        if isinstance(step, int):
            found /= step
        elif not isinstance(found, Mapping) or step not in found:
            return None
        else:
            found = found[step]
    return float(found)
