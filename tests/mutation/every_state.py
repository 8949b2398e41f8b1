"""A log with every state: that of `tests.golden.make_decisions` (all policies, temperatures, tiers, clears, restated
caches, stale credit, holding, verdicts), and the states that decisions alone do not need.

These are runs of blocks that several workers hold, prefill jobs with a gap, migrations, restatements with requests in
flight, workers and replicas that end, own events not read back, decisions that continue others, decisions, first tokens
and ends in all their forms, digests that the replicas report, and the rare states of `rare_states`. `state_counts`
counts them all.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from msgspec import structs

from core.codec import CHAIN_START, digest
from core.events import (
    CacheCleared,
    Event,
    RequestFinished,
    RequestMigrated,
    RequestPrefilled,
    RequestRouted,
    WorkerLeft,
    WorkerLost,
)
from core.events.jobs import JobsRestated
from core.events.routing import COMPACT_VERSION, CONTINUED_VERSION, PROGRESS_VERSION, SHORT_VERSION, ReplicaLost
from core.generation import PrefillReport
from core.ids import LOST_SUFFIX, ReplicaId, StreamName
from core.prompt import hashes_from_bytes
from core.settings import TIERS, RoutingSettings
from core.subjects import JOBS, LOAD, ROUTING, asked_token
from projections.policy.prefill_choice import REMOTE
from tests.golden.make_decisions import DecisionLog
from tests.mutation.rare_states import RareStates, continued
from tests.projections.facts import (
    finished,
    joined,
    load,
    prefilled,
    prompt,
    removed_chain,
    replica_restated,
    stored,
    stored_chain,
    worker_id,
)
from tests.projections.job_facts import asked, cancelled, completed, pulled, started
from tests.replay.staged import KEY, KV, R, S, Stage

RUNNERS = [worker_id(31), worker_id(32), worker_id(33)]
"""Decode workers that report their blocks with their places, as engines do."""
REQUESTER, ANSWERER = worker_id(31), worker_id(21)
T = ReplicaId("cc" * 8)
"""A replica that is lost with requests in flight."""
REPORT_EVERY = 12
"""Requests between two reports of digests."""
LONG_BLOCKS = 45
FIRST_TURN, LAST_TURN = 20, 80
"""Blocks of a talk's first prompt, and most of its last one."""
FORMS = (CONTINUED_VERSION, COMPACT_VERSION, SHORT_VERSION)
"""Versions of decisions, of which a replica writes one while all live ones read it. Whole decisions of the first are of
version 1."""


class _Turn(NamedTuple):
    """One decision that the next one of its talk continues."""

    seq: int
    """Of its message."""
    root: int
    """The same of the talk's first decision."""
    tokens: list[int]


class EveryFormStage(Stage):
    """A stage where the messages of each replica take turns in the forms of decisions, first tokens and ends."""

    def sealed(self, stream: StreamName, source: str, *events: Event) -> bytes:
        """The next message of the source, in the form of its number."""
        n, _ = self._chains.get((stream, source), (0, CHAIN_START))
        return super().sealed(stream, source, *(_in_form(event, FORMS[n % len(FORMS)]) for event in events))


class EveryStateLog(DecisionLog):
    """The same dice for what is inherited, and dice of its own for what is added."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = EveryFormStage()
        self._more, self._turn_dice = random.Random(17), random.Random(23)
        self._depths: dict[tuple[str, int], int] = {}
        """Blocks of a family that a worker holds."""
        self._talks: dict[int, _Turn] = {}
        """The last turn of each, by family."""
        self._jobs: list[str] = []
        """Open ones, oldest first."""
        self._job = 0
        self._events = 0
        self.stage.frames[JOBS] = []

    def run(self) -> Stage:
        stage = self.stage
        for number, worker in enumerate(RUNNERS):
            stage.say(KV, worker, joined(f"runner-{number}"))
            stage.say(LOAD, worker, load())
        stage.replica(T, "frontend-2", RoutingSettings(policy="kv"))
        self._use_a_second_tier()
        return super().run()

    def _use_a_second_tier(self) -> None:
        """No worker has blocks on a second tier, and a decision looks. Then one has, and the next decision looks."""
        asked_prompt = prompt(*range(20_600, 20_630))
        blocks = hashes_from_bytes(asked_prompt.hashes())
        self.stage.say(KV, RUNNERS[0], stored(*blocks[:3]))
        for number, tier in enumerate(TIERS[:2]):
            self.stage.say(KV, RUNNERS[1], stored(*blocks[: 9 * number], tier=tier))
            self.stage.route(f"tier-{number}", asked_prompt, replica=T)
            self.stage.tell(finished(f"tier-{number}"), replica=T)

    def _happen(self) -> None:
        super()._happen()
        dice, stage = self._more, self.stage
        self._events += 1
        for _ in range(dice.randrange(4)):
            self._change_run()
        if dice.random() < 0.3:
            self._decide_before_the_log()
        if self._events % 3 == 0:
            self._continue_talk()
        if self._in_flight and dice.random() < 0.1:
            replica, request, attempt, _ = dice.choice(self._in_flight)
            stage.tell(
                RequestMigrated(request=request, attempt=attempt, worker=RUNNERS[0], told_tokens=3, reason="lost"),
                replica=replica,
            )
        if dice.random() < 0.03:
            self._restate_in_flight(dice.choice((R, S)))
        if self._events % 90 == 0:
            self._end_some(self._events // 90)
        if self._events % REPORT_EVERY == 0:
            replica = (R, S)[self._events // REPORT_EVERY % 2]
            stage.tell(stage.report(replica), replica=replica)

    def _refuse(self) -> None:
        """The rare states are in the log, and the other workers of the model have left."""
        RareStates(self.stage).add()
        for worker in RUNNERS:
            self.stage.say(KV, worker, WorkerLeft(reason="stopped"))
        super()._refuse()

    def _change_run(self) -> None:
        """A worker's cache of one family grows, or loses its end, or is cleared."""
        dice, stage = self._more, self.stage
        worker, family = dice.choice(RUNNERS), dice.randrange(5)
        blocks = hashes_from_bytes(prompt(*self._families[family]).hashes())[:LONG_BLOCKS]
        depth = self._depths.get((worker, family), 0)
        what = dice.random()
        if what < 0.02:
            stage.say(KV, worker, CacheCleared(reason="reset"))
            self._depths = {key: held for key, held in self._depths.items() if key[0] != worker}
        elif what < 0.3 and depth:
            less = dice.randrange(depth)
            stage.say(KV, worker, removed_chain(*blocks[:depth], first=less))
            self._depths[worker, family] = less
        elif depth < len(blocks):
            more = dice.choice((depth + 1, min(len(blocks), depth + 16), len(blocks)))
            stage.say(KV, worker, stored_chain(*blocks[:more], first=depth))
            self._depths[worker, family] = more

    def _decide_before_the_log(self) -> None:
        """A replica decides twice, and has a first token, before it reads its own events back."""
        dice, stage = self._more, self.stage
        replica = dice.choice((R, S))
        lag = {ROUTING: 6}
        for number in range(2):
            name = f"o{self._events}-{number}"
            asked_prompt = prompt(*dice.choice(self._families)[: dice.randrange(2, 45)])
            event = stage.decided(name, asked_prompt, replica=replica, lag=lag, seed=dice.getrandbits(64))
            stage.tell(event, replica=replica)
            if dice.random() < 0.6:
                stage.tell(prefilled(name, cached=dice.randrange(9)), replica=replica)
            if dice.random() < 0.4:
                stage.tell(finished(name), replica=replica)
            else:
                self._in_flight.append((replica, name, 0, True))

    def _continue_talk(self) -> None:
        """Two turns, each of any replica; the second is decided while the prompt of the first is computed."""
        dice, stage, family = self._turn_dice, self.stage, self._turn_dice.randrange(5)
        for number in range(2):
            before = self._talks.pop(family, None)
            tokens = self._families[family][:FIRST_TURN]
            if before is not None:
                kept = dice.randrange(1, len(before.tokens) + 1) if dice.random() < 0.2 else len(before.tokens)
                tokens = [*before.tokens[:kept], *(dice.randrange(2000, 3000) for _ in range(dice.randrange(9)))]
            name, asked_prompt, replica = f"c{self._events}-{number}", prompt(*tokens), dice.choice((R, S))
            event = stage.decided(name, asked_prompt, replica=replica, seed=dice.getrandbits(64))
            if before is not None and event.believed is None:
                event = continued(event, asked_prompt, before.seq, before.root, kept)
            seq = stage.tell(event, replica=replica)
            if event.believed is None and len(tokens) < LAST_TURN:
                self._talks[family] = _Turn(seq, seq if before is None else before.root, tokens)
            self._in_flight.append((replica, name, 0, True))

    def _restate_in_flight(self, replica: ReplicaId) -> None:
        """The replica says its requests again: that is all that is in flight there. Its local reasons are void."""
        part = self.stage.seat(replica).state.routing.replicas[replica]
        self.stage.tell(replica_restated(sorted(part.in_flight.items(), key=lambda item: item[0])), replica=replica)
        self._local[replica] = {}

    def _end_some(self, number: int) -> None:
        """A worker of its own joins, gets requests, and leaves or is lost; once, so does a replica."""
        stage, worker = self.stage, worker_id(50 + number)
        blocks = hashes_from_bytes(prompt(*self._families[0]).hashes())
        stage.say(KV, worker, joined(f"guest-{number}"), stored(*blocks))
        stage.say(LOAD, worker, load())
        if number <= 4:
            for at in range(3):
                stage.route(f"t{number}-{at}", prompt(*self._families[at]), replica=T, seed=at)
        stage.route(f"g{number}", prompt(*self._families[0]))
        if number < 4:
            stage.tell(*(finished(f"t{number}-{at}") for at in range(3)), replica=T)
        if number % 2:
            stage.say(KV, worker, WorkerLeft(reason="stopped"))
            stage.say(LOAD, worker, WorkerLeft(reason="stopped"))
        else:
            for stream in (KV, LOAD):
                stage.say(stream, worker + LOST_SUFFIX, WorkerLost(by=R, reason="no lease"), about=worker)
        if number == 4:
            stage.say(ROUTING, T + LOST_SUFFIX, ReplicaLost(by=R, reason="no lease"), about=T)
        self._interrupt_jobs()

    def _verdict(self) -> PrefillReport | None:
        report = super()._verdict()
        if report is None or report.reason != REMOTE:
            return report
        self._job += 1
        job, stage, jobs = f"{self._job:016x}", self.stage, self._jobs
        jobs.append(job)
        self._tell_job(asked(job, len(jobs)))
        stage.say(JOBS, ANSWERER, started(job, 1, REQUESTER), completed(job, 0), about=asked_token(ANSWERER))
        if self._job % 3 == 0:
            return None  # it stays open
        jobs.remove(job)
        if self._job % 3 == 1:
            self._tell_job(pulled(job, len(jobs)))
            return structs.replace(
                report, job=job, outcome="pulled", worker="p", pulled_tokens=16, wait_ms=1, pull_ms=1
            )
        self._tell_job(cancelled(job, len(jobs)))
        return structs.replace(report, job=job, outcome="deadline")

    def _tell_job(self, event: Any) -> None:
        self.stage.say(JOBS, REQUESTER, event, about=asked_token(REQUESTER))

    def _interrupt_jobs(self) -> None:
        """A message of the requester never reaches the log, and it says how many of its jobs are open."""
        stage = self.stage
        for job in self._jobs:
            lost = stage.sealed(JOBS, REQUESTER, cancelled(job, 0))
            n, _ = stage._chains[JOBS, REQUESTER]
            stage._chains[JOBS, REQUESTER] = n + 1, digest(lost, KEY.chain_key)
        self._jobs.clear()
        self._tell_job(JobsRestated(open=0))


def _in_form(event: Event, version: int) -> Event:
    """The event as a replica writes it while all read that version of decisions."""
    if isinstance(event, RequestRouted) and version >= COMPACT_VERSION:
        return structs.replace(event, v=version)
    if isinstance(event, RequestPrefilled | RequestFinished) and version >= SHORT_VERSION:
        return structs.replace(event, v=PROGRESS_VERSION)
    return event
