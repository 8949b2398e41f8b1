"""Answers that are taken whole: a worker gathers their tokens, and loses none of them."""

from __future__ import annotations

import asyncio

from actors.transport.frames import Failed, Generate, Tokens
from actors.transport.worker_server import GATHERED_TOKENS_MAX, ClientConnection
from core.errors import EngineDead
from core.generation import Hint, Output
from tests.actors.transport.test_worker_server import site
from tests.actors.world import request
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]


def test_an_answer_that_is_taken_whole_comes_in_few_pieces(run: Run) -> None:
    """Its first tokens at once, then so many together, the rest with its end; an error keeps what was made."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            for stream, name in enumerate(("whole", "broken")):
                asked = request(range(8), id=name, gather=True)
                client.say(Generate(stream=stream, model="sim", request=asked))
            await eventually(lambda: len(it.host.engine.scripts) == 2, "both run")
            script = it.host.engine.script("whole")
            script.put_nowait(Output(tokens=(0,), cached_tokens=0))
            assert await client.hear() == Tokens(stream=0, output=Output(tokens=(0,), cached_tokens=0))
            for token in range(1, GATHERED_TOKENS_MAX + 4):
                await asyncio.sleep(0)
                script.put_nowait(Output(tokens=(token,)))
            many = await client.hear()
            assert many == Tokens(stream=0, output=Output(tokens=tuple(range(1, GATHERED_TOKENS_MAX + 1))))
            script.put_nowait(Output(tokens=(99,), finish="stop"))
            rest = (*range(GATHERED_TOKENS_MAX + 1, GATHERED_TOKENS_MAX + 4), 99)
            assert await client.hear() == Tokens(stream=0, output=Output(tokens=rest, finish="stop"))
            it.host.engine.script("broken").put_nowait(Output(tokens=(7,)))
            it.host.engine.script("broken").put_nowait(EngineDead("gone"))
            assert await client.hear() == Tokens(stream=1, output=Output(tokens=(7,)))
            assert await client.hear() == Failed(stream=1, fault="worker", text="gone")

    run(scenario)


def test_a_first_output_without_a_count_of_its_cache_leaves_at_once(run: Run) -> None:
    """An engine may say at the end how much was cached: its prefill is over all the same, and the count comes then."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            hint = Hint(prefill_tokens=8)
            asked = request(range(8), id="late", gather=True)
            client.say(Generate(stream=0, model="sim", request=asked, hint=hint))
            await eventually(lambda: it.host.engine.scripts, "it runs")
            other = ClientConnection(it.port)
            assert it.port.computes_for_others(other) == 8
            script = it.host.engine.script("late")
            script.put_nowait(Output(tokens=(1,)))
            assert await client.hear() == Tokens(stream=0, output=Output(tokens=(1,)))
            assert it.port.computes_for_others(other) == 0
            script.put_nowait(Output(tokens=(2,), finish="stop", cached_tokens=4))
            assert await client.hear() == Tokens(stream=0, output=Output(tokens=(2,), finish="stop", cached_tokens=4))

    run(scenario)


def test_what_is_handed_on_has_all_that_was_made(run: Run) -> None:
    """Also what was gathered to leave in one piece: the next worker need not make it again."""

    async def scenario() -> None:
        async with site() as it:
            client, made = await it.connect(), range(GATHERED_TOKENS_MAX - 2)
            client.say(Generate(stream=0, model="sim", request=request(range(4), id="a", gather=True)))
            for token in made:
                it.host.engine.script("a").put_nowait(Output(tokens=(token,)))
            await eventually(lambda: it.port.outputs == len(made), "all of it")
            it.port.end_streams("leaving", "draining")
            tokens: list[int] = []
            while isinstance(frame := await client.hear(), Tokens):
                tokens += frame.output.tokens
            assert frame == Failed(stream=0, fault="leaving", text="draining")
            assert tokens == list(made)

    run(scenario)
