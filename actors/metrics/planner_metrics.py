"""Prometheus metrics of a planner: its demand, its decisions, and the attainment that it sees, by model and role. A
label is empty where the planner sizes one model, and of decode workers, which is the same as none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from core.events.kv import DECODE
from core.events.scale import (
    NO_MODEL,
    DemandRolled,
    ScaleDecided,
    ScaleEvent,
    ScaleFailed,
    model_and_role,
    model_of,
    role_of,
)

DECODE_ROLE = ""
"""The label of decode workers."""


class PlannerMetrics:
    """Numbers of the events that the log has taken from this planner; those of others are in their own metrics."""

    def __init__(self, fleets: Iterable[str] = (NO_MODEL,)) -> None:
        """Of a planner of the fleets with these keys (`core.events.scale.fleet_key`)."""
        it = self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=it)
        self._leads = Gauge("contrail_planner_leads", "1 while this planner leads, 0 while it stands by", registry=it)
        self._workers = Gauge(
            "contrail_planner_workers",
            "Workers at the last decision: the target, the required, and the fleet's by their state",
            ["model", "role", "state"],
            registry=it,
        )
        self._rate = Gauge(
            "contrail_planner_requests_per_second",
            "Arrivals of the last minute, and those that were forecast",
            ["model", "role", "kind"],
            registry=it,
        )
        self._attainment = Gauge(
            "contrail_planner_attainment",
            "Shares of requests at the last decision with predictions: the goal, and the ceiling of any fleet",
            ["model", "role", "kind"],
            registry=it,
        )
        self._waiting = Gauge("contrail_planner_requests_waiting", "Requests without a worker", ["model"], registry=it)
        self._decisions = Counter(
            "contrail_planner_decisions", "Decisions by their reason", ["model", "role", "bound"], registry=it
        )
        self._requests = Counter(
            "contrail_planner_requests",
            "Requests that ended, and those of them within the bounds of service",
            ["model", "outcome"],
            registry=it,
        )
        self._failures = Counter(
            "contrail_planner_failures",
            "Orders of workers, or of hands, that did not come about",
            ["model", "role"],
            registry=it,
        )
        for model, role in map(model_and_role, fleets):
            self._failures.labels(model, _role_label(role))  # 0 from the start: an alert sees the first one

        self._forecasts_failed = Gauge(
            "contrail_planner_forecast_failures",
            "Questions to the forecast process since the start of this planner that had no answer in time",
            registry=it,
        )

        self._judged = Gauge(
            "contrail_planner_judgements",
            "Questions to the judge since the start of this planner, by their outcome",
            ["outcome"],
            registry=it,
        )

    def watch_forecasts(self, failures: Callable[[], int]) -> None:
        """The metrics read at each scrape how many forecasts failed."""
        self._forecasts_failed.set_function(lambda: float(failures()))

    def watch_judge(self, outcomes: Mapping[str, int]) -> None:
        """The metrics read these counts at each scrape."""
        for outcome in outcomes:
            self._judged.labels(outcome).set_function(partial(_count_of, outcomes, outcome))

    def watch_lead(self, leads: Callable[[], bool]) -> None:
        """The metrics read at each scrape if it leads."""
        self._leads.set_function(lambda: float(leads()))

    def note(self, event: ScaleEvent) -> None:
        """The log has the event."""
        model, role = model_of(event), _role_label(role_of(event))
        match event:
            case DemandRolled():
                self._waiting.labels(model).set(event.waiting)
                self._requests.labels(model, "ended").inc(event.ended)
                self._requests.labels(model, "attained").inc(event.attained)
            case ScaleDecided():
                self._decisions.labels(model, role, event.bound).inc()
                self._rate.labels(model, role, "arrived").set(event.rate_m / 1000)
                self._rate.labels(model, role, "forecast").set(event.forecast.upper_m / 1000)
                if event.candidates:
                    self._attainment.labels(model, role, "goal").set(event.goal_bp / 10_000)
                    self._attainment.labels(model, role, "ceiling").set(event.ceiling_bp / 10_000)
                for state in ("target", "required", "ready", "starting", "overdue"):
                    self._workers.labels(model, role, state).set(getattr(event, state))
            case ScaleFailed():
                self._failures.labels(model, role).inc()


def _role_label(role: str) -> str:
    return DECODE_ROLE if role == DECODE else role


def _count_of(outcomes: Mapping[str, int], outcome: str) -> float:
    return float(outcomes[outcome])
