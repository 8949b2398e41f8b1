"""Attack: a tenant puts its flood before all other tenants by a priority that no key of it allows."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.auth.api_keys import ApiKey, add_key, new_key
from tests.api.guarded import ASKED, COMPLETIONS, Guarded, made
from tests.e2e.deployment import up

ENGINE = {"max_seqs": 2, "decode_us_per_step": 5_000, "eos_every": 0}
FLOOD, OTHERS = 48, 12
ATTACK_S = 8.0
HALF = 0.5
TOLERANCE = 0.1


class Clients:
    """Clients of one key, each with a request after the other."""

    def __init__(self, http: httpx.AsyncClient, key: str, priority: int | None = None) -> None:
        self._http = http
        self._headers = {"authorization": f"Bearer {key}"}
        if priority is not None:
            self._headers["x-contrail-priority"] = str(priority)
        self.statuses = Counter[int]()

    async def ask_until(self, end: float, number: int) -> None:
        body = {"model": "tiny", "prompt": [20 + number] * 40, "max_tokens": 10, "temperature": 0}
        while time.monotonic() < end:
            answer = await self._http.post(COMPLETIONS, json=body, headers=self._headers, timeout=60)
            if time.monotonic() < end:
                self.statuses[answer.status_code] += 1
            if answer.status_code != 200:
                await asyncio.sleep(0.05)


def make_key(file: Path, tenant: str, **options: Any) -> str:
    secret, digest = new_key()
    add_key(file, ApiKey(name=tenant, tenant=tenant, sha256=digest, **options))
    return secret


async def share_of_others(folder: Path, flood: dict[str, Any], priority: int | None) -> tuple[float, Clients]:
    """The part of all answers that the other tenant gets, and the clients of the flood."""
    group = {"name": "decode", "model": "tiny", "count": 1, "engine": "simulated", "engine_args": ENGINE}
    file, keys = folder / "small.yaml", folder / "keys"
    file.write_text(json.dumps({"version": 1, "workers": [group], "routing": {"active_max": 2, "queue_max": 256}}))
    attacker, victim = make_key(keys, "attacker", **flood), make_key(keys, "victim")
    limits = httpx.Limits(max_connections=FLOOD + OTHERS)
    async with (
        up(folder / "data", "-f", str(file), "--keys", str(keys)) as running,
        httpx.AsyncClient(base_url=running.url, limits=limits) as http,
    ):
        floods, others = Clients(http, attacker, priority), Clients(http, victim)
        end = time.monotonic() + ATTACK_S
        await asyncio.gather(
            *(floods.ask_until(end, number) for number in range(FLOOD)),
            *(others.ask_until(end, number) for number in range(OTHERS)),
        )
    assert set(others.statuses) <= {200}
    served, all_served = others.statuses[200], others.statuses[200] + floods.statuses[200]
    return served / all_served, floods


async def test_an_allowed_priority_does_not_precede_the_share_of_another_tenant(tmp_path: Path) -> None:
    """The attacker's key allows -1000. It orders the attacker's own requests, and the victim has its half."""
    share, floods = await share_of_others(tmp_path, {"priority": (-1000, 0)}, -1000)
    assert set(floods.statuses) == {200}
    assert abs(share - HALF) <= HALF * TOLERANCE


@pytest.mark.parametrize("priority", [-1, 1, -1000])
@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
async def test_a_key_without_an_allowance_asks_for_no_priority(tmp_path: Path, path: str, priority: int) -> None:
    """Neither by the header nor in the body; the refusal says what the key allows, and no worker has the request."""
    file = tmp_path / "keys"
    key, guarded = made(file), Guarded(file)
    bodies: dict[str, dict[str, Any]] = {
        COMPLETIONS: ASKED,
        "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
        "/v1/responses": {"model": "tiny", "input": "hi"},
        "/v1/embeddings": {"model": "tiny", "input": "hi"},
    }
    async with guarded.served() as http:
        for headers, more in (({"x-contrail-priority": str(priority)}, {}), ({}, {"priority": priority})):
            answer = await http.post(
                path, json=bodies[path] | more, headers={"authorization": f"Bearer {key}"} | headers
            )
            assert answer.status_code == 403
            error = answer.json()["error"]
            assert error["code"] == "priority_not_allowed"
            assert error["message"].startswith(f"this API key allows no priority but 0, and {priority} was asked for")
    assert not guarded.backend.requests


async def test_a_priority_is_bounded_by_the_allowance_of_its_key(tmp_path: Path) -> None:
    """At both ends, and one beyond each; Anthropic's clients read the refusal in their own form."""
    file = tmp_path / "keys"
    key, guarded = made(file, "team", "--priority", "-10:5"), Guarded(file)
    async with guarded.served() as http:
        for priority, status in ((-11, 403), (-10, 200), (0, 200), (5, 200), (6, 403)):
            assert await guarded.ask(http, key, **{"x-contrail-priority": str(priority)}) == status
        assert await guarded.ask(http, key) == 200
        refused = await http.post(
            "/v1/messages",
            json={"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]},
            headers={"x-api-key": key, "x-contrail-priority": "6"},
        )
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "permission_error"
        assert "allows priorities from -10 to 5, and 6 was asked for" in refused.json()["error"]["message"]
    assert [it.priority for it in guarded.backend.requests] == [-10, 0, 5, 0]
