"""Writes `decisions_vN.contrail`: a log with decisions by version N of the rules, the newest, in every state that they
distinguish. It is history: `test_decisions` makes these decisions again, and later versions must, too.

    python -m tests.golden.make_decisions

It is written once for each version of the rules, with the change that brings the version.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from msgspec import structs

from core.codec import digest
from core.events import (
    AdapterLoaded,
    AdapterUnloaded,
    CacheCleared,
    LoadReported,
    LocalChanged,
    ReplicaRestated,
    RequestPrefilled,
    WorkerLeft,
)
from core.events.kv import PREFILL
from core.events.routing import DECIDE_VERSION
from core.generation import PrefillReport
from core.ids import ReplicaId, RequestId, WorkerId
from core.prompt import Prompt, hashes_from_bytes
from core.settings import APPROXIMATE, TIERS, RoutingSettings
from core.subjects import LOAD
from projections.folds.in_flight import InFlight
from projections.policy.cost import FIRST_ACTIVE_TOKENS
from projections.policy.decide import decide, decide_prefill, record, rejection
from projections.policy.prefill_choice import REMOTE, PrefillInputs
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from tests.projections.facts import (
    finished,
    joined,
    load,
    pool_joined,
    prompt,
    reads,
    removed,
    replica_restated,
    restated,
    stored,
    worker_id,
)
from tests.replay.staged import KEY, KV, R, S, Stage

FOLDER = Path(__file__).parent
SETTINGS = (
    RoutingSettings(policy="kv"),
    RoutingSettings(policy="kv", temperature_m=300),
    RoutingSettings(
        policy="kv", prefill_weight_m=1700, decode_weight_m=300, request_weight_m=2500, device_credit_m=900,
        host_credit_m=600, disk_credit_m=300, remote_credit_m=100, pending_credit_m=500, stale_credit_m=250,
        tie_margin_m=20_000,
    ),
    RoutingSettings(),
    RoutingSettings(temperature_m=900),
    RoutingSettings(
        own_weight_m=1000, own_request_weight_m=200, active_weight_m=400, prefill_base_us=3000,
        prefill_us_per_token_m=40_000, tie_margin_m=3000,
    ),
    RoutingSettings(device_credit_m=0, reuse_weight_m=0, own_request_weight_m=0, active_weight_m=0),
    RoutingSettings(candidates_recorded_max=2, delay_weight_m=2500, temperature_m=400),
    RoutingSettings(policy="session", session_wait_max_ms=9),
    RoutingSettings(policy="session", session_wait_max_ms=0, prefill_us_per_token_m=25_000),
    RoutingSettings(policy=APPROXIMATE),
    RoutingSettings(policy=APPROXIMATE, approximate_ttl_s=1, approximate_blocks_max=40, temperature_m=200),
    RoutingSettings(policy="least-loaded", candidates_recorded_max=3),
    RoutingSettings(policy="least-loaded", temperature_m=500),
    RoutingSettings(policy="power-of-two"),
    RoutingSettings(policy="round-robin"),
    RoutingSettings(policy="random"),
)  # fmt: skip
"""One after the other."""
REQUESTS = 36
"""Of each of these."""
DECODE = [worker_id(number) for number in range(1, 7)]
OTHER_MODEL, OTHER_SIZE = worker_id(11), worker_id(12)
PREFILLING = [worker_id(21), worker_id(22)]
POOLS = (("31" * 8, DECODE[0], "kind"), ("32" * 8, DECODE[1], "kind"), ("33" * 8, DECODE[2], "another kind"))
"""By the sources of pools: the pool has the same id. The first two are kept by workers that read them, the last one is
of a kind that its worker does not read."""
ADAPTERS = ("alpha@aa", "alpha@bb", "beta@cc")
ASKED_ADAPTERS = ("",) * 12 + ADAPTERS
"""Of a request, by their share."""
SESSIONS = ("", "5e55105e55105e55", "b3907b3907b3907b")
LOCAL = (*[()] * 7, ("stale",), ("stale",), ("suspected", "stale"), ("not_connected",), ("suspected",), ("failed",))
"""Local reasons of a worker, by their share."""
STEPS_MS = (1, 2, 5, 150)
"""Between two requests."""
LONG = ReplicaId("aa" * 8)
"""A replica that decides on nothing here: its requests are those in long talks."""
LONG_BLOCKS = (0, 0, 3000, FIRST_ACTIVE_TOKENS // 4 - 1, FIRST_ACTIVE_TOKENS // 4, FIRST_ACTIVE_TOKENS // 4 + 1, 60_000)
"""Blocks of these on a worker: fewer than those that count more among talks, as many, or more."""
TURNOVERS = (0, 5, 30, 60, 64, 64)
"""That workers report: far below the mean, below it, above it, and the most."""
LAGS = (0, 0, 1, 2, 3, 120)
"""Messages of a stream that a replica has not read."""


class DecisionLog:
    """What happens to the workers and the requests, by dice that fall the same way each time."""

    def __init__(self) -> None:
        self.stage = Stage()
        self._dice, self._dice_of_long = random.Random(5), random.Random(5)
        self._dice_of_turnover = random.Random(6)
        self._reports = dict.fromkeys(DECODE, load())
        self._in_flight: list[tuple[ReplicaId, str, int, bool]] = []
        """Replica, request, attempt, and whether its first token came."""
        self._local: dict[ReplicaId, dict[str, tuple[str, ...]]] = {R: {}, S: {}}
        self._number = 0
        self._families = [[100 * family + at for at in range(45)] for family in range(5)]

    def run(self) -> Stage:
        """The whole log."""
        stage = self.stage
        for number, worker in enumerate(DECODE):
            said = structs.replace(joined(f"decode-{number}"), capacity_blocks=(1000, 60)[number % 2])
            if number < len(POOLS):
                said = structs.replace(said, pools=reads(POOLS[number][0], load_blocks=(500, 9, 500)[number]))
            stage.say(KV, worker, said)
            self._report(worker, load())
            if number % 2:
                self._load_adapter(worker, ADAPTERS[number // 2])
        for pool, keeper, kind in POOLS:
            stage.say(KV, pool, pool_joined(pool, keeper, kind))
        stage.say(KV, OTHER_MODEL, joined("other-model", model="large"))
        stage.say(KV, OTHER_SIZE, joined("other-size", block_size=8))
        for number, worker in enumerate(PREFILLING):
            stage.say(KV, worker, structs.replace(joined(f"prefill-{number}"), role=PREFILL))
        for replica, name in ((R, "frontend-0"), (S, "frontend-1"), (LONG, "frontend-long")):
            stage.replica(replica, name)
        for settings in SETTINGS:
            for replica in (R, S):
                stage.settings(settings, replica)
            for number in range(REQUESTS):
                if number == REQUESTS // 2:
                    self._lose_a_message()
                if number in (0, REQUESTS // 2):
                    self._change_turnovers(alike=number == 0)
                self._happen()
                self._route()
        self._refuse()
        return stage

    def _happen(self) -> None:
        """Some of all that can happen between two requests."""
        dice, stage = self._dice, self.stage
        stage.clock.advance(dice.choice(STEPS_MS))
        for _ in range(dice.randrange(3)):
            worker = dice.choice([*DECODE, *PREFILLING])
            blocks = hashes_from_bytes(self._prompt().hashes())
            match dice.randrange(12):
                case 0:
                    stage.say(KV, worker, CacheCleared(reason="reset"))
                case 1:
                    stage.say(KV, worker, restated(0, 1, *blocks))
                case tier if tier < 2 + len(TIERS):
                    for level in TIERS[: tier - 1]:
                        stage.say(KV, worker, stored(*blocks[: dice.randrange(1, len(blocks) + 1)], tier=level))
                case _:
                    stage.say(KV, worker, stored(*blocks))
        if dice.random() < 0.1:
            self._change_adapter(dice.choice(DECODE))
        if dice.random() < 0.5:
            self._change_pool(dice.choice(POOLS)[0])
        if dice.random() < 0.3:
            draining = dice.random() < 0.1
            waiting, rate = dice.choice((0, 0, 1, 1, 3, 5, 8, 300)), dice.choice((0, 1, 800, 20_000))
            worker = dice.choice(DECODE)
            turnover = self._reports[worker].turnover
            self._report(worker, load(waiting, draining=draining, reuse_rate=rate, turnover=turnover))
        if dice.random() < 0.5:
            self._change_local(dice.choice((R, S)))
        self._restate_replicas()
        while len(self._in_flight) > dice.randrange(4, 24):
            self._go_on()

    def _report(self, worker: str, report: LoadReported) -> None:
        self._reports[worker] = report
        self.stage.say(LOAD, worker, report)

    def _change_turnovers(self, *, alike: bool) -> None:
        """All workers report others; nothing else of their reports changes."""
        turnovers = self._dice_of_turnover.choices(TURNOVERS, k=len(DECODE))
        for worker, turnover in zip(DECODE, turnovers, strict=True):
            report = structs.replace(self._reports[worker], turnover=turnovers[0] if alike else turnover)
            self._report(worker, report)

    def _restate_replicas(self) -> None:
        """Now and then a replica has begun again; and other long requests are in flight, mostly none."""
        if self._dice.random() < 0.02:
            self.stage.tell(ReplicaRestated(**_nothing_in_flight()), replica=self._restate())
        dice = self._dice_of_long
        if dice.random() >= 0.15:
            return
        workers = [] if dice.random() < 0.6 else dice.sample(DECODE, 2)
        in_flight = {worker: InFlight(WorkerId(worker), dice.choice(LONG_BLOCKS), 0) for worker in sorted(workers)}
        event = replica_restated([((f"long on {worker}", 0), each) for worker, each in in_flight.items()])
        self.stage.tell(event, replica=LONG)

    def _load_adapter(self, worker: str, adapter: str) -> None:
        name, _, content = adapter.partition("@")
        self.stage.say(KV, worker, AdapterLoaded(name=name, digest=content, rank=8, loaded_ms=self.stage.clock.now_ms))

    def _change_adapter(self, worker: str) -> None:
        """Mostly another adapter, sometimes one less."""
        if self._dice.random() < 0.7:
            self._load_adapter(worker, self._dice.choice(ADAPTERS))
        else:
            self.stage.say(KV, worker, AdapterUnloaded(name="alpha", digest=self._dice.choice(("aa", "bb"))))

    def _change_pool(self, pool: str) -> None:
        dice, blocks = self._dice, hashes_from_bytes(self._prompt().hashes())
        first = dice.randrange(len(blocks) + 1)
        match dice.randrange(8):
            case 0:
                self.stage.say(KV, pool, restated(0, 1, *blocks, tier="disk"))
            case 1 if first < len(blocks):
                self.stage.say(KV, pool, removed(*blocks[first:], tier="disk"))
            case _ if blocks:
                self.stage.say(KV, pool, stored(*blocks, tier="disk"))
            case _:
                pass

    def _prompt(self) -> Prompt:
        """The start of one of a few texts, and sometimes an end of its own."""
        dice = self._dice
        family = dice.choice(self._families)
        own = [1000 + dice.randrange(50) for _ in range(dice.randrange(4))]
        return prompt(*family[: dice.randrange(1, 45)], *own, extra=dice.randrange(4))

    def _change_local(self, replica: ReplicaId) -> None:
        worker = self._dice.choice(DECODE)
        reasons = self._dice.choice(LOCAL)
        if self._local[replica].get(worker, ()) != reasons:
            self._local[replica][worker] = reasons
            self.stage.tell(LocalChanged(worker=worker, reasons=reasons), replica=replica)

    def _restate(self) -> ReplicaId:
        """The replica that restates itself: its requests and its local reasons are void."""
        replica = self._dice.choice((R, S))
        self._in_flight = [each for each in self._in_flight if each[0] != replica]
        self._local[replica] = {}
        return replica

    def _go_on(self) -> None:
        """One request has its first token, or its end."""
        at = self._dice.randrange(len(self._in_flight))
        replica, request, attempt, has_token = self._in_flight[at]
        if has_token or self._dice.random() < 0.2:
            del self._in_flight[at]
            self.stage.tell(finished(request, attempt), replica=replica)
            return
        self._in_flight[at] = replica, request, attempt, True
        event = RequestPrefilled(
            request=request, attempt=attempt, cached_tokens=self._dice.randrange(40), ttft_ms=9, prefill=self._verdict()
        )
        self.stage.tell(event, replica=replica)

    def _verdict(self) -> PrefillReport | None:
        dice = self._dice
        if dice.random() < 0.4:
            return None
        uncached, queued, workers = dice.choice((40, 512, 513, 900)), dice.choice((0, 7, 8)), dice.choice((0, 1, 2, 2))
        inputs = PrefillInputs(uncached, queued, workers, 512, 8, dice.random() < 0.2, dice.random() < 0.3)
        report = decide_prefill(inputs)
        return structs.replace(report, job="0a" * 8, outcome="client_gone") if report.reason == REMOTE else report

    def _route(self) -> None:
        dice, stage = self._dice, self.stage
        replica = dice.choice((R, S))
        self._number += 1
        request, attempt = f"r{self._number}", int(dice.random() < 0.05)
        lag = {stream: dice.choice(LAGS) for stream in stage.frames}
        asked = RouteRequest(
            RequestId(request), attempt, "tiny", self._prompt(), "tenant", dice.randrange(3), dice.choice(SESSIONS),
            dice.choice((None, PrefillTime(4000, 12_500))), self._held(),
            adapter=dice.choice(ASKED_ADAPTERS),
        )  # fmt: skip
        seat = stage.seat(replica, lag)
        decision = decide(seat.view, asked, seat.settings, stage.clock.now_ms, dice.getrandbits(64))
        if decision.worker is None:
            stage.tell(rejection(decision, asked, seat.revision, 503), replica=replica)
            return
        stage.tell(record(decision, asked, seat.settings, seat.revision), replica=replica)
        self._in_flight.append((replica, request, attempt, False))

    def _held(self) -> dict[WorkerId, int]:
        dice = self._dice
        workers = dice.sample(DECODE, 2) if dice.random() < 0.3 else []
        return {WorkerId(worker): dice.randrange(1, 90_000) for worker in sorted(workers)}

    def _lose_a_message(self) -> None:
        """A message of a worker never reaches the log: its cache is unknown until it restates it."""
        lost = self.stage.sealed(KV, DECODE[0], stored(1))
        n, _ = self.stage._chains[KV, DECODE[0]]
        self.stage._chains[KV, DECODE[0]] = n + 1, digest(lost, KEY.chain_key)
        self.stage.say(KV, DECODE[0], stored(77))

    def _refuse(self) -> None:
        """No worker can serve: only the last resort is left, then not even that, then another model's workers alone."""
        stage = self.stage
        self._ask("tiny", adapter="gamma@dd")
        for reasons in (("failed",), ("not_connected",)):
            for worker in DECODE:
                stage.tell(LocalChanged(worker=worker, reasons=reasons))
            self._ask("tiny")
        for worker in DECODE:
            stage.tell(LocalChanged(worker=worker, reasons=()))
            stage.say(LOAD, worker, load(900))
        self._ask("tiny")
        self._ask("large")
        stage.say(KV, OTHER_MODEL, WorkerLeft(reason="stopped"))
        self._ask("large")

    def _ask(self, model: str, adapter: str = "") -> None:
        stage, self._number = self.stage, self._number + 1
        seat = stage.seat(R)
        asked = RouteRequest(RequestId(f"r{self._number}"), 0, model, self._prompt(), adapter=adapter)
        decision = decide(seat.view, asked, seat.settings, stage.clock.now_ms, 1)
        event: Any = rejection(decision, asked, seat.revision, 503)
        if decision.worker is not None:
            event = record(decision, asked, seat.settings, seat.revision)
        stage.tell(event)


def _nothing_in_flight() -> dict[str, Any]:
    return structs.asdict(replica_restated([]))


def path_of(version: int) -> Path:
    """The log of that version of the rules."""
    return FOLDER / f"decisions_v{version}.contrail"


if __name__ == "__main__":
    if path_of(DECIDE_VERSION).exists():
        sys.exit(f"{path_of(DECIDE_VERSION).name} is history already: it is written once for each version of the rules")
    DecisionLog().run().archived(path_of(DECIDE_VERSION))
