"""Prompts computed by one worker and decoded by another: the same text, every job with one end, nothing left behind."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import pytest

from core.events import RequestPrefilled
from core.events.jobs import PrefillCompleted, PrefillPulled, PrefillRequested, PrefillStarted
from core.events.routing import RequestQueued
from core.generation import TASK_EMBED
from core.settings import RoutingSettings
from core.subjects import JOBS, ROUTING, kv_stream
from tests.actors.disagg.disagg import SMALL, alone, at_rest, decode, decode_role, disagg, linked, prefill, prefill_role
from tests.actors.world import collect, request
from tests.fixtures.eventually import eventually

TOKENS = range(100, 100 + 700)


async def test_a_long_prompt_is_computed_elsewhere_and_the_text_is_the_same() -> None:
    async with disagg() as it:
        workers = [await decode(it, "decode-0"), await decode(it, "decode-1"), await prefill(it, "prefill-0")]
        router = await it.router()
        await it.ready(router, 2)
        await linked(workers[:2], 1)
        for length in (10, 64, 65, 96, 500, 700):
            asked = request(list(TOKENS)[-length:])
            tokens, _ = await collect(router, asked)
            assert tokens == await alone(asked)
        requested = await it.told(JOBS, PrefillRequested)
        assert [event.prompt_tokens for event in requested] == [65, 96, 500, 700]
        pulled = await it.told(JOBS, PrefillPulled)
        assert [event.job for event in pulled] == [event.job for event in requested]
        assert len(await it.told(JOBS, PrefillStarted)) == len(await it.told(JOBS, PrefillCompleted)) == 4
        prefilled = await it.told(ROUTING, RequestPrefilled)
        assert [(event.prefill.reason, event.prefill.outcome) for event in prefilled if event.prefill] == [
            ("short", ""),
            ("short", ""),
            *[("long", "pulled")] * 4,
        ]
        await at_rest(workers)


async def test_many_at_once() -> None:
    async with disagg() as it:
        workers = [await decode(it, "decode-0"), await decode(it, "decode-1"), await prefill(it, "prefill-0")]
        router = await it.router()
        await it.ready(router, 2)
        await linked(workers[:2], 1)
        asked = [request([i + 1000, *list(TOKENS)[: 80 + 20 * i]]) for i in range(24)]
        found = await asyncio.gather(*(collect(router, each) for each in asked))
        for each, (tokens, _) in zip(asked, found, strict=True):
            assert tokens == await alone(each)
        await at_rest(workers)
        assert sum(decode_role(worker).totals()["prefill_remote"] for worker in workers[:2]) > 10


async def test_nobody_is_held_for_what_is_computed_elsewhere() -> None:
    """The decode worker that waits for a prompt computes none: the next request is with it at once."""
    async with disagg() as it:
        slow = dataclasses.replace(SMALL, prefill_us_per_token=1_000_000)
        workers = [await decode(it, "decode-0"), await prefill(it, "prefill-0", slow)]
        router = await it.router(settings=RoutingSettings(hold_max_ms=600_000))
        await it.ready(router)
        await linked(workers[:1], 1)
        waits = asyncio.create_task(collect(router, request(list(TOKENS)[:100])))
        await eventually(lambda: decode_role(workers[0]).describe()["jobs_open"] == 1, "a job is open")
        await collect(router, request(range(5000, 5050)))
        assert not waits.done()
        waits.cancel()
        await asyncio.wait([waits])
        assert await it.told(ROUTING, RequestQueued) == []


async def test_a_job_names_the_attempt_that_it_is_for() -> None:
    """The worker that waited for it dies, and the next one asks again."""
    async with disagg() as it:
        slow = dataclasses.replace(SMALL, prefill_us_per_token=2000)
        workers = [await decode(it, "decode-0"), await decode(it, "decode-1"), await prefill(it, "prefill-0", slow)]
        router = await it.router()
        await it.ready(router, 2)
        await linked(workers[:2], 1)
        asked = request(list(TOKENS)[:100])
        answer = asyncio.create_task(collect(router, asked))
        await eventually(
            lambda: any(decode_role(each).describe()["jobs_open"] for each in workers[:2]), "a job is open"
        )
        name = next(each.options.name for each in workers[:2] if decode_role(each).describe()["jobs_open"])
        await it.crash(name)
        assert (await answer)[0] == await alone(asked)
        assert [event.attempt for event in await it.told(JOBS, PrefillRequested)] == [0, 1]


@pytest.mark.parametrize("who", ["decode", "prefill"])
async def test_a_worker_that_goes_on_under_another_id_keeps_its_jobs(who: str) -> None:
    """It was written off and lives: what was asked for before comes all the same, long before its deadline."""
    async with disagg() as it:
        slow = dataclasses.replace(SMALL, prefill_us_per_token=2000)
        workers = {"decode": await decode(it, "decode-0"), "prefill": await prefill(it, "prefill-0", slow)}
        router = await it.router()
        await it.ready(router, 1)
        await linked([workers["decode"]], 1)
        asked = request(list(TOKENS)[:300])
        answer = asyncio.create_task(collect(router, asked))
        await eventually(lambda: prefill_role(workers["prefill"]).execution.started == 1, "the prefill to begin")
        old = workers[who].publisher
        assert old is not None
        await it.write_off(router, kv_stream(old.joined.partition), old.id)
        old.restate()  # it says something, and learns of it
        await eventually(lambda: workers[who].publisher is not old, "another id")
        assert (await answer)[0] == await alone(asked)
        (report,) = [event.prefill for event in await it.told(ROUTING, RequestPrefilled) if event.prefill is not None]
        assert report.outcome == "pulled"
        assert report.compute_ms >= 590, "300 tokens of 2 ms, which the prefill worker reports"
        await at_rest([*workers.values()])


async def test_waiting_in_the_queue_takes_nothing_of_the_time_that_blocks_are_held() -> None:
    """Nothing is held before somebody computes: a job that waited for longer than that is of use all the same."""
    async with disagg() as it:
        slow = dataclasses.replace(SMALL, prefill_us_per_token=5000, keep_ms=1500)
        workers = [await decode(it, "decode-0"), await prefill(it, "prefill-0", slow)]
        router = await it.router()
        await it.ready(router, 1)
        await linked(workers[:1], 1)
        first, then = request(list(TOKENS)[:250]), request(range(5000, 5100))
        answers = [asyncio.create_task(collect(router, first))]
        await eventually(lambda: prefill_role(workers[1]).execution.started == 1, "the prefill to begin")
        answers.append(asyncio.create_task(collect(router, then)))
        for answer, asked in zip(await asyncio.gather(*answers), (first, then), strict=True):
            assert answer[0] == await alone(asked)
        assert decode_role(workers[0]).describe()["jobs"] == {"pulled": 2}
        await at_rest(workers)


async def test_what_blocks_do_not_hold_is_computed_here() -> None:
    """Logprobs of a long prompt, and its embedding, come from the worker that was asked; nobody is asked for blocks."""
    async with disagg() as it:
        workers = [await decode(it, "decode-0"), await prefill(it, "prefill-0")]
        router = await it.router()
        await it.ready(router, 1)
        await linked(workers[:1], 1)
        asked = request(list(TOKENS))
        whole = msgspec.structs.replace(asked, sampling=msgspec.structs.replace(asked.sampling, prompt_logprobs=0))
        tokens, outputs = await collect(router, whole)
        assert len(outputs[0].prompt_logprobs) == len(TOKENS)
        assert tokens == await alone(asked)
        _, outputs = await collect(router, msgspec.structs.replace(request(list(TOKENS)[1:]), task=TASK_EMBED))
        assert [bool(output.embedding) for output in outputs] == [True]
        assert await it.told(JOBS, PrefillRequested) == []
        await at_rest(workers)
