"""An answer goes on when its worker dies, hangs or leaves: neither an error, nor a token twice, nor one missing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.prompt_cache.hash_columns import PART_TOKENS
from actors.router import request_scheduler
from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.events import RequestFinished, RequestMigrated, RequestRouted
from core.generation import TASK_EMBED, Output
from core.models import GenerationFailed
from core.subjects import ROUTING
from replay.explain.explain import explain
from replay.verify.verify import verify
from tests.actors.moving import SLOW, fleet, greedy, made_at_once, rest, right, scripted, stream_of, until_more, where
from tests.actors.world import KEY, NAMESPACE, collect, request, world
from tests.fixtures.eventually import eventually
from tests.replay.recorded import recorded


async def test_an_answer_survives_one_worker_after_the_other(tmp_path: Path) -> None:
    """As long as it gets on, more of them than a request is tried on before its first token; and the log proves it."""
    async with world() as it:
        router = await fleet(it, *"abcdefgh")  # all from the start: while one starts, a busy machine ends the answer
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        for _ in range(6):
            await until_more(stream, tokens, 5)
            await it.crash(where(it, router))
        assert await rest(stream, tokens) == "length"
        assert tokens == right()
        moved = await it.told(ROUTING, RequestMigrated)
        assert [event.attempt for event in moved] == [1, 2, 3, 4, 5, 6]
        assert [event.told_tokens for event in moved] == sorted({event.told_tokens for event in moved})
        await it.settled(router)
        recording = await recorded(it.log, NAMESPACE, KEY, tmp_path / "log")
    with recording:
        told = explain(recording, moved[0].request)
        verified = verify(recording)
    assert [attempt.told_tokens for attempt in told.attempts] == [0, *(event.told_tokens for event in moved)]
    assert not any(attempt.compared for attempt in told.attempts)
    assert [attempt.outcome for attempt in told.attempts] == ["worker_lost"] * 6 + ["length"]
    assert "the answer moved 6 times: " in render(explain_text(told))
    assert verified.decisions
    assert not verified.differences


@pytest.mark.parametrize(
    "sampling",
    [
        {"seed": 7, "temperature": 1.0},
        {"frequency_penalty": 0.5},
        {"temperature": 1.0, "presence_penalty": 0.5},
    ],
)
async def test_an_answer_with_more_than_its_tokens_is_made_again(sampling: dict[str, Any], tmp_path: Path) -> None:
    """From its start, and the client sees nothing of that; `explain` says so."""
    async with world() as it:
        router = await fleet(it, "a", "b")
        tokens: list[int] = []
        asked = greedy(**sampling)
        stream = stream_of(router, asked)
        await until_more(stream, tokens, 20)
        await it.crash(where(it, router))
        assert await rest(stream, tokens) == "length"
        assert tokens == right()
        (moved,) = await it.told(ROUTING, RequestMigrated)
        routed = [event for event in await it.told(ROUTING, RequestRouted) if event.request == asked.id]
        assert [event.prompt_tokens for event in routed] == [60, 60]
        recording = await recorded(it.log, NAMESPACE, KEY, tmp_path / "log")
    with recording:
        told = explain(recording, asked.id)
    assert [attempt.compared for attempt in told.attempts] == [False, True]
    assert f"from the start: the {moved.told_tokens} tokens that the client has were made again" in render(
        explain_text(told)
    )


async def test_a_worker_that_says_something_else_is_not_believed() -> None:
    """The client hears that the answer cannot be continued, and sees no token of the other one."""
    async with world() as it:
        router, engines = await scripted(it, "a", "b")
        for name, tokens in (("a", (5, 6)), ("b", (5, 7, 8))):
            engines[name].script("x").put_nowait(Output(tokens=tokens))
        asked = msgspec.structs.replace(greedy(presence_penalty=0.5), id="x")
        stream = stream_of(router, asked)
        seen = list((await anext(stream)).tokens)
        first = where(it, router)
        other = next(name for name in engines if name != first)
        engines[first].script("x").put_nowait(GenerationFailed("it broke"))
        with pytest.raises(GenerationFailed, match="the answer cannot be continued"):
            await rest(stream, seen)
        assert seen == ([5, 6] if first == "a" else [5, 7, 8])
        await eventually(lambda: engines[other].ended == ["x"], "the other engine stopped")
        await eventually(lambda: router.publisher.outbox.idle, "the log has it")
        ends = [(end.outcome, end.detail[:6]) for end in await it.told(ROUTING, RequestFinished)]
        assert ends == [("worker_lost", "it bro"), ("error", "the an")]


async def test_an_embedding_is_simply_made_again() -> None:
    """Nothing of it was told before it was there."""
    async with world() as it:
        router, engines = await scripted(it, "a", "b")
        asked = msgspec.structs.replace(greedy(max_tokens=1), id="x", task=TASK_EMBED)
        answer = asyncio.create_task(collect(router, asked))
        await eventually(lambda: router.scheduler.running, "it is on its way")
        for name, engine in engines.items():
            said = (
                GenerationFailed("it broke") if name == where(it, router) else Output(embedding=b"1234", finish="stop")
            )
            engine.script("x").put_nowait(said)
        _, outputs = await answer
        assert [output.embedding for output in outputs] == [b"1234"]
        assert not await it.told(ROUTING, RequestMigrated)


async def test_what_is_left_of_the_deadline_goes_with_it() -> None:
    """Each attempt is told how long the client still waits."""
    async with world() as it:
        router, engines = await scripted(it, "a", "b")
        for engine in engines.values():
            engine.script("x").put_nowait(Output(tokens=(5,)))
        stream = stream_of(router, msgspec.structs.replace(greedy(), id="x", deadline_ms=50_000))
        await anext(stream)
        await asyncio.sleep(0.05)
        before = engines[where(it, router)]
        before.script("x").put_nowait(GenerationFailed("it broke"))
        await anext(stream)
        first = before.asked[0].deadline_ms or 0
        second = engines[where(it, router)].asked[0].deadline_ms or 0
        assert 49_000 < second <= first - 50 < 50_000
        await stream.aclose()


async def test_a_begun_answer_waits_for_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes within RESUME_WAIT_S goes on with it, and the log has no refusal."""
    monkeypatch.setattr(request_scheduler, "RESUME_WAIT_US", 20_000_000)
    async with world() as it:
        router = await fleet(it, "a")
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        await it.crash("a")
        more = asyncio.create_task(rest(stream, tokens))
        await eventually(lambda: not router.card("sim").workers, "the worker is gone")
        await it.worker("b", settings=SLOW)
        assert await more == "length"
        assert tokens == right()


async def test_without_a_worker_it_is_an_error_soon() -> None:
    """Not silence: GenerationFailed when RESUME_WAIT_S is over."""
    async with world() as it:
        router = await fleet(it, "a")
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        await it.crash("a")
        with pytest.raises(GenerationFailed, match="the worker broke off, and no worker can take requests"):
            await rest(stream, tokens)
        assert not router.scheduler.running
        assert not router.scheduler.requests


async def test_who_hangs_up_between_two_attempts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for a worker nothing is in flight, and afterwards its id is free."""
    monkeypatch.setattr(request_scheduler, "RESUME_WAIT_US", 20_000_000)
    async with world() as it:
        router = await fleet(it, "a")
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        await it.crash("a")
        more = asyncio.create_task(rest(stream, tokens))
        await eventually(lambda: not router.scheduler.running, "it waits")
        more.cancel()
        await asyncio.wait([more])
        await stream.aclose()
        assert not router.scheduler.requests


@pytest.mark.parametrize("bound_s", [0.0, 0.05])
async def test_a_worker_that_leaves_hands_its_answers_on(bound_s: float) -> None:
    """What is not finished in time goes on elsewhere, behind every token that was told."""
    async with world() as it:
        router = await fleet(it, "a", "b", drain_timeout_s=bound_s)
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        leaving = it.workers.pop(where(it, router))
        stopping = asyncio.create_task(leaving.stop("test"))
        assert await rest(stream, tokens) == "length"
        assert tokens == right()
        await stopping
        (moved,) = await it.told(ROUTING, RequestMigrated)
        assert moved.reason == "draining"


async def test_a_second_word_makes_a_worker_leave_at_once() -> None:
    """It need not wait for what it could have finished; no token is lost either."""
    async with world() as it:
        router = await fleet(it, "a", "b", drain_timeout_s=600.0)
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        leaving = it.workers.pop(where(it, router))
        leaving.leave("asked to end")
        stopping = asyncio.create_task(leaving.stop("asked to end"))
        await until_more(stream, tokens, 5)
        assert not await it.told(ROUTING, RequestMigrated)
        leaving.leave("asked to end")
        await stopping
        assert await rest(stream, tokens) == "length"
        assert tokens == right()
        assert len(await it.told(ROUTING, RequestMigrated)) == 1


async def test_a_long_prompt_goes_on_at_a_worker_that_knows_no_part_of_it() -> None:
    """Turns of a talk are named by the parts that their worker keeps; the next worker gets the whole prompt."""
    engine = replace(SLOW, capacity_blocks=4096, context_max=32_768)
    talk = [number % 1000 for number in range(14_000)]
    async with world() as it:
        await it.worker("a", settings=engine)
        router = await it.router()
        await it.ready(router)
        for length in (9000, 13_000):
            asked = request(talk[:length], max_tokens=3)
            assert (await collect(router, asked))[0] == made_at_once(asked, engine)
        assert len(it.workers["a"].port.prompts) == 13_000 // PART_TOKENS
        tokens: list[int] = []
        asked = request(talk, max_tokens=40)
        stream = stream_of(router, asked)
        await until_more(stream, tokens, 5)
        await it.worker("b", settings=engine)
        await it.ready(router, 2)
        await it.crash("a")
        assert await rest(stream, tokens) == "length"
        assert tokens == made_at_once(asked, engine)
        assert len(it.workers["b"].port.prompts) == 14_000 // PART_TOKENS
