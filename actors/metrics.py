"""Prometheus metrics of each process: its own registry, names `contrail_`, labels model, worker, policy, stream.

Labels are bounded by what is deployed: no request, tenant or client text is ever one. What is a state is read when
it is scraped (`watch_*`), what is an event is counted where it happens.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)
DECISION_SECONDS = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 10e-3, 100e-3)

Reading = Callable[[], float]


class LogMetrics:
    """What every process that writes the log, or reads it, shows of that."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._appends = Counter(
            "contrail_appends", "Messages offered to the log, by outcome", ["stream", "outcome"], registry=registry
        )
        self._lag_events = Gauge(
            "contrail_log_lag_events", "Messages in the stream not yet folded", ["stream"], registry=registry
        )
        self._lag_seconds = Gauge(
            "contrail_log_lag_seconds", "Age of the oldest message not yet folded", ["stream"], registry=registry
        )
        self._outbox_events = Gauge(
            "contrail_outbox_depth_events", "Events that wait to be appended", ["stream"], registry=registry
        )
        self._outbox_bytes = Gauge(
            "contrail_outbox_bytes", "Bytes that wait to be appended", ["stream"], registry=registry
        )

    def appended(self, stream: str, outcome: str) -> None:
        """One more append with this outcome (`stored`, `repeated`, `refused`, `unavailable`, …: a closed set)."""
        self._appends.labels(stream, outcome).inc()

    def watch_lag(self, stream: str, events: Reading, seconds: Reading) -> None:
        """The stream's lag is read from these at each scrape."""
        self._lag_events.labels(stream).set_function(events)
        self._lag_seconds.labels(stream).set_function(seconds)

    def watch_outbox(self, stream: str, events: Reading, bytes_: Reading) -> None:
        """The outbox's depth is read from these at each scrape."""
        self._outbox_events.labels(stream).set_function(events)
        self._outbox_bytes.labels(stream).set_function(bytes_)


class ModelMetrics:
    """One model's children, looked up once: labels cost more than counting."""

    def __init__(self, metrics: FrontendMetrics, model: str) -> None:
        self._requests = metrics.requests
        self._model = model
        self.first_token_seconds = metrics.first_token_seconds.labels(model)
        self.inter_token_seconds = metrics.inter_token_seconds.labels(model)
        self.request_seconds = metrics.request_seconds.labels(model)
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.cached_tokens = metrics.cached_tokens.labels(model)
        self.completion_tokens = metrics.completion_tokens.labels(model)

    def finished(self, outcome: str, seconds: float) -> None:
        """One more request with this outcome, which took so long."""
        self._requests.labels(self._model, outcome).inc()
        self.request_seconds.observe(seconds)


class FrontendMetrics:
    """A front end's: requests as clients see them, decisions, the log."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=self.registry)
        self.log = LogMetrics(self.registry)
        self.requests = Counter(
            "contrail_requests", "Requests ended, by outcome", ["model", "outcome"], registry=self.registry
        )
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
            "contrail_decision_seconds",
            "Choosing a worker",
            ["policy"],
            buckets=DECISION_SECONDS,
            registry=self.registry,
        )
        self._workers = Gauge("contrail_workers", "Workers that can take requests", ["model"], registry=self.registry)
        self._models: dict[str, ModelMetrics] = {}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["model"], buckets=buckets, registry=self.registry)

    def _tokens(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model"], registry=self.registry)

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

    def watch_workers(self, model: str, workers: Reading) -> None:
        """How many workers serve the model is read from this at each scrape."""
        self._workers.labels(model).set_function(workers)


class WorkerMetrics:
    """A worker's: its engine's load, its cache as it tells it, the log."""

    def __init__(self, model: str, worker: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=self.registry)
        self.log = LogMetrics(self.registry)
        self._labels = {"model": model, "worker": worker}
        self._requests = self._counter("contrail_worker_requests", "Generations ended, by outcome", "outcome")
        self._kv_events = self._counter("contrail_kv_events", "Changes of the cache told by the engine", "kind")
        self._prompt_tokens = self._counter("contrail_worker_prompt_tokens", "Prompt tokens that came in")
        self._cached_tokens = self._counter("contrail_worker_cached_tokens", "Of those, taken from the cache")
        self._running = self._gauge("contrail_worker_running", "Requests that the engine computes")
        self._waiting = self._gauge("contrail_worker_waiting", "Requests that wait in the engine")
        self._blocks_used = self._gauge("contrail_worker_blocks_used", "Blocks of the cache in use")
        self._blocks_total = self._gauge("contrail_worker_blocks_total", "Blocks that the cache has")

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(name, text, [*self._labels, *more], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(self._labels), registry=self.registry)

    def finished(self, outcome: str, prompt_tokens: int, cached_tokens: int) -> None:
        """One more generation ended."""
        self._requests.labels(**self._labels, outcome=outcome).inc()
        self._prompt_tokens.labels(**self._labels).inc(prompt_tokens)
        self._cached_tokens.labels(**self._labels).inc(cached_tokens)

    def cache_changed(self, kind: str) -> None:
        """One more change (`stored`, `removed`, `cleared`, `gap`: a closed set)."""
        self._kv_events.labels(**self._labels, kind=kind).inc()

    def watch_load(self, running: Reading, waiting: Reading, blocks_used: Reading, blocks_total: Reading) -> None:
        """The engine's load is read from these at each scrape."""
        self._running.labels(**self._labels).set_function(running)
        self._waiting.labels(**self._labels).set_function(waiting)
        self._blocks_used.labels(**self._labels).set_function(blocks_used)
        self._blocks_total.labels(**self._labels).set_function(blocks_total)
