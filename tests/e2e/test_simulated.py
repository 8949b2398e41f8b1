"""A deployment on simulated engines with real NATS and etcd, as users and operators meet it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from core.events import RequestFinished, RequestRouted, WorkerLost
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

LEASE_S = 10
LONG = "Tell me all that you know about the history of bridges, and leave out nothing, please. " * 6


async def ask(running: Running, text: str, model: str = "tiny", max_tokens: int = 16) -> ChatCompletion:
    """One answer, not streamed."""
    return await running.openai.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=max_tokens, temperature=0
    )


async def test_a_deployment_serves_explains_and_survives(tmp_path: Path) -> None:
    """Answers, explanations, a worker killed -9, and a fold from zero that equals the live one, in one deployment."""
    async with up(tmp_path / "data", "--engine", "simulated", "--replicas", "2") as running:
        await _explains_itself(running)
        await _is_found_by_its_answer(running)
        await _survives_a_killed_worker(running)
        await running.assert_index_is_cache()


async def _explains_itself(running: Running) -> None:
    await ask(running, LONG)
    raw = await running.openai.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[{"role": "user", "content": LONG}],
        max_tokens=4,
        extra_headers={"x-request-id": "again"},
    )
    assert raw.headers["x-request-id"] == "again"
    answer = raw.parse()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached
    await eventually(lambda: contrail("explain", "again", "--data", str(running.data)).returncode == 0, "the log")
    await eventually(lambda: _explained(running, "again")["attempts"][0]["outcome"], "the end in the log")
    attempt = _explained(running, "again")["attempts"][0]
    assert attempt["real_cached_tokens"] == cached == attempt["predicted_cached_tokens"]
    assert "costs" in attempt["why"]
    assert len(attempt["candidates"]) == 2
    text = contrail("explain", "again", "--data", str(running.data)).stdout
    assert "→" in text
    assert "as predicted" in text
    assert contrail("explain", "nobody", "--data", str(running.data)).returncode == 2
    lines = [json.loads(line) for line in contrail("events", "--data", str(running.data)).stdout.splitlines()]
    assert {"WorkerJoined", "BlocksStored", "LoadReported", "RequestRouted"} <= {line["type"] for line in lines}
    one = contrail("events", "--data", str(running.data), "--stream", "kv", "--from", "kv:1", "--to", "kv:2").stdout
    assert json.loads(one.splitlines()[0])["seq"] == 1
    assert LONG[:20] not in json.dumps(lines)


async def _is_found_by_its_answer(running: Running) -> None:
    """By the id in the body of each API, by that of an item in it, and as the last one."""
    text = [{"role": "user", "content": "Hello"}]
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/chat/completions", {"messages": text, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 2}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": text, "max_tokens": 2}),
    )
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as http:
        for path, body in asked:
            answer = await http.post(path, json={"model": "tiny", **body})
            request, found = answer.headers["x-request-id"], answer.json()
            ids = [found["id"], *(item["id"] for item in found.get("output", ()))]
            await eventually(partial(_is_logged, running, request), "the log")
            assert [_explained(running, each)["request"] for each in ids] == [request] * len(ids), path
            assert _explained(running, "--last")["request"] == request


def _is_logged(running: Running, request: str) -> bool:
    return request in contrail("events", "--data", str(running.data)).stdout


def _explained(running: Running, request: str) -> Any:
    return json.loads(contrail("explain", request, "--data", str(running.data), "--json").stdout)


async def _survives_a_killed_worker(running: Running) -> None:
    before = running.part("decode-0")
    os.kill(before["pid"], signal.SIGKILL)
    loop = asyncio.get_running_loop()
    killed_s = loop.time()
    for number in range(6):
        await ask(running, f"{number} {LONG}")
    assert loop.time() - killed_s < LEASE_S
    await eventually(lambda: _id(running, "decode-0") not in {None, before["id"]}, "a restart under a new id")
    lost: list[WorkerLost] = []
    async with asyncio.timeout(3 * LEASE_S):
        while not lost:
            await asyncio.sleep(0.5)
            lost = [event for event in await running.events("kv_0") if isinstance(event, WorkerLost)]
    await asyncio.sleep(1)  # another replica might tell it again
    assert len([e for e in await running.events("kv_0") if isinstance(e, WorkerLost)]) == 1
    await eventually(lambda: before["id"] not in running.state("frontend-0")["workers"], "the loss is folded")
    assert running.state("frontend-0")["workers"][running.part("decode-0")["id"]] == 0


def _id(running: Running, name: str) -> str | None:
    """The part's id now; None while it is not running."""
    return next((part["id"] for part in running.run()["parts"] if part["name"] == name), None)


async def test_two_models_keep_apart(tmp_path: Path) -> None:
    """Both are listed, each request reaches its own, and the one whose workers are gone is refused alone."""
    file = tmp_path / "two.yaml"
    groups = [{"name": name, "served_name": name, "count": 1, "engine": "simulated"} for name in ("left", "right")]
    file.write_text(json.dumps({"version": 1, "workers": groups}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        assert [model.id async for model in running.openai.models.list()] == ["left", "right"]
        for model in ("left", "right", "left"):
            await ask(running, LONG, model)
        # stopped, not killed: whoever supervises sees nothing to mend for a while
        os.kill(running.part("right-0")["pid"], signal.SIGKILL)
        with pytest.raises(openai.APIStatusError) as refused:
            for _ in range(50):
                await ask(running, LONG, "right")
        assert refused.value.status_code in {500, 503}
        await ask(running, LONG, "left")
        routed = [event for event in await running.events("routing") if isinstance(event, RequestRouted)]
        workers = {model: {e.worker for e in routed if e.model == model} for model in ("left", "right")}
        assert not workers["left"] & workers["right"]


async def test_ctrl_c_lets_requests_finish(tmp_path: Path) -> None:
    """An answer that is under way when Ctrl-C comes is whole, the log has its end, and the port is free again."""
    async with up(tmp_path / "data", "--engine", "simulated", "--workers", "1") as running:
        answer = asyncio.create_task(ask(running, LONG, max_tokens=400))
        await eventually(lambda: running.state("frontend-0")["in_flight"], "a request in flight")
        running.process.send_signal(signal.SIGINT)
        whole = await answer
        assert whole.choices[0].finish_reason in {"length", "stop"}
        await asyncio.to_thread(running.process.wait, 60)
    refused = contrail("replicas", "--data", str(running.data))
    assert refused.returncode == 2
    assert "no deployment runs" in refused.stderr
    _answers_when_it_has_ended(running, whole.choices[0].finish_reason)
    async with up(tmp_path / "data", "--engine", "simulated", "--workers", "1") as again:
        ends = [event for event in await again.events("routing") if isinstance(event, RequestFinished)]
        assert [end.outcome for end in ends] == [whole.choices[0].finish_reason]
        await ask(again, LONG)
        await again.assert_index_is_cache()


def _answers_when_it_has_ended(running: Running, outcome: str) -> None:
    """The log is read from the files: explained, listed, verified, exported, and not a byte of them changes."""

    def files() -> dict[Path, tuple[bytes, int]]:
        found = (each for each in running.data.rglob("*") if each.is_file())
        return {each: (each.read_bytes(), each.stat().st_mtime_ns) for each in found}

    before, data = files(), ("--data", str(running.data))
    explained = json.loads(contrail("explain", "--last", "--json", *data).stdout)
    assert explained["attempts"][0]["outcome"] == outcome
    listed = contrail("explain", *data)
    assert f"contrail explain {explained['request']} --data {running.data}" in listed.stdout, listed
    lines = [json.loads(line) for line in contrail("events", *data).stdout.splitlines()]
    assert {"WorkerJoined", "BlocksStored", "RequestFinished", "ReplicaLeft"} <= {line["type"] for line in lines}
    verified = json.loads(contrail("replay", "verify", "--json", *data).stdout)
    assert (verified["verified"], verified["different"], verified["holds"]) == (1, 0, True)
    export = running.data.with_name("ended.contrail")
    assert contrail("export", str(export), *data).returncode == 0
    assert contrail("replay", "verify", "--log", str(export), *data).returncode == 0
    assert files() == before


async def test_start_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    """A busy port, a folder in use, a model that is not there: exit status 2 and one line that says what to do."""
    async with up(tmp_path / "data", "--engine", "simulated", "--workers", "1") as running:
        port = running.url.rpartition(":")[2]
        cases = {
            "port": ("--data", str(tmp_path / "other"), "--port", port, "--engine", "simulated"),
            "in use": ("--data", str(running.data), "--port", "0", "--engine", "simulated"),
            "no model": ("--data", str(tmp_path / "other"), "--port", "0", "--model", str(tmp_path / "nothing")),
        }
        for expected, words in cases.items():
            refused = await asyncio.to_thread(contrail, "up", *words)
            assert refused.returncode == 2
            assert expected in refused.stderr
            assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
