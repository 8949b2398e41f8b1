"""A request that fails inside the front end: its client hears of it, and the log knows which one failed, and where."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router.router import Router
from api.anthropic.messages_encoder import MessagesEncoder
from api.app import create_app
from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from api.openai.openai_encoder import ChatEncoder
from api.openai.request.choice import Transcript
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from api.tokenizer.model_tokenizer import ModelTokenizer
from core.events import RequestFinished, RequestRouted
from core.events.routing import RequestTurnedAway
from core.subjects import ROUTING
from replay.explain.explain import explain
from replay.explain.request_list import list_requests
from replay.verify.verify import verify
from tests.actors.world import FAST, KEY, NAMESPACE, World, world
from tests.api.conftest import Api
from tests.api.scripted import files
from tests.replay.recorded import recorded

MARK = "Zwölfboxkämpfer"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASKED = [{"role": "user", "content": MARK}]
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "messages": ASKED}


class Site:
    """A front end over a real router and a worker."""

    def __init__(self, it: World, router: Router, http: httpx.AsyncClient) -> None:
        self.it, self.router, self.http = it, router, http

    async def ask(self, path: str = CHAT, **fields: Any) -> httpx.Response | None:
        """The request `asked`; None if its answer was cut."""
        try:
            return await self.http.post(path, json={**BODY, **fields}, headers={"x-request-id": "asked"})
        except httpx.RemoteProtocolError:
            return None

    async def told(self, folder: Path) -> str:
        """What `explain` says of it; every decision of the log can be made again."""
        await self.it.settled(self.router)
        with await recorded(self.it.log, NAMESPACE, KEY, folder / "log") as recording:
            assert verify(recording).different == 0
            return render(explain_text(explain(recording, "asked")))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    settings = dataclasses.replace(FAST, model_path=str(tmp_path), vocab=300)
    async with world() as here:
        await here.worker("decode-0", "tiny", settings)
        router = await here.router()
        await here.ready(router)
        app = create_app(router, FrontendMetrics(), ApiSettings(inline_bytes_max=1000))
        server = HttpServer(app, bind("127.0.0.1", 0))
        async with httpx.AsyncClient(base_url=f"http://{await server.start()}", verify=False) as http:
            yield Site(here, router, http)
        await server.stop(grace_s=1)


def fails(*_: object, **__: object) -> None:
    raise KeyError(MARK)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/tokenize"])
@pytest.mark.parametrize("size", [10, 2000])
async def test_a_failure_before_any_worker_is_in_the_log(
    site: Site, path: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the event loop and in a thread: 500 with the request's id, and `explain` tells what failed and where."""
    with monkeypatch.context() as patch:
        patch.setattr(ModelTokenizer, "encode", fails)
        answer = await site.ask(path, messages=[{"role": "user", "content": MARK * (size // 10)}])
    assert answer is not None
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "asked")
    told = await site.told(tmp_path)
    (event,) = await site.it.told(ROUTING, RequestTurnedAway)
    assert (event.request, event.model, event.reason, event.status) == ("asked", "tiny", "internal", 500)
    assert event.detail.startswith("KeyError at ")
    assert f"rejected with 500: internal ({event.detail})" in told
    counts = {row["reason"]: row["requests"] for row in site.router.describe()["admission"]["turned_away"]}
    assert counts == {"internal": 1}
    answered = await site.ask(path)
    assert answered is not None
    assert answered.status_code == 200
    said = "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)
    assert "builtins.KeyError" in said
    assert MARK not in said


@pytest.mark.parametrize(
    ("broken", "path", "fields"),
    [
        ((Transcript, "push"), CHAT, {"stream": True}),
        ((Transcript, "push"), CHAT, {}),
        ((ChatEncoder, "encode_delta"), CHAT, {"stream": True, "logprobs": True}),
        ((ChatEncoder, "encode_delta"), CHAT, {"stream": True, "n": 2, "temperature": 1}),
        ((Transcript, "push"), MESSAGES, {}),
        ((Transcript, "push"), MESSAGES, {"stream": True}),
        ((MessagesEncoder, "encode_text"), MESSAGES, {"stream": True}),
    ],
)
async def test_a_failure_amid_the_answer_is_that_attempts_end(
    site: Site, broken: tuple[type, str], path: str, fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`error`, not `abort`, which a client's end is called; the log has it once, the worker stops."""
    monkeypatch.setattr(*broken, fails)
    answer = await site.ask(path, max_tokens=4000, **fields)  # on a busy machine, few tokens come with their end
    assert answer is None or answer.status_code == 500
    told = await site.told(tmp_path)
    ends = await site.it.told(ROUTING, RequestFinished)
    assert {each.outcome for each in ends} == {"error"}
    assert len(ends) == len(await site.it.told(ROUTING, RequestRouted)) == fields.get("n", 1)
    assert all(each.detail.startswith("KeyError at ") for each in ends)
    assert await site.it.told(ROUTING, RequestTurnedAway) == []
    assert f"error ({ends[0].detail}) after" in told


async def test_a_failure_behind_the_answer_is_in_the_log(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt ended well, and the client got nothing of it."""
    monkeypatch.setattr(ChatEncoder, "encode_whole", fails)
    answer = await site.ask(max_tokens=2)
    assert answer is not None
    assert answer.status_code == 500
    told = await site.told(tmp_path)
    assert "ended    length after 2 tokens" in told
    assert "rejected with 500: internal (KeyError at " in told


async def test_a_client_that_hangs_up_is_no_failure(site: Site) -> None:
    """As before: `abort`."""
    async with site.http.stream("POST", CHAT, json={**BODY, "stream": True, "max_tokens": 4000}) as answer:
        async for _ in answer.aiter_bytes():
            break
    async with asyncio.timeout(5):
        while not (ends := await site.it.told(ROUTING, RequestFinished)):
            await asyncio.sleep(0.01)
    assert [(each.outcome, each.detail) for each in ends] == [("abort", "")]
    assert await site.it.told(ROUTING, RequestTurnedAway) == []


async def test_failed_ones_can_be_listed(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`explain --outcome rejected` and `error` find them, as any other that was refused, or failed."""
    monkeypatch.setattr(Transcript, "push", fails)
    await site.ask(max_tokens=4000)
    monkeypatch.setattr(ModelTokenizer, "encode", fails)
    await site.ask()
    await site.it.settled(site.router)
    with await recorded(site.it.log, NAMESPACE, KEY, tmp_path / "log") as recording:
        for outcome in ("rejected", "error"):
            assert [each.request for each in list_requests(recording, outcome=outcome).requests] == ["asked"]


async def test_every_route_tells_of_its_failures(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the model that was asked for, and the tenant that was named; those counted before are counted once."""
    monkeypatch.setattr(ModelTokenizer, "encode", fails)
    bodies: dict[str, Any] = {
        CHAT: {"messages": ASKED},
        "/v1/completions": {"prompt": MARK},
        "/v1/responses": {"input": MARK},
        MESSAGES: {"messages": ASKED, "max_tokens": 3},
        "/v1/messages/count_tokens": {"messages": ASKED},
        "/v1/embeddings": {"input": MARK},
        "/tokenize": {"prompt": MARK},
    }
    for path, body in bodies.items():
        headers = {"x-request-id": path.replace("/", "-"), "x-contrail-tenant": "acme"}
        answer = await api.http.post(path, json={"model": "tiny", **body}, headers=headers)
        assert answer.status_code == 500, answer.text
    assert api.backend.failures == [(path.replace("/", "-"), "tiny", "acme", KeyError) for path in bodies]
    assert api.count("", "error") + api.count("tiny", "error") == len(bodies)
