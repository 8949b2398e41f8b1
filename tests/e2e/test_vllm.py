"""The whole of it on two real vLLM workers with the built-in tiny model, through the `openai` client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from core.events import RequestFinished, RequestPrefilled, RequestRouted
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.prompt import tokens_to_bytes
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually

TALKS = 3
TURNS = 5
ANSWER_TOKENS = 16


async def test_conversations_stay_where_their_prefix_is(tmp_path: Path, vllm_engine: RecordedEngine) -> None:
    """Three conversations of five turns: from turn two on each goes where its prefix is; text equals vLLM's own."""
    async with up(tmp_path / "data", "--workers", "2") as running:
        talks = {talk: [{"role": "user", "content": _opening(talk)}] for talk in range(TALKS)}
        cached: dict[str, int] = {}
        for turn in range(TURNS):
            for talk, messages in talks.items():
                request, usage, text = await _ask(running, messages, streamed=bool((turn + talk) % 2))
                cached[request] = usage.prompt_tokens_details.cached_tokens
                assert (cached[request] > 0) == (turn > 0)
                messages += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": f"Turn {turn}, go on."},
                ]
            await running.assert_index_is_cache()
        await _log_agrees(running, cached)
        await _text_is_vllms_own(running, vllm_engine, talks)


def _opening(talk: int) -> str:
    return f"Conversation {talk}: tell me about the number {7919 * (talk + 1)} and about those who like it. " * 3


async def _ask(running: Running, messages: list[dict[str, str]], *, streamed: bool) -> tuple[str, Any, str]:
    """Request id, usage and text of one greedy answer."""
    asked: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    if not streamed:
        raw = await running.openai.chat.completions.with_raw_response.create(**asked)
        answer = raw.parse()
        return raw.headers["x-request-id"], answer.usage, answer.choices[0].message.content or ""
    text, usage, request = "", None, ""
    stream = await running.openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        request = chunk.id.removeprefix("chatcmpl-")
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    return request, usage, text


async def _log_agrees(running: Running, cached: dict[str, int]) -> None:
    """The log says of each request what the client was told, and why it went where it did."""
    events = await running.events("routing")
    routed = {event.request: event for event in events if isinstance(event, RequestRouted)}
    real = {event.request: event.cached_tokens for event in events if isinstance(event, RequestPrefilled)}
    ended = [event.request for event in events if isinstance(event, RequestFinished)]
    assert real == cached
    assert {request: event.predicted_cached_tokens for request, event in routed.items()} == cached
    assert sorted(ended) == sorted(cached)
    by_talk = [[routed[request].worker for request in list(cached)[talk::TALKS]] for talk in range(TALKS)]
    assert all(len(set(workers)) == 1 for workers in by_talk)
    last = list(cached)[-1]
    said = await asyncio.to_thread(contrail, "explain", last, "--data", str(running.data), "--json")
    explained = json.loads(said.stdout)
    (attempt,) = explained["attempts"]
    parts = {part["kind"]: part for part in explained["course"]["parts"]}
    assert all(parts[kind]["recorded"] for kind in ("prepare", "link", "prefill", "decode")), parts
    assert 0 < parts["prefill"]["to_ms"] - parts["prefill"]["from_ms"] <= attempt["first_token_ms"]
    assert "fewer" in attempt["why"]
    assert attempt["predicted_cached_tokens"] == attempt["real_cached_tokens"] == cached[last]
    assert attempt["again"] == "same"


async def _text_is_vllms_own(running: Running, engine: RecordedEngine, talks: dict[int, list[dict[str, str]]]) -> None:
    """Greedy tokens of a bare vLLM engine over the same prompt tokens decode to the text that was served."""
    tokenizer = Tokenizer.from_file(str(running.data / "models" / "tiny" / "tokenizer.json"))
    for talk in talks:
        prompt = f"{_opening(talk)} And what then?"
        served = await running.openai.completions.create(
            model="tiny", prompt=prompt, max_tokens=ANSWER_TOKENS, temperature=0, extra_body={"ignore_eos": True}
        )
        tokens: list[int] = []
        sampling = Sampling(max_tokens=ANSWER_TOKENS, temperature=0, ignore_eos=True)
        raw = tokens_to_bytes(tokenizer.encode(prompt).ids)
        request = GenerateRequest(id=RequestId(f"own-{talk}"), tokens=raw, sampling=sampling)
        async for output in engine.generate(request):
            tokens += output.tokens
        assert served.choices[0].text == tokenizer.decode(tokens, skip_special_tokens=True)
    await eventually(lambda: not running.state("frontend-0")["in_flight"], "rest")
