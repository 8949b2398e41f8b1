"""Prometheus metrics of a front end: requests as clients see them, decisions, the log.

Names begin with `contrail_`; labels are model, worker, policy, stream, outcome, reason. Labels are bounded by what is
deployed: no request or client text is ever one, and no tenant but the few with most in flight
(`actors.metrics.replica_metrics`). Events are counted as plain numbers when they happen; these and states are read at
each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from actors.metrics.histogram import Histogram, cumulative
from actors.metrics.log_metrics import LogMetrics, Reading
from actors.metrics.replica_metrics import ReplicaMetrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)
DECISION_SECONDS = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 10e-3, 100e-3)
REFUSED = ("abort", "rejected", "unavailable", "deadline", "error")
"""Outcomes of requests without an answer."""
OUTCOMES = ("stop", "length", "tool_calls", "answered", *REFUSED)
"""Outcomes of requests to a model; `answered` where nothing is generated. Each counter starts at 0: one that first
appears with its first request shows no increase for it."""
REJECTIONS = ("answered", *REFUSED)
"""The same of requests that reached no model."""
HISTOGRAMS = {
    "contrail_time_to_first_token_seconds": (
        "From the request's arrival to its first token", SECONDS, "first_token_seconds",
    ),
    "contrail_inter_token_seconds": (
        "Between tokens of one request, several that come together as one", TOKEN_SECONDS, "inter_token_seconds",
    ),
    "contrail_request_seconds": ("From the request's arrival to its end", SECONDS, "request_seconds"),
}  # fmt: skip
"""Name to what it is, its bounds, and where a model has it."""
COUNTERS = {
    "contrail_prompt_tokens": ("Prompt tokens of requests that got a token", "prompt_tokens"),
    "contrail_cached_tokens": ("Prompt tokens that engines took from their caches", "cached_tokens"),
    "contrail_completion_tokens": ("Tokens generated", "completion_tokens"),
}
"""Name to what it is, and where a model has it."""


class ModelMetrics:
    """The requests of one model, counted."""

    def __init__(self) -> None:
        self.requests = dict.fromkeys(OUTCOMES, 0)
        """By outcome."""
        self.first_token_seconds = Histogram(SECONDS)
        self.inter_token_seconds = Histogram(TOKEN_SECONDS)
        self.request_seconds = Histogram(SECONDS)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def finished(self, outcome: str, seconds: float) -> None:
        """One more request with this outcome, which took so long."""
        self.requests[outcome] = self.requests.get(outcome, 0) + 1
        self.request_seconds.observe(seconds)


class FrontendMetrics(Collector):
    """A front end's: requests as clients see them, decisions, the log."""

    def __init__(self) -> None:
        self._models: dict[str, ModelMetrics] = {}
        self._rejected = dict.fromkeys(REJECTIONS, 0)
        """By outcome."""
        self._decisions: dict[str, Histogram] = {}
        """Seconds, by policy."""
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=self.registry)
        self.log = LogMetrics(self.registry)
        self._workers = Gauge("contrail_workers", "Workers that can take requests", ["model"], registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All counts, as Prometheus scrapes them."""
        requests = CounterMetricFamily("contrail_requests", "Requests ended, by outcome", labels=["model", "outcome"])
        of_models = [(model, metrics.requests) for model, metrics in self._models.items()]
        for model, outcomes in (("", self._rejected), *of_models):
            for outcome, count in outcomes.items():
                requests.add_metric([model, outcome], count)
        yield requests
        for name, (text, bounds, where) in HISTOGRAMS.items():
            found = {model: getattr(metrics, where) for model, metrics in self._models.items()}
            yield _histogram(name, text, "model", bounds, found)
        for name, (text, where) in COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=["model"])
            for model, metrics in self._models.items():
                family.add_metric([model], getattr(metrics, where))
            yield family
        yield _histogram("contrail_decision_seconds", "Choosing a worker", "policy", DECISION_SECONDS, self._decisions)

    def of_model(self, model: str) -> ModelMetrics:
        """The model's own; only names of models that are served may be asked for."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMetrics()
        return found

    def rejected(self, outcome: str) -> None:
        """One more request that never reached a model."""
        self._rejected[outcome] = self._rejected.get(outcome, 0) + 1

    def decided(self, policy: str, seconds: float) -> None:
        """One more decision, which took so long."""
        found = self._decisions.get(policy)
        if found is None:
            found = self._decisions[policy] = Histogram(DECISION_SECONDS)
        found.observe(seconds)

    def watch_replica(self, describe: Callable[[], dict[str, Any]]) -> None:
        """The replica's description is read from `describe` at each scrape."""
        self.registry.register(ReplicaMetrics(describe, self._models))

    def watch_workers(self, model: str, workers: Reading) -> None:
        """The number of the model's workers is read from `workers` at each scrape; its requests count from 0 on."""
        self.of_model(model)
        self._workers.labels(model).set_function(workers)


def _histogram(
    name: str, text: str, label: str, bounds: tuple[float, ...], found: Mapping[str, Histogram]
) -> HistogramMetricFamily:
    """One family, by the label's values."""
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, histogram in found.items():
        family.add_metric([value], cumulative(bounds, histogram.counts), histogram.sum)
    return family
