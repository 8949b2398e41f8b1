"""Prefill here, decode there: a whole deployment on simulated engines says what the same one says without it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import openai

from core.events import RequestPrefilled
from core.events.jobs import PrefillCancelled, PrefillPulled, PrefillRequested
from core.generation import PrefillReport
from tests.e2e.by_hand import Access, by_hand
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

LENGTHS = (10, 33, 64, 65, 100, 320, 700, 1500, 3000)
"""Of prompts, in tokens."""
MIN_TOKENS = 64
ANSWER_TOKENS = 24
FIRST_TOKEN, LAST_TOKEN = 300, 900
"""Tokens of the prompts: plain words of the built-in vocabulary."""
WORKERS = [
    {"name": "decode", "count": 2, "engine": "simulated"},
    {"name": "prefill", "role": "prefill", "count": 1, "engine": "simulated"},
]
ROUTING = {"policy": "kv", "remote_prefill_min_tokens": MIN_TOKENS, "prefill_queue_max": 100}


class Question(NamedTuple):
    """One prompt; different ones share no block."""

    seed: int
    length: int

    @property
    def id(self) -> str:
        """By which the log knows the request that asks it."""
        return f"q-{self.seed}-{self.length}"

    @property
    def tokens(self) -> list[int]:
        """A linear congruence, which forgets nothing of where it began."""
        state, found = 10_007 * self.seed + self.length, []
        for _ in range(self.length):
            state = (state * 1_103_515_245 + 12_345) % 2**31
            found.append(FIRST_TOKEN + (state >> 8) % (LAST_TOKEN - FIRST_TOKEN))
        return found


ALONE = [Question(1, length) for length in LENGTHS]
TOGETHER = [Question(seed, length) for seed in (2, 3, 4) for length in LENGTHS]
IN_TROUBLE = [Question(5, length) for length in (3000, 1500, 700)]


def _written(folder: Path, workers: list[dict[str, object]]) -> Path:
    file = folder / f"{len(workers)}.yaml"
    file.write_text(json.dumps({"version": 1, "workers": workers, "routing": ROUTING}))
    return file


async def _text(client: openai.AsyncOpenAI, question: Question, *, streamed: bool, id: str | None = None) -> str:
    """The greedy answer."""
    asked = {
        "model": "tiny",
        "prompt": question.tokens,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "extra_headers": {"x-request-id": id or question.id},
    }
    if not streamed:
        answer = await client.completions.create(**asked)  # type: ignore[call-overload]
        assert answer.usage.prompt_tokens == question.length
        return str(answer.choices[0].text)
    parts = await client.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    return "".join([part.choices[0].text async for part in parts if part.choices])


async def _alone(running: Running, questions: Iterable[Question]) -> dict[str, str]:
    """One after the other, every other one streamed."""
    return {q.id: await _text(running.openai, q, streamed=bool(n % 2)) for n, q in enumerate(questions)}


async def _together(running: Running, questions: list[Question]) -> dict[str, str]:
    """All at once, every other one streamed."""
    asking = (_text(running.openai, q, streamed=bool(n % 2)) for n, q in enumerate(questions))
    return dict(zip((q.id for q in questions), await asyncio.gather(*asking), strict=True))


async def test_the_text_is_that_of_the_aggregated_mode(tmp_path: Path) -> None:
    """Prompts of 10 to 3000 tokens, streamed and not, alone and at once, with the prefill worker there and killed."""
    async with up(tmp_path / "agg", "-f", str(_written(tmp_path, WORKERS[:1]))) as running:
        expected = await _alone(running, [*ALONE, *TOGETHER, *IN_TROUBLE])
        assert len(set(expected.values())) == len(expected)
        assert not await running.events("jobs")
    async with up(tmp_path / "disagg", "-f", str(_written(tmp_path, WORKERS))) as running:
        assert {part["name"]: part["role"] for part in running.run()["parts"] if part["kind"] == "worker"} == {
            "decode-0": "decode",
            "decode-1": "decode",
            "prefill-0": "prefill",
        }
        assert await _alone(running, ALONE) == _of(expected, ALONE)
        await _sent_away_as_they_should(running)
        assert await _together(running, TOGETHER) == _of(expected, TOGETHER)
        await _jobs_have_ends(running)
        reports = await _reports(running, *(question.id for question in TOGETHER))
        long = [reports[question.id] for question in TOGETHER if question.length > MIN_TOKENS]
        assert {report.outcome for report in long} == {"pulled"}, long
        await _what_is_cached_stays(running, expected)
        await _the_threshold_is_obeyed(running)
        killed = running.part("prefill-0")["id"]
        assert await _with_a_kill(running) == _of(expected, IN_TROUBLE)
        await eventually(lambda: _prefill_worker(running) not in {None, killed}, "the prefill worker's restart")
        await _jobs_have_ends(running)
        await running.assert_index_is_cache()


def _of(expected: dict[str, str], questions: list[Question]) -> dict[str, str]:
    return {question.id: expected[question.id] for question in questions}


async def _reports(running: Running, *requests: str) -> dict[str, PrefillReport]:
    """Where the prompts of these requests were computed, as soon as the log says it of all."""
    async with asyncio.timeout(20):
        while True:
            found = [event for event in await running.events("routing") if isinstance(event, RequestPrefilled)]
            reports = {event.request: event.prefill for event in found if event.prefill is not None}
            if reports.keys() >= set(requests):
                return reports
            await asyncio.sleep(0.1)


async def _sent_away_as_they_should(running: Running) -> None:
    """Alone, each prompt of more than the threshold was fetched from the prefill worker, and no other."""
    reports = await _reports(running, *(question.id for question in ALONE))
    for question in ALONE:
        report = reports[question.id]
        assert report.remote == (question.length > MIN_TOKENS), report
        assert report.outcome == ("pulled" if report.remote else ""), report
    served = running.state("prefill-0")
    assert served["worker"] in {reports[q.id].worker for q in ALONE}


async def _jobs_have_ends(running: Running) -> None:
    """Each job that was opened was pulled or cancelled, once."""
    await eventually(lambda: not running.state("frontend-0")["in_flight"], "rest")
    async with asyncio.timeout(20):
        while True:
            events = await running.events("jobs")
            asked = sorted(event.job for event in events if isinstance(event, PrefillRequested))
            ended = sorted(event.job for event in events if isinstance(event, PrefillPulled | PrefillCancelled))
            if asked == ended:
                break
            await asyncio.sleep(0.2)
    assert len(set(asked)) == len(asked) > 0


async def _what_is_cached_stays(running: Running, expected: dict[str, str]) -> None:
    """Asked again, a long prompt lies in the cache of the worker that it goes to, and is not sent away."""
    longest = ALONE[-1]
    assert await _text(running.openai, longest, streamed=True, id="again") == expected[longest.id]
    report = (await _reports(running, "again"))["again"]
    assert not report.remote
    assert report.uncached_tokens <= MIN_TOKENS


async def _the_threshold_is_obeyed(running: Running) -> None:
    """Set live, it counts for requests to come."""
    data = str(running.data)
    said = await asyncio.to_thread(contrail, "settings", "set", "remote_prefill_min_tokens", "2000", "--data", data)
    assert said.returncode == 0, said.stderr
    await asyncio.sleep(0.5)  # workers hear of it within milliseconds, but nobody tells when
    for question in (Question(6, 2000), Question(6, 2500)):
        await _text(running.openai, question, streamed=False)
    reports = await _reports(running, "q-6-2000", "q-6-2500")
    assert [reports[f"q-6-{length}"].remote for length in (2000, 2500)] == [False, True]
    said = await asyncio.to_thread(contrail, "settings", "unset", "--all", "--data", data)
    assert said.returncode == 0, said.stderr
    await asyncio.sleep(0.5)


def _prefill_worker(running: Running) -> str | None:
    """Its id; None while it is not up."""
    return next((part["id"] for part in running.run()["parts"] if part["name"] == "prefill-0"), None)


async def _with_a_kill(running: Running) -> dict[str, str]:
    """Texts of prompts that were asked while the prefill worker was killed -9."""
    asking = asyncio.create_task(_together(running, IN_TROUBLE))
    await asyncio.sleep(0.05)
    os.kill(running.part("prefill-0")["pid"], signal.SIGKILL)
    return await asking


async def test_prefill_workers_come_from_elsewhere_and_go(tmp_path: Path) -> None:
    """One that joins by addresses and key is asked; when it has left, prompts are computed where they are decoded."""
    decode = {"count": 1, "engine": "simulated", "remote_prefill": True}
    async with up(tmp_path / "data", "-f", str(_written(tmp_path, [decode]))) as running:
        access = Access(running)
        words = ["--name=far", "--model=tiny", "--engine=simulated", "--slots=1"]
        async with by_hand(tmp_path / "far.log", "prefill-worker", *access.options, *words, access=access) as far:
            await far.address()
            async with asyncio.timeout(20):
                for number in itertools.count():  # until the two are connected
                    await _text(running.openai, Question(100 + number, 700), streamed=False)
                    report = (await _reports(running, f"q-{100 + number}-700"))[f"q-{100 + number}-700"]
                    if report.outcome == "pulled":
                        break
                    assert report.reason == "no_prefill_worker"
            await _jobs_have_ends(running)
        await _text(running.openai, Question(99, 700), streamed=False)
        assert (await _reports(running, "q-99-700"))["q-99-700"].reason == "no_prefill_worker"
