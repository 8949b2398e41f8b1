"""Embeddings as clients ask for them, over a backend that follows a script."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import httpx
import numpy as np
import pytest

from api.openai import embeddings
from api.openai.embeddings import EMBEDDING_INPUTS_MAX, EMBEDDINGS_AT_ONCE
from core.errors import CallerError
from core.generation import TASK_EMBED, Output
from core.models import GenerationFailed, NoWorkers
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import CONTEXT_MAX, ids, spoken

PATH = "/v1/embeddings"
VECTOR = [0.5, -0.25, 0.1]
RAW = np.array(VECTOR, "<f4").tobytes()
EMBEDDED = [Output(finish="stop", embedding=RAW, cached_tokens=2)]


async def asked(api: Api, **fields: Any) -> httpx.Response:
    return await api.http.post(PATH, json={"model": "tiny", **fields})


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
async def test_the_client_reads_both_encodings(api: Api, encoding: str | None) -> None:
    """The library asks for base64 if nothing is said; the numbers are the same, and the order is that of the inputs."""
    api.backend.script = EMBEDDED
    chosen: Any = {"encoding_format": encoding} if encoding else {}
    answer = await api.client.embeddings.create(model="tiny", input=["hi", "there"], user="u", dimensions=3, **chosen)
    if encoding == "base64":
        assert isinstance(answer.data[0].embedding, str)
    else:
        assert answer.data[0].embedding == pytest.approx(VECTOR)
    assert [it.index for it in answer.data] == [0, 1]
    tokens = len(ids("hi")) + len(ids("there")) + 2
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens, answer.model) == (tokens, tokens, "tiny")


async def test_the_answer_has_openais_fields_and_no_others(api: Api) -> None:
    """What strict readers compare."""
    api.backend.script = EMBEDDED
    answer = await asked(api, input="hi")
    body = answer.json()
    assert (set(body), body["object"]) == ({"object", "data", "model", "usage"}, "list")
    assert (set(body["data"][0]), body["data"][0]["object"]) == ({"object", "index", "embedding"}, "embedding")
    assert set(body["usage"]) == {"prompt_tokens", "total_tokens"}
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", [(0, *ids("hi"))]),
        (["hi", "you"], [(0, *ids("hi")), (0, *ids("you"))]),
        ([5, 6], [(5, 6)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        (["hi", [7]], [(0, *ids("hi")), (7,)]),
    ],
)
async def test_every_form_of_input_is_a_request_each(api: Api, given: Any, prompts: list[tuple[int, ...]]) -> None:
    """The engine is asked for an embedding of exactly these tokens, under ids of one request."""
    api.backend.script = EMBEDDED
    answer = await api.http.post(
        PATH,
        json={"model": "tiny", "input": given, "cache_salt": "s"},
        headers={"x-request-id": "mine", "x-contrail-priority": "-3"},
    )
    assert answer.status_code == 200
    sent = sorted(api.backend.requests, key=lambda request: request.id)
    assert [tuple(tokens_from_bytes(request.tokens)) for request in sent] == prompts
    assert [request.id for request in sent] == ["mine", "mine.1"][: len(prompts)]
    assert {(it.task, it.sampling.max_tokens, it.cache_salt, it.priority) for it in sent} == {(TASK_EMBED, 1, "s", -3)}
    assert api.backend.ended == ["stop"] * len(prompts)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"input": ""}, "input", "empty string"),
        ({"input": []}, "input", "at least one input"),
        ({"input": [[]]}, "input", "at least one token"),
        ({"input": [5, "a"]}, "input", "a list of token ids, or a list of these"),
        ({"input": [10**6]}, "input", "from 0 to"),
        ({"input": ["a"] * (EMBEDDING_INPUTS_MAX + 1)}, "input", f"at most {EMBEDDING_INPUTS_MAX}"),
        ({"input": [[5] * (CONTEXT_MAX + 1)]}, "input", f"context length is {CONTEXT_MAX} tokens"),
        ({"input": "hi", "encoding_format": "hex"}, "encoding_format", "one of float, base64"),
        ({"input": "hi", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported"),
        ({"input": "hi", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "hi", "cache_salt": "s" * 1025}, "cache_salt", "at most 1024 characters"),
        ({}, "input", "is required"),
    ],
)
async def test_what_cannot_be_embedded_is_named(api: Api, fields: dict[str, Any], param: str, text: str) -> None:
    """400, and no worker hears of it."""
    answer = await asked(api, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert text in error["message"]
    assert not api.backend.requests
    await api.counted("", "rejected")


async def test_the_longest_input_has_the_whole_context(api: Api) -> None:
    """An embedding needs no room for an answer."""
    api.backend.script = EMBEDDED
    assert (await asked(api, input=[[5] * CONTEXT_MAX])).status_code == 200


@pytest.mark.parametrize(
    ("script", "status", "outcome"),
    [
        ([CallerError("this engine only generates")], 400, "rejected"),
        ([NoWorkers("none")], 503, "unavailable"),
        ([GenerationFailed("broken")], 500, "error"),
        (spoken("text"), 500, "error"),
    ],
)
async def test_a_failure_of_one_is_the_answer(api: Api, script: Any, status: int, outcome: str) -> None:
    """Whatever the others came to; an engine that only generates says so."""
    api.backend.script = script
    answer = await asked(api, input=["a", "b", "c"])
    assert (answer.status_code, set(answer.json()["error"])) == (status, {"message", "type", "param", "code"})
    await api.counted("tiny", outcome)


async def test_fewer_dimensions_than_the_models_are_refused(api: Api) -> None:
    """A shortened embedding would be a number without meaning, unless the model was made for it."""
    api.backend.script = EMBEDDED
    answer = await asked(api, input="hi", dimensions=2)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dimensions")
    assert "has 3" in answer.json()["error"]["message"]


async def test_wrong_dimensions_are_refused_before_a_worker_computes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model card has the embedding's size, if a worker registered it."""
    sized = dataclasses.replace(api.backend.card("tiny"), embedding_size=3)
    monkeypatch.setattr(api.backend, "card", lambda _model: sized)
    answer = await asked(api, input="hi", dimensions=2)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dimensions")
    assert "has 3" in answer.json()["error"]["message"]
    assert not api.backend.requests


async def test_a_bounded_number_is_computed_at_once(api: Api) -> None:
    """The others wait here, not at the workers."""
    held = asyncio.Event()
    api.backend.script = [held, *EMBEDDED]
    answering = asyncio.create_task(asked(api, input=["a"] * (EMBEDDINGS_AT_ONCE + 8)))
    await api.backend.until_asked(EMBEDDINGS_AT_ONCE)
    await asyncio.sleep(0.05)
    assert len(api.backend.requests) == EMBEDDINGS_AT_ONCE
    held.set()
    answer = await answering
    assert [it["index"] for it in answer.json()["data"]] == list(range(EMBEDDINGS_AT_ONCE + 8))
    await api.counted("tiny", "answered")


async def test_numpy_is_imported_once_and_not_by_the_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it takes 0.1 s, in which nobody else would be answered; for base64 it is not wanted."""
    imported: list[tuple[str, bool]] = []

    def imports(name: str) -> None:
        imported.append((name, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(embeddings, "import_module", imports)
    api.backend.script = EMBEDDED
    await asked(api, input="hi", encoding_format="base64")
    assert not imported
    for _ in range(2):
        await asked(api, input="hi")
    assert imported == [("numpy", False)]


async def test_hanging_up_cancels_all_of_them(api: Api) -> None:
    """Nobody computes for a client that is gone."""
    api.backend.script = [asyncio.Event()]
    with pytest.raises(httpx.ReadTimeout):
        await api.http.post(PATH, json={"model": "tiny", "input": ["a", "b"]}, timeout=httpx.Timeout(5, read=0.1))
    await api.backend.until_closed(2)
    assert api.backend.ended == [None, None]
    await api.counted("tiny", "abort")
