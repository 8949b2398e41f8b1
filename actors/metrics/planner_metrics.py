"""Prometheus metrics of a planner: its demand, its decisions, and the attainment that it sees."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from core.events.scale import DemandRolled, ScaleDecided, ScaleEvent, ScaleFailed


class PlannerMetrics:
    """Numbers of the events that the log has taken from this planner; those of others are in their own metrics."""

    def __init__(self) -> None:
        it = self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=it)
        self._leads = Gauge("contrail_planner_leads", "1 while this planner leads, 0 while it stands by", registry=it)
        self._workers = Gauge(
            "contrail_planner_workers",
            "Workers at the last decision: the target, the required, and the fleet's by their state",
            ["state"],
            registry=it,
        )
        self._rate = Gauge(
            "contrail_planner_requests_per_second",
            "Arrivals of the last minute, and those that were forecast",
            ["kind"],
            registry=it,
        )
        self._waiting = Gauge("contrail_planner_requests_waiting", "Requests without a worker", registry=it)
        self._decisions = Counter("contrail_planner_decisions", "Decisions by their reason", ["bound"], registry=it)
        self._requests = Counter(
            "contrail_planner_requests",
            "Requests that ended, and those of them within the bounds of service",
            ["outcome"],
            registry=it,
        )
        self._failures = Counter(
            "contrail_planner_failures", "Orders of workers, or of hands, that did not come about", registry=it
        )

        self._forecasts_failed = Gauge(
            "contrail_planner_forecast_failures",
            "Questions to the forecast process since the start of this planner that had no answer in time",
            registry=it,
        )

    def watch_forecasts(self, failures: Callable[[], int]) -> None:
        """The metrics read at each scrape how many forecasts failed."""
        self._forecasts_failed.set_function(lambda: float(failures()))

    def watch_lead(self, leads: Callable[[], bool]) -> None:
        """The metrics read at each scrape if it leads."""
        self._leads.set_function(lambda: float(leads()))

    def note(self, event: ScaleEvent) -> None:
        """The log has the event."""
        match event:
            case DemandRolled():
                self._waiting.set(event.waiting)
                self._requests.labels("ended").inc(event.ended)
                self._requests.labels("attained").inc(event.attained)
            case ScaleDecided():
                self._decisions.labels(event.bound).inc()
                self._rate.labels("arrived").set(event.rate_m / 1000)
                self._rate.labels("forecast").set(event.forecast.upper_m / 1000)
                for state in ("target", "required", "ready", "starting", "overdue"):
                    self._workers.labels(state).set(getattr(event, state))
            case ScaleFailed():
                self._failures.inc()
