"""Measurements of engines: the simulated one, whose speed is known, and engines that break off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from actors.engines.engine import Engine
from actors.engines.engine_profiler import (
    ANSWERS_TRIED,
    REPEATS,
    STEPS,
    DecodeShape,
    EngineFacts,
    EngineProfiler,
    ProfiledEngine,
    decode_shapes,
    doubled,
)
from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.clock import SystemClock
from core.errors import CallerError, EngineDead, Unavailable
from core.generation import GenerateRequest, Output
from core.ids import RequestId

SETTINGS = SimulatedSettings(
    context_max=1024, capacity_blocks=64, max_seqs=4, prefill_us_per_token=20, decode_us_per_step=4000
)
"""A room of 2048 tokens."""


def facts_of(engine: Engine) -> EngineFacts:
    it = engine.info
    room = it.block_size * it.capacity_blocks
    return EngineFacts(it.engine, it.model, it.block_size, it.context_max, room, it.slots)


FACTS = EngineFacts("tested", "m", 16, 1024, 2048, 4)


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    found = SimulatedEngine("m", SETTINGS)
    await found.start(lambda _change: None)
    yield found
    await found.stop()


async def test_a_simulated_engine_has_the_speed_of_its_settings(engine: SimulatedEngine) -> None:
    """Prompts by the engine's own clock, steps by ours; the prompts are in no cache."""
    done: list[int] = []
    profiler = EngineProfiler(engine, facts_of(engine), SystemClock(), progress=lambda at, _of: done.append(at))

    found = await profiler.measure(6, "2026-11-29T20:00:00.000Z")

    assert (found.engine, found.model, found.block_size) == ("simulated", "m", 32)
    assert (found.room_tokens, found.slots, found.measured) == (2048, 4, "2026-11-29T20:00:00.000Z")
    assert [point.tokens for point in found.prefill] == [32, 64, 128, 256, 512, 1023]
    assert all(point.us == pytest.approx(20 * point.tokens, rel=0.05) for point in found.prefill)
    shapes = {(point.requests, point.tokens): point.us for point in found.decode}
    assert {(1, 32), (2, 128), (4, 32), (1, 512)} <= shapes.keys()
    assert all(us == pytest.approx(4000, rel=0.5) for us in shapes.values())
    assert max(number * tokens for number, tokens in shapes) <= 2048
    assert found.seconds <= 6.5
    assert done[-1] == 1
    assert not engine.load().running


async def test_a_measurement_ends_with_its_time(engine: SimulatedEngine) -> None:
    """The points that were measured are the profile; without a step there is none, and a sentence says why."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(Unavailable, match=r"0\.01 s are too short for a profile of this engine"):
        await EngineProfiler(engine, facts_of(engine), SystemClock()).measure(0.01, "")
    assert loop.time() - began_s < 2
    short = await EngineProfiler(engine, facts_of(engine), SystemClock()).measure(1, "")
    assert len(short.decode) < len(decode_shapes(facts_of(engine))) * 5
    assert not engine.load().running


class _Broken:
    """An engine that gives so many outputs and then an error, or its end."""

    def __init__(self, tokens: int, error: Exception | None = None) -> None:
        self._tokens = tokens
        self._error = error
        self.closed = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Output]:
        try:
            for _ in range(self._tokens):
                await asyncio.sleep(0)
                yield Output(tokens=(7,))
            if self._error is not None:
                raise self._error
        finally:
            self.closed += 1


@pytest.mark.parametrize("tokens", [0, 5])
async def test_errors_of_the_engine_are_raised_as_they_are(tokens: int) -> None:
    """Not as a group of several; each request is over."""
    broken: ProfiledEngine = _Broken(tokens, EngineDead("it is gone"))
    with pytest.raises(EngineDead, match="it is gone"):
        await EngineProfiler(broken, FACTS, SystemClock()).measure(5, "")


async def test_an_engine_without_tokens_is_no_engine_to_measure() -> None:
    """Also one whose answers end before their steps are counted."""
    with pytest.raises(Unavailable, match="ended a prompt of 32 tokens without any token"):
        await EngineProfiler(_Broken(0), FACTS, SystemClock()).measure(5, "")
    broken = _Broken(STEPS)
    with pytest.raises(Unavailable, match="ended an answer too early"):
        await EngineProfiler(broken, FACTS, SystemClock()).measure(5, "")
    prompts = 1 + REPEATS * len(doubled(32, 1023))
    assert broken.closed == prompts + ANSWERS_TRIED


class _Slow:
    """An engine that begins a further request only when the first one has had so many tokens."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._first: RequestId | None = None
        self._begin = asyncio.Event()
        self.lengths: list[int] = []
        """Tokens of answers that were asked for, but for prompts alone."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Output]:
        if request.sampling.max_tokens > 1:
            self.lengths.append(request.sampling.max_tokens)
        is_first = self._first is None
        if is_first:
            self._first = request.id
            self._begin.clear()
        else:
            await self._begin.wait()
        try:
            for at in range(request.sampling.max_tokens):
                await asyncio.sleep(0)
                if at == self._tokens:
                    self._begin.set()
                yield Output(tokens=(7,))
        finally:
            if is_first:
                self._begin.set()
                self._first = None


async def test_answers_are_longer_where_requests_begin_late() -> None:
    """A full machine begins the second request when the first answer of 68 tokens has ended; of 136 they overlap. Where
    these do not fit into the context, the point is left out."""
    slow = _Slow(100)
    profiler = EngineProfiler(slow, FACTS._replace(slots=2, room_tokens=0), SystemClock())

    found = await profiler.measure(20, "")

    assert {(it.requests, it.tokens): it.repeats for it in found.decode} == {
        (requests, tokens): REPEATS * STEPS * requests
        for requests, tokens in [(1, 32), (1, 128), (1, 512), (1, 956), (2, 32), (2, 128)]
    }
    assert slow.lengths.count(136) == 2 * REPEATS * 2


async def test_longer_answers_stay_within_the_engines_room() -> None:
    """Its cache has room for two prompts of 32 tokens and answers of 100."""
    slow = _Slow(10_000)
    found = await EngineProfiler(slow, FACTS._replace(slots=2, room_tokens=264), SystemClock()).measure(20, "")
    assert {it.requests for it in found.decode} == {1}
    assert [length for length in slow.lengths if length not in {66, 132, 230}] == REPEATS * [68, 68, 100, 100]


async def test_a_timeout_of_the_engine_is_not_the_end_of_the_time() -> None:
    """It is raised."""
    with pytest.raises(TimeoutError, match="its own"):
        await EngineProfiler(_Broken(0, TimeoutError("its own")), FACTS, SystemClock()).measure(5, "")


def test_points_fit_into_the_engine() -> None:
    """Powers of two, and the greatest; the steps with the fewest tokens first."""
    assert doubled(32, 300) == (32, 64, 128, 256, 300)
    assert doubled(1, 1) == (1,)
    shapes = decode_shapes(FACTS)
    assert shapes[0] == DecodeShape(1, 32)
    assert {shape.requests for shape in shapes} == {1, 2, 4}
    assert [each.requests * each.tokens for each in shapes] == sorted(each.requests * each.tokens for each in shapes)
    assert decode_shapes(FACTS._replace(slots=0, room_tokens=100_000))[-1].requests == 32


@pytest.mark.parametrize("context", [16, 60])
def test_an_engine_without_room_for_a_prompt_is_refused(context: int) -> None:
    """With a sentence."""
    with pytest.raises(CallerError, match="too short for a profile"):
        EngineProfiler(_Broken(0), FACTS._replace(context_max=context), SystemClock())
