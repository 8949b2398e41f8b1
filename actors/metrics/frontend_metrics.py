"""Prometheus metrics of a front end: requests as clients see them, decisions, the log.

Names begin with `contrail_`; labels are model, worker, policy, stream, outcome, reason. Labels are bounded by what is
deployed: no request or client text is ever one, and no tenant but the few with most in flight
(`actors.metrics.replica_metrics`). States are read at each scrape (`watch_*`), events are counted when they happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

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


class ModelMetrics:
    """One model's children, looked up once: labels cost more than counting."""

    def __init__(self, metrics: FrontendMetrics, model: str) -> None:
        self._requests = metrics.requests
        self._model = model
        self._ended: dict[str, Counter] = {outcome: self._requests.labels(model, outcome) for outcome in OUTCOMES}
        """By outcome."""
        self.first_token_seconds = metrics.first_token_seconds.labels(model)
        self.inter_token_seconds = metrics.inter_token_seconds.labels(model)
        self.request_seconds = metrics.request_seconds.labels(model)
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.cached_tokens = metrics.cached_tokens.labels(model)
        self.completion_tokens = metrics.completion_tokens.labels(model)

    def finished(self, outcome: str, seconds: float) -> None:
        """One more request with this outcome, which took so long."""
        ended = self._ended.get(outcome)
        if ended is None:
            ended = self._ended[outcome] = self._requests.labels(self._model, outcome)
        ended.inc()
        self.request_seconds.observe(seconds)


class FrontendMetrics:
    """A front end's: requests as clients see them, decisions, the log."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=self.registry)
        self.log = LogMetrics(self.registry)
        self.requests = self._counter("contrail_requests", "Requests ended, by outcome", "model", "outcome")
        for outcome in REJECTIONS:
            self.requests.labels("", outcome)
        self.first_token_seconds = self._histogram(
            "contrail_time_to_first_token_seconds", "From the request's arrival to its first token", SECONDS
        )
        self.inter_token_seconds = self._histogram(
            "contrail_inter_token_seconds",
            "Between tokens of one request, several that come together as one",
            TOKEN_SECONDS,
        )
        self.request_seconds = self._histogram(
            "contrail_request_seconds", "From the request's arrival to its end", SECONDS
        )
        self.prompt_tokens = self._counter(
            "contrail_prompt_tokens", "Prompt tokens of requests that got a token", "model"
        )
        self.cached_tokens = self._counter(
            "contrail_cached_tokens", "Prompt tokens that engines took from their caches", "model"
        )
        self.completion_tokens = self._counter("contrail_completion_tokens", "Tokens generated", "model")
        self._decision_seconds = self._histogram(
            "contrail_decision_seconds", "Choosing a worker", DECISION_SECONDS, "policy"
        )
        self._decisions: dict[str, Histogram] = {}
        """Children by policy."""
        self._workers = Gauge("contrail_workers", "Workers that can take requests", ["model"], registry=self.registry)
        self._models: dict[str, ModelMetrics] = {}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], label: str = "model") -> Histogram:
        return Histogram(name, text, [label], buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def of_model(self, model: str) -> ModelMetrics:
        """The model's own; only names of models that are served may be asked for."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMetrics(self, model)
        return found

    def rejected(self, outcome: str) -> None:
        """One more request that never reached a model."""
        self.requests.labels("", outcome).inc()

    def decided(self, policy: str, seconds: float) -> None:
        """One more decision, which took so long."""
        found = self._decisions.get(policy)
        if found is None:
            found = self._decisions[policy] = self._decision_seconds.labels(policy)
        found.observe(seconds)

    def watch_replica(self, describe: Callable[[], dict[str, Any]]) -> None:
        """The replica's description is read from `describe` at each scrape."""
        self.registry.register(ReplicaMetrics(describe, self._models))

    def watch_workers(self, model: str, workers: Reading) -> None:
        """The number of the model's workers is read from `workers` at each scrape; its requests count from 0 on."""
        self.of_model(model)
        self._workers.labels(model).set_function(workers)
