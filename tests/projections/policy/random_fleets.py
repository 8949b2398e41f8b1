"""Random fleets in which each decision is made twice: by columns, and worker by worker as the rules have it.

A fleet changes between its decisions by every kind of event that a decision depends on. Each decision takes a policy,
settings, doubts and a prompt of its own.

python -m tests.projections.policy.random_fleets 100000  # so many decisions
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator

import msgspec

from core.codec import encode_event
from core.events import AdapterLoaded, AdapterUnloaded, CacheCleared, Event, WorkerLeft
from core.events.routing import LOCAL_REASONS
from core.ids import RequestId, WorkerId
from core.prompt import Prompt, hashes_from_bytes
from core.settings import POLICIES, TIERS, RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.load_fold import TURNOVER_STEPS
from projections.policy.column_decision import RankedCandidates, decide_by_columns
from projections.policy.cost import FIRST_ACTIVE_TOKENS
from projections.policy.decide import Decision, decide, record
from projections.policy.delay_price import REUSE_FULL
from projections.policy.load_time import LoadTime
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from tests.projections.facts import (
    finished,
    joined,
    load,
    pool_joined,
    prefilled,
    prompt,
    reads,
    removed,
    replica_restated,
    restated,
    routed,
    stored_chain,
    worker_id,
)
from tests.projections.site import KV, REPLICA, Site

OTHER = "dd" * 8
NOW_MS = 1_000_000
ADAPTERS = ("alpha@aa", "alpha@bb", "beta@cc")
DECISIONS = 25
"""Decisions of one fleet."""
ROOTS = [[dice.randrange(40) for _ in range(length)] for dice, length in ((random.Random(n), 3 * n) for n in range(9))]
"""Prompts by their blocks: the later ones are longer."""
ROOTS.append([*range(200)])
ROOTS.append([*range(120), *range(300, 380)])


class RandomFleet:
    """Workers, another replica, and one that decides, with events that the log has not given back."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = dice = random.Random(seed)
        self.site = Site()
        self._numbers = iter(dice.sample(range(1, 10_000), 2000))
        self._workers: list[str] = []
        self._flying: list[tuple[str, str, int]] = []
        """Source, request and attempt of what is in flight in the log."""
        self._own: list[str] = []
        self._ahead: deque[Event] = deque()
        self._requests = 0
        self._tiers = TIERS if dice.random() < 0.3 else TIERS[:1]
        self._pools = [worker_id(20_000 + number) for number in range(3)] if dice.random() < 0.4 else []
        """By their sources; each has its own id."""
        self._models = ("tiny",) * 7 + (("other",) if dice.random() < 0.4 else ())
        self._sizes = (4,) * 7 + ((8,) if dice.random() < 0.3 else ())
        self._asked_adapters = ("",) * 5 + (ADAPTERS if dice.random() < 0.4 else ())
        self._spread = dice.choice((1, 2, 60))
        """Loads differ by so much: with 1 nearly all costs are equal."""
        self._has_long = dice.random() < 0.4
        """Some requests hold as many blocks as talks of coding agents."""
        for _ in range(dice.choice((1, 2, 5, 12, 30, 70))):
            self._join()
        for pool in self._pools:
            self.site.say(KV, pool, pool_joined(pool, self._some()))
        for _ in range(dice.choice((0, 20, 100))):
            self.change()

    def __repr__(self) -> str:
        return f"<RandomFleet {self.seed}>"

    def change(self) -> None:
        """One event happens."""
        dice = self.dice
        kinds = [self._report, self._store, self._route, self._route_here, self._first, self._end, self._read_back]
        rare = [self._join, self._leave, self._remove, self._clear, self._gap, self._restate_replica, self._recount]
        kinds += [self._pool] * 3 if self._pools else []
        kinds += [self._adapter] if len(self._asked_adapters) > 5 else []
        dice.choice(kinds if dice.random() < 0.93 else rare)()

    def decisions(self) -> Iterator[tuple[Decision, Decision, RouteRequest, RoutingSettings]]:
        """By columns, and by the rules."""
        for _ in range(DECISIONS):
            for _ in range(self.dice.randrange(4)):
                self.change()
            request, settings = self._request(), self._settings()
            self._doubts()
            now_ms, seed = NOW_MS + self.dice.randrange(-500, 5000), self.dice.getrandbits(64)
            mine = decide_by_columns(self.site.view, request, settings, now_ms, seed)
            yield mine, decide(self.site.view, request, settings, now_ms, seed), request, settings

    def _settings(self) -> RoutingSettings:
        dice = self.dice

        def weight() -> int:
            return dice.choice((0, 1, 333, 900, 1000, 3200, 1_000_000))

        given: dict[str, int] = {
            name: weight()
            for name in RoutingSettings.__struct_fields__
            if name.endswith("_m") and dice.random() < 0.15 and name not in ("temperature_m", "tie_margin_m")
        }
        if dice.random() < 0.15:
            given["temperature_m"] = dice.choice((1, 500, 4000))
        if dice.random() < 0.15:
            given["tie_margin_m"] = dice.choice((1, 2000, 1_000_000))
        if dice.random() < 0.3:
            prices = dice.choice((1, 20_500, 10**6))
            given |= {"prefill_base_us": dice.randrange(9000), "prefill_us_per_token_m": prices}
        if dice.random() < 0.3:
            given["waiting_max"] = dice.choice((1, 3, 50))
        if dice.random() < 0.3:
            given |= {"approximate_ttl_s": dice.randrange(3), "session_wait_max_ms": dice.randrange(50)}
        policy = dice.choice((*POLICIES, "kv", "time"))
        return RoutingSettings(policy=policy, **given)

    def _request(self) -> RouteRequest:
        dice, workers = self.dice, self._workers
        self._requests += 1
        time = PrefillTime(dice.randrange(9000), dice.randrange(1, 40_000)) if dice.random() < 0.3 else None
        load_time = None
        if dice.random() < 0.3:
            times_m = [dice.choice((0, 1, 900, 40_000, 10**8)) for _ in range(3)]
            load_time = LoadTime._make([*times_m, dice.choice((0, REUSE_FULL))])
        held = {}
        if workers and dice.random() < 0.2:
            held = {WorkerId(dice.choice(workers)): dice.randrange(10**6) for _ in range(3)}
        return RouteRequest(
            RequestId(f"r{self._requests}"), dice.randrange(2), dice.choice(self._models), self._prompt(), "", 0,
            dice.choice(("", "", "0123456789abcdef")), time, held, adapter=dice.choice(self._asked_adapters),
            load_time=load_time,
        )  # fmt: skip

    def _doubts(self) -> None:
        """What this replica alone knows of workers."""
        dice, site = self.dice, self.site
        site.local.clear()
        for reason in LOCAL_REASONS:
            if dice.random() < 0.15:
                share = dice.choice((0.05, 0.3, 1.0))
                site.exclude(reason, [worker for worker in self._workers if dice.random() < share] + ["f" * 16])

    def _prompt(self) -> Prompt:
        dice = self.dice
        blocks = dice.choice(ROOTS)
        blocks = blocks[: dice.randrange(len(blocks) + 1)] + [dice.randrange(40) for _ in range(dice.randrange(3))]
        return prompt(*blocks, extra=dice.randrange(4), block_size=dice.choice(self._sizes))

    def _say_for(self, source: str, *events: Event) -> None:
        self.site.say(ROUTING, source, *events)

    def _join(self) -> None:
        worker = worker_id(next(self._numbers))
        self._workers.append(worker)
        event = joined(f"w-{worker}", self.dice.choice(self._models), self.dice.choice(self._sizes))
        role = "prefill" if self.dice.random() < 0.05 else "decode"
        event = msgspec.structs.replace(event, role=role)
        if self._pools and self.dice.random() < 0.7:
            most = self.dice.choice((0, 2, 5, 500))
            event = msgspec.structs.replace(event, pools=reads(self.dice.choice(self._pools), load_blocks=most))
        self.site.say(KV, worker, event)

    def _some(self) -> str:
        return self.dice.choice(self._workers) if self._workers else worker_id(1)

    def _leave(self) -> None:
        if self._workers:
            worker = self._workers.pop(self.dice.randrange(len(self._workers)))
            self.site.say(KV, worker, WorkerLeft(reason="gone"))
            if self.dice.random() < 0.5:
                self.site.say(LOAD, worker, WorkerLeft(reason="gone"))

    def _report(self) -> None:
        waiting = self.dice.randrange(3) if self.dice.random() < 0.9 else 300
        rate = self.dice.choice((0, 0, self.dice.randrange(50_000), 1 << 26))
        draining = self.dice.random() < 0.04
        turnover = self.dice.choice((0, 20, TURNOVER_STEPS, self.dice.randrange(TURNOVER_STEPS + 1)))
        self.site.say(LOAD, self._some(), load(waiting, draining=draining, reuse_rate=rate, turnover=turnover))

    def _store(self) -> None:
        dice = self.dice
        blocks = dice.choice(ROOTS)
        hashes = hashes_from_bytes(prompt(*blocks, block_size=dice.choice(self._sizes)).hashes())
        depth = dice.randrange(len(hashes) + 1)
        if depth:
            event = stored_chain(*hashes[:depth])
            self.site.say(KV, self._some(), msgspec.structs.replace(event, tier=dice.choice(self._tiers)))

    def _adapter(self) -> None:
        """A worker serves one adapter more, another one of its name, or one less."""
        name, _, content = self.dice.choice(ADAPTERS).partition("@")
        event: Event = AdapterLoaded(name=name, digest=content, rank=8, loaded_ms=self._requests)
        if self.dice.random() < 0.2:
            event = AdapterUnloaded(name=name, digest=content)
        self.site.say(KV, self._some(), event)

    def _pool(self) -> None:
        """A pool has another keeper, or more or fewer blocks."""
        dice, pool = self.dice, self.dice.choice(self._pools)
        hashes = hashes_from_bytes(prompt(*dice.choice(ROOTS)).hashes())
        depth = dice.randrange(len(hashes) + 1)
        event: Event = pool_joined(pool, self._some(), dice.choice(("kind", "kind", "kind", "another kind")))
        if depth and dice.random() < 0.8:
            event = msgspec.structs.replace(stored_chain(*hashes[:depth]), tier="disk")
        elif depth and dice.random() < 0.5:
            event = removed(*hashes[depth:], tier="disk")
        self.site.say(KV, pool, event)

    def _remove(self) -> None:
        """Blocks of some prompt go; now and then from its middle, so that a hole is left."""
        hashes = hashes_from_bytes(prompt(*self.dice.choice(ROOTS)).hashes())
        if hashes:
            at = self.dice.randrange(len(hashes))
            self.site.say(KV, self._some(), removed(*hashes[at : at + self.dice.choice((1, 1000))]))

    def _clear(self) -> None:
        self.site.say(KV, self._some(), CacheCleared())

    def _gap(self) -> None:
        """A message is missing; the cache may be restated later."""
        worker = self._some()
        if (KV, worker) in self.site._speakers:
            self.site._speakers[KV, worker].say()
            self.site.say(KV, worker, joined(f"w-{worker}"), *([restated(0, 1)] if self.dice.random() < 0.3 else []))

    def _routed(self) -> tuple[str, Event]:
        dice = self.dice
        self._requests += 1
        name, asked = f"q{self._requests}", self._prompt()
        predicted = dice.randrange(asked.tokens + 1) if dice.random() < 0.5 else 0
        believed = (dice.randrange(1, 500), dice.randrange(3000)) if dice.random() < 0.3 else None
        event = routed(
            name, self._some() if dice.random() < 0.97 else worker_id(99_999), asked, predicted=predicted,
            now_ms=NOW_MS + dice.randrange(-3000, 6000) if dice.random() < 0.9 else 0,
            wait_us=dice.randrange(10**6) if dice.random() < 0.3 else 0, believed=believed,
        )  # fmt: skip
        blocks = max(1, event.blocks // self._spread * self._spread)
        if self._has_long and dice.random() < 0.3:  # about as many as count more among talks, or half of them
            blocks = FIRST_ACTIVE_TOKENS // dice.choice(self._sizes) // dice.choice((1, 2)) + dice.randrange(-1, 2)
        return name, msgspec.structs.replace(event, blocks=blocks)

    def _route(self) -> None:
        name, event = self._routed()
        self._flying.append((OTHER, name, 0))
        self._say_for(OTHER, event)

    def _route_here(self) -> None:
        """This replica's events count before the log has them."""
        name, event = self._routed()
        self._own.append(name)
        self._emit(event)

    def _emit(self, event: Event) -> None:
        self.site.pending_events.emit(event, self.site.state.routing.replicas.get(REPLICA))
        self._ahead.append(event)

    def _first(self) -> None:
        if self._own and self.dice.random() < 0.5:
            self._emit(prefilled(self.dice.choice(self._own)))
        elif self._flying:
            source, name, attempt = self.dice.choice(self._flying)
            self._say_for(source, prefilled(name, attempt))

    def _end(self) -> None:
        if self._own and self.dice.random() < 0.5:
            self._emit(finished(self._own.pop(self.dice.randrange(len(self._own)))))
        elif self._flying:
            source, name, attempt = self._flying.pop(self.dice.randrange(len(self._flying)))
            self._say_for(source, finished(name, attempt))

    def _read_back(self) -> None:
        for _ in range(min(len(self._ahead), self.dice.randrange(5))):
            event = self._ahead.popleft()
            self._say_for(REPLICA, event)
            self.site.pending_events.read_back(event)

    def _restate_replica(self) -> None:
        """The other one says anew what is in flight there: less than the fold has."""
        part = self.site.state.routing.replicas.get(OTHER)  # type: ignore[call-overload]
        flying = [] if part is None else [*part.in_flight.items()]
        self._say_for(OTHER, replica_restated([each for each in flying if self.dice.random() < 0.7]))

    def _recount(self) -> None:
        self.site.state.routing.recount()


def check(fleet: RandomFleet) -> tuple[int, int]:
    """Every decision of the fleet is the same both ways, byte for byte. Returns how many there were, and how many were
    made by columns."""
    by_columns = 0
    every = 0
    for mine, judge, request, settings in fleet.decisions():
        every += 1
        by_columns += isinstance(mine.ranked, RankedCandidates)
        assert mine._replace(ranked=[*mine.ranked]) == judge, (fleet, request, settings)
        assert (mine.excluded, mine.digest, len(mine.ranked)) == (judge.excluded, judge.digest, len(judge.ranked))
        if judge.worker is not None:
            ours, theirs = (encode_event(record(each, request, settings, 1)) for each in (mine, judge))
            assert ours == theirs
    return every, by_columns


def main(decisions: int) -> None:
    every = by_columns = 0
    for seed in range(-(-decisions // DECISIONS)):
        found = check(RandomFleet(seed))
        every, by_columns = every + found[0], by_columns + found[1]
    sys.stdout.write(f"{every} decisions are equal, {by_columns} of them made by columns\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
