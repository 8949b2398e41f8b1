"""Prometheus metrics of a worker: the load of its engine, its cache, its counts since the start, the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from actors.metrics.log_metrics import LogMetrics, Reading

TOTALS = {
    "requests": "Generations that got a token",
    "prompt_tokens": "Their prompt tokens",
    "cached_tokens": "Of those, taken from the cache",
    "prompts_named": "Prompts of which front ends left out parts that they had sent before",
    "prompts_asked": "Those of them that the worker no longer kept, and asked for whole",
    "kv_events": "Changes of the cache told by the engine",
    "blocks_unindexed": "Blocks that are not in the index: images, embeddings, other groups or sizes",
    "cache_gaps": "Times that the engine's events were lost for good",
    "pool_entries_dropped": "Blocks that are not announced should they come to lie on the disk: too many waited",
    "pool_refreshes_failed": "Times that the disk tier's folder or its catalogue could not be read or written",
    "pool_removals_failed": "Tries to remove a file of the disk tier that failed, after the log had its removal",
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
"""Counters of a worker since its start."""
DISK_LEVELS = {"bytes": "Bytes of the disk tier's files", "blocks": "Blocks that lie in the disk tier"}
DISK_TOTALS = {
    "loads": "Blocks read from the disk tier",
    "stores": "Blocks written to it",
    "evictions": "Blocks that went to make room",
    "evictions_unannounced": "Those that went before the log had their removal: the pool's keeper or the log was away",
    "stuck": "Refused files that could not be removed at once",
    "write_failures": "Blocks that could not be written",
    "stores_dropped": "Blocks not written: the queue was full, or the disk had failed",
    "loads_declined": "Blocks not read: others took the host's memory, or more than the request may load",
    "calls_overdue": "Calls of a network file system without an answer in time; each is followed by a pause",
}
REFUSED = "refused_"
"""Begins the names of numbers by the reason for which a file was refused."""
CALLS_FAILED = ("calls_denied", "calls_busy", "calls_failed")
"""Numbers of calls of an object store that failed, by reason."""
US_PER_S = 1e6


class WorkerMetrics(Collector):
    """A worker's: its engine's load, its cache as it tells it, the log."""

    def __init__(self, model: str, worker: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="contrail", registry=self.registry)
        self.log = LogMetrics(self.registry)
        self._labels = {"model": model, "worker": worker}
        self._totals: Callable[[], Mapping[str, int]] = dict
        self._tiers: Callable[[], Mapping[str, int]] = dict
        self._disk: Callable[[], Mapping[str, int]] = dict
        self._loads: Callable[[], Mapping[str, tuple[int, int]]] = dict
        self.registry.register(self)
        self._running = self._gauge("contrail_worker_running", "Requests that the engine computes")
        self._waiting = self._gauge("contrail_worker_waiting", "Requests that wait in the engine")
        self._blocks_used = self._gauge("contrail_worker_blocks_used", "Blocks of the cache in use")
        self._blocks_total = self._gauge("contrail_worker_blocks_total", "Blocks that the cache has")

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The worker's own counts, as Prometheus scrapes them."""
        blocks = GaugeMetricFamily(
            "contrail_worker_cached_blocks", "Blocks that requests can take from a tier", labels=[*self._labels, "tier"]
        )
        for tier, count in self._tiers().items():
            blocks.add_metric([*self._labels.values(), tier], count)
        yield blocks
        yield from self._collect_loads(self._loads())
        yield from self._collect_disk(self._disk())
        for name, count in self._totals().items():
            family = CounterMetricFamily(f"contrail_worker_{name}", TOTALS[name], labels=list(self._labels))
            family.add_metric(list(self._labels.values()), count)
            yield family

    def _collect_loads(self, loads: Mapping[str, tuple[int, int]]) -> Iterator[CounterMetricFamily]:
        """Nothing without a slower tier."""
        if not loads:
            return
        labels, values = [*self._labels, "tier"], list(self._labels.values())
        blocks = CounterMetricFamily(
            "contrail_worker_loaded_blocks", "Blocks that came from a tier to the next one above it", labels=labels
        )
        seconds = CounterMetricFamily(
            "contrail_worker_load_seconds", "Time of these loads, of those side by side together", labels=labels
        )
        for tier, (count, us) in loads.items():
            blocks.add_metric([*values, tier], count)
            seconds.add_metric([*values, tier], us / US_PER_S)
        yield blocks
        yield seconds

    def _collect_disk(self, counts: Mapping[str, int]) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Nothing without a disk tier, and nothing before its engine's start."""
        if not counts:
            return
        labels, values = list(self._labels), list(self._labels.values())
        for name, text in DISK_LEVELS.items():
            level = GaugeMetricFamily(f"contrail_worker_disk_{name}", text, labels=labels)
            level.add_metric(values, counts[name])
            yield level
        for name, text in DISK_TOTALS.items():
            total = CounterMetricFamily(f"contrail_worker_disk_{name}", text, labels=labels)
            total.add_metric(values, counts[name])
            yield total
        refused = CounterMetricFamily(
            "contrail_worker_disk_refused",
            "Files of the disk tier that did not prove their block",
            labels=[*labels, "reason"],
        )
        for name, count in counts.items():
            if name.startswith(REFUSED):
                refused.add_metric([*values, name.removeprefix(REFUSED)], count)
        yield refused
        failed = CounterMetricFamily(
            "contrail_worker_disk_calls_failed",
            "Calls of an object store that failed: refused, too many, or for another reason",
            labels=[*labels, "reason"],
        )
        for name in CALLS_FAILED:
            failed.add_metric([*values, name.removeprefix("calls_")], counts[name])
        yield failed

    def watch_disk(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """The numbers of the disk tier (`actors.kv_blocks.disk_counts`) are read from this at each scrape."""
        self._disk = counts

    def watch_loads(self, loads: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        """Blocks and microseconds of loads by tier (`actors.engines.engine.TierLoads`) are read from this at each
        scrape."""
        self._loads = loads

    def watch_totals(self, totals: Callable[[], Mapping[str, int]]) -> None:
        """Counts by name (TOTALS) are read from this at each scrape."""
        self._totals = totals

    def watch_tiers(self, tiers: Callable[[], Mapping[str, int]]) -> None:
        """Blocks by tier are read from this at each scrape."""
        self._tiers = tiers

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(self._labels), registry=self.registry)

    def watch_load(self, running: Reading, waiting: Reading, blocks_used: Reading, blocks_total: Reading) -> None:
        """The engine's load is read from these at each scrape."""
        self._running.labels(**self._labels).set_function(running)
        self._waiting.labels(**self._labels).set_function(waiting)
        self._blocks_used.labels(**self._labels).set_function(blocks_used)
        self._blocks_total.labels(**self._labels).set_function(blocks_total)
