"""The simulated engine as an engine, and its faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop

from actors.engines.engine import CacheChange
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from core.errors import CallerError, EngineDead
from tests.contracts.engine import EngineContract, Started, answer_to, prompt, request, until_idle
from tests.contracts.engine_sampling import SamplingContract

FAST = SimulatedSettings(block_size=16, capacity_blocks=200, context_max=1024, time_scale=20.0)


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    changes: list[CacheChange] = []
    engine = SimulatedEngine("sim", FAST)
    await engine.start(changes.append)
    yield engine
    await engine.stop()


class TestSimulatedSampling(SamplingContract):
    """The contract of logprobs, biases and allowed tokens."""


class TestSimulatedEngine(EngineContract):
    """The contract."""

    @pytest.fixture
    async def started(self) -> AsyncIterator[Started]:
        changes: list[CacheChange] = []
        engine = SimulatedEngine("sim", FAST)
        await engine.start(changes.append)
        yield Started(engine, changes)
        await engine.stop()


async def test_says_what_it_is(engine: SimulatedEngine) -> None:
    """It calls itself simulated, and shows its state in a line."""
    assert engine.info[:3] == ("simulated", "sim", "")
    assert engine.info.slots == FAST.max_seqs
    assert engine.transfer is None
    assert repr(engine).startswith("<SimulatedEngine sim <EngineState at ")
    await engine.stop()
    assert repr(engine) == "<SimulatedEngine sim dead: it was stopped>"


def test_settings_from_a_file() -> None:
    """Settings come from plain values; an unknown one is named, with the one that is meant."""
    assert SimulatedSettings.parse({"block_size": "16", "time_scale": 2}).block_size == 16
    with pytest.raises(CallerError, match=r"does not know blocksize, gpus; did you mean block_size"):
        SimulatedSettings.parse({"gpus": 8, "blocksize": 1})
    with pytest.raises(CallerError, match="side_channel_port must be 0 to 65535, but is 65536"):
        SimulatedSettings.parse({"side_channel_port": 65536})
    for bad in (
        {"keep_ms": 0},
        {"block_size": "x"},
        {"block_size": 0},
        {"vocab": 3},
        {"eos_every": -1},
        {"context_max": 1},
        {"batched_tokens_max": 0},
        {"timing": "exact"},
    ):
        with pytest.raises(
            CallerError, match=f"engine_args: .*{'Expected' if 'x' in bad.values() else next(iter(bad))}"
        ):
            SimulatedSettings.parse(bad)


async def test_a_slow_reader_gets_tokens_together(engine: SimulatedEngine) -> None:
    """Tokens that came while nobody read leave together."""
    stream = engine.generate(request(prompt(5), 10))
    first = await anext(stream)
    await until_idle(engine)
    rest = [output async for output in stream]
    outputs = [first, *rest]
    assert len(rest) <= 1  # none if this task was so late that the first one has them all
    assert sum(len(output.tokens) for output in outputs) == 10
    assert outputs[-1].finish == "length"
    assert [output.cached_tokens for output in rest] == [None] * len(rest)


async def test_same_id_again(engine: SimulatedEngine) -> None:
    """A request given up and sent again at once under its old id gets its own answer, from the start."""
    asked = request(prompt(30), 12)
    whole = await answer_to(engine, asked)
    for _ in range(5):
        stream = engine.generate(asked)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await answer_to(engine, asked)).tokens == whole.tokens


async def test_crash(engine: SimulatedEngine) -> None:
    """After a crash, what runs, what comes, and the health check all get EngineDead with the reason."""
    stream = engine.generate(request(prompt(5), 900))
    await anext(stream)
    engine.crash("out of memory")
    with pytest.raises(EngineDead, match="out of memory"):
        async for _ in stream:
            pass
    with pytest.raises(EngineDead, match="out of memory"):
        await engine.check()
    with pytest.raises(EngineDead):
        await anext(engine.generate(request(prompt(5))))


async def test_hang(engine: SimulatedEngine) -> None:
    """An engine that hangs gives no more tokens and no error, until it is stopped."""
    engine.hang()
    waiting = asyncio.ensure_future(answer_to(engine, request(prompt(5))))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    await engine.check()
    assert engine.load().waiting == 1
    await engine.stop()
    with pytest.raises(EngineDead, match="stopped"):
        await waiting


async def test_a_broken_listener_is_a_dead_engine() -> None:
    """If its cache changes cannot be told, the engine dies loudly instead of going on untold."""

    def refuse(_change: CacheChange) -> None:
        raise ValueError("no room")

    engine = SimulatedEngine("sim", FAST)
    await engine.start(refuse)
    with pytest.raises(EngineDead, match="no room"):
        await answer_to(engine, request(prompt(40)))
    await engine.stop()


PAUSES = 20


def test_a_pause_ends_when_something_can_be_due() -> None:
    """The engine's time moves by whole milliseconds, and so does the loop's: a pause that is shorter would end at the
    same time at which it began, and be taken again until that has passed."""

    async def moved() -> int:
        engine = SimulatedEngine("sim", FAST)
        count = 0
        for _ in range(PAUSES):
            await asyncio.sleep(0)  # the loop looks at the clock
            began_us = engine.now_us()
            await engine._pause(began_us + 1)
            count += engine.now_us() > began_us
        return count

    assert uvloop.run(moved()) > PAUSES // 2  # a clock that ticks between the two looks ends one early
