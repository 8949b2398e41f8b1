"""Prometheus metrics of every process that reads or writes the log: its lag, its outboxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

Reading = Callable[[], float]


class LogMetrics(Collector):
    """Metrics of a process that writes or reads the log."""

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
