"""The whole of it on two real vLLM workers with the built-in tiny model, through the `openai` client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from core.events import PoolJoined, PoolLost, RequestFinished, RequestPrefilled, RequestRouted
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, WorkerId
from core.prompt import tokens_to_bytes
from tests.e2e.deployment import READY_S, Running, contrail, up
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually

TALKS = 3
TURNS = 5
ANSWER_TOKENS = 16
PROMPTS, PROMPT_TOKENS = 5, 700
"""On a device that has 64 blocks of 32 tokens."""
RETRIES = 10
"""A second apart."""


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


async def test_prompts_that_left_the_device_come_from_the_host(tmp_path: Path) -> None:
    """A worker with a small device and a host tier: no prompt is computed twice while the host has it, each text is
    that of the first time, and the log says all of it."""
    file = tmp_path / "tiers.yaml"
    group = {"count": 1, "engine_args": {"num_gpu_blocks_override": 65, "max_model_len": 1024}}
    file.write_text(json.dumps({"version": 1, "workers": [{**group, "kv_tiers": {"host": "64MiB"}}]}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        data = ("--data", str(running.data))
        first = [await _complete(running, number) for number in range(PROMPTS)]
        assert [cached for cached, _ in first] == [0] * PROMPTS
        again = [await _complete(running, number) for number in range(PROMPTS)]
        assert [text for _, text in again] == [text for _, text in first]
        assert {cached for cached, _ in again} == {PROMPT_TOKENS // 32 * 32}
        await running.assert_index_is_cache()
        tiers = running.state("decode-0")["blocks_by_tier"]
        live = running.state("frontend-0")
        index, (worker,) = (await running.folded(live["cursor"])).index, running.workers()
        assert {tier: index.blocks(WorkerId(worker), tier) for tier in tiers} == tiers
        assert tiers["host"] >= PROMPTS * (PROMPT_TOKENS // 32) - 64
        with urllib.request.urlopen(f"http://{running.part('decode-0')['ops']}/metrics", timeout=10) as answer:
            shown = f'contrail_worker_cached_blocks{{model="tiny",tier="host",worker="decode-0"}} {tiers["host"]}.0'
            assert shown in answer.read().decode()
        explained = await asyncio.to_thread(contrail, "explain", "--last", *data)
        assert ", 0 on device" in explained.stdout

        await _assert_verified(running, 2 * PROMPTS)


async def test_prompts_outlive_a_worker_on_its_disk(tmp_path: Path) -> None:
    """A worker with a disk tier is killed: its blocks are known to be in the next one's pool before a request. None of
    its prompts is computed again, as each decision predicts, the worker counts what it read, and the log verifies."""
    file = tmp_path / "tiers.yaml"
    group = {"count": 1, "engine_args": {"num_gpu_blocks_override": 65, "max_model_len": 1024}}
    tiers = {"host": "64MiB", "disk": {"path": "kv", "size": "1GiB"}}
    workers = [{**group, "kv_tiers": tiers}]
    file.write_text(json.dumps({"version": 1, "workers": workers, "routing": {"policy": "kv"}}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        first = [await _complete(running, number) for number in range(PROMPTS)]
        folder, blocks = running.data / "kv" / "decode-0", PROMPTS * (PROMPT_TOKENS // 32)
        assert folder.stat().st_mode & 0o777 == 0o700
        await eventually(lambda: len(list(folder.glob("*.kv"))) >= blocks, "all blocks on the disk")
        await eventually(lambda: _pool(running)["blocks"] == _pool(running)["files"] >= blocks, "all is announced")
        before, (worker,) = _pool(running), running.workers()
        await _killed(running)
        assert worker not in running.workers()
        await eventually(lambda: _pool(running).get("source", before["source"]) != before["source"], "the next pool")
        source = _pool(running)["source"]
        await eventually(lambda: [each["source"] for each in _pools(running)] == [source], "the end of the pool before")
        assert [(each["pool"], each["blocks"]) for each in _pools(running)] == [(before["id"], before["blocks"])]
        again = [await _complete(running, number) for number in range(PROMPTS)]
        assert [text for _, text in again] == [text for _, text in first]
        assert {cached for cached, _ in again} == {PROMPT_TOKENS // 32 * 32}
        await running.assert_index_is_cache()
        with urllib.request.urlopen(f"http://{running.part('decode-0')['ops']}/metrics", timeout=10) as answer:
            shown = f'contrail_worker_disk_loads_total{{model="tiny",worker="decode-0"}} {blocks}.0'
            assert shown in answer.read().decode()
        kv = await running.events("kv_0")
        assert len({event.keeper for event in kv if isinstance(event, PoolJoined)}) == 2
        assert sum(isinstance(event, PoolLost) for event in kv) == 1
        routed = [event for event in await running.events("routing") if isinstance(event, RequestRouted)]
        predicted = [event.predicted_cached_tokens for event in routed]
        assert predicted == [0] * PROMPTS + [PROMPT_TOKENS // 32 * 32] * PROMPTS
        await _assert_verified(running, len(routed))


def _pool(running: Running) -> dict[str, Any]:
    """The pool as its worker describes it; empty while the worker is away."""
    try:
        found: dict[str, Any] = running.state("decode-0")["pool"] or {}
    except (OSError, LookupError):
        return {}
    return found


def _pools(running: Running) -> list[dict[str, Any]]:
    """The pools that the front end knows by the log."""
    found: list[dict[str, Any]] = running.state("frontend-0")["pools"]
    return found


async def _assert_verified(running: Running, decisions: int) -> None:
    """Every decision in the log is made again, and so many at least are there."""
    verified = await asyncio.to_thread(contrail, "replay", "verify", "--data", str(running.data), "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    found = json.loads(verified.stdout)
    assert found["holds"]
    assert found["different"] == 0
    assert found["verified"] == found["decisions"] >= decisions


async def _killed(running: Running) -> None:
    """Kill the one worker. After the call the front end knows its next life alone."""
    before = running.state("frontend-0")["workers"].keys()
    os.kill(running.part("decode-0")["pid"], signal.SIGKILL)

    def replaced() -> bool:
        now = running.state("frontend-0")["workers"].keys()
        return bool(now) and not now & before

    await eventually(replaced, "the worker's next life", READY_S)


async def _complete(running: Running, number: int) -> tuple[int, str]:
    """Cached tokens and text of a prompt's greedy answer; asked again while no worker is connected."""
    tokens = [(number * 7 + place * 13 + place // 50 * number) % 500 + 10 for place in range(PROMPT_TOKENS)]
    client = running.openai.with_options(max_retries=RETRIES)
    answer = await client.completions.create(model="tiny", prompt=tokens, max_tokens=8, temperature=0)
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    return (details and details.cached_tokens) or 0, answer.choices[0].text
