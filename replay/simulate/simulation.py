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

from actors.router.admission import REFRESH_EVERY_S
from actors.router.dispatch import DECLINED_MAX, RESUME_RETRY_S, RESUME_WAIT_S
from actors.transport.worker_connection import WorkerDeclined
from core.errors import CallerError
from core.events import RequestPrefilled
from core.generation import Output
from core.ids import ReplicaId, RequestId, WorkerId
from core.models import GenerationFailed, NoWorkers
from core.prompt import HASH_BYTES
from projections.policy.binding_plan import held_max
from projections.policy.view import RouteRequest
from replay.simulate.options import Options
from replay.simulate.report import LOST, TOO_LONG, PrefillVerdict, ServedRequest
from replay.simulate.simulated_fleet import SimulatedFleet
from replay.simulate.simulated_log import KEY, NAMESPACE, START_MS, SimulatedLog
from replay.simulate.simulated_replica import PendingDecision, SimulatedAdmission, SimulatedReplica
from replay.simulate.simulated_request import SimulatedRequest
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda
from replay.simulate.workload import Arrival, FollowUp
from replay.verify.process_pool import collector_paused
from streams.archive.archive_writer import ArchiveWriter

PROGRESS_EVERY = 100
"""Requests that ended between two words on how far it is."""
BROKE = "its worker ended"
REFUSED = "the engine refused the request"
US_PER_S = 1_000_000
RESUME_WAIT_US = round(RESUME_WAIT_S * US_PER_S)
RESUME_LOOK_US = round(RESUME_RETRY_S * US_PER_S)
LOOK_EVERY_US = round(REFRESH_EVERY_S * US_PER_S)

Progress = Callable[[int, int], None]
"""Told requests that ended, and how many there are."""


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
        judged: Callable[[PrefillVerdict], None],
    ) -> None:
        self.served: list[ServedRequest | None] = [None] * len(arrivals)
        """In the order of the arrivals."""
        self._options = options
        self._arrivals = arrivals
        self._follows = follows
        self._judged = judged
        self._after = self._followers()
        self._progress = progress
        self._agenda = Agenda()
        self.log = SimulatedLog(self._agenda, archive, jobs=options.prefill_workers > 0)
        self._replicas = [self._replica(number) for number in range(options.replicas)]
        self._fleet = SimulatedFleet(
            options,
            self._agenda,
            self.log,
            heard=self._heard,
            broke=self._broke,
            speaker=lambda: self._replicas[0].id,
            judged=self._judge,
        )
        self._admissions = [self._admission(replica) for replica in self._replicas]
        """Where requests wait for a place in the fleet, by replica."""
        self._requests: dict[RequestId, SimulatedRequest] = {}
        """Those under way, in the order in which they came."""
        self._holds = options.routing.holds and not options.prefill_workers  # as `actors.router.dispatch`
        self._planning: set[int] = set()
        """Numbers of replicas that are about to plan."""
        self._looking: set[int] = set()
        """Of those that will look again in a moment, since somebody waits there for others to be less busy."""
        self._arrived = self._ended = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __repr__(self) -> str:
        return f"<Simulation at {self._agenda.now_us} us, {self._ended} of {len(self._arrivals)} requests ended>"

    def run(self) -> str:
        """Every request has ended; returns the digest of all decisions and of all results."""
        self._progress(0, len(self._arrivals))
        self.log.begun = True
        for _ in range(self._options.concurrency or len(self._arrivals)):
            self._expect()
        while self._ended < len(self._arrivals):
            happened = self._agenda.advance()
            assert happened, "requests are under way, and nothing is to happen"
        for replica in self._replicas:
            replica.flush()
        for served in self.served:
            self._digest.update(repr(tuple(served or ())[:-1]).encode())  # `why` follows from the rest
        return self._digest.hexdigest()

    @property
    def computed_tokens(self) -> tuple[int, ...]:
        """By place in the fleet: see `SimulationResult`."""
        return self._fleet.computed_tokens

    def _replica(self, number: int) -> SimulatedReplica:
        options = self._options
        return SimulatedReplica(
            ReplicaId(xxhash.xxh3_64_hexdigest(f"replica/{number}".encode(), options.seed)),
            f"replica-{number}",
            options.lag_us(number),
            options.routing,
            self._agenda,
            self.log,
            partial(self._freed, number),
        )

    def _admission(self, replica: SimulatedReplica) -> SimulatedAdmission:
        options = self._options
        return SimulatedAdmission(
            options.routing,
            self._agenda,
            self.log,
            room=lambda: replica.room(self._fleet.gone, options.engine.max_seqs),
            say=replica.say,
            let_in=self._begin,
            turned_away=self._end,
        )

    # --- requests ----------------------------------------------------------------------------------------------

    def _expect(self, after_us: int = 0) -> None:
        """The next request will come: at its time, or so much later than now if as many as are wanted are under way at
        once."""
        if self._arrived < len(self._arrivals):
            number, self._arrived = self._arrived, self._arrived + 1
            if self._arrivals[number].id in self._follows:
                return  # comes when the other one has ended
            at_us = self._agenda.now_us + after_us if self._options.concurrency else self._arrivals[number].at_us
            self._agenda.put(at_us, partial(self._arrive, number))

    def _followers(self) -> dict[RequestId, list[int]]:
        """Of each request, who comes after it."""
        found: dict[RequestId, list[int]] = {}
        for number, arrival in enumerate(self._arrivals):
            if arrival.id in self._follows:
                found.setdefault(self._follows[arrival.id].request, []).append(number)
        return found

    def _arrive(self, number: int) -> None:
        arrival, replica, now_us = self._arrivals[number], number % len(self._replicas), self._agenda.now_us
        request = SimulatedRequest(arrival, number, now_us, replica, self._options.engine.block_size)
        self._requests[arrival.id] = request
        if self._admissions[replica].enter(request):
            self._begin(request)
        else:
            self._look_later(replica)

    def _begin(self, request: SimulatedRequest) -> None:
        """It has a place in the fleet, and is held or on its way."""
        now_us = self._agenda.now_us
        if self._holds:
            self._agenda.put(now_us + self._options.routing.hold_max_ms * 1000, partial(self._hold_no_longer, request))
            self._hold(request, self.log.now_ms)
        else:
            self._route(request)

    def _hold(self, request: SimulatedRequest, since_ms: int) -> None:
        """The next attempt waits in its replica until a worker is free for it."""
        asked, replica = request.asked(), self._replicas[request.replica]
        replica.hold(asked, since_ms, self._seed(asked))
        if replica.holds > held_max(self._options.workers):
            self._hold_no_longer(self._requests[replica.first_held])
        self._plan_soon(request.replica)

    def _route(self, request: SimulatedRequest) -> None:
        """Its next attempt is with a worker, or it has failed; an answer that was begun waits for a worker."""
        until_us = self._agenda.now_us + (RESUME_WAIT_US if request.told else 0)
        self._try(request, request.asked(), until_us)

    def _try(self, request: SimulatedRequest, asked: RouteRequest, until_us: int) -> None:
        replica, now_us = self._replicas[request.replica], self._agenda.now_us
        choice = replica.decide(asked, self._fleet.gone, self._seed(asked))
        if choice.decision.worker is None and now_us < until_us:
            self._agenda.put(now_us + RESUME_LOOK_US, partial(self._try, request, asked, until_us))
            return
        self._send(request, choice)

    def _send(self, request: SimulatedRequest, choice: PendingDecision) -> None:
        """The request is with the worker that was chosen, or it has failed."""
        replica, now_us, decision = self._replicas[request.replica], self._agenda.now_us, choice.decision
        if not choice.asked.attempt:
            request.others_differ = self._others_differ(request, choice)
        said = (choice.asked.id, choice.asked.attempt, decision.worker, decision.digest)
        self._digest.update(repr(said).encode())
        if decision.worker is None:
            self._end(request, replica.reject(choice, begun=request.told > 0))
            return
        if request.told:
            replica.say(request.migrated(BROKE))
        worker = self._fleet.worker(decision.worker)
        submit = request.sent(replica.record(choice), worker.place, now_us)
        try:
            worker.submit(submit, request.hint(if_free=choice.if_free), request.replica)
        except WorkerDeclined as error:
            self._declined(request, worker, error)
        except CallerError:
            replica.say(request.finished("error", now_us, REFUSED))
            self._end(request, TOO_LONG)

    def _declined(self, request: SimulatedRequest, worker: SimulatedWorker, error: WorkerDeclined) -> None:
        """As `actors.router.dispatch`: it is held again, unless that was often enough."""
        now_us, replica = self._agenda.now_us, self._replicas[request.replica]
        replica.say(request.finished("declined", now_us, error.detail))
        request.declined += 1
        request.worker = WorkerId("")
        self._agenda.put(replica.declined(worker.id, error.tokens), partial(self._plan_soon, request.replica))
        if request.declined < DECLINED_MAX:
            since_ms = self.log.now_ms - (now_us - request.placed_us) // 1000
            self._agenda.put(now_us, partial(self._hold, request, since_ms))
        else:
            self._agenda.put(now_us, partial(self._route, request))

    def _plan_soon(self, replica: int) -> None:
        """Once for all that happens at this time."""
        if self._holds and replica not in self._planning:
            self._planning.add(replica)
            self._agenda.put(self._agenda.now_us, partial(self._plan, replica))

    def _plan(self, replica: int) -> None:
        """What the replica holds is with a worker, if it is to go now."""
        self._planning.remove(replica)
        for choice in self._replicas[replica].plan(self._fleet.gone):
            self._send(self._requests[choice.asked.id], choice)
        self._look_later(replica)

    def _freed(self, by: int) -> None:
        """The others hear from the log that a worker may be free, each when it has read so far."""
        for number, replica in enumerate(self._replicas):
            if number != by and (replica.holds or len(self._admissions[number])):
                self._agenda.put(self._agenda.now_us + replica.lag_us, partial(self._look, number))

    def _look(self, replica: int) -> None:
        """Whoever waits there and need not goes on."""
        self._admissions[replica].look()
        self._plan_soon(replica)

    def _look_later(self, replica: int) -> None:
        """If somebody waits there for others to be less busy, whose word on that is not waited for one by one."""
        if replica not in self._looking and (len(self._admissions[replica]) or self._replicas[replica].stuck):
            self._looking.add(replica)
            self._agenda.put(self._agenda.now_us + LOOK_EVERY_US, partial(self._look_again, replica))

    def _look_again(self, replica: int) -> None:
        self._looking.remove(replica)
        self._look(replica)
        self._look_later(replica)

    def _hold_no_longer(self, request: SimulatedRequest) -> None:
        """If it is still held, it goes where it costs least by now."""
        asked = self._replicas[request.replica].let_go(request.arrival.id)
        if asked is not None:
            self._try(request, asked, self._agenda.now_us)

    def _others_differ(self, request: SimulatedRequest, choice: PendingDecision) -> int:
        """How many of the other replicas would choose another worker now, held up by the same others if the request
        was held; -1 if they are not to be asked."""
        every = self._options.compare_every
        if not every or request.number % every or len(self._replicas) == 1:
            return -1
        gone, asked = self._fleet.gone, choice.asked
        others = [each for number, each in enumerate(self._replicas) if number != request.replica]
        return sum(each.would_choose(asked, gone, self._seed(asked)) != choice.decision.worker for each in others)

    def _seed(self, asked: RouteRequest) -> int:
        drawn: int = xxhash.xxh3_64_intdigest(f"draw/{asked.id}/{asked.attempt}".encode(), self._options.seed)
        return drawn

    def _heard(self, request_id: RequestId, output: Output, at_us: int) -> None:
        """A worker has made tokens."""
        request = self._requests[request_id]
        for event in request.heard(output, at_us):
            self._replicas[request.replica].say(event)
            if isinstance(event, RequestPrefilled):
                self._plan_soon(request.replica)  # a worker may be free for what is held
        if output.finish is not None:
            self._end(request)

    def _judge(self, verdict: PrefillVerdict) -> None:
        """It is known where a prompt was computed."""
        self._digest.update(repr(tuple(verdict)).encode())
        self._judged(verdict)

    def _broke(self, worker: SimulatedWorker) -> None:
        """A worker is gone: what it served goes on elsewhere."""
        for request in [each for each in self._requests.values() if each.worker == worker.id]:
            replica = self._replicas[request.replica]
            replica.say(request.finished("worker_lost", self._agenda.now_us, BROKE))
            try:
                request.tries.failed(request.told, BROKE)
            except (GenerationFailed, NoWorkers):
                self._end(request, LOST)
            else:
                self._route(request)
        for number in range(len(self._replicas)):
            self._plan_soon(number)  # what is held for it may go elsewhere

    def _end(self, request: SimulatedRequest, failed: str = "", retry_s: int = 0) -> None:
        """It was answered, or has failed, and why. Who sends as many as are wanted at once sends the next one when it
        was told to."""
        del self._requests[request.arrival.id]
        self.served[request.number] = request.served(self._agenda.now_us, failed)
        self._admissions[request.replica].ended(request, whole=not failed)
        for number in self._after.get(request.arrival.id, ()):
            pause_us = self._follows[self._arrivals[number].id].pause_us
            self._agenda.put(self._agenda.now_us + pause_us, partial(self._arrive, number))
        self._ended += 1
        if self._ended % PROGRESS_EVERY == 0 or self._ended == len(self._arrivals):
            self._progress(self._ended, len(self._arrivals))
        if self._options.concurrency:
            self._expect(retry_s * US_PER_S)


PROGRAM = "contrail simulate"
"""As an archive names who made it."""


class SimulationResult(NamedTuple):
    """What came of a run."""

    served: list[ServedRequest]
    """In the order of the arrivals."""
    digest: str
    """Of every decision and every result: equal digests mean equal runs."""
    computed_tokens: tuple[int, ...]
    """By place in the fleet: prompt tokens that workers there computed, for requests that ended elsewhere or failed,
    too."""


def simulate(
    options: Options,
    arrivals: Iterable[Arrival],
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    archive: Path | None = None,
    follows: Mapping[RequestId, FollowUp] = MappingProxyType({}),
    *,
    judged: Callable[[PrefillVerdict], None] = lambda _verdict: None,
) -> SimulationResult:
    """All arrivals served; `progress` hears how many have ended of how many. The run's log is in the file `archive`,
    if one is named. Requests in `follows` come after others, not at their own times. `judged` hears where prompts
    were computed, if there are prefill workers, in the order of first tokens. CallerError if arrivals are not what they
    should be, or the file cannot be written."""
    arrivals = list(arrivals)
    _check(arrivals, options.engine.block_size)
    _check_follows(arrivals, follows)
    writer = None if archive is None else ArchiveWriter(archive, NAMESPACE, KEY.chain_key, PROGRAM, START_MS)
    try:
        simulation = Simulation(options, arrivals, progress, writer, follows, judged=judged)
        with collector_paused():
            digest = simulation.run()
        if writer is not None:
            writer.finish(writer.contents(START_MS, simulation.log.now_ms))
    except BaseException:  # whatever it was, half a log is of no use
        if writer is not None:
            writer.abandon()
        raise
    return SimulationResult(
        [each for each in simulation.served if each is not None], digest, simulation.computed_tokens
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
