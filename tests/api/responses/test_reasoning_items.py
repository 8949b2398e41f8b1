"""Reasoning in /v1/responses: as content, as its summary, and sealed for later turns."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.responses.reasoning_seal import SEALED_CHARS_MAX, SEALED_ITEMS_MAX, ReasoningSeal
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.models import ModelCard
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.guarded import Guarded, made
from tests.api.responses.test_responses import PATH, WEATHER, sent, stream_events
from tests.api.scripted import ScriptedBackend, card, files, ids, spoken, tokenizer
from tests.api.speaking import speak


@pytest.mark.parametrize("word", ["auto", "concise", "detailed"])
async def test_reasoning_is_its_own_summary_where_one_is_asked_for(api: Api, word: str) -> None:
    """Clients that ask for one show nothing else; whole and streamed."""
    speak(api.backend)
    api.backend.script = spoken("think", "ing</think>", "so")
    asked: Any = {"reasoning": {"summary": word}}
    whole = await api.client.responses.create(model="tiny", input="hi", **asked)
    events = await stream_events(api, **asked)
    last = events[-1]
    assert last.type == "response.completed"
    for response in (whole, last.response):
        item: Any = response.output[0]
        assert item.type == "reasoning"
        assert [(part.type, part.text) for part in item.summary] == [("summary_text", "thinking")]
        assert item.content is None
    assert [event.type for event in events[2:8]] == [
        "response.output_item.added", "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done", "response.reasoning_summary_part.done",
    ]  # fmt: skip
    told_of = [event for event in events if event.type.startswith("response.reasoning_")]
    for event in told_of:
        type(event).model_validate(event.to_dict(), strict=True)
    assert {getattr(event, "summary_index") for event in told_of} == {0}  # noqa: B009 - all of these types have it
    assert [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"] == [
        "think",
        "ing",
    ]


@pytest.mark.parametrize("asked", [{}, {"reasoning": {"effort": "low"}}, {"reasoning": {"summary": "none"}}])
async def test_reasoning_is_content_where_no_summary_is_asked_for(api: Api, asked: Any) -> None:
    """As vLLM's server sends it."""
    speak(api.backend)
    api.backend.script = spoken("hm</think>", "so")
    events = await stream_events(api, **asked)
    assert not any("summary" in event.type for event in events)
    assert any(event.type == "response.reasoning_text.delta" for event in events)


LOGGER = "api.responses.reasoning_seal"
SEALED: Any = ["reasoning.encrypted_content"]
QWEN3 = (Path(__file__).parents[1] / "templates" / "qwen3.jinja").read_text()
THOUGHT = "<think>\nlook\n</think>\n\n"
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def as_qwen3(backend: ScriptedBackend) -> None:
    """The backend's model has this template, which keeps the reasoning of the turn that goes on."""
    config = json.loads(files()["tokenizer_config.json"]) | {"chat_template": QWEN3}
    manner = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    own = {"tokenizer_config.json": json.dumps(config).encode(), "contrail.json": json.dumps(manner).encode()}

    def models() -> list[ModelCard]:
        return [replace(card("tiny"), files={**files(), **own}, context_max=8000)]

    backend.models = models  # type: ignore[method-assign]
    backend.script = spoken(THOUGHT, CALLED)


class Replica:
    """A front end with this key of its deployment."""

    def __init__(self, key: bytes) -> None:
        self.backend = ScriptedBackend()
        as_qwen3(self.backend)
        app = create_app(self.backend, FrontendMetrics(), ApiSettings(), seal=ReasoningSeal(key))
        self.server = HttpServer(app, bind("127.0.0.1", 0))

    @asynccontextmanager
    async def served(self) -> AsyncIterator[httpx.AsyncClient]:
        address = await self.server.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://{address}", verify=False) as http:
                yield http
        finally:
            await self.server.stop(grace_s=1)

    @property
    def prompt(self) -> list[int]:
        """The last one's tokens."""
        return list(tokens_from_bytes(self.backend.requests[-1].tokens))


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of sealed items; other tests may have made clients talk, too."""
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def turn(http: httpx.AsyncClient, given: list[Any], **headers: str) -> dict[str, Any]:
    body = {"model": "tiny", "input": given, "include": SEALED, "tools": [WEATHER]}
    answer = await http.post(PATH, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def as_codex_does(output: list[dict[str, Any]]) -> list[Any]:
    """The items as Codex sends them back: reasoning without its text; and the output of the call."""
    back = [{**item, "content": None} if item["type"] == "reasoning" else item for item in output]
    return [*back, {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "sunny"}]


ASKED = {"role": "user", "content": "hi"}


async def test_sealed_reasoning_is_rendered_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """The second turn's prompt begins with the first's and its answer, on another replica too; one of another
    deployment leaves the reasoning out, and says so."""
    ours, other, foreign = Replica(bytes(32)), Replica(bytes(32)), Replica(bytes(31) + b"1")
    async with ours.served() as first, other.served() as second, foreign.served() as third:
        output = (await turn(first, [ASKED]))["output"]
        assert [item["type"] for item in output] == ["reasoning", "function_call"]
        given = [ASKED, *as_codex_does(output)]
        begun = tokenizer().decode(ours.prompt, skip_special_tokens=False) + THOUGHT + CALLED
        await turn(first, given)
        await turn(second, given)
        for replica in (ours, other):
            assert tokenizer().decode(replica.prompt, skip_special_tokens=False).startswith(begun)
        whole = ids(begun)
        assert tuple(ours.prompt[: len(whole)]) == whole
        assert not logged(caplog)
        with caplog.at_level(logging.INFO, logger=LOGGER):
            await turn(third, given)
        assert "look" not in tokenizer().decode(foreign.prompt, skip_special_tokens=False)
        assert [line.split(" ")[:4] for line in logged(caplog)] == [["left", "out", "1", "sealed"]]


async def test_a_tenants_reasoning_does_not_open_for_another(tmp_path: Path) -> None:
    """Whoever the key belongs to, or the header names where no keys are asked for."""
    ours = Replica(bytes(32))
    async with ours.served() as http:
        output = (await turn(http, [ASKED], **{"x-contrail-tenant": "team"}))["output"]
        for tenant, opens in (
            ({"x-contrail-tenant": "team"}, True),
            ({"x-contrail-tenant": "rivals"}, False),
            ({}, False),
        ):
            await turn(http, [ASKED, *as_codex_does(output)], **tenant)
            assert ("look" in tokenizer().decode(ours.prompt)) is opens
    keys = tmp_path / "keys"
    bearers = [{"authorization": f"Bearer {made(keys, tenant)}"} for tenant in ("team", "team", "rivals")]
    guarded = Guarded(keys)
    as_qwen3(guarded.backend)
    async with guarded.served() as http:
        output = (await turn(http, [ASKED], **bearers[0]))["output"]
        for bearer, opens in zip(bearers, (True, True, False), strict=True):
            # who has a key cannot claim another's tenant
            await turn(http, [ASKED, *as_codex_does(output)], **bearer, **{"x-contrail-tenant": "team"})
            prompt = tokenizer().decode(tokens_from_bytes(guarded.backend.requests[-1].tokens))
            assert ("look" in prompt) is opens


async def test_a_stream_seals_the_item_that_is_done(api: Api) -> None:
    """With a summary as well; and nothing is sealed for a client that does not ask."""
    as_qwen3(api.backend)
    events = await stream_events(api, include=SEALED, reasoning={"summary": "auto"})
    items = [cast(Any, event).item for event in events if event.type.startswith("response.output_item.")]
    added, done = (item for item in items if item.type == "reasoning")
    assert added.encrypted_content is None
    assert len(done.encrypted_content) > len("look")
    assert cast(Any, events[-1]).response.output[0].encrypted_content == done.encrypted_content
    assert [part.text for part in done.summary] == ["\nlook\n"]
    last = (await stream_events(api))[-1]
    assert cast(Any, last).response.output[0].encrypted_content is None


async def test_what_does_not_open_is_no_error(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """A client may come from another provider: the summary stands in, if there is one; the log holds no text."""
    as_qwen3(api.backend)
    foreign: Any = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": None,
        "encrypted_content": "gAAAAsecret",
    }
    with_summary = {**foreign, "summary": [{"type": "summary_text", "text": "sum"}]}
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    with caplog.at_level(logging.INFO, logger=LOGGER):
        await turn(api.http, [ASKED, foreign, call, result])
        assert "<think>" not in sent(api)
        await turn(api.http, [ASKED, with_summary, call, result])
        assert "<think>\nsum\n</think>" in sent(api)
    assert len(logged(caplog)) == 2
    assert not any("secret" in record.getMessage() for record in caplog.records)


async def test_sealed_items_are_bounded(api: Api) -> None:
    """The last of them are opened."""
    as_qwen3(api.backend)
    output = (await turn(api.http, [ASKED]))["output"]
    sealed = {**output[0], "content": None}
    call = as_codex_does(output)[1:]
    await turn(api.http, [ASKED, *[sealed] * (SEALED_ITEMS_MAX + 1), *call])
    assert sent(api).count("look") == SEALED_ITEMS_MAX


def test_a_seal_opens_for_its_tenant_and_key_alone() -> None:
    """And for nobody if one bit is another; two seals of one text differ."""
    seal = ReasoningSeal(bytes(32))
    sealed = seal.seal("so \u00e9", "team")
    assert sealed
    assert seal.open(sealed, "team") == ReasoningSeal(bytes(32)).open(sealed, "team") == "so \u00e9"
    assert seal.seal("so \u00e9", "team") != sealed
    assert re.fullmatch("[A-Za-z0-9_=-]+", sealed)
    assert ReasoningSeal(b"1" * 32).open(sealed, "team") is None
    for tenant in ("rivals", "", None):
        assert seal.open(sealed, tenant) is None
    nobodys = seal.seal("", None)
    assert nobodys
    assert seal.open(nobodys, None) == ""
    assert seal.open(nobodys, "") is None
    for at in range(0, len(sealed), 7):
        assert seal.open(sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :], "team") is None
    for foreign in ("", "AQ==", "AQ", "\u00e9", "no base64!", "gAAAA", sealed[:-4]):
        assert seal.open(foreign, "team") is None
    assert repr(seal) == "<ReasoningSeal>"


def test_a_seals_length_is_bounded() -> None:
    """What would be longer is not sealed, and what is longer not opened."""
    seal = ReasoningSeal(bytes(32))
    fits = SEALED_CHARS_MAX // 4 * 3 - 41
    whole = seal.seal("x" * fits, None)
    assert whole
    assert len(whole) == SEALED_CHARS_MAX
    assert seal.open(whole, None)
    assert seal.seal("x" * (fits + 1), None) is None
    assert seal.open(whole + "AAAA", None) is None


def test_an_earlier_generation_of_the_key_opens_and_does_not_seal() -> None:
    """Clients keep their reasoning over a change of the key, until its generation is forgotten."""
    old, new = b"1" * 32, b"2" * 32
    sealed = ReasoningSeal(old).seal("so", "team")
    assert sealed is not None
    both = ReasoningSeal(new, [old])
    assert both.open(sealed, "team") == "so"
    assert both.open(sealed, "other") is None
    fresh = both.seal("so", "team")
    assert fresh is not None
    assert ReasoningSeal(old).open(fresh, "team") is None
    assert ReasoningSeal(new).open(sealed, "team") is None
