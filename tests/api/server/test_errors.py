"""Bad input: a clear error in OpenAI's shape each, and nothing dies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from api.server.limits import HEAD_BYTES_MAX
from core.errors import CallerError
from core.models import GenerationFailed, NoWorkers, Overloaded
from tests.api.conftest import Api
from tests.api.scripted import CONTEXT_MAX, spoken

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
FUNCTIONS = [{"name": "f", "parameters": {"type": "object"}}]
ASKED = [{"role": "user", "content": "hi"}]
SCHEMA = b'{"type":"json_schema","json_schema":{"name":"a","schema":"\xed\xa0\x80"}}'
DEEP = b'{"model":"tiny","x":' + b"[" * 90_000 + b"]" * 90_000 + b"}"


async def refused(api: Api, answer: httpx.Response, status: int, param: str | None = None, text: str = "") -> None:
    """The answer is this error, and the next good request is served."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (answer.status_code, error["param"]) == (status, param), error
    assert text in error["message"]
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    api.backend.script = spoken("fine")
    served = await api.http.post(COMPLETIONS, json={"model": "tiny", "prompt": "hi"})
    assert served.json()["choices"][0]["text"] == "fine"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "hi"}, "messages", "must be a list, not a string"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "is required"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role", "one of system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "must be a string"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "not an integer"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "not supported",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "required"),
        ({"messages": [{"role": "user", "content": "word " * 1000}]}, "messages", f"length is {CONTEXT_MAX} tokens"),
        ({"max_tokens": 0}, "max_tokens", "must be at least 1"),
        ({"temperature": 5}, "temperature", "temperature: must be between 0 and 2"),
        ({"temperature": "hot"}, "temperature", "must be a number, not a string"),
        ({"top_p": 0}, "top_p", "above 0 and at most 1"),
        ({"presence_penalty": -3}, "presence_penalty", "between -2 and 2"),
        ({"seed": 2**70}, "seed", "64 bits"),
        ({"seed": 1.5}, "seed", "must be an integer"),
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "1 to"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids", "from 0 to"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "at most max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"stream": "yes"}, "stream", "must be true or false"),
        ({"n": 0}, "n", "from 1 to 128"),
        ({"n": 129}, "n", "from 1 to 128"),
        ({"top_logprobs": 2}, "top_logprobs", "only with logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"logprobs": 1}, "logprobs", "true or false"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "token id"),
        ({"logit_bias": {str(10**6): 1}}, "logit_bias", "from 0 to"),
        ({"logit_bias": {str(key): 1 for key in range(1025)}}, "logit_bias", "at most 1024"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids", "from 0 to"),
        ({"bad_words": [""]}, "bad_words", "1 to"),
        ({"bad_words": ["a"] * 257}, "bad_words", "at most 256"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "without stream"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or from 1"),
        ({"truncation_side": "middle"}, "truncation_side", "left, right"),
        ({"request_id": "a b"}, "request_id", "1 to 128 of"),
        ({"service_tier": "flex"}, "service_tier", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"verbosity": "loud"}, "verbosity", "must be one of low, medium, high"),
        ({"moderation": {"model": "x"}}, "moderation", "not supported"),
        ({"functions": [{}]}, "functions[0].name", "is required"),
        ({"functions": FUNCTIONS, "tools": [{"function": FUNCTIONS[0]}]}, "functions", "cannot be given with tools"),
        ({"functions": FUNCTIONS, "function_call": {"name": "g"}}, "function_call", "not among the functions"),
        ({"functions": FUNCTIONS, "function_call": "any"}, "function_call", "must be 'none', 'auto' or"),
        ({"function_call": {"name": "f"}}, "function_call", "only with functions"),
        ({"use_beam_search": True}, "use_beam_search", "not supported"),
        ({"kv_transfer_params": {"max_load_tokens": 0}}, "kv_transfer_params", "not supported"),
        ({"guided_json": {"type": "object"}}, "guided_json", 'structured_outputs: {"json": …}, or response_format'),
        ({"guided_regex": "a+"}, "guided_regex", 'structured_outputs: {"regex": …}'),
        ({"guided_choice": ["a"]}, "guided_choice", 'structured_outputs: {"choice": […]}'),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", 'structured_outputs: {"grammar": …}'),
    ],
)
async def test_a_bad_parameter_is_named(api: Api, fields: dict[str, Any], param: str, text: str) -> None:
    """400 says which parameter is wrong and what it must be; no worker hears of it."""
    answer = await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED} | fields)
    assert not api.backend.requests
    await refused(api, answer, 400, param, text)
    await api.counted("", "rejected")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[5], []]}, "prompt"),
        ({"prompt": [[5], "a"]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [[-1]]}, "prompt[0][0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [5] * CONTEXT_MAX}, "prompt"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_a_bad_prompt_is_refused(api: Api, fields: dict[str, Any], param: str) -> None:
    """A prompt is a text or a list of token ids that the model has, or not too many of these."""
    answer = await api.http.post(COMPLETIONS, json={"model": "tiny", "prompt": "hi"} | fields)
    assert not api.backend.requests
    await refused(api, answer, 400, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model":"tiny"',
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"model":"\xff"}',
        DEEP,
        b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800 alone"}]}',
        b'{"model":"tiny",}',
    ],
)
async def test_what_is_no_json_object_is_refused(api: Api, body: bytes) -> None:
    """Broken JSON of any kind is 400, also where a parser would run out of stack."""
    await refused(api, await api.http.post(CHAT, content=body), 400)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, b'"prompt":"hi","response_format":' + SCHEMA, "response_format.json_schema.schema"),
        ("/v1/responses", b'"input":"hi","tools":[{"type":"function","name":"\xed\xa0\x80"}]', None),
    ],
)
async def test_undecoded_fields_that_are_no_utf_8(api: Api, path: str, fields: bytes, param: str | None) -> None:
    """They are decoded only by their reader; before, the schema got a 500."""
    answer = await api.http.post(path, content=b'{"model":"tiny",%b}' % fields)
    await refused(api, answer, 400, param)


async def test_an_unknown_model_is_404(api: Api) -> None:
    """The error names the model, the parameter and OpenAI's code."""
    answer = await api.http.post(CHAT, json={"model": "gpt-9", "messages": ASKED})
    assert answer.json()["error"]["code"] == "model_not_found"
    await refused(api, answer, 404, "model", "gpt-9")
    await refused(api, await api.http.get("/v1/models/gpt-9"), 404, "model", "gpt-9")


async def test_a_body_of_50_mb_is_413_without_being_kept(api: Api) -> None:
    """With its length said or not, and the same connection serves the next request."""
    body = b'{"model":"tiny","prompt":"' + b"x" * 50_000_000 + b'"}'
    await refused(api, await api.http.post(COMPLETIONS, content=body), 413, text="larger than")

    async def pieces() -> Any:
        for start in range(0, len(body), 1_000_000):
            yield body[start : start + 1_000_000]

    await refused(api, await api.http.post(COMPLETIONS, content=pieces()), 413, text="larger than")


async def test_unknown_routes_and_methods_have_the_same_shape(api: Api) -> None:
    """Nothing answers in another form."""
    await refused(api, await api.http.get("/nowhere"), 404, text="/nowhere")
    await refused(api, await api.http.get("/metrics"), 404, text="metrics.json in its data folder")
    await refused(api, await api.http.get("/v1/chat/completions//"), 404)
    await refused(api, await api.http.get("/redoc"), 404)
    wrong = await api.http.get(CHAT)
    assert wrong.headers["allow"] == "POST"
    await refused(api, wrong, 405, text="GET")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoWorkers("no worker of tiny is there", retry_after_s=3), 503, "unavailable"),
        (Overloaded("all workers of tiny are at their limit", retry_after_s=3), 503, "overloaded"),
        (CallerError("the engine cannot take this"), 400, None),
        (GenerationFailed("the worker broke off"), 500, "generation_failed"),
    ],
)
async def test_a_failure_before_the_first_token_has_a_status(
    api: Api, error: Exception, status: int, code: str | None
) -> None:
    """Streamed or not, it is an error answer and no half stream; 503 says when to come again."""
    for stream in (False, True):
        api.backend.script = [error]
        answer = await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED, "stream": stream})
        assert answer.json()["error"]["code"] == code
        assert answer.headers.get("retry-after") == ("3" if status == 503 else None)
        await refused(api, answer, status, text=str(error))


async def test_a_fault_of_our_own_is_500_and_tells_nothing(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets a request id, the log has the rest under it."""
    api.backend.script = [KeyError("secret inside")]
    answer = await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED})
    assert "secret" not in answer.text
    await api.counted("tiny", "error")
    assert any(answer.headers["x-request-id"] == getattr(record, "request_id", "") for record in caplog.records)
    await refused(api, answer, 500)


@pytest.mark.parametrize(
    "headers",
    [{"x-contrail-deadline-ms": "soon"}, {"x-contrail-deadline-ms": "9" * 5000}, {"x-contrail-tenant": "a b"}],
)
async def test_a_bad_header_of_ours_is_named(api: Api, headers: dict[str, str]) -> None:
    """400 names the header."""
    answer = await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED}, headers=headers)
    await refused(api, answer, 400, next(iter(headers)))


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello tls\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nbad header\x00: x\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: many\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * (4 * HEAD_BYTES_MAX), 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * HEAD_BYTES_MAX, 431),
        (b"GET /" + b"a" * (4 * HEAD_BYTES_MAX), 431),
    ],
)
async def test_junk_on_the_wire_is_refused(api: Api, raw: bytes, status: int) -> None:
    """What is no HTTP, or has no end, is answered in the same shape and hung up on."""
    reader, writer = await asyncio.open_connection(*api.server.address)
    writer.write(raw)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read()
    writer.close()
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_field_that_nobody_knows_is_ignored(api: Api) -> None:
    """As vLLM's server does; a content type that is wrong or missing is, too."""
    body = json.dumps({"model": "tiny", "prompt": "hi", "nobody": {"knows": "this"}})
    answer = await api.http.post(COMPLETIONS, content=body, headers={"content-type": "text/plain"})
    assert answer.json()["choices"][0]["text"] == "hello"
