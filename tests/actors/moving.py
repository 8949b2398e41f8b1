"""Answers on their way from one worker to another."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from actors.engines.simulated.engine_state import Submit
from actors.engines.simulated.engine_step import EngineState, step
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.router.router import Router
from core.generation import GenerateRequest, Output
from tests.actors.membership.test_failure_detector import worker_id
from tests.actors.scripted_engine import ScriptedEngine
from tests.actors.world import FAST, World, request
from tests.output_stream import generate

SLOW = dataclasses.replace(FAST, decode_us_per_step=2000)
LONG = 300
PROMPT = range(60)


def greedy(max_tokens: int = LONG, **sampling: Any) -> GenerateRequest:
    asked = request(PROMPT, max_tokens=max_tokens)
    return msgspec.structs.replace(asked, sampling=msgspec.structs.replace(asked.sampling, **sampling))


def right() -> list[int]:
    """The tokens of `greedy`."""
    return made_at_once(greedy())


def made_at_once(asked: GenerateRequest, engine: SimulatedSettings = FAST) -> list[int]:
    """The tokens of the answer, as any simulated engine makes them."""
    state = EngineState(engine)
    made, now_us = list(step(state, 0, [Submit(asked)]).outputs), 0
    while not made or made[-1][1].finish is None:
        now_us += FAST.decode_us_per_step
        made += step(state, now_us).outputs
    return [token for _, output in made for token in output.tokens]


async def fleet(it: World, *names: str, **options: Any) -> Router:
    """A router that can use these workers."""
    for name in names:
        await it.worker(name, settings=SLOW, **options)
    router = await it.router()
    await it.ready(router, len(names))
    return router


def stream_of(router: Router, asked: GenerateRequest) -> AsyncGenerator[Output, None]:
    return generate(router, "sim", asked)


def where(it: World, router: Router) -> str:
    """The name of the worker that the only request is on."""
    (flight,) = router.scheduler.running
    return next(name for name in it.workers if worker_id(it, name) == flight.worker)


async def until_more(stream: AsyncGenerator[Output, None], tokens: list[int], more: int) -> None:
    """So many tokens came, or more."""
    wanted = len(tokens) + more
    while len(tokens) < wanted:
        tokens += (await anext(stream)).tokens


async def rest(stream: AsyncGenerator[Output, None], tokens: list[int]) -> str | None:
    """All that came to the end; returns how it ended."""
    finish = None
    async for output in stream:
        tokens += output.tokens
        finish = output.finish
    return finish


async def scripted(it: World, *names: str) -> tuple[Router, dict[str, ScriptedEngine]]:
    """Workers whose every output is the test's."""
    engines = {name: ScriptedEngine() for name in names}
    for name, engine in engines.items():
        await it.worker(name, engine=engine)
    router = await it.router()
    await it.ready(router, len(names))
    return router, engines
