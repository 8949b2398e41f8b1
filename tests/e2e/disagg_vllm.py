"""Prefill here, decode there, on three vLLM workers: the text of one engine alone, and every block accounted for.

By hand, `pytest tests/e2e/disagg_vllm.py`: three engines of a deployment take minutes to start and answer on two cores
that the suite's own engines share. The suite has a pair of real engines in
`tests/actors/engines/vllm/test_vllm_transfer.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core.events import RequestPrefilled
from core.events.jobs import PrefillCancelled, PrefillPulled, PrefillRequested
from core.generation import PrefillReport
from tests.chaos.disagg_engines import Verdict, VllmJudge
from tests.e2e.deployment import Running, contrail, up
from tests.e2e.test_disagg import Question
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually

LENGTHS = (10, 33, 64, 65, 100, 320, 700, 1500, 3000)
"""Of prompts, in tokens."""
MIN_TOKENS = 64
ANSWER_TOKENS = 16
ENGINE_ARGS = {"max_model_len": 4096}
WORKERS = [
    {"name": "decode", "count": 2, "engine": "vllm", "engine_args": ENGINE_ARGS},
    {"name": "prefill", "role": "prefill", "count": 1, "engine": "vllm", "engine_args": ENGINE_ARGS},
]
ROUTING = {"policy": "kv", "remote_prefill_min_tokens": MIN_TOKENS, "prefill_queue_max": 100}
ALONE = [Question(11, length) for length in LENGTHS]
TOGETHER = [Question(12, length) for length in (33, 320, 700, 1500, 3000, 65)]
IN_TROUBLE = [Question(13, length) for length in (3000, 700)]
REST_S = 60.0
RESTART_S = 300.0


async def test_the_text_is_that_of_one_engine_alone(tmp_path: Path, vllm_engine: RecordedEngine) -> None:
    """Prompts of 10 to 3000 tokens, streamed and not, alone and at once, with the prefill worker there and killed."""
    file = tmp_path / "disagg.yaml"
    file.write_text(json.dumps({"version": 1, "workers": WORKERS, "routing": ROUTING}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        judge = VllmJudge(vllm_engine)
        await judge.start(running.data / "models" / "tiny")
        for number, question in enumerate(ALONE):
            verdict = await _judged(judge, question, await _text(running, question, streamed=bool(number % 2)))
            assert verdict.right, verdict.expected
            assert not verdict.tie, "one at a time, it is exact"
        await _only_what_is_long_was_sent_away(running)
        await _what_is_cached_stays(running)
        await _right(running, judge, TOGETHER)
        await _counters_agree(running)
        await _thresholds_are_obeyed(running)
        await _killed(running, judge)


TIERED_ARGS = {"max_model_len": 1024, "num_gpu_blocks_override": 65}
TIERED = [
    {
        "name": "decode",
        "count": 1,
        "engine": "vllm",
        "engine_args": TIERED_ARGS,
        "kv_tiers": {"host": "64MiB", "disk": {"path": "kv", "size": "1GiB"}},
    },
    {"name": "prefill", "role": "prefill", "count": 1, "engine": "vllm", "engine_args": TIERED_ARGS},
]
KEPT = [Question(14, length) for length in (400, 450, 500, 550, 600)]
OTHERS = [Question(15, length) for length in (410, 460, 510, 560, 610)]


async def test_with_tiers(tmp_path: Path, vllm_engine: RecordedEngine) -> None:
    """Pulled prompts that left the device are loaded from the host, and from the disk after the worker was killed: no
    prefill worker computes them again, each text is right, and the log is verified."""
    file = tmp_path / "tiers.yaml"
    file.write_text(json.dumps({"version": 1, "workers": TIERED, "routing": ROUTING}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        judge = VllmJudge(vllm_engine)
        await judge.start(running.data / "models" / "tiny")
        for question in [*KEPT, *OTHERS]:
            assert (await _judged(judge, question, await _text(running, question, streamed=True))).right
        reports = await _reports(running, *(question.id for question in [*KEPT, *OTHERS]))
        assert {report.outcome for report in reports.values()} == {"pulled"}
        await _loaded(running, judge, "host")
        announced = sum(question.length // 32 for question in [*KEPT, *OTHERS])
        await eventually(lambda: _in_pool(running) >= announced, "the pool", REST_S)
        killed = running.part("decode-0")
        os.kill(killed["pid"], signal.SIGKILL)
        await eventually(lambda: not _in_pool(running), "the worker's end", REST_S)
        await eventually(lambda: _in_pool(running) >= announced, "the next worker and the pool", RESTART_S)
        assert running.part("decode-0")["id"] != killed["id"]
        await eventually(lambda: running.state("decode-0")["prefill"]["prefill_workers"], "the prefill worker", REST_S)
        await eventually(lambda: running.state("frontend-0")["pools"], "the pool in the front end", REST_S)
        await _loaded(running, judge, "disk")
        verified = await asyncio.to_thread(contrail, "replay", "verify", "--data", str(running.data))
        assert verified.returncode == 0, verified.stdout
        await running.assert_index_is_cache()


def _in_pool(running: Running) -> int:
    """Blocks that the decode worker's pool has announced; 0 while there is no worker."""
    try:
        return int((running.state("decode-0")["pool"] or {"blocks": 0})["blocks"])
    except (LookupError, OSError):
        return 0


async def _loaded(running: Running, judge: VllmJudge, tier: str) -> None:
    for question in KEPT:
        id_ = f"{question.id}-{tier}"
        text = await _text(running, question, streamed=True, id=id_)
        assert (await _judged(judge, question, text)).right
        report = (await _reports(running, id_))[id_]
        assert (report.remote, report.reason) == (False, "short"), (tier, report)
        assert report.uncached_tokens <= 32, (tier, report)


async def _text(running: Running, question: Question, *, streamed: bool, id: str | None = None) -> str:
    """The greedy answer, of ANSWER_TOKENS."""
    asked: dict[str, Any] = {"model": "tiny", "prompt": question.tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    asked |= {"extra_headers": {"x-request-id": id or question.id}, "extra_body": {"ignore_eos": True}}
    if not streamed:
        answer = await running.openai.completions.create(**asked)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == question.length
        return str(answer.choices[0].text)
    parts = await running.openai.completions.create(**asked, stream=True)
    return "".join([part.choices[0].text async for part in parts if part.choices])


async def _judged(judge: VllmJudge, question: Question, text: str) -> Verdict:
    return await judge.judge(question.tokens, ANSWER_TOKENS, text, whole=True)


async def _right(running: Running, judge: VllmJudge, questions: Iterable[Question]) -> None:
    """Asked at once, every text is right but for tokens that had a rival as good; those are shown."""
    questions = list(questions)
    asking = (_text(running, question, streamed=bool(n % 2)) for n, question in enumerate(questions))
    texts = await asyncio.gather(*asking)
    verdicts = [await _judged(judge, question, text) for question, text in zip(questions, texts, strict=True)]
    print(f"{sum(verdict.tie for verdict in verdicts)} ties in {len(verdicts)} texts")  # noqa: T201 - to be shown
    assert all(verdict.right for verdict in verdicts), list(zip(texts, verdicts, strict=True))


async def _reports(running: Running, *requests: str) -> dict[str, PrefillReport]:
    """Where the prompts of these requests were computed, as soon as the log says it of all."""
    async with asyncio.timeout(REST_S):
        while True:
            found = [event for event in await running.events("routing") if isinstance(event, RequestPrefilled)]
            reports = {event.request: event.prefill for event in found if event.prefill is not None}
            if reports.keys() >= set(requests):
                return reports
            await asyncio.sleep(0.2)


async def _only_what_is_long_was_sent_away(running: Running) -> None:
    """Each prompt of more than the threshold came from the prefill worker, and no other."""
    reports = await _reports(running, *(question.id for question in ALONE))
    for question in ALONE:
        report = reports[question.id]
        assert (report.remote, report.outcome) == ((True, "pulled") if question.length > MIN_TOKENS else (False, ""))
        assert report.remote or report.reason == "short"


async def _what_is_cached_stays(running: Running) -> None:
    """Asked again, a long prompt lies in the cache of the worker that it goes to, and is not sent away."""
    await _text(running, ALONE[-1], streamed=True, id="again")
    report = (await _reports(running, "again"))["again"]
    assert (report.remote, report.reason) == (False, "short")


async def _counters_agree(running: Running) -> None:
    """What the log says was pulled is what the engines counted, in prompts, blocks and bytes."""
    await _jobs_have_ends(running)
    pulls = [event for event in await running.events("jobs") if isinstance(event, PrefillPulled)]
    told = len(pulls), sum(event.blocks for event in pulls), sum(event.bytes for event in pulls)
    assert told[0] > len([length for length in LENGTHS if length > MIN_TOKENS])

    def counted() -> tuple[int, int, int]:
        engines = [running.state(f"decode-{number}")["prefill"]["engine"] for number in range(2)]
        return (
            sum(engine["pulls"] for engine in engines),
            sum(engine["blocks"] for engine in engines),
            sum(engine["bytes"] for engine in engines),
        )

    await eventually(lambda: counted() == told, f"the engines' counters: {told} in the log, {counted()} there", 5)
    await eventually(lambda: not running.state("prefill-0")["prefill"]["prompts_held"], "nothing held", REST_S)


async def _jobs_have_ends(running: Running) -> None:
    """Each job that was opened was pulled or cancelled, once."""
    await eventually(lambda: not running.state("frontend-0")["in_flight"], "rest", REST_S)
    async with asyncio.timeout(REST_S):
        while True:
            events = await running.events("jobs")
            asked = sorted(event.job for event in events if isinstance(event, PrefillRequested))
            ended = sorted(event.job for event in events if isinstance(event, PrefillPulled | PrefillCancelled))
            if asked == ended:
                break
            await asyncio.sleep(0.2)
    assert len(set(asked)) == len(asked) > 0


async def _thresholds_are_obeyed(running: Running) -> None:
    """Set live, each counts for requests to come."""
    for setting, value, expected in (
        ("remote_prefill_min_tokens", "600", [(False, "short"), (True, "long")]),
        ("prefill_queue_max", "0", [(False, "short"), (False, "queue_full")]),
    ):
        await _settings(running, "set", setting, value)
        questions = [Question(len(setting), length) for length in (500, 700)]
        for question in questions:
            await _text(running, question, streamed=False)
        reports = await _reports(running, *(question.id for question in questions))
        assert [(reports[question.id].remote, reports[question.id].reason) for question in questions] == expected
    await _settings(running, "unset", "--all")


async def _settings(running: Running, *words: str) -> None:
    said = await asyncio.to_thread(contrail, "settings", *words, "--data", str(running.data))
    assert said.returncode == 0, said.stderr
    await asyncio.sleep(0.5)  # workers hear of it within milliseconds, but nobody tells when


async def _killed(running: Running, judge: VllmJudge) -> None:
    """The prefill worker is killed -9 while it computes; the texts are right all the same, and no job stays open."""
    asking = asyncio.create_task(_right(running, judge, IN_TROUBLE))
    await eventually(lambda: running.state("prefill-0")["prefill"]["jobs_under_way"], "a prompt being computed")
    os.kill(running.part("prefill-0")["pid"], signal.SIGKILL)
    await asking
    await _jobs_have_ends(running)
