"""Requests that are large: what cannot be served is refused at once, what can does not hold up the others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.openai.tokenization import TOKENIZED_MAX
from api.server.http_server import HttpServer
from api.server.json_limits import CONTAINERS_MAX, STRINGS_MAX, VALUES_MAX
from api.server.limits import ApiSettings
from api.server.sockets import bind
from api.tokenizer.text_encoder import TextEncoder
from api.tokenizer.word_cache import WORD_BYTES_MAX, WordCache
from core.models import ModelCard
from tests.api.conftest import Api
from tests.api.raw import connected, request, say
from tests.api.scripted import ScriptedBackend

CONTEXT_MAX = 1_000_000


class LongBackend(ScriptedBackend):
    """Its models take long prompts."""

    def card(self, model: str) -> ModelCard:
        return replace(super().card(model), context_max=CONTEXT_MAX)


@pytest.fixture
async def long() -> AsyncIterator[Api]:
    """An API whose models take long prompts."""
    backend, metrics = LongBackend(), FrontendMetrics()
    server = HttpServer(create_app(backend, metrics, ApiSettings()), bind("127.0.0.1", 0))
    address = await server.start()
    async with httpx.AsyncClient(base_url=f"http://{address}", verify=False, timeout=30) as http:
        yield Api(backend, metrics, server, http, None)  # type: ignore[arg-type]
    await server.stop(grace_s=1)


def bodies(text: str) -> dict[str, dict[str, Any]]:
    """A text for each API."""
    messages = [{"role": "user", "content": text}]
    return {
        "/v1/chat/completions": {"model": "tiny", "messages": messages},
        "/v1/completions": {"model": "tiny", "prompt": text},
        "/v1/responses": {"model": "tiny", "input": text},
        "/v1/messages": {"model": "tiny", "max_tokens": 9, "messages": messages},
        "/v1/messages/count_tokens": {"model": "tiny", "messages": messages},
        "/v1/embeddings": {"model": "tiny", "input": text},
        "/tokenize": {"model": "tiny", "prompt": text},
    }


@pytest.mark.parametrize("path", bodies(""))
@pytest.mark.parametrize("letter", [" ", "a"])
async def test_a_word_that_is_too_long_is_named(long: Api, path: str, letter: str) -> None:
    """4 MB of spaces are one word: the answer says so, and is there before a byte was tokenized."""
    answer = await long.http.post(path, json=bodies(letter * 4_000_000)[path])
    assert answer.status_code == 400
    assert f"more than {WORD_BYTES_MAX} bytes in a row that are one word" in answer.json()["error"]["message"]
    assert not long.backend.requests


@pytest.mark.parametrize("path", [path for path in bodies("") if not path.endswith("count_tokens")])
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    api: Api, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length tells how many tokens it has at least, and the error says it."""

    def never(*_: object, **__: object) -> bytes:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(TextEncoder, "encode", never)
    answer = await api.http.post(path, json=bodies("a b " * 1_000_000)[path])
    assert answer.status_code == 400
    assert "30769" in answer.json()["error"]["message"]


async def test_a_long_text_that_fits_is_answered(long: Api) -> None:
    """In pieces, beside the loop."""
    answer = await long.http.post("/v1/chat/completions", json=bodies("a contrail " * 60_000)["/v1/chat/completions"])
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 120_000


async def test_a_hang_up_ends_the_tokenizing(long: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its next piece; nothing is asked of a worker, and nothing of the text is kept."""
    begun, go, calls = threading.Event(), threading.Event(), 0
    look_up = WordCache.tokens

    def counted(words: WordCache, text: str) -> bytes | None:
        nonlocal calls
        calls += 1
        begun.set()
        go.wait(5)
        return look_up(words, text)

    await long.http.post("/v1/completions", json={"model": "tiny", "prompt": "a"})  # the tokenizer is loaded
    monkeypatch.setattr(WordCache, "tokens", counted)
    for path in ("/v1/chat/completions", "/v1/messages"):
        begun.clear()
        go.clear()
        calls, asked = 0, len(long.backend.requests)
        raw = json.dumps(bodies("a contrail " * 100_000)[path]).encode()
        async with connected(long.server.address) as (_, encoder):
            encoder.write(request(raw, line=f"POST {path} HTTP/1.1"))
            assert await asyncio.to_thread(begun.wait, 5)
        await asyncio.sleep(0.05)
        go.set()

        await long.counted("", "abort", 1 if path == "/v1/chat/completions" else 2)
        await asyncio.sleep(0.05)
        assert calls == 1
        assert len(long.backend.requests) == asked


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_hang_up_behind_a_long_body_ends_the_generation(long: Api, path: str) -> None:
    """The connection is read on, though all of the body has come."""
    long.backend.script = [asyncio.Event()]
    raw = json.dumps(bodies("a contrail " * 40_000)[path]).encode()
    async with connected(long.server.address) as (_, encoder):
        encoder.write(request(raw, line=f"POST {path} HTTP/1.1"))
        await long.backend.until_asked()
    await long.backend.until_closed()


async def test_more_ids_than_are_told_are_not_taken_back(api: Api) -> None:
    """As many as `/tokenize` tells; refused before they are looked at."""
    tokens = [9] * TOKENIZED_MAX
    answer = await api.http.post("/detokenize", json={"model": "tiny", "tokens": tokens})
    assert len(answer.json()["prompt"]) == TOKENIZED_MAX
    answer = await api.http.post("/detokenize", json={"model": "tiny", "tokens": [*tokens, 9]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")


ITEMS = b",".join
MANY: dict[str, tuple[bytes, int]] = {
    "ids": (b'{"model":"tiny","prompt":[%b]}' % ITEMS([b"5"] * VALUES_MAX), 400),
    "too many ids": (b'{"model":"tiny","prompt":[%b]}' % ITEMS([b"5"] * (VALUES_MAX + 1)), 413),
    "lists": (b'{"model":"tiny","prompt":"a","logit_bias":[%b]}' % ITEMS([b"[]"] * (CONTAINERS_MAX - 2)), 400),
    "too many lists": (b'{"model":"tiny","prompt":"a","x":[%b]}' % ITEMS([b"[]"] * CONTAINERS_MAX), 413),
    "objects": (b'{"model":"tiny","prompt":"a","x":[%b]}' % ITEMS([b"{}"] * CONTAINERS_MAX), 413),
    "in a string": (b'{"model":"tiny","prompt":"%b"}' % (b'[\\"\\\\\\",]' * CONTAINERS_MAX), 400),
    "strings and lists": (
        b'{"model":"tiny","x":[%b,%b]}' % (ITEMS([b'""'] * STRINGS_MAX), ITEMS([b"[]"] * CONTAINERS_MAX)),
        413,
    ),
}


@pytest.mark.parametrize("what", MANY)
async def test_a_body_has_a_bound_of_values(api: Api, what: str) -> None:
    """Marks inside of strings are text: they do not count."""
    body, status = MANY[what]
    said = await say(api.server.address, request(body))
    assert said.statuses == [status]
    assert (said.errors[0]["code"] == "request_too_large") is (status == 413)


async def test_many_choices_begin_over_several_turns_of_the_loop(api: Api) -> None:
    """So that none of them holds up what came before it."""
    most, began = 0, 0

    async def watched() -> None:
        nonlocal most, began
        while began < 128:
            await asyncio.sleep(0)
            most = max(most, len(api.backend.requests) - began)
            began = len(api.backend.requests)

    watching = asyncio.create_task(watched())
    answer = await api.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "n": 128})
    assert len(answer.json()["choices"]) == 128
    await watching
    assert 0 < most <= 8
