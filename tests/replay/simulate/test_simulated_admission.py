"""The queue of a simulated replica beside the real one: the same words, the same order, the same refusals."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from actors.router.admission import Admission, Slot
from actors.router.capacity import Capacity, CapacityCalculator
from core.clock import Clock
from core.events import Event
from core.events.routing import WAITS_FOR, RequestQueued, RequestTurnedAway
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.models import NoWorkers
from core.prompt import TOKEN_BYTES
from core.settings import RoutingSettings
from replay.simulate.simulated_log import START_MS, SimulatedLog
from replay.simulate.simulated_replica import SimulatedAdmission
from replay.simulate.simulated_request import MODEL, SimulatedRequest
from replay.simulate.virtual_time import Agenda
from replay.simulate.workload import Arrival
from streams.live_settings import LiveSettings

PLACES = 3
SETTINGS = RoutingSettings(queue_max=6, queue_wait_max_ms=3_600_000)


class Real:
    """The real one, with a clock that is set by hand; it is also its own room, settings and clock."""

    def __init__(self) -> None:
        self.now_us = 0
        self.places = PLACES
        self.said: list[Event] = []
        self.let_in: list[RequestId] = []
        self.admission = Admission(
            cast(CapacityCalculator, self), cast(LiveSettings, self), cast(Clock, self), self.said.append
        )
        self.held: dict[RequestId, Slot] = {}
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def current(self) -> RoutingSettings:
        return SETTINGS

    def monotonic_ms(self) -> int:
        return self.now_us // 1000

    def wall_ms(self) -> int:
        return START_MS + self.now_us // 1000

    def of(self, model: str) -> Capacity | None:
        assert model == MODEL
        return Capacity(self.places, len(self.held), 1, overloaded=not self.places) if self.places >= 0 else None

    async def arrive(self, it: Arrival) -> None:
        request = GenerateRequest(
            id=it.id,
            tokens=bytes(it.prompt_tokens * TOKEN_BYTES),
            sampling=Sampling(max_tokens=it.output_tokens),
            tenant=it.tenant,
            priority=it.priority,
        )

        async def enter() -> None:
            try:
                self.held[it.id] = await self.admission.enter(MODEL, request)
            except NoWorkers:
                return
            self.let_in.append(it.id)

        self.tasks.append(asyncio.create_task(enter()))
        await turns()

    async def end(self, name: RequestId, answer_tokens: int) -> None:
        self.held.pop(name).close(answer_tokens)
        await turns()

    async def look(self) -> None:
        self.admission.refresh()
        await turns()


class Virtual:
    """The simulated one."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.places = PLACES
        self.said: list[Event] = []
        self.let_in: list[RequestId] = []
        self.held: dict[RequestId, SimulatedRequest] = {}
        self.retry_s: list[int] = []
        self.admission = SimulatedAdmission(
            SETTINGS,
            self.agenda,
            SimulatedLog(self.agenda, None),
            room=self._room,
            say=self.said.append,
            let_in=self._begin,
            turned_away=lambda _request, _reason, retry_s: self.retry_s.append(retry_s),
        )

    def _room(self) -> Capacity | None:
        return Capacity(self.places, len(self.held), 1, overloaded=not self.places) if self.places >= 0 else None

    def _begin(self, request: SimulatedRequest) -> None:
        self.held[request.arrival.id] = request
        self.let_in.append(request.arrival.id)

    def until(self, at_us: int) -> None:
        reached: list[bool] = []
        self.agenda.put(at_us, lambda: reached.append(True))
        while not reached:
            self.agenda.advance()

    def arrive(self, it: Arrival) -> None:
        request = SimulatedRequest(it, 0, self.agenda.now_us, 0, 32)
        if self.admission.enter(request):
            self._begin(request)

    def end(self, name: RequestId, answer_tokens: int) -> None:
        request = self.held.pop(name)
        request.told = answer_tokens
        self.admission.ended(request, whole=True)


async def turns() -> None:
    """Whoever was woken has gone on."""
    for _ in range(5):
        await asyncio.sleep(0)


def arrival(dice: random.Random, number: int, at_us: int) -> Arrival:
    tenant, priority = dice.choice(["", "a", "a", "a", "b"]), dice.choice([0, 0, 0, 1])
    return Arrival(
        RequestId(f"r{number}"), at_us, dice.randrange(1, 500), b"", dice.randrange(1, 600), tenant, "", priority
    )


@pytest.mark.parametrize("seed", range(8))
async def test_it_does_as_the_real_one(seed: int) -> None:
    """Whoever comes, ends, or finds more or fewer places than before, none at all included."""
    dice, real, virtual = random.Random(seed), Real(), Virtual()
    now_us = 0
    for number in range(1000):
        now_us += dice.randrange(200_000)
        real.now_us = now_us
        virtual.until(now_us)
        act = dice.randrange(20)
        if act < 11:
            it = arrival(dice, number, now_us)
            await real.arrive(it)
            virtual.arrive(it)
        elif act < 18 and real.held:
            name, tokens = dice.choice(list(real.held)), dice.randrange(1, 600)
            await real.end(name, tokens)
            virtual.end(name, tokens)
        else:
            real.places = virtual.places = dice.choice([-1, 0, 2, PLACES, PLACES, PLACES])
            await real.look()
            virtual.admission.look()
        virtual.until(now_us)
        assert virtual.said == real.said
        assert virtual.let_in == real.let_in
        assert virtual.held.keys() == real.held.keys()
        assert len(virtual.admission) == real.admission.waiting

    reasons = {each.reason for each in virtual.said if isinstance(each, RequestTurnedAway)}
    assert reasons == {"queue_full", "tenant_share"}
    assert {each.why for each in virtual.said if isinstance(each, RequestQueued)} == set(WAITS_FOR)
    assert len(virtual.retry_s) == sum(isinstance(each, RequestTurnedAway) for each in virtual.said)
    assert min(virtual.retry_s) >= 1
    for task in real.tasks:
        task.cancel()
    await asyncio.gather(*real.tasks, return_exceptions=True)
