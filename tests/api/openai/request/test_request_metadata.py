"""Sessions as agents' programs name them: one reading of headers and bodies, and keyed hashes in the log."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from api.openai.request.request_metadata import (
    HEADERS,
    NAME_MAX,
    SESSION_KEYS,
    THREAD_KEYS,
    USER_ID_MAX,
    Session,
    find_session,
)
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.codec import encode_event
from core.events import RequestRouted
from core.ids import RequestId, StreamSeq
from core.keys import session_key
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.decide import decide, record
from projections.policy.view import RouteRequest
from replay.explain.explain import explain
from replay.verify.verify import verify
from tests.actors.world import FAST, KEY, NAMESPACE, world
from tests.api.conftest import Api
from tests.api.scripted import files
from tests.projections.policy.test_policies import ASKED as PROMPT
from tests.projections.policy.test_policies import NOW_MS
from tests.projections.policy.test_policies import A as ONE
from tests.projections.policy.test_policies import B as TWO
from tests.projections.site import Site
from tests.replay.recorded import recorded

ASKED = [{"role": "user", "content": "hi"}]
S, P, A = "01a20d3a-d3b0-7e31-9d80-a8484dc7dfc6", "01a20d3a-d454-72a2-9e93-9d23bf135e38", "aa5868ba66631c516"
CLAUDE = b"x-claude-code-session-id", b"x-claude-code-agent-id", b"x-claude-code-parent-agent-id"
USER_ID = json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": S})


def of(headers: dict[bytes, str] | None = None, **body: Any) -> Session:
    return find_session({name: value.encode() for name, value in (headers or {}).items()}, SimpleNamespace(**body))


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({}, {}, ("", "")),
        ({b"x-session-id": S}, {}, (S, "")),
        # Claude Code, its sub-agent, and that one's
        ({CLAUDE[0]: S}, {"metadata": {"user_id": USER_ID}}, (S, "")),
        ({CLAUDE[0]: S, CLAUDE[1]: A}, {"metadata": {"user_id": USER_ID}}, (f"{S}/{A}", S)),
        ({CLAUDE[0]: S, CLAUDE[1]: A, CLAUDE[2]: "b"}, {}, (f"{S}/{A}", f"{S}/b")),
        ({CLAUDE[0]: S, CLAUDE[2]: "b"}, {}, (S, "")),
        ({}, {"metadata": {"user_id": USER_ID}}, (S, "")),
        ({}, {"metadata": {"user_id": json.dumps({"session_id": S, "parent_session_id": P})}}, (S, P)),
        ({}, {"metadata": {"user_id": f"user_0a_account__session_{S}"}}, (S, "")),
        ({}, {"user": USER_ID}, (S, "")),
        # Codex, its sub-agent, and earlier ones
        ({b"session-id": S, b"thread-id": S}, {"prompt_cache_key": S}, (S, "")),
        ({b"session-id": S, b"thread-id": P, b"x-codex-parent-thread-id": S}, {"prompt_cache_key": S}, (P, S)),
        ({b"session-id": S}, {}, (S, "")),
        ({b"session_id": S, b"conversation_id": P}, {}, (S, "")),
        ({b"conversation_id": P}, {}, (P, "")),
        ({}, {"client_metadata": {"session_id": S, "thread_id": P, "x-codex-parent-thread-id": S}}, (P, S)),
        ({}, {"client_metadata": {"session_id": S}, "prompt_cache_key": "k"}, (S, "")),
        ({}, {"prompt_cache_key": "k", "user": "u"}, ("k", "")),
        # opencode and its sub-agent
        ({b"x-session-id": S, b"x-session-affinity": S}, {}, (S, "")),
        ({b"x-session-id": P, b"x-session-affinity": P, b"x-parent-session-id": S}, {}, (P, S)),
        ({b"x-opencode-session": P, b"x-parent-session-id": S}, {}, (P, S)),
        ({b"x-session-affinity": S}, {}, (S, "")),
        # Qwen Code
        ({}, {"metadata": {"sessionId": S, "promptId": "p"}}, (S, "")),
        ({}, {"metadata": {"session_id": S, "parent_session_id": P}}, (S, P)),
        # users
        ({}, {"user": "Ada Lovelace"}, ("Ada Lovelace", "")),
        ({}, {"metadata": {"user_id": "ada"}}, ("ada", "")),
        ({}, {"user": "u", "metadata": {"user_id": "ada"}}, ("u", "")),
        # what does not fit is passed over, for what comes next
        ({CLAUDE[0]: "a b", b"thread-id": S}, {}, (S, "")),
        ({CLAUDE[0]: S, CLAUDE[1]: "a b"}, {}, (S, "")),
        ({b"thread-id": "x" * (NAME_MAX + 1)}, {"user": "u"}, ("u", "")),
        ({b"thread-id": P, b"x-codex-parent-thread-id": "a b"}, {}, (P, "")),
        ({}, {"metadata": {"user_id": USER_ID[:-1]}}, (USER_ID[:-1], "")),
        ({}, {"metadata": {"user_id": " " * USER_ID_MAX + USER_ID}, "user": "u"}, ("u", "")),
        ({}, {"metadata": {"user_id": 7, "session_id": ["x"]}, "user": "u"}, ("u", "")),
        ({}, {"metadata": "x", "client_metadata": [1], "prompt_cache_key": 5, "user": "u\n"}, ("", "")),
        ({}, {"prompt_cache_key": "k" * (NAME_MAX + 1), "user": "\ud800"}, ("", "")),
        ({}, {"metadata": {"user_id": "[" * 1000 + "{"}, "user": "u"}, ("u", "")),
        # a session is not its own parent
        ({b"thread-id": S, b"x-codex-parent-thread-id": S}, {}, (S, "")),
    ],
    ids=str,
)
def test_who_names_which(headers: dict[bytes, str], body: dict[str, Any], session: tuple[str, str]) -> None:
    """As seen of the programs, in the order that is written down."""
    assert of(headers, **body) == session


def test_headers_come_in_their_order() -> None:
    """Of all at once the first one in the table counts; then the next, and after all of them the body."""
    headers = {each.session: f"of-{each.session.decode()}" for each in HEADERS}
    body = {
        "client_metadata": {key: f"of-{key}" for key, _ in (*THREAD_KEYS, *SESSION_KEYS)},
        "prompt_cache_key": "of-prompt_cache_key",
        "user": "of-user",
    }
    for each in HEADERS:
        assert of(headers, **body).name == f"of-{each.session.decode()}"
        del headers[each.session]
    assert of(headers, **body).name == "of-thread_id"
    del body["client_metadata"]
    assert of(headers, **body).name == "of-prompt_cache_key"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_sent_is_a_name_or_none(seed: int) -> None:
    """Bounded, and such that it can be hashed."""
    dice = random.Random(seed)
    texts = ["", "a", "x" * NAME_MAX, "x" * 5000, "\ud800", "{", USER_ID, "_session_", "ä\n", f"u_session_{'y' * 300}"]
    values: list[Any] = [*texts, None, 1, [], {}, {"session_id": 1}]
    names = [name for each in HEADERS for name in each if name]
    for _ in range(200):
        headers = {dice.choice(names): dice.choice(texts).encode("utf-8", "surrogatepass") for _ in range(3)}
        keys = [key for key, parents in (*THREAD_KEYS, *SESSION_KEYS) for key in (key, *parents)] + ["user_id"]
        fields = {dice.choice(keys): dice.choice(values) for _ in range(3)}
        body = SimpleNamespace(
            metadata=dice.choice([fields, None]), client_metadata=dice.choice([fields, None]),
            prompt_cache_key=dice.choice(values), user=dice.choice(values),
        )  # fmt: skip
        session = find_session(headers, body)
        for name in session:
            assert len(name) <= 2 * NAME_MAX + 1
            session_key(name, 7)
        assert not session.parent or session.parent != session.name != ""


# --- through the API -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers", "fields", "session"),
    [
        ("/v1/chat/completions", {}, {"messages": ASKED, "metadata": {"sessionId": S}}, (S, "")),
        ("/v1/chat/completions", {}, {"messages": ASKED, "prompt_cache_key": S}, (S, "")),
        ("/v1/completions", {"x-session-affinity": S, "x-parent-session-id": P}, {"prompt": "hi"}, (S, P)),
        ("/v1/completions", {}, {"prompt": "hi", "user": "u"}, ("u", "")),
        ("/v1/responses", {}, {"input": "hi", "prompt_cache_key": S}, (S, "")),
        ("/v1/responses", {}, {"input": "hi", "client_metadata": {"thread_id": P, "parent_thread_id": S}}, (P, S)),
        ("/v1/messages", {}, {"messages": ASKED, "max_tokens": 3, "metadata": {"user_id": USER_ID}}, (S, "")),
        ("/v1/messages", {"x-claude-code-session-id": S, "x-claude-code-agent-id": A},
         {"messages": ASKED, "max_tokens": 3}, (f"{S}/{A}", S)),
        ("/v1/embeddings", {"thread-id": S}, {"input": "hi"}, (S, "")),
    ],
    ids=str,
)  # fmt: skip
async def test_every_api_takes_it(
    api: Api, path: str, headers: dict[str, str], fields: dict[str, Any], session: tuple[str, str]
) -> None:
    """As it is sent; the worker's request has both names."""
    await api.http.post(path, json={"model": "tiny", **fields}, headers=headers)
    (asked,) = api.backend.requests
    assert (asked.session, asked.session_parent) == session


async def test_only_our_own_header_is_refused(api: Api) -> None:
    """A client that sends another one does not know that it speaks to us."""
    body = {"model": "tiny", "prompt": "hi"}
    for name, status in (("x-session-id", 400), ("thread-id", 200), ("x-claude-code-session-id", 200)):
        answer = await api.http.post("/v1/completions", json=body, headers={name: "two words"})
        assert answer.status_code == status
    assert [each.session for each in api.backend.requests] == ["", ""]


async def test_the_log_has_keyed_hashes(tmp_path: Path) -> None:
    """Of the session and of its parent, which is the parent's own; of another tenant both are others. No name is in
    the log; `explain` tells the hashes, and every decision can be made again."""
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    settings = dataclasses.replace(FAST, model_path=str(tmp_path), vocab=300)
    async with world() as it:
        await it.worker("a", "tiny", settings)
        router = await it.router(settings=RoutingSettings(policy="session"))
        await it.ready(router)
        server = HttpServer(create_app(router, FrontendMetrics(), ApiSettings()), bind("127.0.0.1", 0))
        async with httpx.AsyncClient(base_url=f"http://{await server.start()}", verify=False) as http:
            for request, tenant, agent in (("main", "t", ""), ("sub", "t", A), ("other", "u", A), ("none", "t", None)):
                headers = {"x-request-id": request, "x-contrail-tenant": tenant}
                if agent is not None:
                    headers |= {"x-claude-code-session-id": S}
                if agent:
                    headers |= {"x-claude-code-agent-id": agent}
                body = {"model": "tiny", "messages": ASKED, "max_tokens": 2}
                assert (await http.post("/v1/messages", json=body, headers=headers)).status_code == 200
        await server.stop(grace_s=1)
        await it.settled(router)
        routed = {event.request: event for event in await it.told(ROUTING, RequestRouted)}
        payloads = b"".join([record.payload async for record in it.log.read(ROUTING, StreamSeq(1))])
        recording = await recorded(it.log, NAMESPACE, KEY, tmp_path / "log")
    main, sub, other, none = (routed[name] for name in ("main", "sub", "other", "none"))
    assert main.session == session_key(f"t/{S}", KEY.hash_seed)
    assert (main.session_parent, none.session, none.session_parent) == ("", "", "")
    assert sub.session_parent == main.session != sub.session
    assert {other.session, other.session_parent}.isdisjoint({main.session, sub.session, ""})
    assert S.encode() not in payloads
    assert A.encode() not in payloads
    with recording:
        assert verify(recording).different == 0
        told = render(explain_text(explain(recording, "sub")))
        assert f"session  {sub.session}, begun by session {main.session}" in told
        assert f"session  {main.session}\n" in render(explain_text(explain(recording, "main")))
        assert "  session  " not in render(explain_text(explain(recording, "none")))


@pytest.mark.parametrize("policy", ["time", "session", "kv", "power-of-two"])
def test_no_decision_rests_on_a_parent(policy: str) -> None:
    """The same decision, digest and record with it and without; what was recorded asks the same again."""
    site, settings = Site(), RoutingSettings(policy=policy)
    site.join(ONE, TWO)
    one = RouteRequest(RequestId("r"), 0, "tiny", PROMPT, session="5e55")
    two = one._replace(session_parent="9a4e")
    decision = decide(site.view, one, settings, NOW_MS, 7)
    assert decide(site.view, two, settings, NOW_MS, 7) == decision
    event = record(decision, two, settings, 1)
    assert event.session_parent == "9a4e"
    assert msgspec.structs.replace(event, session_parent="") == record(decision, one, settings, 1)
    assert RouteRequest.of(event, PROMPT).session_parent == "9a4e"


def test_records_read_both_ways() -> None:
    """A program of before passes the new field over; of its records the field is empty."""
    site, settings = Site(), RoutingSettings(policy="kv")
    site.join(ONE)
    asked = RouteRequest(RequestId("r"), 0, "tiny", PROMPT, session_parent="9a4e")
    raw = encode_event(record(decide(site.view, asked, settings, NOW_MS, 7), asked, settings, 1))
    fields = msgspec.msgpack.decode(raw)
    assert fields.pop("session_parent") == "9a4e"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=RequestRouted).session_parent == ""
    names = tuple(name for name in RequestRouted.__struct_fields__ if name != "session_parent")
    before = msgspec.defstruct("RequestRouted", [(name, Any, None) for name in names], tag_field="type", tag=True)
    assert msgspec.msgpack.decode(raw, type=before).request == "r"  # type: ignore[attr-defined]
