"""Attack: a tenant gives its requests the ids of another tenant, so that these are hidden in the log's answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from core.errors import CallerError
from core.events import RequestRouted
from core.ids import RequestId, given_id, renamed
from replay.session import ReplaySession
from tests.api.guarded import COMPLETIONS, made
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

ENGINE = {"decode_us_per_step": 20_000, "eos_every": 0}
LONG, SHORT = 60, 1
"""Tokens of an answer that takes 1.2 s, and of one that takes none."""


async def ask(http: httpx.AsyncClient, key: str, id: str, max_tokens: int) -> str:
    """The id in the answer's header."""
    body = {"model": "tiny", "prompt": [20] * 40, "max_tokens": max_tokens}
    headers = {"authorization": f"Bearer {key}", "x-request-id": id}
    answer = await http.post(COMPLETIONS, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == f"cmpl-{id}"
    return answer.headers["x-request-id"]


def active(running: Running) -> bool:
    """True if a request is in progress."""
    return any(each["active"] for each in running.state("frontend-0")["admission"]["models"])


async def explained(*words: str) -> tuple[int, str]:
    done = await asyncio.to_thread(contrail, "explain", *words)
    return done.returncode, done.stdout + done.stderr


async def test_no_tenant_hides_the_requests_of_another(tmp_path: Path) -> None:
    """One id of two tenants, one after the other and at once: `explain` names both, and finds each by its tenant, in
    the running log and in an export."""
    keys = tmp_path / "keys"
    victim, attacker = made(keys, "victim"), made(keys, "attacker")
    group = {"name": "decode", "model": "tiny", "count": 1, "engine": "simulated", "engine_args": ENGINE}
    file, export = tmp_path / "one.yaml", str(tmp_path / "log.contrail")
    file.write_text(json.dumps({"version": 1, "workers": [group]}))
    async with (
        up(tmp_path / "data", "-f", str(file), "--keys", str(keys)) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        assert await ask(http, victim, "order-1", SHORT) == "order-1"
        assert await ask(http, attacker, "order-1", SHORT) == "order-1"
        holder = asyncio.create_task(ask(http, attacker, "order-2", LONG))
        await eventually(lambda: active(running), "the attacker's request is in progress")
        assert await ask(http, victim, "order-2", SHORT) == "order-2"
        assert await holder == "order-2"
        await eventually(lambda: not running.state("frontend-0")["ahead"], "all of it is in the log")
        routed = [each for each in await running.events("routing") if isinstance(each, RequestRouted)]
        assert [(each.tenant, given_id(each.request)) for each in routed] == [
            ("victim", "order-1"), ("attacker", "order-1"), ("attacker", "order-2"), ("victim", "order-2"),
        ]  # fmt: skip
        assert len({(each.tenant, each.request) for each in routed}) == len(routed)
        exported = await asyncio.to_thread(contrail, "export", export, "--data", str(running.data))
        assert exported.returncode == 0, exported.stderr
        for name in ("order-1", "order-2"):
            status, text = await explained(name, "--data", str(running.data))
            assert status != 0
            assert "name one by --tenant (attacker, victim)" in text
            status, text = await explained(name, "--tenant", "victim", "--json", "--data", str(running.data))
            assert status == 0, text
            (own,) = [each for each in routed if (each.tenant, given_id(each.request)) == ("victim", name)]
            assert json.loads(text)["attempts"][0]["digest"] == own.digest
    with ReplaySession.open(export) as session:
        for each in routed:
            (attempt,) = session.explain(given_id(each.request), each.tenant).attempts
            assert attempt.digest == each.digest
        for moment in (session.explain, session.at):
            with pytest.raises(CallerError, match="several tenants have requests with the id 'order-1'"):
                moment("order-1")
        with pytest.raises(CallerError, match="knows no request 'order-1' of tenant 'nobody'"):
            session.explain("order-1", "nobody")


def test_a_renamed_id_tells_the_one_that_the_client_gave() -> None:
    """Only the suffix of a replica is taken away, and only once."""
    for name in ("order-1", "a.b", "req-0123456789abcdef", "x" * 128, ""):
        other = renamed(RequestId(name))
        assert other != name
        assert given_id(other) == name
        assert given_id(name) == name
    for name in ("a.1234567", "a.123456789", "a.1234567G", "a-12345678"):
        assert given_id(name) == name
