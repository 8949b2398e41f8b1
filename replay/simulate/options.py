"""Options: what is simulated: workers and their engine, the policy, replicas and their lag, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.errors import CallerError
from core.events.scale import CapacityLearned
from core.settings import RoutingSettings
from projections.scaling.scale_settings import LIBRARY_PREDICTORS, ON, ScaleSettings, prefill_settings
from replay.simulate.simulated_clock import NO_ERROR, ClockError

WORKERS = 8
"""Workers where nothing says another number."""
WORKERS_MAX = 4096
REPLICAS_MAX = 256
POOL_BLOCKS_MAX = 16_777_216
"""Some 15 GB of this program's memory."""
POOL_US_MAX = 60_000_000
LAG_MS_MAX = 3_600_000
"""An hour: a replica further behind than that decides on nothing."""
CONCURRENCY_MAX = 1_000_000
FAILURES_PER_HOUR_MAX = 3600
"""One a second."""
SEED_MAX = 2**64 - 1
TWO_LAGS = "lag_ms: each replica has a lag of its own here: leave either out"


FOREVER = -1


class WorkerLife(NamedTuple):
    """All times are virtual microseconds since the start of the run."""

    place: int
    """In the fleet, from 0. Several lives may follow each other in one place."""
    from_us: int = 0
    until_us: int = FOREVER
    """When it ends."""
    reported_us: int = FOREVER
    """Time at which the log shows its loss. FOREVER for a worker that leaves by itself: it gets nothing new after its
    end, and finishes its requests."""
    capacity_blocks: int = 0
    """Of its cache; 0 for those of `Options.engine`."""


class ServiceBounds(NamedTuple):
    """Bounds of service that a report counts by, in milliseconds."""

    ttft_ms: int
    """From a request's arrival to its first token."""
    itl_ms: int
    """Mean time per further token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Equal options and equal arrivals give equal results, byte by byte."""

    workers: int = WORKERS
    prefill_workers: int = 0
    """So many more, which compute long prompts for those that decode."""
    engine: SimulatedSettings = field(default_factory=SimulatedSettings)
    """Of every worker."""
    pool_blocks: int = 0
    """Blocks of one pool behind the host tiers of all workers; 0 for none."""
    pool_us_per_block: int = 1000
    """Time in which a worker reads a block from there, or writes it."""
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    replicas: int = 1
    """Arrivals go to them in turn."""
    lag_ms: int = 0
    """Delay between the write of a message to the log and its arrival at a replica, for its own messages, too."""
    replica_lags_ms: tuple[int, ...] = ()
    """The same for each replica, instead of `lag_ms`."""
    concurrency: int = 0
    """Above 0 the arrivals' times do not count: so many requests are under way at once, and one comes when one ends;
    when one is turned away, then when its client was told to try again."""
    failures_per_hour: int = 0
    """Workers that crash in each hour of the run, over the whole fleet."""
    stays: tuple[WorkerLife, ...] = ()
    """Lives of all workers; empty for workers that live from the start to the end."""
    clocks: tuple[ClockError, ...] = ()
    """Errors of the replicas' clocks; empty for clocks without any."""
    broker_clock: ClockError = NO_ERROR
    clocks_corrected: bool = True
    """Replicas with an error decide by the broker's time, as live ones do; else by their own."""
    continues: bool = False
    """Decisions are recorded as ones that continue others, in the latest version of `RequestRouted`."""
    seed: int = 0
    """Of draws that decisions make, of ids and of failures."""
    bounds: ServiceBounds | None = None
    """The report counts requests within them, and worker-hours; None for neither."""
    planner: ScaleSettings | None = None
    """A planner sizes the fleet, which begins with `workers`; its bounds of service are those of the report."""
    learns: bool = False
    """The planner learns the engine's speed from the ends of requests, as a live one does; else it is told."""
    profile: CapacityLearned | None = None
    """The speed with which a planner that learns begins; None for none."""
    prefill_scale: tuple[tuple[str, Any], ...] = ()
    """With a planner, the settings of prefill workers that are others than its own, each with its key."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("workers", 1, WORKERS_MAX),
            ("prefill_workers", 0, WORKERS_MAX),
            ("replicas", 1, REPLICAS_MAX),
            ("pool_blocks", 0, POOL_BLOCKS_MAX),
            ("pool_us_per_block", 0, POOL_US_MAX),
            ("lag_ms", 0, LAG_MS_MAX),
            ("concurrency", 0, CONCURRENCY_MAX),
            ("failures_per_hour", 0, FAILURES_PER_HOUR_MAX),
            ("seed", 0, SEED_MAX),
        ):
            _check(name, getattr(self, name), least, most)
        self._check_pool()
        if self.stays and (self.failures_per_hour or max(life.place for life in self.stays) >= self.workers):
            raise CallerError("stays: give each worker a place below `workers`, and leave failures_per_hour out")
        if self.planner is not None and (self.stays or self.failures_per_hour):
            raise CallerError("planner: it sizes workers that do not fail: leave failures and stays out")
        self._check_prefill_scale()
        if self.planner is not None and not self.planner.min <= self.workers <= self.planner.max:
            raise CallerError(
                f"planner: workers, {self.workers}, must lie between min and max, {self.planner.min} and "
                f"{self.planner.max}"
            )
        if self.planner is not None and self.planner.predictor in LIBRARY_PREDICTORS:
            raise CallerError(
                f"planner.predictor: {self.planner.predictor} answers beside a live planner alone: take constant, "
                "kalman or seasonal"
            )
        if self.lag_ms and self.replica_lags_ms:
            raise CallerError(TWO_LAGS)
        for lag_ms in self.replica_lags_ms:
            _check("replica_lags_ms", lag_ms, 0, LAG_MS_MAX)
        if self.clocks and len(self.clocks) != self.replicas:
            raise CallerError(
                f"clocks has the errors of {len(self.clocks)} replicas for {self.replicas}: give one for each"
            )
        if self.replica_lags_ms and len(self.replica_lags_ms) != self.replicas:
            raise CallerError(
                f"replica_lags_ms has {len(self.replica_lags_ms)} lags for {self.replicas} replicas: give one for each"
            )

    def _check_pool(self) -> None:
        if self.pool_blocks and not self.engine.host_blocks:
            raise CallerError("pool_blocks: what is read from a pool goes through the host: give engine.host_blocks")
        if self.pool_blocks and self.engine.disk_blocks:
            raise CallerError("pool_blocks: workers have one pool, or a disk each: leave engine.disk_blocks out")
        if self.prefill_workers and (self.pool_blocks or self.engine.disk_blocks):
            raise CallerError("prefill_workers: disks and pools do not go together with them yet: leave them out")

    def _check_prefill_scale(self) -> None:
        if self.prefill_scale and not (self.planner is not None and self.prefill_workers):
            raise CallerError("planner.prefill: there are no prefill workers: give --prefill-workers, too")
        if self.planner is None or not self.prefill_workers:
            return
        if self.planner.judge == ON:
            raise CallerError("planner.judge: a judge simulates no prefill workers yet: leave it out")
        settings = self.prefill_planner
        if not settings.min <= self.prefill_workers <= settings.max:
            raise CallerError(
                f"planner.prefill: prefill workers, {self.prefill_workers}, must lie between min and max, "
                f"{settings.min} and {settings.max}"
            )
        devices = self.planner.devices_max
        if devices and self.workers + self.prefill_workers > devices:
            raise CallerError(
                f"planner.devices_max: {devices} are fewer than {self.workers} workers and {self.prefill_workers} "
                "prefill workers"
            )

    @property
    def prefill_planner(self) -> ScaleSettings:
        """The settings by which a planner sizes prefill workers."""
        assert self.planner is not None
        return prefill_settings(self.planner, dict(self.prefill_scale))

    @property
    def first_prefill_place(self) -> int:
        """The place of the first prefill worker. Decode workers that a planner starts lie below it."""
        return WORKERS_MAX if self.planner is not None else self.workers

    @property
    def worker_engine(self) -> SimulatedSettings:
        """The engine of each worker, with the speed of its way to the pool."""
        if not self.pool_blocks:
            return self.engine
        return replace(self.engine, disk_us_per_block=self.pool_us_per_block)

    def clock(self, replica: int) -> ClockError | None:
        """The error of that replica's clocks; None if no clock of the run has any."""
        if not self.clocks and self.broker_clock == NO_ERROR:
            return None
        return self.clocks[replica] if self.clocks else NO_ERROR

    @property
    def counted_bounds(self) -> ServiceBounds | None:
        """The bounds of service of the report: the planner's, if there is one."""
        if self.planner is not None:
            return ServiceBounds(self.planner.ttft_ms, self.planner.itl_ms)
        return self.bounds

    def lag_us(self, replica: int) -> int:
        """Lag of the replica with this number behind the log, in microseconds."""
        return 1000 * (self.replica_lags_ms[replica] if self.replica_lags_ms else self.lag_ms)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise CallerError(f"{name} must be from {least} to {most}, not {value}")
