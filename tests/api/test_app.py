"""Models, tokens and the version, as OpenAI's and vLLM's clients read them."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from tests.api.conftest import Api
from tests.api.raw import request, say
from tests.api.scripted import CONTEXT_MAX, ScriptedBackend, ids

ASKED = [{"role": "user", "content": "hi"}]
POSTED = ["/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"]
PROMPT = "<|start|><|user|>hi<|end|><|assistant|>"


async def test_models_are_listed_and_shown(api: Api) -> None:
    """With vLLM's fields beside OpenAI's; one that is not here is not found."""
    listed = [model async for model in api.client.models.list()]
    assert [model.id for model in listed] == ["org/other", "tiny"]
    model = (await api.client.models.retrieve("org/other")).model_dump()
    assert {
        "root": "org/other",
        "parent": None,
        "max_model_len": CONTEXT_MAX,
        "object": "model",
    }.items() <= model.items()
    with pytest.raises(openai.NotFoundError) as failure:
        await api.client.models.retrieve("none")
    assert (failure.value.code, failure.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt": "hi"}, "<|start|>hi"),
        ({"prompt": "hi", "add_special_tokens": False}, "hi"),
        ({"messages": ASKED}, PROMPT),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, PROMPT),
    ],
)
async def test_tokens_there_and_back(api: Api, fields: dict[str, Any], text: str) -> None:
    """A prompt or a chat as the model would get it; no worker is asked."""
    answer = (await api.http.post("/tokenize", json={"model": "tiny", **fields})).json()
    tokens = list(ids(text))
    assert answer == {"count": len(tokens), "max_model_len": CONTEXT_MAX, "tokens": tokens, "token_strs": None}
    back = await api.http.post("/detokenize", json={"model": "tiny", "tokens": tokens})
    assert back.json() == {"prompt": text}
    assert not api.backend.requests
    await api.counted("", "answered", 2)


async def test_more_tokens_than_the_context_are_told(api: Api) -> None:
    """Who asks wants to know how much too long it is."""
    answer = await api.http.post("/tokenize", json={"model": "tiny", "prompt": "request " * CONTEXT_MAX})
    assert answer.json()["count"] > CONTEXT_MAX


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"model": "tiny"}, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "messages": ASKED}, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "a" * 600_000}, "prompt"),
        ("/tokenize", {"model": "tiny", "messages": []}, "messages"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {"prompt": "a"}, "model"),
        ("/detokenize", {"model": "tiny"}, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [10**6]}, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_what_cannot_be_tokenized_is_named(api: Api, path: str, fields: dict[str, Any], param: str) -> None:
    """400 in OpenAI's shape."""
    answer = await api.http.post(path, json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    await api.counted("", "rejected")


async def test_bodies_are_bounded_everywhere() -> None:
    """413 in the shape of the route's API."""
    app = create_app(ScriptedBackend(), FrontendMetrics(), ApiSettings(body_bytes_max=1000))
    server = HttpServer(app, bind("127.0.0.1", 0))
    async with httpx.AsyncClient(base_url=f"http://{await server.start()}", verify=False) as http:
        for path in POSTED:
            answer = await http.post(path, content=b" " * 1001)
            assert (answer.status_code, "larger than 1000" in answer.json()["error"]["message"]) == (413, True), path
            assert (answer.json().get("type") == "error") == path.startswith("/v1/messages")
            assert (await http.get(path)).status_code == 405
    await server.stop(grace_s=1)


@pytest.mark.parametrize("path", [*POSTED, "/v1/chat/completions", "/v1/completions"])
async def test_a_slash_behind_the_path_changes_nothing(api: Api, path: str) -> None:
    """Some programs add one to the address that they are given."""
    answers = [await api.http.post(f"{path}{slash}", json={"model": "tiny"}) for slash in ("", "/")]
    assert [answer.status_code for answer in answers] == [400, 400]
    told, slashed = (answer.json()["error"] for answer in answers)
    assert told == slashed


async def test_models_are_listed_with_a_slash_too(api: Api) -> None:
    """And a chat is answered."""
    assert (await api.http.get("/v1/models/")).json() == (await api.http.get("/v1/models")).json()
    answer = await api.http.post("/v1/chat/completions/", json={"model": "tiny", "messages": ASKED})
    assert answer.json()["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/org/other", "/version", "/openapi.json"])
async def test_what_is_read_has_a_head(api: Api, path: str) -> None:
    """Balancers ask for it: the same status and headers, and not a byte behind them."""
    head, get = (request(b"", "connection: close", line=f"{method} {path} HTTP/1.1") for method in ("HEAD", "GET"))
    told, answer = await say(api.server.address, head), await say(api.server.address, get)
    assert told.statuses == answer.statuses == [200]
    beginning, content = (said.raw.partition(b"\r\n\r\n")[::2] for said in (told, answer))
    assert (beginning[1], bool(content[1])) == (b"", True)
    assert length(beginning[0]) == length(content[0]) == len(content[1])


def length(head: bytes) -> int:
    return int(dict(line.split(b": ") for line in head.splitlines()[1:])[b"content-length"])


async def test_the_version_is_told(api: Api) -> None:
    """Where vLLM tells its own."""
    assert set((await api.http.get("/version")).json()) == {"version"}
