"""SimulatedFleet: the workers of a simulation, each in its place; those that end come back as others after a while.

A planner may size it (`replay.simulate.simulated_planner`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import xxhash

from actors.engines.simulated.simulated_pool_files import PoolCounts
from actors.membership.failure_detector import (
    OBSERVE_EVERY_S,
    AliveWorker,
    ConnectionState,
    EndWritten,
    FailureDetector,
    Observed,
    WriteEnd,
)
from core.events.kv import DECODE, PREFILL
from core.ids import WorkerId
from core.subjects import JOBS, answered_token, asked_token, job_kind
from replay.simulate.options import FOREVER, Options, WorkerLife
from replay.simulate.report import PrefillVerdict
from replay.simulate.simulated_decode_role import SimulatedDecodeRole
from replay.simulate.simulated_log import KV, SimulatedLog, SimulatedSource
from replay.simulate.simulated_pool import SimulatedPool
from replay.simulate.simulated_prefill_role import SimulatedPeers, SimulatedPrefillQueue, SimulatedPrefillRole
from replay.simulate.simulated_request import MODEL
from replay.simulate.simulated_worker import OnOutput, SimulatedWorker
from replay.simulate.virtual_time import Agenda

SHARED_POOL = -1
"""In the place of a worker's place."""
LEASE_MS = 10_000
"""Time from a worker's end until the registry removes it."""
OBSERVE_EVERY_US = round(OBSERVE_EVERY_S * 1_000_000)
"""From one observation of an absent worker to the next."""
RESTART_US = 30_000_000
"""Time from a worker's end until another one is in its place, with an empty cache."""
DRAIN_US = 30_000_000
"""A draining worker hands over requests that have not ended in this time."""
DRAIN_CHECK_US = 250_000
"""Time between two looks at a draining worker."""
HOUR_US = 3_600_000_000


class WorkerLifetime:
    """One worker of a planner's fleet, in virtual microseconds."""

    def __init__(self, from_us: int, role: str) -> None:
        self.role = role
        self.from_us = from_us
        """When it was ordered; devices are taken from then on."""
        self.drained_us = self.until_us = -1
        """Begin of its drain and its end; -1 while it has none."""
        self.handed_over = False
        """Requests went on elsewhere when it left."""

    def __repr__(self) -> str:
        return f"<WorkerLifetime from {self.from_us} to {self.until_us} us>"

    @property
    def drains(self) -> bool:
        """The worker drains now."""
        return self.drained_us >= 0 > self.until_us


class StartingWorker(NamedTuple):
    """An order on its way."""

    number: int
    """Of the event in the agenda that ends the start."""
    place: int
    life: WorkerLifetime


class PlannedWorkers:
    """The places of one role's workers in a fleet that a planner sizes, and the orders that are on their way. A place
    that is free again is taken before a new one."""

    def __init__(self, next_place: int) -> None:
        """`next_place` is the first place that has had no worker."""
        self.starting: dict[int, StartingWorker] = {}
        """By number of the order."""
        self.ready: dict[int, tuple[SimulatedWorker, WorkerLifetime]] = {}
        """Workers that do not drain, by place."""
        self._free: list[int] = []
        """A heap of places whose workers have left."""
        self._next_place = next_place

    def __repr__(self) -> str:
        return f"<PlannedWorkers, {len(self.ready)} ready, {len(self.starting)} start>"

    def take_place(self) -> int:
        """The first free place, which is free no more."""
        if not self._free:
            heappush(self._free, self._next_place)
            self._next_place += 1
        return heappop(self._free)

    def give_back(self, place: int) -> None:
        """The place is free."""
        heappush(self._free, place)


class FailureSchedule:
    """One failure falls into each stretch of equal length, at a moment drawn from the seed: their number does not
    vary."""

    def __init__(self, per_hour: int, workers: int, seed: int) -> None:
        """`per_hour` above 0."""
        self._every_us = HOUR_US // per_hour
        self._workers = workers
        self._seed = seed
        self._number = 0

    def __repr__(self) -> str:
        return f"<Failures, {self._number} so far, one in {self._every_us} us>"

    def next(self) -> tuple[int, int]:
        """Time of the next failure, and the place of its worker in the fleet; times rise."""
        number, self._number = self._number, self._number + 1
        at_us = number * self._every_us + self._draw(number, "time") % self._every_us
        return at_us, self._draw(number, "place") % self._workers

    def _draw(self, number: int, what: str) -> int:
        drawn: int = xxhash.xxh3_64_intdigest(f"{what}/{number}".encode(), self._seed)
        return drawn


class SimulatedFleet:
    """The workers of one run, by their places."""

    def __init__(
        self,
        options: Options,
        agenda: Agenda,
        log: SimulatedLog,
        gone: set[WorkerId],
        *,
        on_output: OnOutput,
        on_worker_ended: Callable[[SimulatedWorker], None],
        reporter: Callable[[], str],
        on_verdict: Callable[[PrefillVerdict], None],
    ) -> None:
        """The fleet adds workers that end to `gone`, and calls `on_worker_ended` at once. The replica `reporter` writes
        the end to the log later. `on_verdict` is called for each prompt, if there are prefill workers."""
        self._gone = gone
        self._options = options
        self._agenda = agenda
        self._log = log
        self._on_output = on_output
        self._on_worker_ended = on_worker_ended
        self._reporter = reporter
        self._on_verdict = on_verdict
        self._queue = SimulatedPrefillQueue(agenda)
        self._peers = SimulatedPeers()
        self._lives = 0
        self._pools: dict[int, SimulatedPool] = {}
        """By place; of a pool that all workers share alone SHARED_POOL."""
        self._by_id: dict[WorkerId, SimulatedWorker] = {}
        self._detector = FailureDetector(LEASE_MS)
        self._alive_by_log: dict[WorkerId, SimulatedWorker] = {}
        self._absent: set[WorkerId] = set()
        """Those of them that the registry forgot."""
        self._observation = 0
        """The next one's number in the agenda."""
        self.lifetimes: list[WorkerLifetime] = []
        """Of all workers that a planner sizes, in the order of their starts."""
        first = options.first_prefill_place
        self._planned = {
            DECODE: PlannedWorkers(options.workers),
            PREFILL: PlannedWorkers(first + options.prefill_workers),
        }
        """By role, the workers that a planner sizes."""
        places = [*range(options.workers), *range(first, first + options.prefill_workers)]
        lives = [*options.stays, *map(WorkerLife, places[options.workers if options.stays else 0 :])]
        self._places = {life.place: self._begin(life) for life in lives if life.from_us <= 0}
        for life in lives:
            if life.from_us > 0:
                agenda.put(life.from_us, partial(self._begin, life))
        if options.planner is not None:
            for place, worker in self._places.items():
                self._planned[worker.role].ready[place] = worker, self._lifetime(worker.role)
        if options.failures_per_hour:
            self._failures = FailureSchedule(options.failures_per_hour, len(places), options.seed)
            self._fail_next()

    def __repr__(self) -> str:
        return f"<SimulatedFleet of {len(self._places)}, {len(self._gone)} ended so far>"

    @property
    def computed_tokens(self) -> tuple[int, ...]:
        """Prompt tokens computed at each place that decodes, by all workers there."""
        places = max((worker.place for worker in self._by_id.values() if worker.role == DECODE), default=-1) + 1
        found = [0] * max(self._options.workers, places)
        for worker in self._by_id.values():
            if worker.place < len(found):
                found[worker.place] += worker.computed_tokens
        return tuple(found)

    @property
    def pool_counts(self) -> PoolCounts | None:
        """Of all pools together; None if there are none."""
        counts = [pool.files.counts for pool in self._pools.values()]
        return PoolCounts(*map(sum, zip(*counts, strict=True))) if counts else None

    def worker(self, id: WorkerId) -> SimulatedWorker:
        """The worker with this id, alive or ended."""
        return self._by_id[id]

    def counts(self, role: str = DECODE) -> tuple[int, int]:
        """Workers of a planner's fleet that are ready, and those that drain."""
        return len(self._planned[role].ready), sum(each.role == role and each.drains for each in self.lifetimes)

    def start_worker(self, start: int, startup_us: int, on_ready: Callable[[int], None], role: str = DECODE) -> None:
        """A worker is ordered, and will be ready after that time; then `on_ready` is called with the order."""
        planned = self._planned[role]
        place = planned.take_place()
        at_us = self._agenda.now_us + startup_us
        number = self._agenda.put(at_us, partial(self._become_ready, start, on_ready, role))
        planned.starting[start] = StartingWorker(number, place, self._lifetime(role))

    def cancel_start(self, start: int, role: str = DECODE) -> None:
        """The ordered worker never comes."""
        planned = self._planned[role]
        number, place, life = planned.starting.pop(start)
        self._agenda.cancel(number)
        life.until_us = self._agenda.now_us
        planned.give_back(place)

    def drain_worker(self, role: str = DECODE) -> None:
        """The worker in the highest place takes no new requests. It leaves when it has none, or hands them over after
        DRAIN_US."""
        ready = self._planned[role].ready
        worker, life = ready.pop(max(ready))
        life.drained_us = self._agenda.now_us
        worker.drain()
        self._leave_when_idle(worker, life)

    def _lifetime(self, role: str) -> WorkerLifetime:
        self.lifetimes.append(WorkerLifetime(self._agenda.now_us, role))
        return self.lifetimes[-1]

    def _become_ready(self, start: int, on_ready: Callable[[int], None], role: str) -> None:
        planned = self._planned[role]
        _, place, life = planned.starting.pop(start)
        planned.ready[place] = self._new(place), life
        on_ready(start)

    def _leave_when_idle(self, worker: SimulatedWorker, life: WorkerLifetime) -> None:
        now_us = self._agenda.now_us
        if not worker.idle and now_us - life.drained_us < DRAIN_US:
            self._agenda.put(now_us + DRAIN_CHECK_US, partial(self._leave_when_idle, worker, life))
            return
        life.until_us, life.handed_over = now_us, not worker.idle
        self._gone.add(worker.id)
        worker.leave()
        self._alive_by_log.pop(worker.id)
        self._planned[life.role].give_back(worker.place)
        self._on_worker_ended(worker)

    def _begin(self, life: WorkerLife) -> SimulatedWorker:
        """The worker is there, and its end is scheduled."""
        worker = self._new(life.place, life.capacity_blocks)
        if life.until_us != FOREVER:
            self._agenda.put(life.until_us, partial(self._end, worker, life.reported_us))
        return worker

    def _end(self, worker: SimulatedWorker, reported_us: int) -> None:
        """The worker gets no new requests; if it was lost, its requests go on elsewhere."""
        self._gone.add(worker.id)
        if reported_us != FOREVER:
            worker.crash()
            self._agenda.put(reported_us, lambda: worker.write_loss(self._reporter()))
            self._on_worker_ended(worker)

    def _new(self, place: int, capacity_blocks: int = 0) -> SimulatedWorker:
        self._lives += 1
        engine = self._options.worker_engine
        if capacity_blocks:
            engine = dataclasses.replace(engine, capacity_blocks=capacity_blocks)
        name = WorkerId(xxhash.xxh3_64_hexdigest(f"worker/{self._lives}".encode(), self._options.seed))
        has_prefill = self._options.prefill_workers and place >= self._options.first_prefill_place
        role = PREFILL if has_prefill else DECODE
        worker = SimulatedWorker(name, place, engine, self._agenda, self._log, self._on_output, role, self._pool(place))
        self._by_id[name] = self._alive_by_log[name] = worker
        worker.join()
        if self._options.prefill_workers:
            self._set_role(worker)
        return worker

    def _pool(self, place: int) -> SimulatedPool | None:
        """The blocks behind the host tiers: one pool of all workers, or one that stays in its place."""
        options, engine = self._options, self._options.engine
        shared, capacity = options.pool_blocks > 0, options.pool_blocks or engine.disk_blocks
        if not capacity:
            return None
        at = SHARED_POOL if shared else place
        if at not in self._pools:
            name = f"pool/{options.seed}/{at}"
            self._pools[at] = SimulatedPool(
                name, capacity, self._agenda, self._log, shared=shared, block_size=engine.block_size
            )
        return self._pools[at]

    def _set_role(self, worker: SimulatedWorker) -> None:
        """The worker has its role: it requests prefill jobs, or executes them."""
        peers, queue, agenda = self._peers, self._queue, self._agenda
        if worker.role == PREFILL:
            worker.jobs = SimulatedSource(self._log, JOBS, worker.id, token=answered_token(worker.id))
            worker.side = SimulatedPrefillRole(worker, peers, queue, worker.jobs, agenda)
        else:
            token = asked_token(worker.id, job_kind(MODEL, worker.settings.block_size))
            worker.jobs = SimulatedSource(self._log, JOBS, worker.id, token=token)
            worker.side = SimulatedDecodeRole(
                worker, peers, queue, worker.jobs, agenda, self._options.routing,
                jobs=self._log.jobs, on_verdict=self._on_verdict,
            )  # fmt: skip

    def _fail_next(self) -> None:
        at_us, place = self._failures.next()
        self._agenda.put(at_us, partial(self._fail, place))

    def _fail(self, place: int) -> None:
        """The worker in that place ends, unless the one before it is not replaced yet."""
        self._fail_next()
        worker = self._places[place]
        if not worker.alive:
            return
        worker.crash()
        self._gone.add(worker.id)
        self._agenda.put(self._agenda.now_us + LEASE_MS * 1000, partial(self._expire, worker))
        self._agenda.put(self._agenda.now_us + RESTART_US, partial(self._replace, place))
        self._on_worker_ended(worker)

    def _replace(self, place: int) -> None:
        self._places[place] = self._new(place)

    def _expire(self, worker: SimulatedWorker) -> None:
        """The registry forgets the worker."""
        self._absent.add(worker.id)
        self._observe()

    def _observe(self) -> None:
        """The detector of a replica without lag sees registry and connections, and the log has the ends that it
        decides."""
        workers, now_us = self._alive_by_log.values(), self._agenda.now_us
        seen = Observed(
            alive={each.id: AliveWorker(f"virtual:{each.place}", KV) for each in workers},
            registered=self._alive_by_log.keys() - self._absent,
            registry_healthy=True,
            connections={each.id: ConnectionState(each.alive, int(not each.alive), 0, 0) for each in workers},
            silent_sources=(),
        )
        for command in self._detector.step(seen, now_us):
            if isinstance(command, WriteEnd):  # a dead worker has no connection to cut
                self._write_end(command)
        self._agenda.cancel(self._observation)
        if self._absent:
            self._observation = self._agenda.put(now_us + OBSERVE_EVERY_US, self._observe)

    def _write_end(self, end: WriteEnd) -> None:
        worker = self._alive_by_log.pop(WorkerId(end.source))
        self._absent.remove(worker.id)
        worker.write_loss(self._reporter())
        self._detector.step(EndWritten(end.streams[0], end.source), self._agenda.now_us)
