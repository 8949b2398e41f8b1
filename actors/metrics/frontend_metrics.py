"""Prometheus metrics of each process: its own registry, names `contrail_`, labels model, worker, policy, stream,
outcome, reason.

Labels are bounded by what is deployed: no request or client text is ever one, and no tenant but the few with most in
flight (`actors.metrics.replica_metrics`). What is a state is read when it is scraped (`watch_*`), what is an event is
counted where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from actors.metrics.counter import Count, Counter
from actors.metrics.histogram import Histogram
from actors.metrics.replica_metrics import ReplicaMetrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)
DECISION_SECONDS = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 10e-3, 100e-3)

REFUSED = ("abort", "rejected", "unavailable", "deadline", "error")
"""How a request may end that gets no answer."""
OUTCOMES = ("stop", "length", "tool_calls", "answered", *REFUSED)
"""How a request to a model ends; `answered` where nothing is generated. Each counts from 0: what first appears with
its first request shows no increase for it."""
REJECTIONS = ("answered", *REFUSED)
"""The same of requests that reached no model."""

Reading = Callable[[], float]


class LogMetrics(Collector):
    """What every process that writes the log, or reads it, shows of that."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outboxes: dict[str, Callable[[], Mapping[str, int]]] = {}
        registry.register(self)
        self._lag_events = Gauge(
            "contrail_log_lag_events", "Messages in the stream not yet folded", ["stream"], registry=registry
        )
        self._outbox_events = Gauge(
            "contrail_outbox_depth_events", "Events that wait to be appended", ["stream"], registry=registry
        )
        self._outbox_bytes = Gauge(
            "contrail_outbox_bytes", "Bytes that wait to be appended", ["stream"], registry=registry
        )

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The outboxes' own counts, as Prometheus scrapes them."""
        family = CounterMetricFamily(
            "contrail_appends",
            "Messages offered to the log and events dropped, by outcome",
            labels=["stream", "outcome"],
        )
        for stream, counts in self._outboxes.items():
            for outcome, count in counts().items():
                family.add_metric([stream, outcome], count)
        yield family

    def watch_lag(self, stream: str, events: Reading) -> None:
        """The stream's lag is read from this at each scrape."""
        self._lag_events.labels(stream).set_function(events)

    def watch_outbox(
        self, stream: str, events: Reading, bytes_: Reading, counts: Callable[[], Mapping[str, int]]
    ) -> None:
        """The outbox's depth and counts are read from these at each scrape; a new life counts from 0 again."""
        self._outboxes[stream] = counts
        self._outbox_events.labels(stream).set_function(events)
        self._outbox_bytes.labels(stream).set_function(bytes_)


class ModelMetrics:
    """One model's children, looked up once: labels cost more than counting."""

    def __init__(self, metrics: FrontendMetrics, model: str) -> None:
        self._requests = metrics.requests
        self._model = model
        self._ended: dict[str, Count] = {outcome: self._requests.labels(model, outcome) for outcome in OUTCOMES}
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
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=self.registry)
        self.log = LogMetrics(self.registry)
        self.requests = Counter("contrail_requests", "Requests ended, by outcome", ["model", "outcome"], self.registry)
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
        self.prompt_tokens = self._tokens("contrail_prompt_tokens", "Prompt tokens of requests that got a token")
        self.cached_tokens = self._tokens("contrail_cached_tokens", "Prompt tokens that engines took from their caches")
        self.completion_tokens = self._tokens("contrail_completion_tokens", "Tokens generated")
        self._decision_seconds = Histogram(
            "contrail_decision_seconds", "Choosing a worker", "policy", DECISION_SECONDS, self.registry
        )
        self._workers = Gauge("contrail_workers", "Workers that can take requests", ["model"], registry=self.registry)
        self._models: dict[str, ModelMetrics] = {}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, "model", buckets, self.registry)

    def _tokens(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model"], self.registry)

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
        self._decision_seconds.labels(policy).observe(seconds)

    def watch_replica(self, describe: Callable[[], dict[str, Any]]) -> None:
        """What the replica says of itself is read from this at each scrape."""
        self.registry.register(ReplicaMetrics(describe, self._models))

    def watch_workers(self, model: str, workers: Reading) -> None:
        """How many workers serve the model is read from this at each scrape; its requests count from 0 on."""
        self.of_model(model)
        self._workers.labels(model).set_function(workers)


TOTALS = {
    "requests": "Generations that got a token",
    "prompt_tokens": "Their prompt tokens",
    "cached_tokens": "Of those, taken from the cache",
    "kv_events": "Changes of the cache told by the engine",
    "blocks_unindexed": "Blocks that are not in the index: images, embeddings, other groups or sizes",
    "cache_gaps": "Times that the engine's events were lost for good",
    "prefill_local": "Prompts that a decode worker chose to compute itself",
    "prefill_remote": "Prompts whose blocks it fetched from a prefill worker",
    "prefill_recomputed": "Prompts that it asked a prefill worker for and computed itself after all",
    "blocks_pulled": "Blocks that it fetched",
    "pulled_by_rdma": "Prompts whose blocks came over RDMA",
    "pulled_by_shared_memory": "Prompts whose blocks came through shared memory",
    "pulled_by_tcp": "Prompts whose blocks came over TCP",
    "pulled_by_simulated": "Prompts whose blocks were simulated",
    "jobs_completed": "Prompts that a prefill worker computed for others",
    "jobs_failed": "Those that it gave up, to be handed out again",
    "jobs_dead": "Those that were given up for good",
    "jobs_not_wanted": "Those that somebody else had, or that were over",
    "jobs_withdrawn": "Those whose requester let go of them while they were computed",
}
"""What a worker counts since its start."""


class WorkerMetrics(Collector):
    """A worker's: its engine's load, its cache as it tells it, the log."""

    def __init__(self, model: str, worker: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=self.registry)
        self.log = LogMetrics(self.registry)
        self._labels = {"model": model, "worker": worker}
        self._totals: Callable[[], Mapping[str, int]] = dict
        self.registry.register(self)
        self._running = self._gauge("contrail_worker_running", "Requests that the engine computes")
        self._waiting = self._gauge("contrail_worker_waiting", "Requests that wait in the engine")
        self._blocks_used = self._gauge("contrail_worker_blocks_used", "Blocks of the cache in use")
        self._blocks_total = self._gauge("contrail_worker_blocks_total", "Blocks that the cache has")

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The worker's own counts, as Prometheus scrapes them."""
        for name, count in self._totals().items():
            family = CounterMetricFamily(f"contrail_worker_{name}", TOTALS[name], labels=list(self._labels))
            family.add_metric(list(self._labels.values()), count)
            yield family

    def watch_totals(self, totals: Callable[[], Mapping[str, int]]) -> None:
        """Counts by name (TOTALS) are read from this at each scrape."""
        self._totals = totals

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(self._labels), registry=self.registry)

    def watch_load(self, running: Reading, waiting: Reading, blocks_used: Reading, blocks_total: Reading) -> None:
        """The engine's load is read from these at each scrape."""
        self._running.labels(**self._labels).set_function(running)
        self._waiting.labels(**self._labels).set_function(waiting)
        self._blocks_used.labels(**self._labels).set_function(blocks_used)
        self._blocks_total.labels(**self._labels).set_function(blocks_total)
