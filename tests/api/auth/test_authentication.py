"""The gate: who is let in, as whom, and to what."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import anthropic
import openai
import pytest

from api.auth.keyring import SECRET_BYTES_MAX
from tests.api.guarded import ASKED, COMPLETIONS, TOKEN, Guarded, made
from tests.api.scripted import spoken


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


async def test_without_a_key_nothing_but_health(file: Path) -> None:
    """Every route but those few, those that do not exist included; in OpenAI's shape, and no worker hears of it."""
    key, guarded = made(file), Guarded(file)
    async with guarded.served() as http:
        for method, path in (
            ("POST", COMPLETIONS), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny"),
            ("GET", "/nowhere"), ("GET", "/"), ("GET", "/debugger"), ("GET", "/health/"), ("GET", "/V1/models"),
            ("OPTIONS", COMPLETIONS), ("DELETE", COMPLETIONS),
        ):  # fmt: skip
            answer = await http.request(method, path)
            assert answer.status_code == 401, path
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
        assert (await http.get("/health")).status_code == 200
        for wrong in ("-", key[:-1], key + "x", key.upper(), "x" * (SECRET_BYTES_MAX + 1), "é", json.dumps(key)):
            headers = [(b"authorization", b"Bearer " + wrong.encode())]
            assert (await http.post(COMPLETIONS, json=ASKED, headers=headers)).status_code == 401
        assert not guarded.backend.requests
        assert await guarded.ask(http, key) == 200


def ways(key: str) -> list[tuple[list[tuple[str, str]], int]]:
    return [
        ([("authorization", f"Bearer {key}")], 200),
        ([("AUTHORIZATION", f"bearer  {key}")], 200),
        ([("x-api-key", key)], 200),
        ([("x-api-key", key), ("authorization", f"Bearer {key}")], 200),
        ([("x-api-key", key), ("authorization", "Basic eDp5")], 200),
        ([("x-api-key", key), ("authorization", "Bearer other")], 401),
        ([("x-api-key", "other"), ("x-api-key", key)], 401),
        ([("authorization", f"Basic {key}")], 401),
        ([("authorization", key)], 401),
        ([("cookie", f"authorization={key}")], 401),
    ]


async def test_where_a_key_may_stand(file: Path) -> None:
    """As OpenAI's clients send it, or Anthropic's; two that differ are none."""
    key = made(file)
    guarded = Guarded(file)
    async with guarded.served() as http:
        for headers, status in ways(key):
            assert (await http.post(COMPLETIONS, json=ASKED, headers=headers)).status_code == status, headers
        url = str(http.base_url)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            assert [model.id for model in (await client.models.list()).data] == ["org/other", "tiny"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-no", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="not valid here"):
                await client.models.list()
        async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-no", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model="tiny", max_tokens=1, messages=[{"role": "user", "content": "hi"}])


def faults(key: str) -> list[tuple[list[tuple[str, str]], str]]:
    return [
        ([], "no API key was given"),
        ([("authorization", "Bearer")], "no API key was given"),
        ([("x-api-key", "other")], "not valid here"),
        ([("x-api-key", key), ("authorization", "Bearer other")], "two different API keys were sent: send one"),
        ([("x-api-key", "other"), ("x-api-key", key)], "two different API keys were sent: send one"),
        ([("authorization", key)], "does not begin with `Bearer `"),
        ([("authorization", f"Basic {key}")], "does not begin with `Bearer `"),
    ]


async def test_what_is_wrong_with_a_key_is_said(file: Path) -> None:
    """In words that help, and without anything of the keys."""
    key = made(file)
    async with Guarded(file).served() as http:
        for headers, said in faults(key):
            answer = await http.post(COMPLETIONS, json=ASKED, headers=headers)
            assert answer.status_code == 401
            assert said in answer.json()["error"]["message"], headers
            assert key not in answer.text


async def test_a_tenant_is_the_keys_and_not_the_headers(file: Path) -> None:
    """Only a gateway's key may name another one."""
    own, gateway = made(file, "team"), made(file, "edge", "--gateway")
    guarded = Guarded(file)
    async with guarded.served() as http:
        for key, headers in ((own, {}), (own, {"x-contrail-tenant": "rich"}), (gateway, {})):
            assert await guarded.ask(http, key, **headers) == 200
        assert await guarded.ask(http, gateway, **{"x-contrail-tenant": "rich"}) == 200
    assert [request.tenant for request in guarded.backend.requests] == ["team", "team", "edge", "rich"]
    assert [request.cache_salt for request in guarded.backend.requests] == ["team:", "team:", "edge:", "rich:"]


async def test_pipelined_requests_have_their_own_keys(file: Path) -> None:
    """The next request of a connection is begun by the end of the one before; nothing of that one is left."""
    a, b = made(file, "a"), made(file, "b", "--model", "org/other")
    guarded = Guarded(file)
    body = json.dumps(ASKED).encode()

    def raw(key: str) -> bytes:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n" if key else ""
        return (head or "GET /v1/models HTTP/1.1\r\nhost: a\r\n").encode() + b"content-length: %d\r\n\r\n%b" % (
            (len(body), body) if key else (0, b"")
        )

    async with guarded.served():
        said = await _sent(guarded, [raw(a), raw(""), raw(b), raw(a)])
    statuses = re.findall(rb"HTTP/1.1 (\d+)", said)
    assert statuses == [b"200", b"401", b"404", b"200"]
    assert [request.tenant for request in guarded.backend.requests] == ["a", "a"]


async def _sent(guarded: Guarded, requests: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection(*guarded.server.address)
    writer.write(b"".join(requests))
    answer = b""
    async with asyncio.timeout(5):
        while answer.count(b"HTTP/1.1 ") < len(requests) or not answer.rstrip().endswith(b"}"):
            answer += await reader.read(65536)
    writer.close()
    return answer


async def test_a_keys_models_are_all_there_is_for_it(file: Path) -> None:
    """Others are neither listed nor served, and are not told apart from those that do not exist."""
    key = made(file, "t", "--model", "tiny")
    guarded = Guarded(file)
    async with guarded.served() as http:
        http.headers["x-api-key"] = key
        assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == ["tiny"]
        assert (await http.get("/v1/models/tiny")).status_code == 200
        for model in ("org/other", "nobody"):
            refused = await http.post(COMPLETIONS, json=ASKED | {"model": model})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
            assert (await http.get(f"/v1/models/{model}")).status_code == 404
    assert not guarded.backend.requests


async def test_no_tenant_can_name_anothers_cache(file: Path) -> None:
    """The salts of two tenants are never equal, whatever salt a request gives."""
    one, two = made(file, "a"), made(file, "a.b")
    guarded = Guarded(file, isolate_tenants=True)
    async with guarded.served() as http:
        for key in (one, two):
            for salt in (None, "", "s", "a:", "a.b:s", ":", "a.b"):
                body = ASKED | {"cache_salt": salt}
                answer = await http.post(COMPLETIONS, json=body, headers={"x-api-key": key})
                assert answer.status_code == 200
    salts = [request.cache_salt for request in guarded.backend.requests]
    first, second = set(salts[:7]), set(salts[7:])
    assert not first & second
    assert "a:" in first
    assert len(first) == len(second) == 6  # none and an empty one are the same


async def test_keys_do_not_open_the_page_nor_its_token_the_api(file: Path) -> None:
    """Each has its own lock."""
    key = made(file)
    guarded = Guarded(file)
    async with guarded.served() as http:
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert (await http.get("/debug", headers=headers)).status_code == 401
        assert (await http.get(f"/debug?token={key}")).status_code == 401
        assert (await http.get(f"/debug?token={TOKEN}")).status_code == 200
        for headers in ({"authorization": "Bearer " + TOKEN}, {"cookie": f"contrail_debug={TOKEN}"}):
            assert (await http.get(f"/v1/models?token={TOKEN}", headers=headers)).status_code == 401


async def test_pages_of_other_sites_are_let_in_by_name_only() -> None:
    """Without the option none is answered; with it, only the origins that stand there, exactly."""
    ours, preflight = "https://chat.example.org", {"access-control-request-method": "POST"}
    for cors, allowed in (((), set()), ((ours,), {ours})):
        async with Guarded(cors=cors).served() as http:
            for origin in (ours, "https://evil.example.org", f"{ours}.evil.org", "http://chat.example.org", "null"):
                answer = await http.post(COMPLETIONS, json=ASKED, headers={"origin": origin})
                assert answer.status_code == (200 if origin in allowed else 403)
                expected = origin if origin in allowed else None
                assert answer.headers.get("access-control-allow-origin") == expected
                assert "access-control-allow-credentials" not in answer.headers
                asked = await http.options(COMPLETIONS, headers={"origin": origin, **preflight})
                assert asked.headers.get("access-control-allow-origin") == expected
                assert (asked.status_code == 200) == (origin in allowed)
                page = await http.get(f"/debug?token={TOKEN}", headers={"origin": origin})
                assert "access-control-allow-origin" not in page.headers


async def test_a_page_that_may_ask_needs_a_key_all_the_same(file: Path) -> None:
    """It may read the refusal, and the question before the question needs none."""
    key, origin = made(file), "https://chat.example.org"
    async with Guarded(file, cors=(origin,)).served() as http:
        asked = await http.options(
            COMPLETIONS,
            headers={
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization, content-type",
            },
        )
        assert asked.status_code == 200
        assert "authorization" in asked.headers["access-control-allow-headers"]
        refused = await http.post(COMPLETIONS, json=ASKED, headers={"origin": origin})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origin)
        headers = {"origin": origin, "authorization": f"Bearer {key}"}
        assert (await http.post(COMPLETIONS, json=ASKED, headers=headers)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_where_a_request_went_is_told_to_whom_it_may_be(stream: bool) -> None:
    """The worker and two times in headers, if the operator says so; nothing in refusals, nothing without."""
    for exposed in (True, False):
        guarded = Guarded(expose_routing=exposed)
        guarded.backend.script = spoken("hello")
        async with guarded.served() as http:
            answer = await http.post(COMPLETIONS, json=ASKED | {"stream": stream})
            told = {name: value for name, value in answer.headers.items() if name.startswith("x-contrail")}
            if exposed:
                assert told.pop("x-contrail-worker") == "decode-0"
                assert set(told) == {"x-contrail-queue-ms", "x-contrail-answer-ms"}
                assert 0 <= float(told["x-contrail-queue-ms"]) <= float(told["x-contrail-answer-ms"])
            else:
                assert told == {}
            refused = await http.post(COMPLETIONS, json={"model": "tiny"})
            assert not any(name.startswith("x-contrail") for name in refused.headers)
