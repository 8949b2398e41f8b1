"""Simulation: arrivals of a trace through the real decisions and simulated engines, in virtual time.

Requests arrive, replicas decide, workers serve, in one thread without clock or randomness. The same options and
arrivals give the same decisions, the same results and the same log, byte by byte: every event has its place in one
agenda, and every draw comes from the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import xxhash

from actors.engines.simulated.engine_profile import profile
from actors.engines.simulated.engine_state import Submit
from actors.engines.simulated.sequence import BlockHashPrompt
from actors.engines.simulated.simulated_pool_files import PoolCounts
from actors.planning.planner import Planner
from actors.router.request_scheduler import (
    REFUSED,
    Arrived,
    AttemptBroke,
    Complete,
    Deliver,
    Fail,
    LoadChanged,
    OutputArrived,
    Publish,
    PublishLocal,
    SchedulerCommand,
    Send,
)
from actors.router.routed_request import Phase
from actors.transport.worker_connection import WorkerDeclined, WorkerDisconnected
from core.errors import CallerError
from core.events import Event, RequestRejected, RequestRouted
from core.events.routing import TURNED_AWAY, PrefixFetch
from core.generation import Output
from core.ids import ReplicaId, RequestId, WorkerId
from core.models import NoWorkers
from core.prompt import HASH_BYTES
from projections.scaling.scale_settings import ScaleSettings
from replay.parallel import Progress, collector_paused
from replay.simulate.options import Options
from replay.simulate.report import TOO_LONG, PrefillVerdict, ServedRequest
from replay.simulate.simulated_fleet import SimulatedFleet, WorkerLifetime
from replay.simulate.simulated_log import KEY, NAMESPACE, START_MS, SimulatedLog
from replay.simulate.simulated_planner import Judge, MakePlanner, SimulatedPlanner, SimulatedRolePlanner
from replay.simulate.simulated_replica import SimulatedReplica
from replay.simulate.simulated_request import SimulatedRequest
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda
from replay.simulate.workload import Arrival, FollowUp
from streams.archive.archive_writer import ArchiveWriter

PROGRESS_EVERY = 100
"""Requests that end between two calls of `progress`."""
BROKE = "its worker ended"
US_PER_S = 1_000_000


class Simulation:
    """One run in virtual time; it runs once."""

    def __init__(
        self,
        options: Options,
        arrivals: Sequence[Arrival],
        progress: Progress,
        archive: ArchiveWriter | None,
        follows: Mapping[RequestId, FollowUp] = MappingProxyType({}),
        *,
        on_verdict: Callable[[PrefillVerdict], None],
        make_planner: MakePlanner = Planner,
        judge: Judge | None = None,
    ) -> None:
        self.served: list[ServedRequest | None] = [None] * len(arrivals)
        """In the order of the arrivals."""
        self._options = options
        self._arrivals = arrivals
        self._follows = follows
        self._report_verdict = on_verdict
        self._followers = self._find_followers()
        self._progress = progress
        self._agenda = Agenda()
        self.log = SimulatedLog(
            self._agenda,
            archive,
            jobs=options.prefill_workers > 0,
            scale=options.planner is not None,
            clock=options.broker_clock,
        )
        gone = set[WorkerId]()
        """Workers that ended: no replica has a connection to them."""
        self._replicas = [self._replica(number, gone) for number in range(options.replicas)]
        self._fleet = SimulatedFleet(
            options,
            self._agenda,
            self.log,
            gone,
            on_output=self._on_output,
            on_worker_ended=self._on_worker_ended,
            reporter=lambda: self._replicas[0].id,
            on_verdict=self._on_verdict,
        )
        if options.planner is not None:
            self._planner = self._make_planner(options.planner, make_planner, judge)
        self._requests: dict[RequestId, SimulatedRequest] = {}
        """Requests under way, in the order of their arrivals."""
        self._arrived = self._ended = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __repr__(self) -> str:
        return f"<Simulation at {self._agenda.now_us} us, {self._ended} of {len(self._arrivals)} requests ended>"

    def run(self) -> str:
        """Every request has ended; returns the digest of all decisions and of all results."""
        self._progress(0, len(self._arrivals))
        self.log.begun = True
        for _ in range(self._options.concurrency or len(self._arrivals)):
            self._schedule_next()
        while self._ended < len(self._arrivals):
            happened = self._agenda.advance()
            assert happened, "requests are under way, and nothing is to happen"
        for replica in self._replicas:
            replica.flush()
        for served in self.served:
            assert served is not None
            *fields, declined, _why = served  # the reason follows from the rest
            self._digest.update(repr((*fields, -1, declined)).encode())  # -1: digests stay those of earlier versions
        return self._digest.hexdigest()

    @property
    def computed_tokens(self) -> tuple[int, ...]:
        """By place in the fleet: see `SimulationResult`."""
        return self._fleet.computed_tokens

    @property
    def lifetimes(self) -> list[WorkerLifetime]:
        """Of the workers of a planner's fleet; empty without a planner."""
        return self._fleet.lifetimes

    @property
    def pool_counts(self) -> PoolCounts | None:
        """Of all disks or the pool; None if there are none."""
        return self._fleet.pool_counts

    def _make_planner(
        self, settings: ScaleSettings, make_planner: MakePlanner, judge: Judge | None
    ) -> SimulatedPlanner | SimulatedRolePlanner:
        options = self._options
        speed = options.profile if options.learns else profile(options.engine)
        if options.prefill_workers:
            return SimulatedRolePlanner(options, speed, self._agenda, self.log, self._fleet)
        machine = make_planner(settings, speed)
        return SimulatedPlanner(options, machine, self._agenda, self.log, self._fleet, judge)

    def _replica(self, number: int, gone: set[WorkerId]) -> SimulatedReplica:
        options = self._options
        return SimulatedReplica(
            ReplicaId(xxhash.xxh3_64_hexdigest(f"replica/{number}".encode(), options.seed)),
            f"replica-{number}",
            options.lag_us(number),
            options.routing,
            self._agenda,
            self.log,
            slots=options.engine.max_seqs,
            seed=options.seed,
            gone=gone,
            freed=partial(self._on_worker_freed, number),
            execute=partial(self._execute, number),
            clock=options.clock(number),
            from_zero=options.planner is not None and not options.planner.min,
            clock_is_corrected=options.clocks_corrected,
            continues=options.continues or options.learns,  # ends have their stages in the latest version alone
        )

    # --- requests ----------------------------------------------------------------------------------------------

    def _schedule_next(self, after_us: int = 0) -> None:
        """The next request is scheduled: at its time, or with a concurrency `after_us` from now."""
        if self._arrived < len(self._arrivals):
            number, self._arrived = self._arrived, self._arrived + 1
            if self._arrivals[number].id in self._follows:
                return  # comes when the other one has ended
            at_us = self._agenda.now_us + after_us if self._options.concurrency else self._arrivals[number].at_us
            self._agenda.put(at_us, partial(self._arrive, number))

    def _find_followers(self) -> dict[RequestId, list[int]]:
        """By request, the numbers of the arrivals that follow it."""
        found: dict[RequestId, list[int]] = {}
        for number, arrival in enumerate(self._arrivals):
            if arrival.id in self._follows:
                found.setdefault(self._follows[arrival.id].request, []).append(number)
        return found

    def _arrive(self, number: int) -> None:
        arrival, replica, now_us = self._arrivals[number], number % len(self._replicas), self._agenda.now_us
        request = SimulatedRequest(arrival, number, now_us, replica, self._options.engine.block_size)
        self._requests[arrival.id] = request
        self._replicas[replica].feed(Arrived(request.routed))

    def _execute(self, replica: int, command: SchedulerCommand) -> None:
        """Executes a command of the replica's scheduler; no client goes away here, and no plan takes time."""
        match command:
            case Publish(event):
                self._published(replica, event)
            case PublishLocal(local):
                self._replicas[replica].publish_local(local)
            case Send():
                self._send(command)
            case Deliver(routed, _):
                self._requests[routed.id].delivered()
            case Complete(routed):
                self._end(self._requests[routed.id])
            case Fail(routed, error):
                failed = TOO_LONG if routed.outcome == REFUSED else routed.outcome
                retry_s = error.retry_after_s if isinstance(error, NoWorkers) and failed in TURNED_AWAY else 0
                self._end(self._requests[routed.id], failed, retry_s)

    def _published(self, replica: int, event: Event) -> None:
        self._replicas[replica].publish(event)
        if isinstance(event, RequestRouted):
            self._digest.update(repr((event.request, event.attempt, event.worker, event.digest)).encode())
        elif isinstance(event, RequestRejected):
            self._digest.update(repr((event.request, event.attempt, event.reason)).encode())

    def _send(self, command: Send) -> None:
        """The attempt is with its worker, or broke at once."""
        routed, request = command.request, self._requests[command.request.id]
        assert routed.routed is not None
        worker, decision = self._fleet.worker(command.worker), routed.routed
        request.sent(decision, worker.place, self._agenda.now_us)
        known = BlockHashPrompt(decision.prompt_tokens, decision.hashes)
        fetch, fetchable = command.payload.fetch, 0
        if fetch is not None and isinstance(decision.fetch, PrefixFetch):
            source = self._fleet.worker(WorkerId(decision.fetch.source))
            fetchable = source.fetchable(decision.hashes, fetch.blocks)
        try:
            worker.submit(Submit(command.payload, known=known, fetchable=fetchable), command.hint, request.replica)
        except (WorkerDeclined, CallerError) as error:
            self._replicas[request.replica].feed(AttemptBroke(routed.id, routed.attempt, error))

    def _on_worker_freed(self, by: int) -> None:
        """The other replicas read that a worker may be free, each after its lag."""
        for number, replica in enumerate(self._replicas):
            if number != by and replica.scheduler.has_waiting:
                self._agenda.put(self._agenda.now_us + replica.lag_us, partial(replica.feed, LoadChanged()))

    def _on_output(self, request_id: RequestId, output: Output, at_us: int) -> None:
        """A worker has made tokens."""
        request = self._requests[request_id]
        routed = request.routed
        if routed.flowing and output.finish is None:
            routed.pass_on(output)
        else:
            self._replicas[request.replica].feed(OutputArrived(request_id, routed.attempt, output, at_us))

    def _on_verdict(self, verdict: PrefillVerdict) -> None:
        """The verdict on a prompt is part of the digest and passed on."""
        self._digest.update(repr(tuple(verdict)).encode())
        self._report_verdict(verdict)

    def _on_worker_ended(self, worker: SimulatedWorker) -> None:
        """A worker has ended: its requests go on elsewhere."""
        for request in list(self._requests.values()):
            routed = request.routed
            if routed.phase is Phase.RUNNING and routed.worker == worker.id:
                error = WorkerDisconnected(BROKE)
                self._replicas[request.replica].feed(AttemptBroke(routed.id, routed.attempt, error))
        for replica in self._replicas:
            replica.feed(LoadChanged())  # a request that is held for it may go elsewhere

    def _end(self, request: SimulatedRequest, failed: str = "", retry_s: int = 0) -> None:
        """The request was answered, or has failed for this reason. With a concurrency the next one comes when its
        client was told to send it."""
        del self._requests[request.arrival.id]
        self.served[request.number] = request.served(self._agenda.now_us, failed)
        for number in self._followers.get(request.arrival.id, ()):
            pause_us = self._follows[self._arrivals[number].id].pause_us
            self._agenda.put(self._agenda.now_us + pause_us, partial(self._arrive, number))
        self._ended += 1
        if self._ended % PROGRESS_EVERY == 0 or self._ended == len(self._arrivals):
            self._progress(self._ended, len(self._arrivals))
        if self._options.concurrency:
            self._schedule_next(retry_s * US_PER_S)


PROGRAM = "contrail simulate"
"""Name of the program in archives."""


class SimulationResult(NamedTuple):
    """Results of a run."""

    served: list[ServedRequest]
    """In the order of the arrivals."""
    digest: str
    """Digest of every decision and every result: equal digests mean equal runs."""
    computed_tokens: tuple[int, ...]
    """By place in the fleet: prompt tokens that workers there computed, for requests that ended elsewhere or failed,
    too."""
    lifetimes: list[WorkerLifetime]
    """Of the workers of a planner's fleet; empty without a planner."""
    pool: PoolCounts | None = None
    """Of all disks or the pool; None if there are none."""


def simulate(
    options: Options,
    arrivals: Iterable[Arrival],
    progress: Progress = lambda _done, _of: None,
    archive: Path | None = None,
    follows: Mapping[RequestId, FollowUp] = MappingProxyType({}),
    *,
    on_verdict: Callable[[PrefillVerdict], None] = lambda _verdict: None,
    make_planner: MakePlanner = Planner,
    judge: Judge | None = None,
) -> SimulationResult:
    """Results of a run of all arrivals. `progress` gets how many have ended, of how many. The run's log is in the file
    `archive`, if one is named. Requests in `follows` come after others, not at their own times. `on_verdict` is called
    with where each prompt was computed, if there are prefill workers, in the order of first tokens. `make_planner`
    makes the machine that sizes the fleet, if the options have a planner, and `judge` answers its questions; without
    one they have no answer. CallerError if arrivals are not valid, or the
    file cannot be written."""
    arrivals = list(arrivals)
    _check(arrivals, options.engine.block_size)
    _check_follows(arrivals, follows)
    writer = None if archive is None else ArchiveWriter(archive, NAMESPACE, KEY.chain_key, PROGRAM, START_MS)
    try:
        simulation = Simulation(
            options, arrivals, progress, writer, follows, on_verdict=on_verdict, make_planner=make_planner, judge=judge
        )
        with collector_paused():
            digest = simulation.run()
        if writer is not None:
            writer.finish(writer.contents(START_MS, simulation.log.now_ms))
    except BaseException:  # of any kind: half a log is of no use
        if writer is not None:
            writer.abandon()
        raise
    return SimulationResult(
        [each for each in simulation.served if each is not None],
        digest,
        simulation.computed_tokens,
        simulation.lifetimes,
        simulation.pool_counts,
    )


def _check_follows(arrivals: list[Arrival], follows: Mapping[RequestId, FollowUp]) -> None:
    before: set[RequestId] = set()
    for arrival in arrivals:
        if arrival.id in follows and (follows[arrival.id].request not in before or follows[arrival.id].pause_us < 0):
            raise CallerError(f"{arrival.id} is to follow {follows[arrival.id].request}, which must stand before it")
        before.add(arrival.id)


def _check(arrivals: list[Arrival], block_size: int) -> None:
    if len({arrival.id for arrival in arrivals}) < len(arrivals):
        raise CallerError("two requests of the trace have the same id: give each its own")
    for arrival in arrivals:
        blocks = arrival.prompt_tokens // block_size
        if len(arrival.hashes) != blocks * HASH_BYTES or arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
            raise CallerError(
                f"{arrival.id}: a prompt of {arrival.prompt_tokens} tokens with {len(arrival.hashes) // HASH_BYTES} "
                f"hashes, and an answer of {arrival.output_tokens}; give both a token at least, and each full block of "
                f"{block_size} tokens its hash"
            )
